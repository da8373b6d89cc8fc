"""The display of `hifi grid` while it trains: bars on a terminal, and elsewhere a line a minute."""

import logging
import time
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from hifi_cli.errors import logger
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.watch import RunWatch
from hifi_cli.text import abbreviate, printable

# Columns of a terminal that the bar takes at most, and below which there is none.
_BAR_WIDTH = 16
_NARROWEST_BAR = 4
# Between two lines about the whole grid, where nothing is redrawn.
_LINE_SECONDS = 60.0


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
