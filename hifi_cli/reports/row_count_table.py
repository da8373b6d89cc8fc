"""The table of row counts (HiFi, table 4): the local data next to the official release and the paper."""

from collections.abc import Mapping

from hifi_cli.config.registry import label_of
from hifi_cli.reports import published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ColumnSpec, TableSpec
from hifi_cli.tasks.task_spec import RowCount

SPLITS = ("train", "validation", "test")


def build(spec: TableSpec, request: TableRequest) -> Table:
    """Build the table of counted rows per split, with the paper's counts where `published` is set."""
    reference = published.load(spec.published) if spec.published and request.published else None
    rows = []
    for split in SPLITS:
        rows.append(TableRow(split, tuple(_cell(request.row_counts, column, split) for column in spec.columns), method=split))
        rows += [_published_row(spec.columns, split, reference[1])] if reference else []
    return Table(
        title=spec.description,
        headings=[TableHeading(column.label or label_of("tasks", column.task), name=column.name) for column in spec.columns],
        rows=rows,
        notes=[f"published: {reference[0]}, table {reference[1].number}"] if reference else [],
        corner="Split",
    )


def _cell(row_counts: Mapping[str, Mapping[str, RowCount]], column: ColumnSpec, split: str) -> TableCell:
    """Return a split's row count; a column may name another split of its task (MNLI: mismatched)."""
    splits = row_counts.get(column.task, {})
    count = splits.get(f"{split}_{column.split}" if column.split else split) or splits.get(split)
    if not count or count.rows is None:
        return TableCell()
    official = count.official
    notes = (f"the official release has {official:,} rows",) if official and official != count.rows else ()
    return TableCell(text=f"{count.rows:,}", value=count.rows, notes=notes)


def _published_row(columns: list[ColumnSpec], split: str, paper_table: PublishedTable) -> TableRow:
    row = paper_table.rows[split]
    printed = dict(zip(paper_table.columns, row.means, strict=True))
    counts = [int(printed[column.published_name] or 0) for column in columns]
    cells = tuple(TableCell(text=f"{count:,}", value=count) for count in counts)
    return TableRow("published", cells, "published", split, notes=(row.note,) if row.note else ())
