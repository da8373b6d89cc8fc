"""What a grid shows while it works: a live line on a terminal, plain lines otherwise."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hifi_cli.grids.scheduler import Board

logger = logging.getLogger("hifi")

_BAR = 12


def duration(seconds: float | None) -> str:
    """`1:02:03`, or nothing known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def line(board: Board) -> str:
    """Where a grid stands, in one line."""
    jobs = [job for job, _ in board.running.values()]
    running = sum(job.command == "train" and not board.found.keys() >= set(job.cells) for job in jobs)  # one cell at a time
    scoring = sum(job.command == "score" for job in jobs)
    at_work = f"{running} running" + (f", {scoring} scoring" if scoring else "")
    return (
        f"{len(board.found)}/{len(board.cells)} done, {at_work}, {len(board.failed)} failed, {board.left - running} left,"
        f" about {duration(board.expected_seconds)} to go"
    )


class GridDisplay:
    """Shows a board whenever it is called."""

    def __init__(self, bar: Any = None) -> None:
        self._bar, self._said = bar, (-1, -1)

    def __call__(self, board: Board) -> None:
        """Move the bar, or say a line when a cell was finished or given up."""
        counts = (len(board.found), len(board.failed))
        if self._bar is not None:
            names = ", ".join(job.name for job, _ in board.running.values())
            said = line(board)
            room = max(0, self._bar.console.width - _BAR - len(said) - 2)  # what stands last gives way on a narrow terminal
            self._bar.update(0, total=len(board.cells), completed=sum(counts), said=said, names=names[:room])
        elif counts != self._said and sum(counts) > board.before:
            logger.info(f"grid: {line(board)}")
        self._said = counts


@contextmanager
def view() -> Iterator[GridDisplay]:
    """A view fit for where stderr goes."""
    if not sys.stderr.isatty() or logger.level > logging.INFO:
        yield GridDisplay()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(_BAR), TextColumn("{task.fields[said]}"), TextColumn("[dim]{task.fields[names]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task("grid", total=None, said="", names="")
        yield GridDisplay(bar)
