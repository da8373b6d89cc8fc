"""The scheduler of a grid: gives jobs to an engine, and settles from the files they leave what is done and what is not."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hifi_cli.config.base import parse
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import RunConfig
from hifi_cli.files import make_directory
from hifi_cli.grids import jobs as jobs_of
from hifi_cli.grids.cells import Cell
from hifi_cli.grids.jobs import Job, Places
from hifi_cli.records.run_status import State, Status, record_failure, status, sweep

LAST_LINES = 12
_STOPPED = (130, 143)  # somebody else told the process to stop: no fault of its cell
_BUSY = 4
_MOST_LOSSES = 20  # of one cell to workers that vanished, before it counts as its own fault
_BUSY_SECONDS = 3.0


@dataclass(frozen=True)
class Outcome:
    """How a job's process ended.

    Attributes:
        exit_code: negative for a signal; None where there was no process to the end.
        lost: the worker vanished, or the process was told to stop.
        why: one line for a job that has no exit code.
    """

    exit_code: int | None
    lost: bool = False
    why: str = ""


class Engine(Protocol):
    """Where jobs run."""

    @property
    def processes(self) -> int:
        """How many jobs run at a time, as far as is known."""

    def submit(self, job: Job, log: Path) -> "Future[Outcome]":
        """Run a job, its output into `log`."""

    def stop(self) -> None:
        """Ask every running process to stop, and wait until it has written its checkpoint."""

    def close(self) -> None:
        """Give back what the engine holds."""


@dataclass
class Board:
    """Where every cell stands; what the progress view shows.

    Attributes:
        found: finished cells.
        failed: cells given up, with the last line each said.
        attempts: of a cell that failed on its own.
        losses: of a cell whose worker vanished.
        busy_until: when a cell that another process was writing is looked at again.
    """

    cells: list[Cell]
    found: dict[Cell, Status] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)
    running: dict["Future[Outcome]", tuple[Job, Path]] = field(default_factory=dict)
    attempts: Counter[Cell] = field(default_factory=Counter)
    losses: Counter[Cell] = field(default_factory=Counter)
    before: int = 0
    began: float = field(default_factory=time.monotonic)
    cost_before: float = 0.0

    @property
    def left(self) -> int:
        """Cells neither finished nor given up."""
        return len(self.cells) - len(self.found) - len(self.failed)

    @property
    def expected_seconds(self) -> float | None:
        """Time left, by the pace so far; None before the first cell."""
        done = sum(cell.cost for cell in self.found) - self.cost_before
        left = sum(cell.cost for cell in self.cells if cell not in self.found and cell not in self.failed)
        return (time.monotonic() - self.began) * left / done if done > 0 else None

    @property
    def diverged(self) -> dict[Cell, str]:
        """Cells whose loss was not finite."""
        return {cell: one.detail for cell, one in self.found.items() if one.state is State.DIVERGED}


class Scheduler:
    """Runs what is left of a grid; a finished cell is never repeated.

    Args:
        logs: where each call of `run` makes a directory of its own, 1, 2, ..., for what its processes print.
    """

    def __init__(self, cells: list[Cell], places: Places, logs: Path, *, retries: int = 0) -> None:
        self.places, self.logs, self.retries = places, logs, retries
        self.board = Board(cells)
        self._waiting: list[tuple[float, Job]] = []  # not before a time, by the clock of `time.monotonic`
        self._unscored: set[str] = set()
        self._number = 0

    def plan(self, processes: int) -> list[Job]:
        """The jobs that are left, those that score first."""
        left, damaged = [], []
        for cell in self.board.cells:
            found = status(cell.run_directory(self.places.results_dir), deltas=True)
            if found.is_finished and self._is_of(cell, found):
                self.board.found[cell] = found
            else:
                left.append(cell)
                damaged += [cell] if found.state is State.DAMAGED else []
        scoring = jobs_of.scoring_jobs(left)
        self._unscored = set(scoring)
        self.board.before = len(self.board.found)
        self.board.cost_before = sum(cell.cost for cell in self.board.found)
        return [*scoring.values(), *jobs_of.training_jobs(left, processes, damaged=damaged)]

    def run(self, engine: Engine, show: Callable[[Board], None]) -> Board:
        """Run every job to its end, repeat what is worth repeating, and tell how every cell stands."""
        self._waiting = [(0.0, job) for job in self.plan(engine.processes)]
        for cell in self.board.found:
            sweep(cell.run_directory(self.places.results_dir))
        self.logs = _next_directory(self.logs) if self._waiting else self.logs
        try:
            while self._waiting or self.board.running:
                self._start_what_can(engine)
                ended, _ = wait(self.board.running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    job, log = self.board.running.pop(future)
                    self._settle(job, future.result(), log)
                self._look()
                show(self.board)
        except BaseException:
            engine.stop()
            self._look()
            raise
        return self.board

    def _start_what_can(self, engine: Engine) -> None:
        now, still = time.monotonic(), []
        for when, job in self._waiting:
            if when > now or job.needs in self._unscored or len(self.board.running) >= engine.processes:
                still.append((when, job))
                continue
            self._number += 1
            log = self.logs / f"{self._number:04}-{job.name.split(' ')[0].replace('/', '-')}.log"
            self.board.running[engine.submit(job, log)] = (job, log)
        self._waiting = still
        if still and not self.board.running:
            time.sleep(0.2)

    def _look(self) -> None:
        """Take note of cells that finished inside processes that go on."""
        for job, _ in self.board.running.values():
            for cell in job.cells if job.command == "train" and not job.force else ():
                if cell not in self.board.found and (cell.run_directory(self.places.results_dir) / "results.json").is_file():
                    self._note(cell)

    def _note(self, cell: Cell) -> bool:
        found = status(cell.run_directory(self.places.results_dir))
        finished = found.is_finished and self._is_of(cell, found)
        if finished:
            self.board.found[cell] = found
        return finished

    def _settle(self, job: Job, outcome: Outcome, log: Path) -> None:
        if job.command == "score":
            return self._settle_scoring(job, outcome, log)
        unfinished = tuple(cell for cell in job.cells if not self._note(cell))
        if not unfinished:
            return None
        culprit, others = unfinished[0], unfinished[1:]
        if outcome.lost or outcome.exit_code in _STOPPED:
            self.board.losses[culprit] += 1
            if self.board.losses[culprit] < _MOST_LOSSES:
                return self._again(unfinished, job)
        if outcome.exit_code == _BUSY and not self._is_taken(culprit):
            self._again((culprit,), job, after=_BUSY_SECONDS)  # another process is at it, and will leave its result
        else:
            self.board.attempts[culprit] += 1
            lines = last_lines(log) or [outcome.why or f"exit code {outcome.exit_code}"]
            self._record(culprit, job, outcome, lines)
            if self.board.attempts[culprit] <= self.retries:
                self._again((culprit,), job)
            else:
                self.board.failed[culprit] = lines[-1]
        self._again(others, job)
        return None

    def _settle_scoring(self, job: Job, outcome: Outcome, log: Path) -> None:
        key, first = jobs_of.scoring_of(job.cells[0]), job.cells[0]
        if outcome.exit_code == 0:
            self._unscored.discard(str(key))
        elif outcome.lost or outcome.exit_code in _STOPPED or self.board.attempts[first] < self.retries:
            self.board.attempts[first] += not outcome.lost
            self._waiting.append((0.0, job))
        else:
            lines = last_lines(log) or [outcome.why or f"exit code {outcome.exit_code}"]
            for _, other in [pair for pair in self._waiting if pair[1].needs == key]:
                for cell in other.cells:
                    self.board.failed[cell] = f"its heads were not scored: {lines[-1]}"
                    self._record(cell, job, outcome, lines)
            self._waiting = [pair for pair in self._waiting if pair[1].needs != key]

    def _again(self, cells: tuple[Cell, ...], job: Job, after: float = 0.0) -> None:
        if not cells:
            return
        damaged = [cell for cell in cells if status(cell.run_directory(self.places.results_dir)).state is State.DAMAGED]
        parts = (damaged, [cell for cell in cells if cell not in damaged])
        for part in parts:
            for block in jobs_of.blocks(part, len(part)) if part else []:
                again = replace(job, cells=tuple(block), force=part is damaged)
                self._waiting.append((time.monotonic() + after, again))

    def _record(self, cell: Cell, job: Job, outcome: Outcome, lines: list[str]) -> None:
        record_failure(
            cell.run_directory(self.places.results_dir),
            exit_code=outcome.exit_code,
            attempts=self.board.attempts[cell],
            command=self.command(cell) if job.command == "train" else job.line(self.places),
            lines=lines,
        )

    def command(self, cell: Cell) -> str:
        """The plain command line that repeats one cell."""
        return Job("train", (cell,)).line(self.places)

    @staticmethod
    def _is_of(cell: Cell, found: Status) -> bool:
        return found.results is not None and found.results.get("config_hash") == cell.config.hash

    def _is_taken(self, cell: Cell) -> bool:
        """Whether a cell's directory holds a run of another configuration."""
        path = cell.run_directory(self.places.results_dir) / "config.yaml"
        return path.is_file() and parse(RunConfig, read_yaml(path), str(path)).hash != cell.config.hash


def _next_directory(parent: Path) -> Path:
    """A new directory, called by the first number that is free: a grid of the same name may run at the same time."""
    make_directory(parent)
    while True:
        number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdecimal()), default=0)
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)


def last_lines(log: Path) -> list[str]:
    """The last lines a process said, without those of progress bars."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        text = file.read().decode("utf-8", "replace")
    return [line.rpartition("\r")[2].rstrip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
