"""Processes of `hifi` commands on this machine: forked from one that has imported their libraries, or started anew.

The start of a process imports for seconds, which is most of a short run. With `--fork` each slot of a
grid has a process that imports once, and then is forked for one run after the other (`cli/template.py`).
A run has a process of its own all the same: what ends it, or fills its memory, meets no other run.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from hifi_cli import stopping
from hifi_cli.errors import UsageError, logger

# Files of the drivers of GPUs: NVIDIA's, AMD's, and that of Linux on Windows. Every process that uses
# a GPU has one of them open.
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


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


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a `hifi` command in a new process, whatever PATH and the working directory hold.

    It ends with this process, however this process ends.

    Args:
        command: its first word, `hifi`, becomes this interpreter.
        log: the output is appended to it.
        environment: of the new process.
        options: of `subprocess.Popen`.
    """
    options = {**stopping.options_of_child(environment), **options}
    return _start_module("hifi_cli", command[1:], log, options)


def _start_module(
    module: str, words: Sequence[str], log: Path, options: Mapping[str, Any]
) -> "subprocess.Popen[bytes]":
    """Start a module of this package with a command line."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **options,
        )


class CannotFork(Exception):
    """A run cannot be forked, or would not be what it is in a new process; the message says why."""


@dataclass(frozen=True)
class Request:
    """A command that a process is forked for.

    Attributes:
        words: the command line after `hifi`.
        log: the file that its output is appended to.
    """

    words: list[str]
    log: str


class Slot:
    """Trains one run of a grid after the other: on one GPU, or on a part of the cores.

    A thread executes commands, while another one may stop them.

    Args:
        variables: what its processes have in their environment besides what this process has.
        forks: whether runs are forked, where that is possible.
        told: why runs were not forked; slots of a grid share it, so that each reason is said once.
    """

    def __init__(self, variables: Mapping[str, str], *, forks: bool, told: set[str]) -> None:
        self.environment = {**os.environ, **variables}
        self.forks = forks
        self.told = told
        self._template: Template | None = None
        # A signal is sent to it: the run, or the process to fork it from while that imports.
        self._running: subprocess.Popen[bytes] | ForkedRun | None = None
        self._stopped_by: int | None = None
        self._lock = threading.Lock()

    def execute(self, command: Sequence[str], log: Path) -> int:
        """Run a command to its end; returns its exit code.

        Args:
            command: of `hifi`.
            log: the file that its output is appended to.
        """
        run: ForkedRun | subprocess.Popen[bytes] | None = None
        if self.forks:
            run = self._fork(command, log)
        if run is None:
            # A session of its own: Ctrl-C reaches only the grid, which then stops its processes.
            run = start(command, log, self.environment, start_new_session=True)
        self._listen(run)
        code = run.wait()
        self._listen(None)
        return code

    def stop(self, number: int) -> None:
        """Send a signal to the command, and to every later one.

        Args:
            number: of the signal.
        """
        with self._lock:
            self._stopped_by = number
            if self._running:
                self._running.send_signal(number)

    def close(self) -> None:
        """End the process to fork from."""
        if self._template:
            self._template.close()

    def _listen(self, process: "subprocess.Popen[bytes] | ForkedRun | None") -> None:
        """Send signals to a process from now on, also one that has come before; None: to nothing."""
        with self._lock:
            self._running = process
            if process and self._stopped_by is not None:
                process.send_signal(self._stopped_by)

    def _fork(self, command: Sequence[str], log: Path) -> "ForkedRun | None":
        """Fork a run; None: that is not possible, and a line says why."""
        if self._template and not self._template.is_usable():
            self._template.close()
            self._template = None
        if not self._template:
            self._template = Template(self.environment, log)
        self._listen(self._template.process)
        try:
            return self._template.fork(command, log)
        except CannotFork as error:
            self.forks = False
            self._say(str(error))
            return None

    def _say(self, reason: str) -> None:
        """Say why no more runs are forked, unless the grid is being stopped."""
        if self._stopped_by is None and reason not in self.told:
            self.told.add(reason)
            logger.info(f"every run imports its libraries anew: {reason}")


class Template:
    """A process to fork runs from, one at a time. It imports while it waits for the first one.

    Args:
        environment: of the process and of its runs.
        log: what its imports print is appended to it.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        # Before the imports: what changes during them counts as changed.
        self._code = _state_of_code()
        self._connection, of_process = Pipe()
        number = of_process.fileno()
        options = {
            **stopping.options_of_child(environment, [number]),
            "start_new_session": True,
        }
        self.process = _start_module("hifi_cli.cli.template", [str(number)], log, options)
        of_process.close()

    def is_usable(self) -> bool:
        """Say whether it still runs, and has the code that a new process would import."""
        return self.process.poll() is None and self._code == _state_of_code()

    def fork(self, command: Sequence[str], log: Path) -> "ForkedRun":
        """Fork a process for a `hifi` command.

        Args:
            command: its first word is `hifi`.
            log: the file that its output is appended to.

        Raises:
            CannotFork: what it has imported does not allow it, or it has ended.
        """
        try:
            self._connection.send(Request(list(command[1:]), str(log)))
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise CannotFork(
                f"the process to fork them from has ended ({type(error).__name__})"
            ) from None
        if isinstance(answer, str):
            raise CannotFork(answer)
        return ForkedRun(answer, self)

    def exit_code(self) -> int:
        """Wait for the end of the run; returns its exit code, or -N if signal N has killed it.

        Raises:
            EOFError, OSError: the process that it was forked from has ended.
        """
        return int(self._connection.recv())

    def close(self) -> None:
        """Let the process end, and wait for it."""
        self._connection.close()
        self.process.wait()


def _state_of_code() -> dict[str, int]:
    """Give the time of the last change of each file of the program, and of the folder of libraries.

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


class ForkedRun:
    """A run in a process that was forked.

    Args:
        number: of the process.
        template: what it was forked from.
    """

    def __init__(self, number: int, template: Template) -> None:
        self.number = number
        self._template = template

    def send_signal(self, number: int) -> None:
        """Send a signal to the run, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.number, number)

    def wait(self) -> int:
        """Wait for the end of the run; returns its exit code, or -N if signal N has killed it."""
        try:
            return self._template.exit_code()
        except (EOFError, OSError):
            # Something has killed the process that it was forked from, and nothing tells its end any
            # more: it saves its checkpoint, and counts as killed by the same signal.
            self.send_signal(signal.SIGTERM)
            # Never 0, which would say that the run is done.
            return self._template.process.wait() or 1
