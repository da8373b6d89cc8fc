"""Which cells of a grid have finished or failed, which are left, and how long they still take."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hifi_cli.errors import RunFailed
from hifi_cli.grids.cells import GridCell
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.runs.identity import IdentityReader
from hifi_cli.tasks import task_spec
from hifi_cli.text import format_duration


@dataclass
class GridState:
    """State of the cells of a grid.

    Attributes:
        finished: cells with a result, those of former grids first.
        failed: cells that are not repeated, with the reason.
        finished_before: number of cells that were finished before the grid started.
        started: when the grid began, by the clock of this process in seconds.
    """

    cells: list[GridCell]
    results_dir: Path
    data_dir: Path | None = None
    finished: dict[GridCell, RunResult] = field(default_factory=dict)
    failed: dict[GridCell, str] = field(default_factory=dict)
    finished_before: int = 0
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls, cells: list[GridCell], results_dir: Path, data_dir: Path | None, *, force: bool
    ) -> "GridState":
        """Return the state of a grid that is about to start.

        Args:
            cells: of the grid.
            results_dir: where their runs are.
            data_dir: directory of the official data files.
            force: whether finished runs are repeated, so that none counts as finished.

        Raises:
            ConflictError: the directory of a cell holds another run: of another configuration, task,
                data, encoder, own code or version of the random draws.
        """
        finished: dict[GridCell, RunResult] = {}
        if not force:
            identities = IdentityReader(results_dir, data_dir)
            for cell in cells:
                task = task_spec.load(cell.config.task)
                result = identities.check_finished(cell.config, task)
                if result is not None:
                    finished[cell] = result
        return cls(cells, results_dir, data_dir, finished, finished_before=len(finished))

    def directory_of(self, cell: GridCell) -> RunDirectory:
        """Return the directory of a cell's run."""
        return RunDirectory.of(cell.config, self.results_dir)

    def has_result(self, cell: GridCell) -> bool:
        """Return whether there is a result in the cell's directory, of this run or of a former one."""
        return self.directory_of(cell).results.is_file()

    def take_result(self, cell: GridCell, code: int) -> bool:
        """Count a cell as finished if it has a result, done or diverged; return whether it has.

        Args:
            cell: the cell.
            code: exit code of the command that trained it.
        """
        if not self.has_result(cell):
            return False
        result = self.directory_of(cell).read_result()
        # A diverged run stores its result, and its command fails.
        has_diverged = code == RunFailed.exit_code and not result.is_done
        if code != 0 and not has_diverged:
            # The result is a former one, which --force would have replaced.
            return False
        self.finished[cell] = result
        return True

    @property
    def left(self) -> list[GridCell]:
        """The cells that neither finished nor failed, in the order in which they start.

        The longest come first, seed by seed, but after the cells that they start from.
        """
        ended = {*self.finished, *self.failed}
        waiting = [cell for cell in self.cells if cell not in ended]
        waiting.sort(key=lambda cell: (cell.config.seed, -cell.cost))
        ordered: list[GridCell] = []
        while waiting:
            next_cells = ready_cells(waiting)
            ordered += next_cells
            started = set(next_cells)
            waiting = [cell for cell in waiting if cell not in started]
        return ordered

    @property
    def diverged(self) -> dict[GridCell, str]:
        """Finished cells whose loss was not finite, with the reason."""
        return {cell: result.reason for cell, result in self.finished.items() if not result.is_done}

    def summary(self, running_cost: float = 0.0) -> str:
        """Return in words how many cells have ended, and about how long the others take.

        Args:
            running_cost: what of the cells that run has been trained, in the unit of their cost.
        """
        finished_now = list(self.finished)[self.finished_before :]
        done = running_cost + sum(cell.cost for cell in finished_now)
        left = sum(cell.cost for cell in self.left) - running_cost
        seconds = self._time_to_go.seconds(done, left, time.monotonic())
        counts = f"{len(self.finished)}/{len(self.cells)} done, {len(self.failed)} failed"
        if seconds is None:
            return counts
        return f"{counts}, about {format_duration(seconds)} to go"

    @cached_property
    def _time_to_go(self) -> "TimeToGo":
        """The estimate of how long the grid still takes."""
        return TimeToGo(self.started)


def ready_cells(waiting: Sequence[GridCell], running: Sequence[GridCell] = ()) -> list[GridCell]:
    """Return the waiting cells that start from no other cell that waits or runs."""
    unfinished = {cell.config.run_path for cell in [*waiting, *running]}
    ready = []
    for cell in waiting:
        # One that names itself need not wait: it fails, and says so.
        waits = cell.starts_from in unfinished and cell.starts_from != cell.config.run_path
        if not waits:
            ready.append(cell)
    if not ready and not running:
        # They start from one another: each fails, and says so.
        return list(waiting)
    return ready


class TimeToGo:
    """The time that a grid still takes, by what has been trained since it began.

    The trained part of the runs is known a few times a minute at most. Between two such times the clock
    goes on: the estimate becomes smaller by the seconds that have passed.

    Args:
        started: when the grid began, by the clock of this process in seconds.
    """

    def __init__(self, started: float) -> None:
        self.started = started
        self._known = (0.0, 0.0)
        self._ends_at = started

    def seconds(self, done: float, left: float, now: float) -> float | None:
        """Estimate how long the grid still takes; None: nothing has been trained yet.

        Args:
            done: what has been trained since the grid began, in the unit of the cells' cost.
            left: what is still to be trained.
            now: the time, by the clock of this process in seconds.
        """
        if not done:
            return None
        if (done, left) != self._known:
            self._known = (done, left)
            seconds_per_cost = (now - self.started) / done
            self._ends_at = now + seconds_per_cost * left
        return max(0.0, self._ends_at - now)
