"""Runs that are forked from a process which has imported their libraries: the grid's side of it.

The start of a process imports for seconds, which is most of a short run. With `--fork` a fork server
(`cli/fork_server.py`) imports once, and then forks a process for one run after the other. A run has a
process of its own all the same: what ends it, or fills its memory, meets no other run.

The fork server of `multiprocessing` would not do. It is one for all slots, stays as it is when the
program's files change, forks also where the imports have started threads, and its processes end
without what was registered with `atexit`.

Grid and fork server talk over a connection: a `Command` is answered by `Forked`, and by `Ended` when
the run has ended; or by `Refused`, and then the server ends.
"""

import os
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from hifi_cli.errors import UsageError
from hifi_cli.grids import lifeline, processes


def refuse_forks() -> None:
    """Raise where this system cannot fork runs.

    Raises:
        UsageError: it is not Linux.
    """
    if sys.platform != "linux":
        raise UsageError(
            "--fork needs Linux: a Mac's libraries do not work in a fork of a process that has"
            " loaded them; leave it out"
        )


class CannotFork(Exception):
    """A run cannot be forked, or would not be what it is in a new process; the message says why."""


# --- what grid and fork server send one another


@dataclass(frozen=True)
class Command:
    """A command to fork a process for.

    Attributes:
        words: the command line after `hifi`.
        log: the file that its output is appended to.
    """

    words: list[str]
    log: str


@dataclass(frozen=True)
class Forked:
    """The process of a command has been forked; `pid` is its id."""

    pid: int


@dataclass(frozen=True)
class Refused:
    """Nothing can be forked from this server; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Ended:
    """The process of a command has ended, with this exit code, or -N if signal N has killed it."""

    exit_code: int


# --- the grid's side


class ForkServer:
    """A process to fork runs from, one at a time. It imports while it waits for the first one.

    Args:
        environment: of the process and of its runs.
        log: what its imports print is appended to it.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        # Noted before the imports: a file that changes during them counts as changed.
        self._code = _times_of_code()
        self.connection, servers_end = Pipe()
        number = servers_end.fileno()
        options = lifeline.popen_options(environment, (number,))
        # A session of its own: Ctrl-C reaches only the grid, which then stops its processes.
        options["start_new_session"] = True
        module = "hifi_cli.cli.fork_server"
        self.process = processes.start_module(module, [str(number)], log, options)
        servers_end.close()

    def is_usable(self) -> bool:
        """Return whether it still runs, and has the code that a new process would import."""
        return self.process.poll() is None and self._code == _times_of_code()

    def fork(self, command: Sequence[str], log: Path) -> "ForkedRun":
        """Fork a process for a `hifi` command.

        Args:
            command: its first word is `hifi`.
            log: the file that its output is appended to.

        Raises:
            CannotFork: what the server has imported does not allow it, or it has ended.
        """
        try:
            self.connection.send(Command(list(command[1:]), str(log)))
            answer: Forked | Refused = self.connection.recv()
        except (EOFError, OSError) as error:
            raise CannotFork(
                f"the process to fork them from has ended ({type(error).__name__})"
            ) from None
        if isinstance(answer, Refused):
            raise CannotFork(answer.reason)
        return ForkedRun(answer.pid, self)

    def close(self) -> None:
        """Let the process end, and wait for it."""
        self.connection.close()
        self.process.wait()


class ForkedRun:
    """A run in a process that was forked; it is waited for and told to stop as a Popen is.

    Args:
        pid: the id of its process.
        server: the fork server, which alone can wait for the process.
    """

    def __init__(self, pid: int, server: ForkServer) -> None:
        self._pid = pid
        self._server = server

    def send_signal(self, number: int) -> None:
        """Send a signal to the run, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def wait(self) -> int:
        """Wait for the end of the run; returns its exit code, or -N if signal N has killed it."""
        try:
            ended: Ended = self._server.connection.recv()
        except (EOFError, OSError):
            # Something has killed the fork server, and nothing tells the end of the run any more. The
            # run saves its checkpoint, and counts as killed by the signal that killed the server.
            self.send_signal(signal.SIGTERM)
            # Never 0, which would say that the run is done.
            return self._server.process.wait() or 1
        return ended.exit_code


def _times_of_code() -> dict[str, int]:
    """Return the time of the last change of each file of the program, and of the folder of libraries.

    The folder changes where a library is installed or removed.
    """
    paths = [Path(sysconfig.get_path("purelib"))]
    for folder, _, names in os.walk(Path(__file__).parent.parent):
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    times = {}
    for path in paths:
        # An editor's lock is a link to nothing, and a file may go in this moment.
        with suppress(OSError):
            times[str(path)] = path.stat().st_mtime_ns
    return times
