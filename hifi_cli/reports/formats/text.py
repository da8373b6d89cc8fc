"""Tables for a terminal: best bold, second underlined, footnotes and missing runs below."""

import io
import sys
from collections.abc import Iterator, Sequence

from hifi_cli.reports.table import Table, deviation, line_label, number

STYLES = {1: "bold", 2: "underline"}
_FRAME = 3  # a column's border and the space on both sides
_WIDE = 10_000  # where nothing is wrapped: a file or a pipe


def render(tables: Sequence[Table], width: int | None = None) -> str:
    """Draw them one below the other, in colour on a terminal; a table too wide for it goes on below itself.

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

    terminal = sys.stdout.isatty()
    stream = io.StringIO()
    console = Console(file=stream, width=width or (None if terminal else _WIDE), force_terminal=terminal)
    labels = [line_label(line) + _mark(table.marks(line.notes)) for line in table.lines]
    cells = [_cells(table, row) for row in range(len(table.lines))]
    for block in _blocks(table, labels, cells, console.width):
        grid = Grid(title=table.title if block.start == 0 else None, title_justify="left", title_style="")
        grid.add_column(table.corner, no_wrap=True, width=max(map(len, [table.corner, *labels])))
        widest = [max(_width(table, cells, column), len(table.headings[column].label)) for column in block]
        fits = _own(table, labels) + sum(width + _FRAME for width in widest) <= console.width
        for column, wide in zip(block, widest, strict=True):  # widths of rich's own choice may exceed the terminal
            width_of = wide if fits else _width(table, cells, column)
            grid.add_column(table.headings[column].label, justify="right", width=width_of)
        for line, label, row in zip(table.lines, labels, cells, strict=True):
            parts = [(row[column], STYLES.get(line.cells[column].place or 0, "")) for column in block]
            texts = [Text.assemble((start, style), rest, no_wrap=True) for (start, rest), style in parts]
            grid.add_row(Text(label), *texts, style="dim" if line.source != "runs" else "")
        console.print(grid)
    drawn = "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
    return f"{drawn}\n{below(table)}"


def _cells(table: Table, row: int) -> list[tuple[str, str]]:
    """Of every cell of a line, the number and what follows it."""
    line = table.lines[row]
    found = []
    for heading, cell in zip(table.headings, line.cells, strict=True):
        spread = deviation(heading, cell)
        rest = (f" ±{spread}" if spread else "") + _mark(table.marks(cell.notes))
        found.append((number(heading, cell, signed=line.source == "difference"), rest))
    return found


def _blocks(table: Table, labels: list[str], cells: list[list[tuple[str, str]]], width: int) -> Iterator[range]:
    """The columns in groups that fit beside the labels: a number cut off would be a wrong number."""
    own = _own(table, labels)
    first, used = 0, own
    for column in range(len(table.headings)):
        needed = _width(table, cells, column) + _FRAME
        if used + needed > width and column > first:
            yield range(first, column)
            first, used = column, own
        used += needed
    yield range(first, len(table.headings))


def _own(table: Table, labels: list[str]) -> int:
    """Room for the rows' labels, framed on both sides."""
    return max(map(len, [table.corner, *labels])) + _FRAME + 1


def _width(table: Table, cells: list[list[tuple[str, str]]], column: int) -> int:
    """The narrowest a column can be: no cell is wrapped, a heading between its words only."""
    words = table.headings[column].label.split()
    return max([len(word) for word in words] + [len(row[column][0]) + len(row[column][1]) for row in cells])


def _mark(marks: str) -> str:
    return f" [{marks}]" if marks else ""
