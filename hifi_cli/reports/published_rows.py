"""The rows below our own: the paper's numbers, and the difference."""

from dataclasses import replace

from hifi_cli.reports import published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import TableCell, TableRow, rounded
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec


def published_row(
    row: RowSpec, label: str, columns: list[ColumnSpec], paper_table: PublishedTable, extra: int, *, average: bool
) -> TableRow | None:
    """Return what the paper prints for a row, with a footnote on every cell that is illegible or suspect.

    Args:
        extra: number of columns after the average that the paper does not have.
    """
    name = row.published_name
    if name is None or name not in paper_table.rows:
        return None
    cells = [_cell(paper_table, name, column.published_name) for column in columns]
    if average:
        cells.append(_average(paper_table, name, columns, cells))
    printed = paper_table.rows[name]
    return TableRow(
        label=row.label or printed.label or label,
        cells=(*cells, *(TableCell(text="") for _ in range(extra))),
        source="published",
        method=row.method,
        notes=(printed.note,) if printed.note else (),
    )


def difference_row(
    ours: TableRow,
    paper: TableRow,
    metrics: list[tuple[str | None, str | None]],
    name: str,
    paper_table: PublishedTable,
    decimals: int,
) -> TableRow | None:
    """Return ours minus the paper's, both as printed, where the metric is the same; None where they share no column.

    Args:
        metrics: of each column, ours and the paper's.
        decimals: of our printed numbers.
    """
    cells = []
    for number, (our_cell, paper_cell) in enumerate(zip(ours.cells, paper.cells, strict=True)):
        our_metric, paper_metric = metrics[number] if number < len(metrics) else (None, None)
        if our_metric and paper_metric and our_metric != paper_metric:
            note = f"no difference: our metric is {our_metric}, the paper's is {paper_metric}"
            cells.append(TableCell(notes=(note,)))
        elif our_cell.mean is None or paper_cell.mean is None:
            cells.append(TableCell(text=paper_cell.text if paper_cell.text == "" else None))
        else:
            cells.append(_difference(our_cell.mean, paper_cell.mean, decimals))
    if len(cells) > len(metrics) and ours.cells[len(metrics)].mean is not None:
        averages = ours.cells[len(metrics)], paper.cells[len(metrics)]
        cells[len(metrics)] = _difference_of_averages(*averages, name, paper_table, decimals)
    has_content = any(cell.mean is not None or cell.notes for cell in cells)
    return TableRow(ours.label, tuple(cells), "difference", ours.method) if has_content else None


def reading_notes(paper: str, paper_table: PublishedTable, *, backbone: str, split: str | None) -> list[str]:
    """Return the notes that a reader needs to interpret the difference."""
    described = [paper_table.split, paper_table.backbone, f"{paper_table.seeds} seeds" if paper_table.seeds else None]
    notes = [f"published: {paper}, table {paper_table.number} ({', '.join(part for part in described if part)})"]
    if paper_table.backbone and paper_table.backbone != backbone:
        notes.append(
            f"our backbone is {backbone}, the paper's is {paper_table.backbone}: the difference also comes from the backbone"
        )
    if paper_table.split and split and paper_table.split != split:
        notes.append(f"our split is {split}, the paper's is {paper_table.split}: the difference also comes from the split")
    return notes


def _cell(paper_table: PublishedTable, name: str, column: str) -> TableCell:
    mean, spread = paper_table.mean(name, column), paper_table.deviation(name, column)
    return TableCell(
        mean=mean if isinstance(mean, float) else None,
        deviation=spread if isinstance(spread, float) else None,
        text="?" if mean == "illegible" else None,
        notes=published.cell_notes(paper_table, name, column),
    )


def _average(paper_table: PublishedTable, name: str, columns: list[ColumnSpec], cells: list[TableCell]) -> TableCell:
    """Return the printed average; where the table shows other columns than the paper, the mean of the cells shown."""
    printed = paper_table.rows[name].average
    if [column.published_name for column in columns] == list(paper_table.columns):
        note = published.average_note(paper_table, name)
        return TableCell(mean=printed, notes=(note,) if note else ())
    means = [cell.mean for cell in cells if cell.mean is not None]
    if len(means) < len(cells) or printed is None:
        return TableCell()
    note = f"mean of the {len(cells)} columns shown; the paper's average has {len(paper_table.columns)} columns"
    return TableCell(mean=sum(means) / len(means), notes=(note,))


def _difference_of_averages(
    ours: TableCell, paper: TableCell, name: str, paper_table: PublishedTable, decimals: int
) -> TableCell:
    """Subtract the printed average, or the mean of the printed cells where the printed average does not follow from them."""
    check = published.check_average(paper_table, name)
    if ours.mean is None or paper.mean is None:
        return TableCell()
    if check.verdict != "mismatch" or check.recomputed is None or paper.mean != paper_table.rows[name].average:
        return _difference(ours.mean, paper.mean, decimals)
    return replace(
        _difference(ours.mean, float(check.recomputed), decimals), notes=("difference from the mean of the printed cells",)
    )


def _difference(ours: float, paper: float, decimals: int) -> TableCell:
    return TableCell(mean=float(rounded(ours, decimals) - rounded(paper, decimals)))
