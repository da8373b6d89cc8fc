"""What `hifi grid` shows while it trains: how far each run is, and what the commands warn of.

A run that trains writes its losses and scores to its metrics.jsonl, wherever its process is. This is
read here, as `hifi ls runs` reads it.
"""

import logging
import math
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from hifi_cli.errors import WARNING_MARK, logger
from hifi_cli.grids.cells import GridCell
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.progress import ProgressReader, RunProgress
from hifi_cli.tasks import task_spec
from hifi_cli.text import abbreviate, format_duration, printable

# Columns of a terminal that the bar takes at most, and below which there is none.
_BAR_WIDTH = 16
_NARROWEST_BAR = 4
# Between two lines about the whole grid, where nothing is redrawn.
_LINE_SECONDS = 60.0


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
        self.log_start = log.stat().st_size if log.is_file() else 0
        self._log_read = self.log_start
        self._reader = ProgressReader(directory.metrics)
        self._progress = RunProgress()
        # When a step was first seen and when it was last another one, by the clock of this process.
        self._first = (0.0, 0)
        self._latest = (0.0, 0)

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
        # Another process may have begun to train: the time until then is not of these steps.
        if progress.file_number != self._progress.file_number:
            self._first = (now, progress.step)
            self._latest = self._first
        elif progress.step != self._latest[1]:
            self._latest = (now, progress.step)
        self._progress = progress

    def seconds_left(self, now: float) -> float | None:
        """Estimate how long the run still trains; None: too few steps are known."""
        first_time, first_step = self._first
        latest_time, latest_step = self._latest
        steps_seen = latest_step - first_step
        if steps_seen <= 0 or self.steps is None:
            return None
        seconds_per_step = (latest_time - first_time) / steps_seen
        steps_left = max(0, self.steps - latest_step)
        return max(0.0, seconds_per_step * steps_left - (now - latest_time))

    def describe(self, now: float) -> str:
        """Say in one line how far the run is: epoch, score and loss of the last lines, time left."""
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


class GridDisplay:
    """Shows how far a grid and its runs are, on stderr.

    On a terminal a line for the grid and one for each run that trains are redrawn in place.
    Elsewhere a line says the same once a minute. With --quiet there is nothing.

    Args:
        cells: number of runs of the grid.
        console: where it is shown; None: stderr.
    """

    def __init__(self, cells: int, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        is_redrawn = console.is_terminal and not console.is_dumb_terminal
        self.is_redrawn = is_redrawn and logger.isEnabledFor(logging.INFO)
        # A line is cut where the terminal ends: one that is wrapped would move all below it.
        one_line = Column(no_wrap=True, overflow="ellipsis")
        self._bar_column = BarColumn(bar_width=_BAR_WIDTH)
        self._text_column = TextColumn("{task.description}", markup=False, table_column=one_line)
        self.progress = Progress(
            self._bar_column,
            self._text_column,
            console=console,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=2,
            disable=not self.is_redrawn,
        )
        self.bar = self.progress.add_task("starting", total=cells)
        self.bars: dict[GridCell, TaskID] = {}
        self.said_at = time.monotonic()

    def __enter__(self) -> "GridDisplay":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    @property
    def is_due(self) -> bool:
        """Whether there is something to show now."""
        return self.is_redrawn or time.monotonic() - self.said_at >= _LINE_SECONDS

    def show(self, summary: str, ended: int, runs: Sequence[RunWatch], now: float) -> None:
        """Show the grid as it is now.

        Args:
            summary: how far it is, in a few words.
            ended: number of runs that will not train any more.
            runs: those that train, as they were last looked at.
            now: the time, by the clock of this process in seconds.
        """
        if self.is_redrawn:
            self._redraw(summary, ended, runs, now)
            return
        self.said_at = now
        text = f"grid: {summary}"
        if runs:
            text += f"; {abbreviate([run.describe(now) for run in runs], '; ')}"
        logger.info(text)

    def _redraw(self, summary: str, ended: int, runs: Sequence[RunWatch], now: float) -> None:
        """Bring the bars up to date: that of the grid, and one for each run that trains."""
        texts = {run.cell: printable(run.describe(now)) for run in runs}
        self._make_room([summary, *texts.values()])
        self.progress.update(self.bar, completed=ended, description=self._fitting(summary))
        cells = [run.cell for run in runs]
        for cell in [*self.bars]:
            if cell not in cells:
                self.progress.remove_task(self.bars.pop(cell))
        for run in runs:
            if run.cell not in self.bars:
                self.bars[run.cell] = self.progress.add_task("", total=None)
            self.progress.update(
                self.bars[run.cell],
                total=run.steps,
                completed=run.step,
                description=self._fitting(texts[run.cell]),
            )

    def _make_room(self, texts: Sequence[str]) -> None:
        """Make the bars as narrow as the longest text needs; where too little is left, there are none."""
        # One column is between the bar and the text.
        room = self.progress.console.width - 1 - max(map(cell_len, texts))
        self._bar_column.bar_width = min(_BAR_WIDTH, room)
        if room < _NARROWEST_BAR:
            self.progress.columns = (self._text_column,)
        else:
            self.progress.columns = (self._bar_column, self._text_column)

    def _fitting(self, text: str) -> str:
        """Return the end of a text that is longer than a line: there are the score and the time."""
        width = self.progress.console.width
        if cell_len(text) <= width:
            return text
        start = 1
        while cell_len(text[start:]) >= width:
            start += 1
        return f"…{text[start:]}"
