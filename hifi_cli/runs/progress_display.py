"""The live view of a run on a terminal: two lines that redraw themselves."""

from collections.abc import Callable
from typing import Any

_PER_SECOND = 2  # redraws: each costs about a millisecond


class ProgressDisplay:
    """Name, bar and epoch in one line, the figures in the next; messages scroll above them."""

    def __init__(self, title: Callable[[], str], figures: Callable[[], list[str]], share: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.title, self.figures, self.share = title, figures, share
        console = Console(stderr=True)
        shown = console.is_terminal and not console.is_dumb_terminal
        self.live = Live(
            console=console, get_renderable=self.draw, refresh_per_second=_PER_SECOND, transient=True, redirect_stdout=False
        )
        self.start = self.live.start if shown else lambda: None
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
        first.add_row(Text(self.title(), overflow="ellipsis"), ProgressBar(total=1.0, completed=self.share()))
        return Group(first, Text("  " + "  ".join(self.figures()), overflow="ellipsis", no_wrap=True, style="dim"))
