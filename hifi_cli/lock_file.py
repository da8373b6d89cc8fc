"""Locks for file systems without flock: a file that names the process that holds it, and that this process refreshes."""

import hashlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

logger = logging.getLogger("hifi")

REFRESH_SECONDS = 60.0
EXPIRY_SECONDS = 600.0  # without a refresh: ten times longer, as clocks differ and servers pause


class LockFile:
    """A lock at a path; it is held while the file there has this object's content."""

    def __init__(self, path: Path) -> None:
        self._path, self._id = path, uuid.uuid4().hex
        holder = {"host": _host(), "pid": os.getpid(), "started": _start_time(os.getpid()), "id": self._id}
        self._content = json.dumps(holder)
        self._is_released = threading.Event()
        self._refresher = threading.Thread(target=self._refresh, daemon=True)

    def acquire(self) -> bool:
        """Take the lock unless a living process holds it, and return whether it was taken."""
        if is_held(self._path):
            return False
        own = self._path.with_name(f"{self._path.name}.{self._id}")
        own.write_text(self._content)
        try:
            if not self._create(own):
                return False
        except FileNotFoundError:  # a process that got the lock removed `own` as a leftover
            return False
        finally:
            own.unlink(missing_ok=True)
        self._refresher.start()
        return True

    def _create(self, own: Path) -> bool:
        """Give the lock file the content of `own`. A link is complete at once, so that no other process reads a half."""
        try:
            os.link(own, self._path)
        except FileExistsError:
            return self._take_over(own)
        return True

    def _take_over(self, own: Path) -> bool:
        """Replace the file of a dead holder. Of several processes only the one that creates the marker may do so."""
        content = _read(self._path)
        if content is None or is_held(self._path):
            return content == self._content  # NFS may repeat a link that succeeded, and report that the file exists
        marker = self._path.with_name(f"{self._path.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}")
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if time.time() - marker.stat().st_mtime > EXPIRY_SECONDS:  # its process was killed here
                marker.unlink(missing_ok=True)
            return False
        try:
            if _read(self._path) != content:  # another process was faster
                return False
            own.replace(self._path)
            return True
        finally:
            marker.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the file, if it is still this object's."""
        self._is_released.set()
        self._refresher.join()
        if _read(self._path) == self._content:
            self._path.unlink()

    def _refresh(self) -> None:
        while not self._is_released.wait(REFRESH_SECONDS):
            with suppress(OSError):  # a server that does not answer: the next refresh tries again
                if _read(self._path) != self._content:
                    logger.warning(
                        f"{self._path}: another process has taken this lock over; this process was stopped for too long"
                    )
                    return
                os.utime(self._path)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock file: on this host it runs, on another one it has refreshed the file lately."""
    content = _read(path)
    if not content:  # there is none, or it was created in order to try flock
        return False
    holder = json.loads(content)
    if holder["host"] == _host():
        return bool(_start_time(holder["pid"]) == holder["started"])
    try:
        return time.time() - path.stat().st_mtime < EXPIRY_SECONDS
    except FileNotFoundError:
        return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


@cache
def _host() -> str:
    """What process ids refer to: the host, since it was started, and the container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # systems without /proc
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/pid").readlink())]
    return " ".join(parts)


def _start_time(pid: int) -> str | None:
    """When a process started, by which it is told from a later one of the same id; None if it has ended."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return listed.stdout.strip() or None
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else fields[18]
