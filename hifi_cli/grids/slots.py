"""The processes of a grid on this machine: as many at a time as there are slots."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import LifoQueue

from hifi_cli.errors import Terminated, logger
from hifi_cli.grids import processes
from hifi_cli.grids.forks import CannotFork, ForkedRun, ForkServer
from hifi_cli.grids.machine import slot_environments
from hifi_cli.grids.processes import Submit

# A slot waits for one of these, and sends it signals.
Process = subprocess.Popen[bytes] | ForkedRun


@contextmanager
def local_executor(jobs: int, *, forks: bool) -> Iterator[Submit]:
    """Yield what starts commands in a pool of processes here. An error or Ctrl-C stops them, and they write checkpoints.

    Args:
        jobs: processes at a time.
        forks: whether runs are forked from processes that have imported their libraries.
    """
    reasons_told: set[str] = set()
    slots = []
    for variables in slot_environments(jobs):
        slots.append(Slot(variables, forks=forks, reasons_told=reasons_told))
    # The slot that was freed last is used first: its fork server has imported already.
    free_slots: LifoQueue[Slot] = LifoQueue()
    for slot in reversed(slots):
        free_slots.put(slot)

    def execute(command: list[str], log: Path) -> int:
        # There are as many threads as slots: one is always free.
        slot = free_slots.get_nowait()
        try:
            return slot.execute(command, log)
        finally:
            free_slots.put(slot)

    pool = ThreadPoolExecutor(jobs)
    try:
        yield lambda command, log: pool.submit(execute, command, log)
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        # The signal that stops the grid stops its processes.
        number = error.number if isinstance(error, Terminated) else signal.SIGTERM
        for slot in slots:
            slot.stop(number)
        raise
    finally:
        # This waits for the processes.
        pool.shutdown()
        for slot in slots:
            slot.close()


class Slot:
    """A place where one run of a grid trains at a time: on one GPU, or on a part of the cores.

    A thread of the pool calls `execute`, while the main thread may call `stop`.

    Args:
        variables: what its processes have in their environment besides what this process has.
        forks: whether runs are forked, where that is possible.
        reasons_told: why runs were not forked; slots of a grid share it, so that each reason is said once.
    """

    def __init__(
        self, variables: Mapping[str, str], *, forks: bool, reasons_told: set[str]
    ) -> None:
        self._environment = {**os.environ, **variables}
        self._forks = forks
        self._reasons_told = reasons_told
        self._fork_server: ForkServer | None = None
        # Both threads use the following two, under the lock: the process to send a signal to, and
        # the signal that has stopped the slot.
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._stopped_by: int | None = None

    def execute(self, command: Sequence[str], log: Path) -> int:
        """Run a command to its end; returns its exit code.

        Args:
            command: of `hifi`.
            log: the file that its output is appended to.
        """
        run: Process | None = None
        if self._forks:
            run = self._fork(command, log)
        if run is None:
            # A session of its own: Ctrl-C reaches only the grid, which then stops its processes.
            run = processes.start(command, log, self._environment, start_new_session=True)
        self._send_signals_to(run)
        exit_code = run.wait()
        self._send_signals_to(None)
        return exit_code

    def stop(self, number: int) -> None:
        """Send a signal to the process, and to every later one.

        Args:
            number: of the signal.
        """
        with self._lock:
            self._stopped_by = number
            if self._process:
                self._process.send_signal(number)

    def close(self) -> None:
        """End the fork server."""
        if self._fork_server:
            self._fork_server.close()

    def _send_signals_to(self, process: Process | None) -> None:
        """Send signals to a process from now on; None: to nothing.

        `stop` may have been called after the start of the process, when it was not known here yet, or
        earlier: then the process gets the signal now.
        """
        with self._lock:
            self._process = process
            if process and self._stopped_by is not None:
                process.send_signal(self._stopped_by)

    def _fork(self, command: Sequence[str], log: Path) -> ForkedRun | None:
        """Fork a run; None: that is not possible, and a line says why."""
        if self._fork_server and not self._fork_server.is_usable():
            self._fork_server.close()
            self._fork_server = None
        if not self._fork_server:
            self._fork_server = ForkServer(self._environment, log)
        # The server may import for seconds before it forks, and ends at a signal until then.
        self._send_signals_to(self._fork_server.process)
        try:
            return self._fork_server.fork(command, log)
        except CannotFork as error:
            self._forks = False
            self._say_why_no_forks(str(error))
            return None

    def _say_why_no_forks(self, reason: str) -> None:
        """Log why no more runs are forked, once for all slots, unless the grid is being stopped."""
        if self._stopped_by is None and reason not in self._reasons_told:
            self._reasons_told.add(reason)
            logger.info(f"every run imports its libraries anew: {reason}")
