"""The layout of HiFi's table 4: how many rows the data at hand have, beside the official release and the paper."""

from typing import Any

from hifi_cli.reports import published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import Heading, Line, Table, TableCell
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ColumnSpec, TableSpec, label_of

SPLITS = ("train", "validation", "test")


def build(spec: TableSpec, request: TableRequest) -> Table:
    """Print the rows of each split that were counted, and with `published` those that the paper prints."""
    reference = published.table(spec.published) if spec.published and request.published else None
    lines = []
    for split in SPLITS:
        lines.append(Line(split, tuple(_cell(request.measured, column, split) for column in spec.columns), method=split))
        lines += [_published_line(spec.columns, split, reference[1])] if reference else []
    return Table(
        title=spec.description,
        headings=[Heading(column.label or label_of("tasks", column.task)) for column in spec.columns],
        lines=lines,
        notes=[f"published: {reference[0]}, table {reference[1].number}"] if reference else [],
        corner="Split",
    )


def _cell(measured: dict[str, Any], column: ColumnSpec, split: str) -> TableCell:
    """A split's rows; a column may be about a further split of its task where there is one (MNLI: mismatched)."""
    splits = measured.get(column.task, {})
    found = splits.get(f"{split}_{column.split}" if column.split else split) or splits.get(split)
    if not found or found["rows"] is None:
        return TableCell()
    official = found["official"]
    notes = (f"not the official count, {official:,}",) if official and official != found["rows"] else ()
    return TableCell(text=f"{found['rows']:,}", notes=notes)


def _published_line(columns: list[ColumnSpec], split: str, found: PublishedTable) -> Line:
    row = found.rows[split]
    printed = dict(zip(found.columns, row.means, strict=True))
    cells = tuple(TableCell(text=f"{int(printed[column.published_name] or 0):,}") for column in columns)
    return Line("published", cells, "published", split, notes=(row.note,) if row.note else ())
