"""Tables of settings and of row counts beside the paper's."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.reports import comparable
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec, load_published

SPLITS = ("train", "validation", "test")


def settings(spec: TableSpec, *, show_published: bool) -> Table:
    """Batch size and learning rate of each method on each task; needs no run and no data."""

    def setting(method: str, column: ColumnSpec) -> str | None:
        config = comparable.protocol_config(
            task=column.task, method=method, backbone=spec.backbone, protocol=spec.protocol
        )
        if config is None:
            return None
        mantissa, exponent = f"{config.learning_rate:.6e}".split("e")
        return f"{config.batch_size}/{float(mantissa):g}e{int(exponent)}"

    table = _beside_paper(spec, setting, show_published)
    table.title += f" (protocol {spec.protocol}, backbone {spec.backbone})"
    table.notes.insert(0, "batch size / learning rate")
    return table


def row_counts(
    spec: TableSpec, counts: Mapping[str, Mapping[str, int]], *, show_published: bool
) -> Table:
    """Numbers of rows of each split of the local data.

    Args:
        counts: by task and split.
    """

    def count(split: str, column: ColumnSpec) -> int | None:
        of_task = counts.get(column.task, {})
        return of_task.get(f"{split}_{column.split}", of_task.get(split))

    splits = [RowSpec(method=split, label=split) for split in SPLITS]
    table = _beside_paper(spec.model_copy(update={"rows": splits}), count, show_published)
    table.frame = table.frame.astype(dict.fromkeys(table.headings, "Int64"))
    table.index_title, table.formats = "Split", dict.fromkeys(table.headings, ",.0f")
    return table


def _beside_paper(
    spec: TableSpec, ours: Callable[[str, ColumnSpec], Any], show_published: bool
) -> Table:
    """A table of what `ours` says of each row and column, each row above the paper's."""
    paper = load_published(spec.published) if spec.published and show_published else None
    lines: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for row in spec.rows:
        method = str(row.method)
        line = {"method": method, "label": row.label or label_of("methods", method)}
        cells = {column.name: ours(method, column) for column in spec.columns}
        lines.append({**line, "source": "runs", **cells})
        if paper and row.published in paper[1].rows:
            note = paper[1].rows[row.published].note
            footnotes[len(lines), ""] = [note] if note else []
            cells = {
                column.name: paper[1].mean(row.published, column.published)
                for column in spec.columns
            }
            lines.append({**line, "source": "published", **cells})
    headings = {
        column.name: column.label or label_of("tasks", column.task) for column in spec.columns
    }
    return Table(
        title=spec.description,
        frame=pd.DataFrame(lines, columns=["method", "label", "source", *headings]),
        headings=headings,
        footnotes=footnotes,
        notes=[f"published: {paper[0]}, table {paper[1].number}"] if paper else [],
    )


def has_own_memory(runs: pd.DataFrame) -> pd.Series:
    """Whether the peak memory of each run is its own; where the record does not say so, it counts as such."""
    return runs["memory_is_own"].ne(False)
