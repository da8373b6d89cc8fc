"""The same table with the best, last and maximum scores: how much the choice of the score changes it."""

from collections.abc import Sequence
from dataclasses import replace

from hifi_cli.config.choices import Score
from hifi_cli.reports import table_types
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import TableSpec

SCORES: tuple[Score, ...] = ("best", "last", "max")


def under_all_scores(specs: Sequence[TableSpec], request: TableRequest, *, layout: TableSpec | None = None) -> list[Table]:
    """Build three tables for each specification; a note under the third says where they differ most."""
    tables = []
    for spec in specs:
        group = [table_types.build_all([spec], replace(request, score=score), layout=layout)[0] for score in SCORES]
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
        if floor.mean is not None and ceiling.mean is not None and heading.best
    ]
    if not spreads:
        return []
    largest, label, heading = max(spreads, key=lambda spread: spread[0])
    where = f"{largest:.{heading.decimals}f} ({label}, {heading.label})"
    return [f"the choice of the score alone changes a cell by up to {where}, from last to max; best is between them"]
