"""The runs of a grid while they train: how far each of them is, and what its commands print.

A run that trains writes its losses and scores to its metrics.jsonl, wherever its process is. This is
read here, as `hifi ls runs` reads it.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hifi_cli.errors import WARNING_MARK, HifiError, logger
from hifi_cli.grids.cells import GridCell
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.progress import ProgressReader, RunProgress
from hifi_cli.records.signs import signs_of
from hifi_cli.tasks import task_spec
from hifi_cli.text import format_duration


@dataclass(frozen=True)
class _SeenStep:
    """The step of a run at a time, by the clock of this process in seconds."""

    time: float
    step: int


class RunWatch:
    """A run of a grid, as its files show it from outside of its process.

    Args:
        cell: the run.
        directory: of the run.
        log: what the commands of the run print; what is in it already is of earlier grids.
    """

    def __init__(self, cell: GridCell, directory: RunDirectory, log: Path) -> None:
        self.cell = cell
        self.label = cell.config.run_label
        self.directory = directory
        self.log = log
        self._log_start = log.stat().st_size if log.is_file() else 0
        self._log_read = self._log_start
        self._reader = ProgressReader(directory.metrics)
        self._progress = RunProgress()
        # The speed of the run is that between these two: the first step that was seen of the process
        # that trains, and the last time that the step was another one.
        self._first = _SeenStep(0.0, 0)
        self._latest = self._first

    @property
    def is_training(self) -> bool:
        """Whether a process has begun the run and not ended it."""
        return self.directory.is_locked

    @cached_property
    def primary(self) -> str:
        """The metric that is the score of the run."""
        config = self.cell.config
        return task_spec.load(config.task).with_primary(config.primary_metric).primary

    @property
    def step(self) -> int:
        """The last optimizer step that is known."""
        return self._progress.step

    @property
    def steps(self) -> int | None:
        """The optimizer steps of the whole run; None: nothing says how many.

        They are exact after the first epoch, up to the steps between two lines.
        """
        config = self.cell.config
        per_epoch = self._progress.steps_per_epoch
        if per_epoch is None:
            rows = self.cell.rows
            if rows is None:
                return None
            per_epoch = math.ceil(rows / config.batch_size)
        return math.ceil(config.epochs * per_epoch)

    @property
    def cost_done(self) -> float:
        """The trained part of the run, in the unit of the cell's cost; 0 where nothing is known."""
        if not self.steps:
            return 0.0
        return self.cell.cost * min(1.0, self.step / self.steps)

    def look(self, now: float) -> None:
        """Read what the run has written since the last look.

        Args:
            now: the time, by the clock of this process in seconds.
        """
        progress = self._reader.read()
        if progress is None:
            return
        seen = _SeenStep(now, progress.step)
        if progress.file_number != self._progress.file_number:
            # Another process has begun to train: the time until now is not of its steps.
            self._first = seen
            self._latest = seen
        elif seen.step != self._latest.step:
            self._latest = seen
        self._progress = progress

    def seconds_left(self, now: float) -> float | None:
        """Estimate how long the run still trains; None: too few steps are known."""
        steps_seen = self._latest.step - self._first.step
        if steps_seen <= 0 or self.steps is None:
            return None
        seconds_per_step = (self._latest.time - self._first.time) / steps_seen
        steps_left = max(0, self.steps - self._latest.step)
        seconds_since = now - self._latest.time
        return max(0.0, seconds_per_step * steps_left - seconds_since)

    def describe(self, now: float) -> str:
        """Return in one line how far the run is: epoch, score and loss of the last lines, time left."""
        progress = self._progress.describe(self.cell.config.epochs, self.primary)
        text = f"{self.label}: {progress}"
        left = self.seconds_left(now)
        if left is not None:
            text += f", about {format_duration(left)} left"
        return text

    def new_warnings(self) -> list[str]:
        """Return what the run's commands have warned of since the last call."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_read)
                whole_lines, end, _ = file.read().rpartition(b"\n")
        except OSError:
            # The command has not begun, or a shared disk is away for a moment: a grid of hours does
            # not end because of that.
            return []
        self._log_read += len(whole_lines) + len(end)
        lines = whole_lines.decode(errors="replace").split("\n")
        return [line.removeprefix(WARNING_MARK) for line in lines if line.startswith(WARNING_MARK)]

    def printed_lines(self) -> list[str]:
        """Return the lines that the run's commands have printed, without empty ones."""
        if not self.log.is_file():
            return []
        content = self.log.read_bytes()[self._log_start :]
        lines = []
        for line in content.decode(errors="replace").split("\n"):
            # A progress bar is written over and over in one line; its last state counts.
            text = line.rpartition("\r")[2].strip()
            if text:
                lines.append(text)
        return lines

    def signs(self) -> list[str]:
        """Return the warnings about the score of the run that its command ends with."""
        try:
            result = self.directory.read_result()
        except (HifiError, OSError):
            # There is no result yet, or it cannot be read in this moment.
            return []
        config = self.cell.config
        signs = signs_of([result], methods=[config.method], tasks=[config.task])
        return [f"note: {sign}" for sign in signs]


class WarningsOfRuns:
    """Logs what the commands of a grid warn of, once for all runs with the same warning."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say_new(self, run: RunWatch) -> None:
        """Log what the commands of a run have warned of since the last call.

        Signs against its score are left out: the grid logs them at its end, about all runs.
        """
        texts = run.new_warnings()
        if not texts:
            return
        signs = run.signs()
        for text in texts:
            if text in signs or text in self._said:
                continue
            self._said.add(text)
            if not text.startswith(run.label):
                text = f"{run.label}: {text}"
            logger.warning(text)
