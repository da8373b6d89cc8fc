"""Tables as text for a terminal: best bold, second underlined, footnotes and missing runs below."""

import io
import sys
from collections.abc import Iterator, Sequence

from hifi_cli.reports.table import Table, TableRow, deviation, number, row_label

STYLES = {1: "bold", 2: "underline"}
_FRAME = 3  # columns of a border and the space on both sides
_UNLIMITED = 10_000  # columns of a file or a pipe, where nothing is wrapped


def render(tables: Sequence[Table], width: int | None = None) -> str:
    """Return the tables one below the other, in color on a terminal; the columns of a wide table are split into blocks.

    Args:
        width: of the terminal; None: the actual width, or unlimited without a terminal.
    """
    return "\n".join(_draw(table, width) for table in tables)


def below(table: Table) -> str:
    """Return footnotes, notes and missing runs, a line each."""
    lines = [f"{mark}: {text}" for text, mark in table.footnotes.items()]
    lines += [f"note: {text}" for text in table.notes]
    lines += [f"missing: {command}" for command in table.missing_commands]
    return "".join(f"{line}\n" for line in lines)


def _draw(table: Table, width: int | None) -> str:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    terminal = sys.stdout.isatty()
    stream = io.StringIO()
    console = Console(file=stream, width=width or (None if terminal else _UNLIMITED), force_terminal=terminal)
    labels = [row_label(row) + _mark(table.footnote_marks(row.notes)) for row in table.rows]
    cells = [_cells(table, row) for row in table.rows]
    print(" ".join(table.title.split()), file=stream)  # the terminal folds it; rich would to the width of the columns
    for block in _blocks(table, labels, cells, console.width):
        grid = Grid()
        grid.add_column(table.corner, no_wrap=True, width=max(map(len, [table.corner, *labels])))
        full_widths = [max(_width(table, cells, column), len(table.headings[column].label)) for column in block]
        fits = _label_width(table, labels) + sum(width + _FRAME for width in full_widths) <= console.width
        for column, full_width in zip(block, full_widths, strict=True):  # rich's own choice may exceed the terminal
            column_width = full_width if fits else _width(table, cells, column)
            grid.add_column(table.headings[column].label, justify="right", width=column_width)
        for row, label, values in zip(table.rows, labels, cells, strict=True):
            parts = [(values[column], STYLES.get(row.cells[column].place or 0, "")) for column in block]
            texts = [Text.assemble((value, style), suffix, no_wrap=True) for (value, suffix), style in parts]
            grid.add_row(Text(label), *texts, style="dim" if row.source != "runs" else "")
        console.print(grid)
    drawn = "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
    return f"{drawn}\n{below(table)}"


def _cells(table: Table, row: TableRow) -> list[tuple[str, str]]:
    """Return the number of every cell in a row and the text that follows it."""
    cells = []
    for heading, cell in zip(table.headings, row.cells, strict=True):
        spread = deviation(heading, cell)
        suffix = (f" ±{spread}" if spread else "") + _mark(table.footnote_marks(cell.notes))
        cells.append((number(heading, cell, signed=row.source == "difference"), suffix))
    return cells


def _blocks(table: Table, labels: list[str], cells: list[list[tuple[str, str]]], width: int) -> Iterator[range]:
    """Group the columns into blocks that fit beside the labels, so that no number is cut off."""
    label_width = _label_width(table, labels)
    first, used = 0, label_width
    for column in range(len(table.headings)):
        required = _width(table, cells, column) + _FRAME
        if used + required > width and column > first:
            yield range(first, column)
            first, used = column, label_width
        used += required
    yield range(first, len(table.headings))


def _label_width(table: Table, labels: list[str]) -> int:
    """Return the width of the rows' labels with borders on both sides."""
    return max(map(len, [table.corner, *labels])) + _FRAME + 1


def _width(table: Table, cells: list[list[tuple[str, str]]], column: int) -> int:
    """Return the smallest width of a column in which no cell is wrapped, and a heading only between words."""
    words = table.headings[column].label.split()
    return max([len(word) for word in words] + [len(row[column][0]) + len(row[column][1]) for row in cells])


def _mark(marks: str) -> str:
    return f" [{marks}]" if marks else ""
