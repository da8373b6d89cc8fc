"""Table types: the model of each type's YAML, and its builder.

A new type is a function `(spec, request) -> Table` and an entry in `TABLE_TYPES`; formats and report accept any `Table`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.choices import Score
from hifi_cli.errors import UsageError
from hifi_cli.reports import cost_table, row_count_table, score_table, settings_table
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ScoresSpec, TableSpec


@dataclass(frozen=True)
class TableType:
    """A type of table: the model of its YAML and its builder, called with the parsed YAML and a `TableRequest`.

    Attributes:
        unused: options of `hifi table` that have no effect on it.
    """

    spec: type[TableSpec]
    build: Callable[[Any, Any], Table]
    unused: tuple[str, ...] = ()


OF_RUNS = ("seeds", "shots", "score", "compare_scores", "include", "exclude")  # options that select finished runs and scores


TABLE_TYPES: dict[str, TableType] = {
    "scores": TableType(ScoresSpec, score_table.build),
    "settings": TableType(TableSpec, settings_table.build, OF_RUNS),
    "costs": TableType(TableSpec, cost_table.of_results, (*OF_RUNS, "tasks", "published")),
    "training-costs": TableType(TableSpec, cost_table.of_training, (*OF_RUNS, "tasks", "published")),
    "statistics": TableType(TableSpec, row_count_table.build, (*OF_RUNS, "methods", "protocol", "backbone")),
}


def load(name: str) -> TableSpec:
    """Load and validate the YAML of a table, or of a user's own file.

    Raises:
        UsageError: an unknown name, kind or key.
    """
    origin, content = str(registry.find("tables", name)), registry.load("tables", name)
    kind = str(content.get("kind", "scores"))
    if kind not in TABLE_TYPES:
        raise UsageError(
            f"{origin}: unknown kind '{kind}'{registry.nearest(kind, TABLE_TYPES)} (one of {', '.join(TABLE_TYPES)})"
        )
    return parse(TABLE_TYPES[kind].spec, content, origin)


def build(spec: TableSpec, request: TableRequest) -> Table:
    """Build a table of any type."""
    return TABLE_TYPES[spec.kind].build(spec, request)


def build_all(specs: Sequence[TableSpec], request: TableRequest, *, layout: TableSpec | None = None) -> list[Table]:
    """Build several tables.

    Args:
        layout: the table as in its YAML; a note says what a spec changes.
    """
    return [_with_layout_note(build(spec, request), spec, layout) for spec in specs]


def _with_layout_note(table: Table, spec: TableSpec, layout: TableSpec | None) -> Table:
    changed = [(key, getattr(layout, key), getattr(spec, key)) for key in ("protocol", "backbone")] if layout else []
    changes = [f"{key} {now} instead of {before}" for key, before, now in changed if now != before]
    return replace(table, notes=[f"not the table's own setting: {', '.join(changes)}", *table.notes]) if changes else table


SCORES: tuple[Score, ...] = get_args(Score)


def build_under_all_scores(
    specs: Sequence[TableSpec], request: TableRequest, *, layout: TableSpec | None = None
) -> list[Table]:
    """Build three tables for each specification; a note under the third says where they differ most."""
    tables = []
    for spec in specs:
        group = [build_all([spec], replace(request, score=score), layout=layout)[0] for score in SCORES]
        notes = _largest_spread(group)
        tables += [*group[:-1], replace(group[-1], notes=[*group[-1].notes, *notes])]
    return tables


def _largest_spread(group: list[Table]) -> list[str]:
    _, last, maximum = group
    spreads = [
        (ceiling.mean - floor.mean, line.label, heading)
        for number, line in enumerate(last.rows)
        if line.source == "runs"
        for heading, floor, ceiling in zip(last.headings, line.cells, maximum.rows[number].cells, strict=True)
        if floor.mean is not None and ceiling.mean is not None and heading.marks_best
    ]
    largest, label, heading = max(spreads, key=lambda spread: spread[0], default=(0.0, "", None))
    if not heading or not largest:
        return []
    where = f"{largest:.{heading.decimals}f} ({label}, {heading.label})"
    return [f"the choice of the score alone changes a cell by up to {where}, from last to max; best is between them"]
