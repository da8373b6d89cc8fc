"""Files that are either whole or absent: atomic writes, locks, hashes, safe names."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hifi_cli.errors import MissingError, UsageError

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
    """A temporary path beside `path` that takes its name only when the block ends well."""
    make_directory(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
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
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented JSON; refuses NaN, which is no JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a readable {what} file ({error}); delete it and make it again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a {what} file (no JSON object); delete it and make it again")
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
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
