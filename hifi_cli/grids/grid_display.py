"""Progress display of a grid: a live line on a terminal, plain lines otherwise."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hifi_cli.durations import format_duration
from hifi_cli.grids.scheduler import GridProgress

logger = logging.getLogger("hifi")

_BAR = 12


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
    """Shows the progress of a grid whenever it is called."""

    def __init__(self, bar: Any = None) -> None:
        self._bar, self._shown = bar, (-1, -1)

    def __call__(self, progress: GridProgress) -> None:
        """Update the bar, or log a line when a cell has finished or failed."""
        counts = (len(progress.finished), len(progress.failed))
        if self._bar is not None:
            names = ", ".join(job.name for job, _ in progress.running.values())
            text = status_line(progress)
            room = max(0, self._bar.console.width - _BAR - len(text) - 2)  # a narrow terminal cuts the names
            self._bar.update(0, total=len(progress.cells), completed=sum(counts), text=text, names=names[:room])
        elif counts != self._shown and sum(counts) > progress.finished_before:
            logger.info(f"grid: {status_line(progress)}")
        self._shown = counts


@contextmanager
def display() -> Iterator[GridDisplay]:
    """Return a display for stderr: a live one on a terminal."""
    if not sys.stderr.isatty() or logger.level > logging.INFO:
        yield GridDisplay()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(_BAR), TextColumn("{task.fields[text]}"), TextColumn("[dim]{task.fields[names]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task("grid", total=None, text="", names="")
        yield GridDisplay(bar)
