"""The commands, one thin file each; Windows is refused before a module is imported that it lacks."""

import sys

# Windows has no locks of files by flock, and no signals by which a scheduler warns.
if sys.platform == "win32":
    print(
        "hifi: Windows is not supported: use Linux, macOS, or the Windows Subsystem for Linux",
        file=sys.stderr,
    )
    raise SystemExit(3)
