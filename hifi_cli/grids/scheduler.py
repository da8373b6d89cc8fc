"""The scheduler of a grid: submits jobs to an engine and reads from the files in run directories which cells are finished."""

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hifi_cli.files import make_directory
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.jobs import Job, JobOptions, blocks, scoring_jobs, scoring_key, training_jobs
from hifi_cli.results.directory import RunState, RunStatus, status
from hifi_cli.results.record import Failure

LAST_LINES = 12
_STOPPED = (130, 143)  # exit codes of a process that was told to stop: not a failure of its cell
_REFUSED = 2
_BUSY = 4
_MAX_LOSSES = 20  # vanished workers of one cell, or of one task's scores, before it counts as failed
BUSY_SECONDS = 3.0  # before a run that another process trains is tried again; then twice as long each time
_MAX_DOUBLINGS = 4
_FIRST_POLL_SECONDS = 1.0  # then twice as long each time, until a cell has finished; on NFS every poll is a request
_MAX_POLL_SECONDS = 30.0


@dataclass(frozen=True)
class JobOutcome:
    """How a job's process ended.

    Attributes:
        exit_code: negative for a signal; None where no process ended.
        lost: whether the worker vanished.
        reason: one line for a job without an exit code.
    """

    exit_code: int | None
    lost: bool = False
    reason: str = ""


class Engine(Protocol):
    """Where jobs run."""

    @property
    def processes(self) -> int:
        """Number of jobs that run at the same time, as far as known."""

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        """Run a job; its output goes to `log`."""

    def stop(self) -> None:
        """Ask every running process to stop, and wait until it has written its checkpoint."""

    def close(self) -> None:
        """Release what the engine holds."""


@dataclass
class GridProgress:
    """The state of every cell of a grid.

    Attributes:
        finished: finished cells.
        failed: cells that will not be repeated, with the last line of each log.
        running: jobs and their logs.
        attempts: failed attempts per cell.
        losses: vanished workers per cell.
        finished_before: number of cells that were finished before the grid started.
        started: time in seconds, by `time.monotonic`.
        last_end: when a cell finished last, likewise; `started` until one has.
    """

    cells: list[GridCell]
    finished: dict[GridCell, RunStatus] = field(default_factory=dict)
    failed: dict[GridCell, str] = field(default_factory=dict)
    running: dict["Future[JobOutcome]", tuple[Job, Path]] = field(default_factory=dict)
    attempts: Counter[GridCell] = field(default_factory=Counter)
    losses: Counter[GridCell] = field(default_factory=Counter)
    finished_before: int = 0
    started: float = field(default_factory=time.monotonic)
    last_end: float = field(default_factory=time.monotonic)

    def finish(self, cell: GridCell, status: RunStatus) -> None:
        """Count a cell as finished now."""
        self.finished[cell] = status
        self.last_end = time.monotonic()

    @property
    def left(self) -> int:
        """Number of cells that are neither finished nor failed."""
        return len(self.cells) - len(self.finished) - len(self.failed)

    @property
    def expected_seconds(self) -> float | None:
        """Remaining time from the measured times of finished runs, of the same method where there are; None without any.

        These times are those of training. Once a run of this grid is finished, they are scaled to the time that the grid took
        until its last finished run, which includes the start of processes and what runs side by side. Runs that were continued
        from checkpoints took less; the scale is not lowered by them. The time since then counts for the runs that are left.
        """
        seconds: dict[str, float] = defaultdict(float)
        costs: dict[str, float] = defaultdict(float)
        for cell, run_status in self.finished.items():
            if run_status.result and run_status.result.time_s:
                seconds[cell.method] += run_status.result.time_s
                costs[cell.method] += cell.cost
        if not costs:
            return None
        mean = sum(seconds.values()) / sum(costs.values())
        rates = {method: seconds[method] / cost for method, cost in costs.items()}
        left = (cell for cell in self.cells if cell not in self.finished and cell not in self.failed)
        new = list(self.finished.values())[self.finished_before :]
        trained_now = sum(status.result.time_s or 0.0 for status in new if status.result)
        least = 1 / max(1, len(self.running))
        scale = max(least, (self.last_end - self.started) / trained_now) if trained_now else least
        expected = scale * sum(cell.cost * rates.get(cell.method, mean) for cell in left)
        return max(0.0, expected - (time.monotonic() - self.last_end))

    @property
    def diverged(self) -> dict[GridCell, str]:
        """Cells whose loss was not finite, with the reason."""
        return {cell: status.detail for cell, status in self.finished.items() if status.state is RunState.DIVERGED}


class Scheduler:
    """Runs the unfinished cells of a grid; a finished cell is never repeated.

    Args:
        logs: directory in which each call of `run` creates its own directory, 1, 2, ..., for the output of its processes.
    """

    def __init__(
        self,
        cells: list[GridCell],
        options: JobOptions,
        logs: Path,
        *,
        retries: int = 0,
    ) -> None:
        self.options, self.logs, self.retries = options, logs, retries
        self.progress = GridProgress(cells)
        self._waiting: list[tuple[float, Job]] = []  # with the earliest time of each, by `time.monotonic`
        self._unscored: set[str] = set()
        self._scoring_attempts: Counter[tuple[str, bool]] = Counter()  # by scores, and whether the worker vanished
        self._busy: Counter[GridCell] = Counter()  # how often a cell was being trained by another process
        self._jobs_started = 0
        self._polls: dict[Future[JobOutcome], tuple[float, float]] = {}  # time of the next one, and seconds to the one after it

    def plan(self, processes: int) -> list[Job]:
        """Return the jobs that are left; jobs that score come first."""
        unfinished, damaged = [], []
        for cell in self.progress.cells:
            directory = cell.run_directory(self.options.results_dir)
            run_status = status(directory)
            if run_status.result and run_status.is_finished and self._is_of(cell, run_status):
                self.progress.finished[cell] = run_status
            else:
                unfinished.append(cell)
                damaged += [cell] if run_status.state is RunState.DAMAGED else []
        scoring = scoring_jobs(unfinished)
        self._unscored = set(scoring)
        self.progress.finished_before = len(self.progress.finished)
        return [*scoring.values(), *training_jobs(unfinished, processes, repeated=damaged)]

    def run(self, engine: Engine, show: Callable[[GridProgress], None]) -> GridProgress:
        """Run every job, repeat those that may succeed, and return the state of every cell."""
        self._waiting = [(0.0, job) for job in self.plan(engine.processes)]
        self.logs = _next_directory(self.logs) if self._waiting else self.logs
        try:
            self._start_jobs(engine)
            while self._waiting or self.progress.running:
                ended, _ = wait(self.progress.running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    job, log = self.progress.running.pop(future)
                    del self._polls[future]
                    self._end_job(job, future.result(), log)
                self._find_finished_cells()
                self._start_jobs(engine)  # first, so that the line counts the run that follows as running
                show(self.progress)
        except BaseException:
            engine.stop()
            self._find_finished_cells(at_once=True)
            raise
        return self.progress

    def _start_jobs(self, engine: Engine) -> None:
        now, waiting = time.monotonic(), []
        for start, job in self._waiting:
            if start > now or job.needs in self._unscored or len(self.progress.running) >= engine.processes:
                waiting.append((start, job))
                continue
            log = self.logs / f"{self._jobs_started + 1:04}-{job.name.split(' ')[0].replace('/', '-')}.log"
            future = engine.submit(job, log)
            self._jobs_started += 1
            self._polls[future] = (now + _FIRST_POLL_SECONDS, 2 * _FIRST_POLL_SECONDS)
            self.progress.running[future] = (job, log)
        self._waiting = waiting
        if waiting and not self.progress.running:
            time.sleep(0.2)

    def _find_finished_cells(self, *, at_once: bool = False) -> None:
        """Find cells that finished in processes that are still running, in those whose next poll is due."""
        now = time.monotonic()
        for future, (job, _) in self.progress.running.items():
            next_poll, pause = self._polls[future]
            if job.command != "train" or job.force or (now < next_poll and not at_once):
                continue
            waiting = [cell for cell in job.cells if cell not in self.progress.finished]
            first = next((index for index, cell in enumerate(waiting) if not self._has_finished(cell)), len(waiting))
            pause = _FIRST_POLL_SECONDS if first else pause
            self._polls[future] = (now + pause, min(2 * pause, _MAX_POLL_SECONDS))

    def _has_finished(self, cell: GridCell) -> bool:
        return cell.run_directory(self.options.results_dir).results.is_file() and self._check_finished(cell)

    def _check_finished(self, cell: GridCell) -> bool:
        """Add a cell to the finished ones if its run is finished, and return whether it is."""
        run_status = status(cell.run_directory(self.options.results_dir))
        finished = run_status.is_finished and self._is_of(cell, run_status)
        if finished:
            self.progress.finish(cell, run_status)
        return finished

    def _end_job(self, job: Job, outcome: JobOutcome, log: Path) -> None:
        if job.command == "score":
            return self._end_scoring(job, outcome, log)
        unfinished = tuple(cell for cell in job.cells if not self._check_finished(cell))
        if not unfinished:
            return None
        methods = dict.fromkeys(cell.method for cell in unfinished)
        if outcome.exit_code == _REFUSED and len(methods) > 1:  # one refused method ends a job before any training
            for method in methods:
                self._repeat(tuple(cell for cell in unfinished if cell.method == method), job)
            return None
        failed, others = unfinished[0], unfinished[1:]  # a job trains its cells in order
        if outcome.lost or outcome.exit_code in _STOPPED:
            self.progress.losses[failed] += 1
            if self.progress.losses[failed] < _MAX_LOSSES:
                return self._repeat(unfinished, job)
        lines = _reason(outcome, log)
        if outcome.exit_code == _BUSY and not self._is_taken(failed):
            self._repeat((failed,), job, after=BUSY_SECONDS * 2 ** min(self._busy[failed], _MAX_DOUBLINGS))
            self._busy[failed] += 1
        else:
            self.progress.attempts[failed] += 1
            self._record_failure(failed, job, outcome, lines, self.progress.attempts[failed])
            if self.progress.attempts[failed] <= self.retries:
                self._repeat((failed,), job)
            else:
                self.progress.failed[failed] = lines[-1]
        self._repeat(others, job)
        return None

    def _end_scoring(self, job: Job, outcome: JobOutcome, log: Path) -> None:
        key = scoring_key(job.cells[0])
        if outcome.exit_code == 0:
            self._unscored.discard(str(key))
            return
        vanished = outcome.lost or outcome.exit_code in _STOPPED
        self._scoring_attempts[str(key), vanished] += 1
        attempts = self._scoring_attempts[str(key), vanished]
        if attempts < (_MAX_LOSSES if vanished else 1 + self.retries):
            self._waiting.append((0.0, job))
        else:
            lines = _reason(outcome, log)
            for waiting_job in [waiting_job for _, waiting_job in self._waiting if waiting_job.needs == key]:
                for cell in waiting_job.cells:
                    self.progress.failed[cell] = f"its heads were not scored: {lines[-1]}"
                    self._record_failure(cell, job, outcome, lines, attempts)
            self._waiting = [(start, waiting_job) for start, waiting_job in self._waiting if waiting_job.needs != key]

    def _repeat(self, cells: tuple[GridCell, ...], job: Job, after: float = 0.0) -> None:
        if not cells:
            return
        damaged = [cell for cell in cells if status(cell.run_directory(self.options.results_dir)).state is RunState.DAMAGED]
        parts = (damaged, [cell for cell in cells if cell not in damaged])
        for part in parts:
            for block in blocks(part, len(part)) if part else []:
                repeated = replace(job, cells=tuple(block), force=part is damaged)
                self._waiting.append((time.monotonic() + after, repeated))

    def _record_failure(self, cell: GridCell, job: Job, outcome: JobOutcome, lines: list[str], attempts: int) -> None:
        failure = Failure(
            exit_code=outcome.exit_code,
            attempts=attempts,
            command=self.command(cell) if job.command == "train" else job.command_line(self.options),
            lines=lines,
        )
        failure.write(cell.run_directory(self.options.results_dir).failure)

    def command(self, cell: GridCell) -> str:
        """Return the plain command line that repeats one cell; one that diverged is finished, and repeated with --force."""
        run_status = self.progress.finished.get(cell)
        has_diverged = run_status is not None and run_status.state is RunState.DIVERGED
        return Job("train", (cell,), force=has_diverged).command_line(self.options)

    @staticmethod
    def _is_of(cell: GridCell, run_status: RunStatus) -> bool:
        return run_status.result is not None and run_status.result.config_hash == cell.config_hash

    def _is_taken(self, cell: GridCell) -> bool:
        """Return whether a cell's directory holds a run of another configuration."""
        directory = cell.run_directory(self.options.results_dir)
        return directory.config_file.is_file() and directory.read_config().hash != cell.config.hash


def _next_directory(parent: Path) -> Path:
    """Create a directory named by the next free number; a grid of the same name may run at the same time."""
    make_directory(parent)
    while True:
        number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdecimal()), default=0)
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)


def _reason(outcome: JobOutcome, log: Path) -> list[str]:
    """Return why a job ended without success: the last lines of its log, and the signal that killed it."""
    lines = last_lines(log) or [outcome.reason or f"exit code {outcome.exit_code}"]
    if outcome.exit_code is None or outcome.exit_code >= 0:
        return lines
    name = signal.Signals(-outcome.exit_code).name
    return [*lines, f"killed by {name}{' (too little memory?)' if name == 'SIGKILL' else ''}"]


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, without those of progress bars."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        text = file.read().decode("utf-8", "replace")
    return [line.rpartition("\r")[2].rstrip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
