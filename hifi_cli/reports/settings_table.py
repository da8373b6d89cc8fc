"""The table of settings (HiFi, table 5): batch size and learning rate of each method on each task.

The paper's own settings are shown where they differ from ours, or everywhere with `--published`.
"""

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import resolve
from hifi_cli.reports import published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec

UNEQUAL = "differs from the paper"


def build(spec: TableSpec, request: TableRequest) -> Table:
    """Build the table from the resolved configuration of every cell; needs no run and no data."""
    rows = spec.rows or [RowSpec(method=name) for name in registry.names("methods")]
    columns = spec.columns or [ColumnSpec(task=name) for name in registry.names("tasks")]
    reference = published.load(spec.published) if spec.published else None
    table_rows: list[TableRow] = []
    for row in rows:
        paper = _published_row(row, columns, reference[1]) if reference else None
        if row.method:
            ours = _row(spec, row.method, row.label, columns, paper)
            table_rows.append(ours)
            differs = any(UNEQUAL in cell.notes for cell in ours.cells)
            table_rows += [paper] if paper and (request.published or differs) else []
    return Table(
        title=f"{spec.description or 'Settings'} (protocol {spec.protocol}, backbone {spec.backbone})",
        headings=[TableHeading(column.label or label_of("tasks", column.task), name=column.name) for column in columns],
        rows=table_rows,
        notes=["batch size / learning rate", *_source(reference)],
    )


def _row(spec: TableSpec, method: str, label: str | None, columns: list[ColumnSpec], paper: TableRow | None) -> TableRow:
    cells = []
    for number, column in enumerate(columns):
        text = _settings(spec, method, column.task)
        printed = paper.cells[number].text if paper else None
        cells.append(
            TableCell(text=text, value=_numbers(text), notes=(UNEQUAL,) if text and printed and text != printed else ())
        )
    return TableRow(label or label_of("methods", method), tuple(cells), method=method)


def _settings(spec: TableSpec, method: str, task: str) -> str | None:
    known = {"methods": method, "tasks": task, "protocols": spec.protocol}
    if any(not registry.is_file(name) and name not in registry.names(kind) for kind, name in known.items()):
        return None
    config = resolve(task=task, method=method, backbone=spec.backbone, protocol=spec.protocol)
    mantissa, exponent = f"{config.learning_rate:.6e}".split("e")
    return f"{config.batch_size}/{float(mantissa):g}e{int(exponent)}"


def _numbers(text: str | None) -> dict[str, float] | None:
    """Return batch size and learning rate; None where a paper prints something else."""
    size, _, rate = (text or "").partition("/")
    try:
        return {"batch_size": int(size), "learning_rate": float(rate)}
    except ValueError:
        return None


def _published_row(row: RowSpec, columns: list[ColumnSpec], paper_table: PublishedTable) -> TableRow | None:
    name = row.published_name
    if name is None or name not in paper_table.rows:
        return None
    texts = dict(zip(paper_table.columns, paper_table.rows[name].texts, strict=True))
    cells = tuple(
        TableCell(text=texts.get(column.published_name), value=_numbers(texts.get(column.published_name))) for column in columns
    )
    return TableRow(row.label or name, cells, "published", row.method)


def _source(reference: tuple[str, PublishedTable] | None) -> list[str]:
    return [f"published: {reference[0]}, table {reference[1].number}"] if reference else []
