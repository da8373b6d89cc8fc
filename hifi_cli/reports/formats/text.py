"""Tables for a terminal: best bold, second underlined, footnotes and missing runs below."""

import io
import sys
from collections.abc import Sequence

from hifi_cli.reports.table import Cell, Heading, Table, deviation, line_label, number

STYLES = {1: "bold", 2: "underline"}


def render(tables: Sequence[Table], width: int | None = None) -> str:
    """Draw them one below the other, in colour on a terminal.

    Args:
        width: columns of the terminal; None: as it is, or as wide as needed where there is none.
    """
    return "\n".join(_draw(table, width) for table in tables)


def below(table: Table) -> str:
    """Footnotes, remarks and missing runs, a line each."""
    lines = [f"{mark}: {text}" for text, mark in table.footnotes.items()]
    lines += [f"note: {text}" for text in table.notes]
    lines += [f"missing: {one.command}" for one in table.missing]
    return "".join(f"{line}\n" for line in lines)


def _draw(table: Table, width: int | None) -> str:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(title=table.title, title_justify="left", title_style="")
    grid.add_column(table.corner, no_wrap=True)
    for heading in table.headings:
        grid.add_column(heading.label, justify="right", no_wrap=width is None and not sys.stdout.isatty())
    for line in table.lines:
        cells = [
            Text(_cell(table, heading, cell, signed=line.source == "difference"), style=STYLES.get(cell.place or 0, ""))
            for heading, cell in zip(table.headings, line.cells, strict=True)
        ]
        label = line_label(line) + _mark(table.marks(line.notes))
        grid.add_row(Text(label), *cells, style="dim" if line.source != "runs" else "")
    stream = io.StringIO()
    terminal = sys.stdout.isatty()
    console = Console(file=stream, width=width or (None if terminal else 10_000), force_terminal=terminal)
    console.print(grid)
    drawn = "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
    return f"{drawn}\n{below(table)}"


def _cell(table: Table, heading: Heading, cell: Cell, *, signed: bool) -> str:
    spread = deviation(heading, cell)
    return number(heading, cell, signed=signed) + (f" ±{spread}" if spread else "") + _mark(table.marks(cell.notes))


def _mark(marks: str) -> str:
    return f" [{marks}]" if marks else ""
