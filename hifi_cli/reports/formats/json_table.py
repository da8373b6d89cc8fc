"""Tables as JSON: numbers unrounded, columns and rows by their names."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from hifi_cli.files import json_text
from hifi_cli.reports.table import DASH, TableCell, TableRow, VerdictTable


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class CellJson(_Part):
    """A cell."""

    value: Any
    """The number: a mean over seeds in percent, a difference in points, or what the column holds; null: there is none."""
    std: float | None = None
    """Sample standard deviation over seeds."""
    text: str | None = None
    """What other formats print, where that is not the rounded number."""
    notes: list[str] | None = None
    """Footnotes."""


class ColumnJson(_Part):
    """A column."""

    name: str
    """Key of the column in `cells`."""
    label: str
    """Heading in the other formats."""


class RowJson(_Part):
    """A row."""

    name: str | None
    """Method, claim or split; null: the row has a label only."""
    label: str
    """Label in the other formats."""
    source: str
    """`runs`, `published` or `difference` (ours minus the paper's)."""
    verdict: str | None = None
    """Of a comparison, about the first method: better, worse, no difference shown, no conclusion, depends on collapsed runs;
    of a claim: reproduced, not reproduced, undecided, not run."""
    cells: dict[str, CellJson]
    """The cells by column name."""
    notes: list[str]
    """Footnotes of the row."""


class MissingJson(_Part):
    """Runs that are missing."""

    method: str
    """Method of the runs."""
    tasks: list[str]
    """Tasks of the runs."""
    seeds: list[int]
    """Seeds of the runs."""
    command: str
    """The command that makes them."""


class TableJson(_Part):
    """A table."""

    title: str
    """What the table shows."""
    columns: list[ColumnJson]
    """The columns in their order."""
    rows: list[RowJson]
    """The rows in their order."""
    notes: list[str]
    """Notes on the whole table."""
    missing: list[MissingJson]
    """Runs that the table requires."""


def render(tables: Sequence[VerdictTable]) -> str:
    """Return one table as an object, several as a list."""
    contents = [_table(table).model_dump(exclude_unset=True) for table in tables]
    return json_text(contents[0] if len(contents) == 1 else contents)


def _table(table: VerdictTable) -> TableJson:
    columns = [ColumnJson(name=heading.key, label=heading.label) for heading in table.headings]
    missing = [
        MissingJson(method=runs.method, tasks=list(runs.tasks), seeds=list(runs.seeds), command=runs.command)
        for runs in table.missing
    ]
    rows = [_row(table, row) for row in table.rows]
    return TableJson(title=table.title, columns=columns, rows=rows, notes=table.notes, missing=missing)


def _row(table: VerdictTable, row: TableRow) -> RowJson:
    cells = {heading.key: _cell(cell) for heading, cell in zip(table.headings, row.cells, strict=True)}
    optional: dict[str, Any] = {"verdict": row.verdict} if row.verdict else {}
    return RowJson(name=row.method, label=row.label, source=row.source, **optional, cells=cells, notes=list(row.notes))


def _cell(cell: TableCell) -> CellJson:
    text = cell.text if cell.text not in ("", DASH) else None
    value = next((value for value in (cell.value, cell.mean, text) if value is not None), None)
    optional = {
        "std": cell.deviation,
        "text": text if value != text else None,
        "notes": list(cell.notes),
    }
    return CellJson(value=value, **{name: content for name, content in optional.items() if content not in (None, "", [])})
