"""The live display of a run on a terminal: two lines that are redrawn."""

from collections.abc import Callable
from typing import Any

_REDRAWS_PER_SECOND = 2  # each costs about a millisecond


class ProgressDisplay:
    """Title and progress bar in the first line, status in the second; messages scroll above them.

    Args:
        fraction: how much of the run is finished, from 0 to 1.
    """

    def __init__(self, title: Callable[[], str], status: Callable[[], list[str]], fraction: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.title, self.status, self.fraction = title, status, fraction
        console = Console(stderr=True)
        is_terminal = console.is_terminal and not console.is_dumb_terminal
        self.live = Live(
            console=console,
            get_renderable=self.draw,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self.start = self.live.start if is_terminal else lambda: None
        self.stop = self.live.stop

    def draw(self) -> Any:
        """The two lines, as wide as the terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        first = Table.grid(padding=(0, 1), expand=True)
        first.add_column(no_wrap=True)
        first.add_column(ratio=1, min_width=8)
        first.add_row(Text(self.title(), overflow="ellipsis"), ProgressBar(total=1.0, completed=self.fraction()))
        return Group(first, Text("  " + "  ".join(self.status()), overflow="ellipsis", no_wrap=True, style="dim"))
