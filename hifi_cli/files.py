"""Files that are either whole or absent: atomic writes, bounded reads, locks, hashes, safe names and command lines."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hifi_cli.errors import MissingError, RunFailed, SchemaError, UsageError

CHECKSUM = "checksum"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOOK_SECONDS = 0.5  # a lock is given up only after this: `is_locked` holds one for a moment
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_TEMPORARY = ".hifi-part"  # how the names of files and directories end that are being written
_MOST_JSON = 1 << 26  # bytes; results, manifests and scores have some thousands
_MOST_LINES = 1 << 30  # bytes; the predictions of the largest test split of GLUE have 40 million


def safe_name(name: str) -> str:
    """`name` as one path component: never empty, never hidden, never a way out of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def command_line(words: Iterable[str]) -> str:
    r"""`words` quoted for bash, on one line: a line break in a word is written as bash's $'\\x0a'."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_quoted, word))}'" for word in words)


def _quoted(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


def make_directory(path: Path) -> Path:
    """Create `path` and its parents.

    Raises:
        UsageError: it cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another directory") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write to {path}: no permission; choose another directory")
    return path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name only when the block ends well.

    Raises:
        RunFailed: the disk is full.
    """
    with _atomic(path, _temporary_file) as temporary:
        yield temporary


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """The same for a directory; `path` must not be there yet, or be an empty directory.

    Raises:
        RunFailed: the disk is full.
    """
    with _atomic(path, _temporary_directory) as temporary:
        yield temporary


@contextmanager
def _atomic(path: Path, make: Callable[[Path], tuple[Path, int]]) -> Iterator[Path]:
    make_directory(path.parent)
    _sweep(path)
    try:
        temporary, handle = make(path)
    except OSError as error:
        raise not_written(path, error) from None
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        for part in (temporary, *temporary.rglob("*")):
            # The 0600 of tempfile, which libraries write by too, would lock colleagues out of shared results.
            part.chmod((0o777 if part.is_dir() else 0o666) & ~umask)
            _sync(part)
        temporary.replace(path)
    except Exception as error:  # the writers of tensors have errors of their own for a full disk
        if _is_full(error, path.parent):
            raise not_written(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from None
        raise
    finally:
        _remove(temporary)
        os.close(handle)


def _temporary_file(path: Path) -> tuple[Path, int]:
    """A temporary file for `path`, locked as long as the returned descriptor is open."""
    while True:
        handle, name = tempfile.mkstemp(_TEMPORARY, f".{path.name}.", path.parent)
        if _hold(handle):
            return Path(name), handle


def _temporary_directory(path: Path) -> tuple[Path, int]:
    """The same for a directory."""
    while True:
        name = tempfile.mkdtemp(_TEMPORARY, f".{path.name}.", path.parent)
        handle = os.open(name, os.O_RDONLY)
        if _hold(handle):
            return Path(name), handle


def _hold(handle: int) -> bool:
    """Lock a new temporary file; False, and it is closed, where another process swept it before it was locked."""
    with suppress(OSError):  # a file system without locks: nothing is swept there
        fcntl.flock(handle, fcntl.LOCK_EX)
    if os.fstat(handle).st_nlink:
        return True
    os.close(handle)
    return False


def _sweep(path: Path) -> None:
    """Remove what killed processes left of `path`; what a living one writes is locked."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        with suppress(OSError):  # it is gone, or not ours to remove
            handle = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(leftover)
            finally:
                os.close(handle)


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """`value` with a checksum of its content, which `read_json` compares."""
    return {**value, CHECKSUM: digest({key: content for key, content in value.items() if key != CHECKSUM}, 64)}


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The content of a regular file.

    Raises:
        UsageError: it is a pipe, a device or a directory, or larger than `at_most` bytes.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe may never end, nor /dev/zero
        raise UsageError(f"{path} is not a regular file: give the path of a file")
    with path.open("rb") as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise UsageError(f"{path} is larger than {at_most:,} bytes, the most that is read of such a file")
    return content


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """Read a JSON object, and check it against its checksum where it has one.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object, or not the one that was written.
    """
    try:
        value = json.loads(read_bytes(path, at_most=_MOST_JSON).decode("utf-8"))
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a readable {what} file ({error}); delete it and make it again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a {what} file (no JSON object); delete it and make it again")
    if CHECKSUM in value and with_checksum(value) != value:
        raise UsageError(f"{path} is damaged (its content does not match its checksum); delete it and make it again")
    return value


def read_jsonl(path: Path, *, what: str) -> list[dict[str, Any]]:
    """Read a file of JSON objects, one a line.

    Raises:
        MissingError: there is no such file.
        UsageError: a line is not a JSON object; it is named.
    """
    try:
        text = read_bytes(path, at_most=_MOST_LINES).decode("utf-8")
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is damaged ({error}); train the run again with --force") from None
    rows = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is damaged (line {number}: {error}); train the run again with --force") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path} is damaged (line {number}: no JSON object); train the run again with --force")
        rows.append(row)
    return rows


def check_schema(value: dict[str, Any], schema: int, path: Path) -> None:
    """Refuse a stored file of another layout.

    Raises:
        SchemaError: its `schema` is missing or another one.
    """
    if value.get("schema") != schema:
        raise SchemaError(
            f"{path} has schema {value.get('schema')}, this version of hifi reads schema {schema}:"
            " use the version of hifi that wrote it, or delete it and make it again"
        )


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
    """Whether a living process holds the lock file at `path`, which is only read: the disk may be read-only."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the kernel's lock that filelock takes too
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
