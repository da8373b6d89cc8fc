"""Files that are either whole or absent: atomic writes, locks, hashes, safe names."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hifi_cli.errors import MissingError, RunFailed, UsageError

_CHECKSUM = "checksum"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOOK_SECONDS = 0.5  # a lock is given up only after this: `is_locked` holds one for a moment
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(name: str) -> str:
    """`name` as one path component: never empty, never hidden, never a way out of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def make_directory(path: Path) -> Path:
    """Create `path` and its parents.

    Raises:
        UsageError: it cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another --results-dir") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write to {path}: no permission; choose another --results-dir")
    return path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name only when the block ends well.

    Raises:
        RunFailed: the disk is full.
    """
    make_directory(path.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise not_written(path, error) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's 0600 would lock colleagues out of shared results
        temporary.replace(path)
    except Exception as error:  # the writers of tensors have errors of their own for a full disk
        if _is_full(error, path.parent):
            raise not_written(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def not_written(path: Path, error: OSError) -> RunFailed:
    """The error of a file that could not be written, which left what was there before as it was."""
    return RunFailed(f"cannot write {path}: {error.strerror}; what stood there is intact: make room and repeat the command")


def _is_full(error: Exception, directory: Path) -> bool:
    """Whether a writer failed for want of room: it says so, or there is next to none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return not isinstance(error, (TypeError, ValueError)) and shutil.disk_usage(directory).free < 1 << 16


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented JSON; refuses NaN, which is no JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """`value` with a checksum of its content, which `read_json` compares."""
    return {**value, _CHECKSUM: digest({key: content for key, content in value.items() if key != _CHECKSUM}, 64)}


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """Read a JSON object, and check it against its checksum where it has one.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object, or not the one that was written.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a readable {what} file ({error}); delete it and make it again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a {what} file (no JSON object); delete it and make it again")
    if _CHECKSUM in value and sealed(value) != value:
        raise UsageError(f"{path} is damaged (its content does not match its checksum); delete it and make it again")
    return value


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file at `path`; yields whether it was had.

    With `wait` it blocks until the holder is gone; a dead holder's lock is free (the kernel drops it).
    """
    from filelock import FileLock, Timeout

    make_directory(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else _LOOK_SECONDS)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock file at `path`."""
    from filelock import FileLock, Timeout

    if not path.is_file():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
