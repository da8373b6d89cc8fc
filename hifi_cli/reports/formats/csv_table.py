"""Tables as CSV, numbers unrounded."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from hifi_cli.reports.table import DASH, Table, TableCell, TableRow


def as_csv(tables: Sequence[Table]) -> str:
    """Return means, standard deviations and numbers of seeds; a row's source says whose numbers they are.

    Of several tables, the first column says which one a row belongs to.
    """
    return "\n".join(_csv(table, [table.title] if len(tables) > 1 else []) for table in tables)


def _csv(table: Table, title: list[str]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    full = [_has_seeds(table, number) for number in range(len(table.headings))]
    names = []
    for heading, several in zip(table.headings, full, strict=True):
        label = f"{heading.label}{heading.unit}"
        names += [f"{label} mean", f"{label} std", f"{label} seeds"] if several else [label]
    writer.writerow(map(_spreadsheet_safe, [*(["table"] if title else []), table.corner.lower(), "source", *names]))
    for row in table.rows:
        values: list[Any] = []
        for cell, several in zip(row.cells, full, strict=True):
            value = cell.text if cell.mean is None else cell.mean
            values += [value, cell.deviation, _seeds(row, cell)] if several else [value]
        writer.writerow(map(_spreadsheet_safe, [*title, row.label, row.source, *values]))
    return stream.getvalue()


def _seeds(row: TableRow, cell: TableCell) -> int | None:
    """Return the number of seeds of one of our own cells; None where a number or a text came without them."""
    is_known = bool(cell.seed_scores) or (cell.mean is None and cell.text is None)
    return len(cell.seed_scores) if row.source == "runs" and is_known else None


def _spreadsheet_safe(value: Any) -> Any:
    """Return a text on one line, after an apostrophe where a spreadsheet would read a formula; numbers unchanged."""
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    if not text.startswith(("=", "+", "-", "@")) or text == DASH:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _has_seeds(table: Table, number: int) -> bool:
    return any(row.cells[number].seed_scores or row.cells[number].deviation is not None for row in table.rows)
