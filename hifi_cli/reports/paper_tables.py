"""Tables of settings and of row counts beside the paper's."""

from collections.abc import Callable, Mapping, Sequence

from hifi_cli.config.registry import label_of
from hifi_cli.reports.protocols import protocol_config
from hifi_cli.reports.table import Cell, Position, Row, Table, value_column
from hifi_cli.reports.table_spec import (
    NO_TABLE,
    ColumnSpec,
    LayoutRow,
    TableSpec,
    load_published,
)

SPLITS = ("train", "validation", "test")


def settings(spec: TableSpec, *, show_published: bool) -> Table:
    """Build a table of batch size and learning rate of each method on each task.

    It needs no run and no data.

    Args:
        spec: rows are methods, columns are tasks.
        show_published: whether the paper's settings are shown too.
    """

    def setting(method: str, column: ColumnSpec) -> str | None:
        """Return a method's setting on a task, `16/2e-5`; None: the protocol does not know it."""
        config = protocol_config(
            task=column.task, method=method, backbone=spec.backbone, protocol=spec.protocol
        )
        if config is None:
            return None
        # Python writes 2e-05, and the papers 2e-5.
        mantissa, exponent = f"{config.learning_rate:.6e}".split("e")
        return f"{config.batch_size}/{float(mantissa):g}e{int(exponent)}"

    headings = _headings(spec)
    rows, footnotes = _beside_paper(spec, spec.rows_of_methods, setting, show_published)
    return Table(
        title=f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})",
        rows=rows,
        headings=headings,
        columns=[value_column(key) for key in headings],
        footnotes=footnotes,
        notes=["batch size / learning rate", *_note_on_paper(spec, show_published)],
    )


def row_counts(
    spec: TableSpec, counts: Mapping[str, Mapping[str, int]], *, show_published: bool
) -> Table:
    """Build a table of the numbers of rows of each split of the local data.

    Args:
        spec: columns are tasks; its rows are not used.
        counts: rows, by task and split.
        show_published: whether the paper's numbers are shown too.
    """

    def count(split: str, column: ColumnSpec) -> int | None:
        """Return the rows of a task's split, of MNLI's second column the mismatched ones; None: none."""
        of_task = counts.get(column.task, {})
        return of_task.get(f"{split}_{column.split}", of_task.get(split))

    splits = [LayoutRow(name=split, label=split, published=split) for split in SPLITS]
    headings = _headings(spec)
    rows, footnotes = _beside_paper(spec, splits, count, show_published)
    return Table(
        title=spec.description,
        rows=rows,
        headings=headings,
        columns=[value_column(key, is_count=True) for key in headings],
        index_title="Split",
        formats=dict.fromkeys(headings, ",.0f"),
        footnotes=footnotes,
        notes=[*_note_on_paper(spec, show_published), *_note_on_absent_data(spec, counts)],
    )


def _headings(spec: TableSpec) -> dict[str, str]:
    """Return the label of each column, by its name."""
    headings = {}
    for column in spec.columns:
        headings[column.name] = column.label or label_of("tasks", column.task)
    return headings


def _note_on_paper(spec: TableSpec, show_published: bool) -> list[str]:
    """Return a note on the table that the published numbers are from."""
    if not spec.published or not show_published:
        return []
    name, table = load_published(spec.published)
    return [f"published: {name}, table {table.number}"]


def _note_on_absent_data(spec: TableSpec, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a note on the tasks that have no count, as their rows are not on this machine."""
    headings = _headings(spec)
    absent = [headings[column.name] for column in spec.columns if column.task not in counts]
    if not absent:
        return []
    return [
        f"not counted, as no rows are here: {', '.join(absent)} (--data-dir names their directory)"
    ]


def _beside_paper(
    spec: TableSpec,
    layout_rows: Sequence[LayoutRow],
    ours: Callable[[str, ColumnSpec], str | int | None],
    show_published: bool,
) -> tuple[list[Row], dict[Position, list[str]]]:
    """Return rows of what `ours` says of each row and column, each above the paper's, and footnotes."""
    paper = NO_TABLE
    if spec.published and show_published:
        paper = load_published(spec.published).table
    rows: list[Row] = []
    footnotes: dict[Position, list[str]] = {}
    for row in layout_rows:
        name = str(row.name)
        label = row.label or label_of("methods", name)
        cells = {column.name: Cell(ours(name, column)) for column in spec.columns}
        rows.append(Row(name, label, "runs", cells))
        if row.published not in paper.rows:
            continue
        note = paper.rows[row.published].note
        if note:
            footnotes[len(rows), ""] = [note]
        printed = {}
        for column in spec.columns:
            printed[column.name] = Cell(paper.mean(row.published, column.published))
        rows.append(Row(name, label, "published", printed))
    return rows, footnotes
