"""The lifeline of processes that a grid starts: they end with it, even where it is killed and can tell nobody.

Each of them inherits the reading end of a pipe, into which nothing is ever written. The kernel closes
the writing end when the grid's process ends, however it ends. A thread of each process waits for that,
and then stops its process as SIGTERM does.

Linux has a signal at the end of a parent (PR_SET_PDEATHSIG), but it comes at the end of the thread that
started the process, and macOS does not have it.
"""

import functools
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# Tells a process the number of the file that is its end of the pipe.
_VARIABLE = "HIFI_GRID_PIPE"


@functools.cache
def _reading_end() -> int:
    """Return the end of the pipe that processes inherit; only this process has the other end open."""
    reading, _ = os.pipe()
    return reading


def popen_options(
    environment: Mapping[str, str], inherited_files: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return arguments of `subprocess.Popen` for a process that ends with this one.

    Args:
        environment: of the new process.
        inherited_files: numbers of other open files that it gets.
    """
    reading = _reading_end()
    return {
        "env": {**environment, _VARIABLE: str(reading)},
        "pass_fds": (reading, *inherited_files),
    }


def end_with_the_grid() -> bool:
    """Stop this process as by SIGTERM as soon as the grid that started it has ended.

    Returns:
        Whether a grid started this process.
    """
    # Removed, because processes that this one starts do not inherit the pipe.
    number = os.environ.pop(_VARIABLE, "")
    if not number.isdecimal():
        return False
    threading.Thread(target=_stop_when_closed, args=[int(number)], daemon=True).start()
    return True


def _stop_when_closed(reading: int) -> None:
    """Wait until the other end of the pipe is closed, and send SIGTERM to the main thread."""
    # Reading fails where something else has closed the pipe: that tells nothing about the grid.
    with suppress(OSError):
        # This returns at the end of the grid alone.
        os.read(reading, 1)
        main_thread = threading.main_thread().ident
        if main_thread is not None:
            # A signal to the thread, not to the process, interrupts what the main thread waits for.
            signal.pthread_kill(main_thread, signal.SIGTERM)
