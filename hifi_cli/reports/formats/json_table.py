"""Tables as JSON: numbers unrounded, columns and rows by their names."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from hifi_cli.files import json_text
from hifi_cli.reports.table import DASH, Table, TableCell, TableRow


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class SeedJson(_Part):
    """The score of one seed."""

    seed: int
    """Seed of the run."""
    score: float
    """Score in percent."""
    path: str
    """Directory of the run."""


class CellJson(_Part):
    """A cell."""

    value: Any
    """The number: a mean over seeds in percent, a difference in points, or what the column holds; null: there is none."""
    std: float | None = None
    """Sample standard deviation over seeds."""
    text: str | None = None
    """What other formats print, where that is not the rounded number."""
    runs: list[SeedJson] | None = None
    """The runs that the mean is computed from."""
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
    scores: dict[str, list[float]] | None = None
    """Our scores of each seed in percent, by column name."""
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


def render(tables: Sequence[Table]) -> str:
    """Return one table as an object, several as a list."""
    contents = [_table(table).model_dump(exclude_unset=True) for table in tables]
    return json_text(contents[0] if len(contents) == 1 else contents)


def _table(table: Table) -> TableJson:
    columns = [ColumnJson(name=heading.key, label=heading.label) for heading in table.headings]
    missing = [
        MissingJson(method=runs.method, tasks=list(runs.tasks), seeds=list(runs.seeds), command=runs.command)
        for runs in table.missing
    ]
    rows = [_row(table, row) for row in table.rows]
    return TableJson(title=table.title, columns=columns, rows=rows, notes=table.notes, missing=missing)


def _row(table: Table, row: TableRow) -> RowJson:
    cells = {heading.key: _cell(cell) for heading, cell in zip(table.headings, row.cells, strict=True)}
    optional: dict[str, Any] = {"verdict": row.verdict} if row.verdict else {}
    if any(cell.runs for cell in cells.values()):
        optional["scores"] = {name: [run.score for run in cell.runs] for name, cell in cells.items() if cell.runs}
    return RowJson(name=row.method, label=row.label, source=row.source, **optional, cells=cells, notes=list(row.notes))


def _cell(cell: TableCell) -> CellJson:
    text = cell.text if cell.text not in ("", DASH) else None
    value = next((value for value in (cell.value, cell.mean, text) if value is not None), None)
    optional = {
        "std": cell.deviation,
        "text": text if value != text else None,
        "runs": [
            SeedJson(seed=seed_score.seed, score=seed_score.score, path=str(seed_score.record.directory.path))
            for seed_score in cell.seed_scores
        ],
        "notes": list(cell.notes),
    }
    return CellJson(value=value, **{name: content for name, content in optional.items() if content not in (None, "", [])})
