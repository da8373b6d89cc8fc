"""Files that are written whole, JSON with errors of one line, locks, digests, file names and command lines."""

import errno
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from filelock import FileLock, SoftFileLock, Timeout
from pydantic_core import from_json

from hifi_cli.errors import MissingError, PlaceTaken, RunFailed, UsageError, logger
from hifi_cli.text import printable

# `is_locked` of another process holds a lock for less than this.
_LOCK_TIMEOUT_SECONDS = 0.5
# The clock's resolution is finer: a file that is older and has the same times has not changed.
_SETTLED_SECONDS = 2.0
# A record has far less; a file with a line for each run or prediction may have more.
MAX_JSON_BYTES = 1 << 28
MAX_LINES_BYTES = 1 << 33
# Advice about most damaged files.
MAKE_AGAIN = "delete it and make it again"
# A table of data with more columns is none.
MAX_COLUMNS = 10_000
# Any Parquet file may declare this much, and this many times more for each of its bytes.
_SMALL_ROWS = 100_000
_SMALL_BYTES = 1 << 28
_MAX_ROWS_PER_BYTE = 4
_MAX_COMPRESSION = 200
# A rename to a directory that has files fails with one of these.
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Pointers of Git LFS begin with this.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Files and directories that are being written end in this.
TEMPORARY_SUFFIX = ".hifi-part"
_WRITER = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.hifi-part$")
# Python has a surrogate for a byte that is not UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")
_DAY_SECONDS = 24 * 60 * 60
_BLOCK = 1 << 20
# Parts of the messages of torch.save where a write fails: its errors have no class of their own.
_TORCH_WRITERS = ("inline_container", "PytorchStreamWriter", "basic_ios", "iostream")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# --- names and commands


def safe_name(name: str) -> str:
    """Return a name as one path component: never empty, never hidden, never outside of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def well_formed(text: str) -> str:
    """Return a text with U+FFFD for each byte that is not UTF-8, as names of files may hold them."""
    return _SURROGATE.sub("\ufffd", text)


def without_directory(word: str) -> str:
    """Return a word of a command; of an absolute path its name: what is shared names no directory of a machine."""
    path = Path(word)
    return path.name if path.is_absolute() else word


def command_line(words: Iterable[str]) -> str:
    """Return words quoted for a shell, on one line; U+FFFD stands for what cannot be printed."""
    letters = list(shlex.join(words))
    for index, letter in enumerate(letters):
        if not letter.isprintable():
            letters[index] = "\ufffd"
    return "".join(letters)


def suffix_of_output(out: Path | None, known: Iterable[str], instead: str) -> str:
    """Return the suffix of the file that `--out` names, in lower case; empty where there is none.

    Args:
        out: the file; None: the text is printed.
        known: the suffixes of the formats that can be written.
        instead: what the user may do instead of giving the file one of these suffixes.

    Raises:
        UsageError: the suffix names another format.
    """
    if out is None:
        return ""
    suffix = out.suffix.lower()
    if suffix and suffix not in known:
        raise UsageError(
            f"--out {out}: '{suffix}' is not written; the name must end in {', '.join(known)}; {instead}"
        )
    return suffix


# --- writing


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a path for a new file or directory, which replaces `path` if the block raises nothing.

    The content is on the disk before it gets its name, and the name before this returns: a power
    failure leaves the former content or the new one, and what is done afterwards, such as removing
    a file that the new one makes needless, cannot reach the disk before it. What a killed process
    left in the same folder is removed first.

    Raises:
        PlaceTaken: it is a directory, and `path` is one that is not empty.
        RunFailed: it cannot be written, for example because the disk is full.
    """
    changed_folders = _make_folder(path.parent)
    _remove_parts_of_dead_writers(path.parent)
    temporary = path.with_name(_name_of_part(path.name))
    try:
        yield temporary
        _share(temporary)
        for part in (temporary, *temporary.rglob("*")):
            _reach_the_disk(part)
        temporary.replace(path)
        for folder in changed_folders:
            _reach_the_disk(folder)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _IS_TAKEN and path.is_dir():
            raise PlaceTaken(
                f"{path} exists, another process wrote it meanwhile: remove it, or name another place"
            ) from None
        reason = _why_not_written(error, path.parent)
        if reason is None:
            raise
        raise RunFailed(
            f"cannot write {path}: {reason}; nothing was changed: make room or name another place, and repeat"
        ) from None
    finally:
        _remove_part(temporary)


def _why_not_written(error: Exception, folder: Path) -> str | None:
    """Say why a write failed; None where the error is another one.

    torch and safetensors have errors of their own for a full disk, a quota and a limit of sizes.
    Neither the disk's free space nor an errno tells the latter two.
    """
    if isinstance(error, OSError):
        return str(error)
    text = str(error)
    is_of_torch = isinstance(error, RuntimeError) and any(name in text for name in _TORCH_WRITERS)
    is_of_safetensors = type(error).__name__ == "SafetensorError"
    if is_of_torch or is_of_safetensors:
        return "the disk is full, or a quota or a limit of file sizes is reached"
    # Another library's error on a full disk has words of its own.
    if shutil.disk_usage(folder).free < 1 << 16:
        return text
    return None


def _share(written: Path) -> None:
    """Give files the permissions of new ones: safetensors makes them unreadable for others."""
    for part in (written, *written.rglob("*")):
        permissions = 0o777 if part.is_dir() else 0o666
        part.chmod(_allowed(permissions))


def _allowed(permissions: int) -> int:
    """Return those of some permissions that new files may have."""
    # The permissions that new files lack can only be read by setting others.
    umask = os.umask(0)
    os.umask(umask)
    return permissions & ~umask


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder, and those above it; return those that have or will have a new name in them."""
    changed = [folder]
    while not changed[-1].exists():
        changed.append(changed[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _reach_the_disk(part: Path) -> None:
    """Wait until the content of a file, or the names in a directory, are on the disk."""
    # A directory can only be opened for reading, which is enough.
    handle = os.open(part, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network disks cannot say it.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)


def has_room(folder: Path, sizes: Sequence[int]) -> bool:
    """Whether files of these sizes in bytes can be written.

    They are written and removed again: a quota shows in no other way.
    """
    trials = [folder / _name_of_part("room") for _ in sizes]
    try:
        for trial, size in zip(trials, sizes, strict=True):
            with trial.open("wb") as file:
                for begin in range(0, size, _BLOCK):
                    file.write(bytes(min(_BLOCK, size - begin)))
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        return False
    finally:
        for trial in trials:
            _remove_part(trial)
    return True


# --- files and directories that are being written: .NAME.MACHINE-PROCESS-RANDOM.hifi-part


def _name_of_part(name: str) -> str:
    """Return a hidden name beside `name`, which says who writes; short enough where `name` is long."""
    return f".{name[:60]}.{_machine()}-{os.getpid()}-{uuid4().hex[:8]}{TEMPORARY_SUFFIX}"


@functools.cache
def _machine() -> str:
    """Return a digest of what has process ids of its own: a machine, or a container on it."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return digest([platform.node(), namespace], 8)


def _remove_parts_of_dead_writers(folder: Path) -> None:
    """Remove what killed processes have left in a folder."""
    for part in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        if _writer_is_dead(part):
            _remove_part(part)


def _writer_is_dead(part: Path) -> bool:
    """Whether the process that wrote a part has ended; on another machine, after a day of rest."""
    writer = _WRITER.search(part.name)
    if writer and writer["machine"] == _machine():
        # Signal 0 only asks whether the process is there.
        try:
            os.kill(int(writer["process"]), 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            pass
        return False
    try:
        return time.time() - part.lstat().st_mtime > _DAY_SECONDS
    except OSError:
        return False


def _remove_part(part: Path) -> None:
    """Remove a part; one that cannot be removed is left to a later writer."""
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
        return
    with suppress(OSError):
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_or_print(text: str, out: Path | None) -> None:
    """Write a text to the file that `--out` names, or print it."""
    if out is None:
        return print(text, end="")
    write_text(out, text)
    logger.info(f"written: {out}")


def json_text(value: Any) -> str:
    """Return a value as indented JSON, well formed; NaN, which JSON does not have, is refused."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # The name of a file need not be UTF-8, and JSON cannot hold such a name.
        value = _well_formed(value)
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _well_formed(value: Any) -> Any:
    """Return a value of JSON with well-formed texts."""
    if isinstance(value, dict):
        return {well_formed(key): _well_formed(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(content) for content in value]
    if isinstance(value, str):
        return well_formed(value)
    return value


# --- reading


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; see `json_object`.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object, or not a regular file.
    """
    return json_object(read_file(path, MAX_JSON_BYTES), str(path))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line.

    Raises:
        MissingError: there is no such file.
        UsageError: a line is not a JSON object; it is named.
    """
    return [
        json_object(line, f"{path}, line {index}")
        for index, line in enumerate(read_file(path, MAX_LINES_BYTES).splitlines(), start=1)
    ]


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is what Git leaves in its place without Git LFS."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file, or one that a link leads to: never a pipe or a device, which may have no end.

    Args:
        limit: the largest size in bytes; None: any.

    Raises:
        MissingError: there is no such file.
        UsageError: it is no regular file, or larger.
    """
    with _open_regular(path, limit) as file:
        return file.read()


def read_lines(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """Yield the lines of such a file, of which one at a time is in memory.

    Raises:
        MissingError: there is no such file.
        UsageError: it is no regular file, or larger.
    """
    with _open_regular(path, limit) as file:
        for line in file:
            yield line.rstrip(b"\r\n")


@contextmanager
def _open_regular(path: Path, limit: int | None) -> Iterator[BinaryIO]:
    """A regular file opened to be read, as `read_file` wants it."""
    try:
        # A pipe is opened without waiting for its other end.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingError(f"no file {path}") from None
    try:
        # The opened file is looked at: the path may name another file by now.
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{path} is no regular file: name one")
        if limit is not None and about.st_size > limit:
            raise UsageError(
                f"{path} is larger than such files are ({about.st_size:,} bytes): is it damaged?"
            )
        with open(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of pyarrow, if what it declares fits to its size.

    A file of a few kilobytes may declare millions of equal rows, or gigabytes of zeros.

    Raises:
        MissingError: there is no such file.
        UsageError: it is no Parquet file, or declares far more than files of data do.
    """
    # The import takes a tenth of a second, which readers of other files need not wait for.
    import pyarrow as pa
    from pyarrow import parquet

    content = read_file(path)
    largest = _SMALL_BYTES + _MAX_COMPRESSION * len(content)
    try:
        about = parquet.read_metadata(pa.BufferReader(content))
        if _declares_too_much(about, len(content)):
            raise UsageError(
                f"{path} declares {about.num_rows:,} rows and {about.num_columns:,} columns in"
                f" {len(content):,} bytes: no file of data is like that"
            )
        schema = about.schema.to_arrow_schema()
        texts = [field.name for field in schema if _holds_texts(field)]
        # Texts stay numbers in a list of distinct texts until their sizes are known.
        table = parquet.read_table(pa.BufferReader(content), read_dictionary=texts)
        if sum(_decoded_bytes(table[name]) for name in texts) > largest:
            raise UsageError(f"{path} repeats large texts: no file of data is like that")
        for name in texts:
            at = table.schema.get_field_index(name)
            plain = schema.field(name).type
            table = table.set_column(at, name, table[name].cast(plain))
        return table
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} is damaged: {' '.join(str(error).split()):.160}") from None


def _declares_too_much(about: Any, size: int) -> bool:
    """Whether the metadata of a Parquet file of `size` bytes declare more than a file of data does."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    declared_bytes = sum(group.total_byte_size for group in groups)
    has_many_rows = about.num_rows > _SMALL_ROWS + _MAX_ROWS_PER_BYTE * size
    has_many_columns = about.num_columns > MAX_COLUMNS
    is_large = declared_bytes > _SMALL_BYTES + _MAX_COMPRESSION * size
    return has_many_rows or has_many_columns or is_large


def _holds_texts(field: Any) -> bool:
    """Whether a column of Parquet holds texts, or bytes."""
    from pyarrow import types

    return bool(types.is_string(field.type) or types.is_binary(field.type))


def _decoded_bytes(column: Any) -> int:
    """Return the bytes of a column of texts without its list of distinct ones."""
    from pyarrow import compute, types

    total = 0
    for chunk in column.chunks:
        if types.is_dictionary(chunk.type):
            lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
        else:
            lengths = compute.binary_length(chunk)
        total += compute.sum(lengths).as_py() or 0
    return total


def json_object(text: bytes, origin: str, *, advice: str = MAKE_AGAIN) -> dict[str, Any]:
    """Return a JSON object, with U+FFFD in place of the control characters of its texts.

    Args:
        text: JSON.
        origin: where it was read from.
        advice: what a user can do if it is damaged.

    Raises:
        UsageError: it is none; names `origin`.
    """
    try:
        # This parser takes half the time of json.loads.
        value = from_json(text)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise UsageError(f"{origin} is damaged ({advice}): {error}") from None
    # Looking at every text takes time, and most files have nothing to replace.
    may_hold_controls = b"\\" in text or b"\x7f" in text or not text.isascii()
    if may_hold_controls:
        return dict(_printable(value))
    return value


def _printable(value: Any) -> Any:
    """Return a value of JSON whose texts have no control characters."""
    if isinstance(value, dict):
        return {printable(key): _printable(content) for key, content in value.items()}
    if isinstance(value, list):
        return [_printable(content) for content in value]
    if isinstance(value, str):
        return printable(value)
    return value


# --- digests


def digest(value: Any, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of a value as canonical JSON."""
    # Names of files need not be UTF-8.
    content = _CANONICAL.encode(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    identities = []
    newest = 0.0
    for file in files:
        about = file.stat()
        times = [about.st_mtime_ns, about.st_ctime_ns]
        identities.append([str(file.resolve()), about.st_size, *times, about.st_ino])
        newest = max(newest, about.st_mtime)
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


def _cache_directory() -> Path:
    """Return `~/.cache/hifi/digests`, or its place where XDG_CACHE_HOME says."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "hifi" / "digests"


# --- locks


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
    has_flock = _flock_error(path.parent) in (0, errno.EWOULDBLOCK)
    kind = FileLock if has_flock else SoftFileLock
    # filelock gives others no right to write, and then a group's next member could not lock the file.
    lock = kind(path, mode=_allowed(0o666))
    if not has_flock and path.exists():
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
    return path.exists() and _flock_error(path) != 0


def is_held_by_a_process(path: Path) -> bool:
    """Whether the kernel knows a living process that holds the lock file at `path`.

    Unlike `is_locked`, it is false where the lock is that the file exists: nobody may be left to
    remove it, and waiting for that would never end.
    """
    return path.exists() and _flock_error(path) == errno.EWOULDBLOCK


def _flock_error(path: Path) -> int:
    """Return 0 where the kernel's lock of a file is free, and EWOULDBLOCK where it is held.

    Another number is the error of a disk that has no locks.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(handle)
    return 0
