"""Progress display of a grid: totals and a row for each running cell on a terminal, plain lines otherwise."""

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import HifiError
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.scheduler import GridProgress
from hifi_cli.results.record import EpochMetrics
from hifi_cli.wording import format_duration

logger = logging.getLogger("hifi")

_BAR = 12
_MAX_ROWS = 16  # running cells that are shown
_SECONDS_BETWEEN_READS = 5.0


def status_line(progress: GridProgress) -> str:
    """Return the state of a grid in one line."""
    jobs = [job for job, _ in progress.running.values()]
    running = sum(job.command == "train" and not progress.finished.keys() >= set(job.cells) for job in jobs)
    scoring = sum(job.command == "score" for job in jobs)
    active = f"{running} running" + (f", {scoring} scoring" if scoring else "")
    return (
        f"{len(progress.finished)}/{len(progress.cells)} done, {active}, {len(progress.failed)} failed,"
        f" {progress.left - running} left, about {format_duration(progress.expected_seconds)} to go"
    )


class GridDisplay:
    """Shows the progress of a grid whenever it is called.

    Args:
        live: rich's live display; None: a log line when a cell has finished or failed.
        results_dir: where the running cells write their metrics.
    """

    def __init__(self, live: Any = None, results_dir: Path = Path("results")) -> None:
        self._live, self._results_dir, self._shown = live, results_dir, (-1, -1)
        self._rows: dict[GridCell, tuple[float, list[str]]] = {}  # with the time of each, by `time.monotonic`

    def __call__(self, progress: GridProgress) -> None:
        """Update the live display, or log a line when a cell has finished or failed."""
        counts = (len(progress.finished), len(progress.failed))
        if self._live is not None:
            self._live.update(self.draw(progress), refresh=True)
        elif counts != self._shown and sum(counts) > progress.finished_before:
            logger.info(f"grid: {status_line(progress)}")
        self._shown = counts

    def draw(self, progress: GridProgress) -> Any:
        """Return a bar with the totals, and a row for each running cell: name, epoch, score, time left."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = len(progress.finished) + len(progress.failed)
        totals = Table.grid(padding=(0, 1))
        totals.add_row(ProgressBar(total=len(progress.cells), completed=done, width=_BAR), Text(status_line(progress)))
        rows = Table.grid(padding=(0, 2))
        running = list(progress.running.values())
        for job, _ in running[:_MAX_ROWS]:
            cell = next((cell for cell in job.cells if cell not in progress.finished), None)
            if cell:
                texts = [f"  {job.name}"] if job.command == "score" else [f"  {cell.name}", *self._state_of(cell)]
                rows.add_row(*(Text(text, no_wrap=True) for text in texts), style="dim")
        if len(running) > _MAX_ROWS:
            rows.add_row(Text(f"  and {len(running) - _MAX_ROWS} more"), style="dim")
        return Group(totals, rows)

    def _state_of(self, cell: GridCell) -> list[str]:
        """Return epoch, score and time left of a running cell; its files are read every few seconds at most."""
        read_at, texts = self._rows.get(cell, (-math.inf, ["starting"]))
        if time.monotonic() - read_at > _SECONDS_BETWEEN_READS:
            texts = _read_state(cell, self._results_dir)
            self._rows[cell] = (time.monotonic(), texts)
        return texts


def _read_state(cell: GridCell, results_dir: Path) -> list[str]:
    directory = cell.run_directory(results_dir)
    epochs: dict[int, EpochMetrics] = {}
    with suppress(HifiError, OSError):  # not begun, or the last line is half written
        epochs = directory.read_epochs()
    if not epochs:
        return ["starting"]
    last, total = max(epochs), cell.config.epochs
    metric = str(registry.load("tasks", cell.task).get("primary"))
    has_score = metric in epochs[last].metrics or epochs[last].selection is not None
    score = f"{metric} {100 * epochs[last].selecting_score(metric):.2f}" if has_score else ""
    passed = time.time() - directory.config_file.stat().st_mtime  # written when training starts
    left = f"{format_duration(passed / last * (total - last))} left"
    return [f"epoch {min(last + 1, total)} of {total}", score, left]


@contextmanager
def display(results_dir: Path) -> Iterator[GridDisplay]:
    """Return a display for stderr: a live one on a terminal."""
    if not sys.stderr.isatty() or logger.level > logging.INFO:
        yield GridDisplay()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False) as live:
        yield GridDisplay(live, results_dir)
