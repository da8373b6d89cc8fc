"""Values that some files decide, computed once and kept in the user's cache directory."""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hifi_cli.digests import digest, file_digest
from hifi_cli.errors import RunFailed
from hifi_cli.files import write_text

# The clock's resolution is finer: a file that is older and has the same times has not changed.
_SETTLED_SECONDS = 2.0


def cached_file_digest(path: Path) -> str:
    """Return `file_digest`, remembered for a file of the same path, size and times.

    Weights take seconds to read, and a command that finds a run finished needs nothing else of them.
    """
    return str(remembered("sha256", [path], lambda: file_digest(path)))


def remembered(what: str, files: Sequence[Path], compute: Callable[[], Any]) -> Any:
    """Return a JSON value that some files decide, computed once for files of the same path, size and times.

    It is kept in the user's cache directory. A cache that cannot be read or written costs time only.

    Args:
        what: what is computed of the files, and with which settings.
        files: all files that decide the value.
        compute: computes it.
    """
    identities = [_identity(file) for file in files]
    newest = max((file.stat().st_mtime for file in files), default=0.0)
    if abs(time.time() - newest) < _SETTLED_SECONDS:
        # A file that has just been written may be written again within the clock's resolution.
        return compute()
    key = digest([what, identities], 32)
    store = _cache_directory() / key[:2] / f"{key}.json"
    with suppress(OSError, ValueError):
        return json.loads(store.read_bytes())
    value = compute()
    with suppress(RunFailed, OSError):
        write_text(store, json.dumps(value))
    return value


def _identity(file: Path) -> list[Any]:
    """Return what is another for another content of a file: path, size, times and inode."""
    about = file.stat()
    return [str(file.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def _cache_directory() -> Path:
    """Return `~/.cache/hifi/digests`, or its place where XDG_CACHE_HOME says."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "hifi" / "digests"
