"""Files: their names, writing them whole, and reading them with errors of one line."""

import errno
import functools
import json
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from pydantic_core import from_json

from hifi_cli.digests import digest
from hifi_cli.errors import HifiError, MissingError, PlaceTaken, RunFailed, UsageError, logger
from hifi_cli.text import printable, well_formed

# A record has far less; a file with a line for each run or prediction may have more.
MAX_JSON_BYTES = 1 << 28
MAX_LINES_BYTES = 1 << 33
# Advice about most damaged files.
MAKE_AGAIN = "delete it and make it again"
# A rename to a directory that has files fails with one of these.
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
# Where the disk is read-only, or its owner another one, room changes nothing.
_NEVER_WRITTEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Pointers of Git LFS begin with this.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Files and directories that are being written end in this.
TEMPORARY_SUFFIX = ".hifi-part"
_WRITER = re.compile(r"\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.hifi-part$")
_DAY_SECONDS = 24 * 60 * 60
_BLOCK = 1 << 20
# Parts of the messages of torch.save where a write fails: its errors have no class of their own.
_TORCH_WRITERS = ("inline_container", "PytorchStreamWriter", "basic_ios", "iostream")


# --- names


def safe_name(name: str) -> str:
    """Return a name as one path component: never empty, never hidden, never outside of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def without_directory(word: str) -> str:
    """Return a word of a command; of an absolute path its name: what is shared names no directory of a machine."""
    path = Path(word)
    if path.is_absolute():
        return path.name
    # The path of `--data-dir=/home/me/glue`, or of `validation=/home/me/dev.csv`.
    option, equals, value = word.partition("=")
    if Path(value).is_absolute():
        return f"{option}{equals}{Path(value).name}"
    return word


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
        failure = _failure_of_writing(error, path)
        if failure is None:
            raise
        raise failure from None
    finally:
        _remove_part(temporary)


def _failure_of_writing(error: Exception, path: Path) -> HifiError | None:
    """Return the error that a user can understand; None: the path was not written for other reasons."""
    if isinstance(error, OSError) and error.errno in _IS_TAKEN and path.is_dir():
        return PlaceTaken(
            f"{path} exists, another process wrote it meanwhile: remove it, or name another place"
        )
    reason = _why_not_written(error, path.parent)
    if reason is None:
        return None
    advice = "make room or name another place"
    if isinstance(error, OSError) and error.errno in _NEVER_WRITTEN:
        advice = "name another place"
    return RunFailed(f"cannot write {path}: {reason}; nothing was changed: {advice}, and repeat")


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
        part.chmod(allowed_permissions(permissions))


def allowed_permissions(permissions: int) -> int:
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
        return not _is_running(int(writer["process"]))
    try:
        seconds_of_rest = time.time() - part.lstat().st_mtime
    except OSError:
        return False
    return seconds_of_rest > _DAY_SECONDS


def _is_running(process: int) -> bool:
    """Whether a process of this machine runs; one that cannot be asked counts as running."""
    try:
        # Signal 0 only asks whether the process is there.
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


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
        value = _with_texts(value, well_formed)
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON in which every text, those of keys too, is as `change` gives it."""
    if isinstance(value, dict):
        return {change(key): _with_texts(content, change) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(content, change) for content in value]
    if isinstance(value, str):
        return change(value)
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
    lines = read_file(path, MAX_LINES_BYTES).splitlines()
    return [json_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


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
        return dict(_with_texts(value, printable))
    return value
