"""The paper's numbers under our own, and the difference of both."""

from dataclasses import replace

from hifi_cli.reports import published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import Line, TableCell, rounded
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec


def published_line(
    row: RowSpec, label: str, columns: list[ColumnSpec], found: PublishedTable, extra: int, *, average: bool
) -> Line | None:
    """What the paper prints for a row, with a footnote on every cell that is illegible, suspect or does not follow.

    Args:
        extra: columns after the average that the paper does not have.
    """
    name = row.published_name
    if name is None or name not in found.rows:
        return None
    cells = [_cell(found, name, column.published_name) for column in columns]
    if average:
        cells.append(_average(found, name, columns, cells))
    printed = found.rows[name]
    return Line(
        label=row.label or printed.label or label,
        cells=(*cells, *(TableCell(text="") for _ in range(extra))),
        source="published",
        method=row.method,
        notes=(printed.note,) if printed.note else (),
    )


def difference_line(
    ours: Line, paper: Line, metrics: list[tuple[str | None, str | None]], name: str, found: PublishedTable, decimals: int
) -> Line | None:
    """Ours minus the paper's, both as printed, where they are of the same metric; None where they share no column.

    Args:
        metrics: of each column, ours and the paper's.
        decimals: of our printed numbers.
    """
    cells = []
    for number, (mine, theirs) in enumerate(zip(ours.cells, paper.cells, strict=True)):
        own, printed = metrics[number] if number < len(metrics) else (None, None)
        if own and printed and own != printed:
            cells.append(TableCell(notes=(f"ours is {own}, the paper's {printed}: no difference",)))
        elif mine.mean is None or theirs.mean is None:
            cells.append(TableCell(text=theirs.text if theirs.text == "" else None))
        else:
            cells.append(_difference(mine.mean, theirs.mean, decimals))
    if len(cells) > len(metrics) and ours.cells[len(metrics)].mean is not None:
        averages = ours.cells[len(metrics)], paper.cells[len(metrics)]
        cells[len(metrics)] = _difference_of_averages(*averages, name, found, decimals)
    told = any(cell.mean is not None or cell.notes for cell in cells)
    return Line(ours.label, tuple(cells), "difference", ours.method) if told else None


def remarks(paper: str, found: PublishedTable, *, backbone: str, split: str | None) -> list[str]:
    """What a reader must know before reading the difference."""
    described = [found.split, found.backbone, f"{found.seeds} seeds" if found.seeds else None]
    notes = [f"published: {paper}, table {found.number} ({', '.join(part for part in described if part)})"]
    if found.backbone and found.backbone != backbone:
        notes.append(f"ours is {backbone}, the paper's {found.backbone}: the difference is one of encoders too")
    if found.split and split and found.split != split:
        notes.append(f"ours is the {split} split, the paper's the {found.split}: read the difference with that in mind")
    return notes


def _cell(found: PublishedTable, name: str, column: str) -> TableCell:
    mean, spread = found.mean(name, column), found.deviation(name, column)
    return TableCell(
        mean=mean if isinstance(mean, float) else None,
        deviation=spread if isinstance(spread, float) else None,
        text="?" if mean == "illegible" else None,
        notes=published.cell_notes(found, name, column),
    )


def _average(found: PublishedTable, name: str, columns: list[ColumnSpec], cells: list[TableCell]) -> TableCell:
    """The printed average; over some of the columns only, or others, the mean of the cells shown."""
    printed = found.rows[name].average
    if [column.published_name for column in columns] == list(found.columns):
        note = published.average_note(found, name)
        return TableCell(mean=printed, notes=(note,) if note else ())
    means = [cell.mean for cell in cells if cell.mean is not None]
    if len(means) < len(cells) or printed is None:
        return TableCell()
    note = f"mean of the {len(cells)} columns shown; the paper averages {len(found.columns)}"
    return TableCell(mean=sum(means) / len(means), notes=(note,))


def _difference_of_averages(ours: TableCell, paper: TableCell, name: str, found: PublishedTable, decimals: int) -> TableCell:
    """To the printed average; to that of the printed cells where the printed one does not follow from them."""
    checked = published.audit(found, name)
    if ours.mean is None or paper.mean is None:
        return TableCell()
    if checked.verdict != "mismatch" or checked.recomputed is None or paper.mean != found.rows[name].average:
        return _difference(ours.mean, paper.mean, decimals)
    return replace(_difference(ours.mean, float(checked.recomputed), decimals), notes=("to the average of the printed cells",))


def _difference(ours: float, paper: float, decimals: int) -> TableCell:
    return TableCell(mean=float(rounded(ours, decimals) - rounded(paper, decimals)))
