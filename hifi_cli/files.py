"""Atomic writes, bounded reads, locks, digests, safe file names and quoted command lines."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from hifi_cli.errors import MissingError, RunFailed, UsageError
from hifi_cli.wording import printable

logger = logging.getLogger("hifi")

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WITHOUT_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # as NFS and Lustre may be mounted
_LOCK_TIMEOUT_SECONDS = 0.5  # longer than `is_locked` of another process holds a lock
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
TEMPORARY_SUFFIX = ".hifi-part"  # of files and directories that are being written
_MAX_JSON_BYTES = 1 << 26  # results and scores have some thousands
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_MAX_JSONL_BYTES = 1 << 30  # the predictions of the largest test split of GLUE have 40 million


def safe_name(name: str) -> str:
    """`name` as one path component: never empty, never hidden, never outside of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def command_line(words: Iterable[str]) -> str:
    r"""`words` quoted for bash, on one line: a line break in a word is written as bash's $'\\x0a'."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_quoted, word))}'" for word in words)


def _quoted(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


def suffix_of_output(out: Path | None, known: Iterable[str], instead: str) -> str:
    """The suffix of the file that `--out` names, in lower case; empty where there is none.

    Args:
        known: the suffixes of the formats that can be written.
        instead: what the user may do instead of giving the file one of these suffixes.

    Raises:
        UsageError: the suffix names another format.
    """
    suffix = out.suffix.lower() if out else ""
    if suffix and suffix not in known:
        raise UsageError(f"--out {out}: '{suffix}' is not written; the name must end in {', '.join(known)}; {instead}")
    return suffix


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
    """A temporary file next to `path`, which replaces it when the block ends without an exception.

    Raises:
        RunFailed: the disk is full.
    """
    with _atomic(path, _temporary_file) as temporary:
        yield temporary


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """The same for a directory; `path` must not exist, or be an empty directory.

    Raises:
        RunFailed: the disk is full.
    """
    with _atomic(path, _temporary_directory) as temporary:
        yield temporary


@contextmanager
def _atomic(path: Path, create: Callable[[Path], Path]) -> Iterator[Path]:
    make_directory(path.parent)
    try:
        temporary = create(path)
    except OSError as error:
        raise not_written(path, error) from None
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        for part in (temporary, *temporary.rglob("*")):
            # tempfile and libraries create files with mode 0600: other users could not read shared results.
            part.chmod((0o777 if part.is_dir() else 0o666) & ~umask)
            _sync(part)
        temporary.replace(path)
    except Exception as error:  # libraries that write tensors have their own errors for a full disk
        if _is_full(error, path.parent):
            raise not_written(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from None
        raise
    finally:
        _remove(temporary)


def _temporary_file(path: Path) -> Path:
    handle, name = tempfile.mkstemp(TEMPORARY_SUFFIX, f".{path.name}.", path.parent)
    os.close(handle)
    return Path(name)


def _temporary_directory(path: Path) -> Path:
    return Path(tempfile.mkdtemp(TEMPORARY_SUFFIX, f".{path.name}.", path.parent))


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it exists."""
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
    """The error for a file that could not be written; a former file is unchanged."""
    if error.errno == errno.ENOSPC:
        return RunFailed(f"cannot write {path}: {error.strerror}; nothing was changed: make room and repeat the command")
    return RunFailed(f"cannot write {path}: {error.strerror}; nothing was changed: name another place")


def _is_full(error: Exception, directory: Path) -> bool:
    """Whether a write failed because the disk is full: the error says so, or there is almost no free space."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_FULL
    return not isinstance(error, (TypeError, ValueError)) and shutil.disk_usage(directory).free < 1 << 16


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """`value` as indented JSON; refuses NaN, which JSON does not have."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The content of a regular file.

    Raises:
        UsageError: it is a pipe, a device or a directory, or larger than `at_most` bytes.
        OSError: it cannot be read.
    """
    file_stat = path.stat()
    if not stat.S_ISREG(file_stat.st_mode):  # a pipe or /dev/zero may never end
        raise UsageError(f"{path} is not a regular file: give the path of a file")
    with path.open("rb") as file:
        content = file.read(min(file_stat.st_size, at_most) + 1)  # Python allocates that many bytes first
        if len(content) > file_stat.st_size:  # the file has grown
            content += file.read(at_most + 1 - len(content))
    if len(content) > at_most:
        raise UsageError(f"{path} is larger than {at_most:,} bytes, the maximum for such a file")
    return content


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """Read a JSON object without control characters in its texts.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object.
    """
    try:
        text = read_bytes(path, at_most=_MAX_JSON_BYTES).decode("utf-8")
        value = json.loads(text)
        if "\\" in text or "\x7f" in text or not text.isascii():  # else there is none; looking at every text takes time
            value = printable_values(value)
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a readable {what} file ({error}); delete it and make it again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a {what} file (no JSON object); delete it and make it again")
    return value


def printable_values(value: Any) -> Any:
    """A JSON value with U+FFFD in place of the control characters of its texts."""
    if isinstance(value, dict):
        return {printable(key): printable_values(content) for key, content in value.items()}
    if isinstance(value, list):
        return [printable_values(content) for content in value]
    return printable(value) if isinstance(value, str) else value


def read_jsonl(path: Path, *, what: str) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line.

    Raises:
        MissingError: there is no such file.
        UsageError: a line is not a JSON object; it is named.
    """
    try:
        text = read_bytes(path, at_most=_MAX_JSONL_BYTES).decode("utf-8")
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


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    return bytes_digest(_CANONICAL.encode(value).encode())[:length]


def bytes_digest(content: bytes) -> str:
    """The SHA-256 of some bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file at `path`; yields whether it is held. With `wait` it blocks until no other process holds it.

    The kernel releases the lock of a process that ended. On a file system without flock the lock is that the file exists.
    """
    make_directory(path.parent)
    lock = FileLock(path) if _has_flock(path.parent) else SoftFileLock(path)
    try:
        lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS)
    except Timeout:
        if isinstance(lock, SoftFileLock):
            logger.warning(f"{path} is in the way: if the process that it names has ended, delete this file")
        if wait:
            lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a running process holds the lock file at `path`; the file is only read, as the disk may be read-only."""
    return path.exists() and (_flock_is_held(path) if _has_flock(path.parent) else True)


def _has_flock(directory: Path) -> bool:
    """Whether the file system has locks: NFS and Lustre may be mounted without."""
    try:
        _flock_is_held(directory)
    except OSError as error:
        if error.errno not in _WITHOUT_FLOCK:
            raise
        return False
    return True


def _flock_is_held(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
