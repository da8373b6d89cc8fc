"""Locks between processes: a lock file that one process at a time holds."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from hifi_cli.errors import logger
from hifi_cli.files import allowed_permissions

# `is_locked` of another process tries a lock, and holds it for less than this.
_LOCK_TIMEOUT_SECONDS = 0.5


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file at `path`; yields whether it is held.

    The kernel releases the lock of a process that ended. Where the disk has no locks (as NFS and
    Lustre may be mounted), the lock is that the file exists.

    Args:
        path: of the lock file.
        wait: whether to wait until no other process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    has_locks = _state(path.parent) is not _State.UNKNOWN
    # filelock gives others no right to write, and then a group's next member could not lock the file.
    mode = allowed_permissions(0o666)
    lock = FileLock(path, mode=mode) if has_locks else SoftFileLock(path, mode=mode)
    if not has_locks and path.exists():
        logger.warning(
            f"{path} is in the way: if the process that it names has ended, delete this file"
        )
    # filelock waits without an end where the timeout is negative.
    timeout = -1 if wait else _LOCK_TIMEOUT_SECONDS
    with suppress(Timeout):
        lock.acquire(timeout=timeout)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file at `path`, on a read-only disk too."""
    return path.exists() and _state(path) is not _State.FREE


def is_held_by_a_process(path: Path) -> bool:
    """Whether the kernel knows a living process that holds the lock file at `path`.

    Unlike `is_locked`, it is false where the lock is that the file exists: nobody may be left to
    remove it, and waiting for that would never end.
    """
    return path.exists() and _state(path) is _State.HELD


class _State(Enum):
    """The state of a file's lock, as the kernel says it."""

    FREE = auto()
    HELD = auto()
    # The disk has no locks.
    UNKNOWN = auto()


def _state(path: Path) -> _State:
    """Ask the kernel about the lock of a file or folder, by taking it for a moment."""
    handle = os.open(path, os.O_RDONLY)
    try:
        # A shared lock: two processes that ask at a time do not see each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _State.HELD
    except OSError:
        return _State.UNKNOWN
    finally:
        os.close(handle)
    return _State.FREE
