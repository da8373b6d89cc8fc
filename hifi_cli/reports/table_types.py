"""The kinds of tables there are: what their YAML may say, and what builds them.

A new kind is a function `(spec, request) -> Table` and an entry in `KINDS`; formats and report take any `Table`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.run_config import parse
from hifi_cli.errors import UsageError
from hifi_cli.reports import cost_table, row_count_table, score_table, settings_table
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_spec import ScoresSpec, TableSpec


@dataclass(frozen=True)
class Request:
    """What a user asks of a table besides its name.

    Attributes:
        results: read only by the kinds of tables that need runs.
        score: `best`, `last` or `max`; None: what each protocol reports.
        counted: marks (`collapsed`, `limited`, `unequal`) whose runs enter the means.
        published: whether the paper's numbers stand beside ours.
        measured: what was measured for a table that is not about runs, by row or column.
    """

    results: Results
    score: str | None = None
    counted: frozenset[str] = COUNTED
    published: bool = False
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of table: the model of its YAML and its builder, called with the parsed YAML and a `Request`."""

    spec: type[TableSpec]
    build: Callable[[Any, Any], Table]


KINDS: dict[str, Kind] = {
    "scores": Kind(ScoresSpec, score_table.build),
    "settings": Kind(TableSpec, settings_table.build),
    "costs": Kind(TableSpec, cost_table.of_results),
    "training-costs": Kind(TableSpec, cost_table.of_training),
    "statistics": Kind(TableSpec, row_count_table.build),
}


def load(name: str) -> TableSpec:
    """The validated YAML of a table, or of a user's own file.

    Raises:
        UsageError: an unknown name, kind or key.
    """
    origin, content = str(registry.find("tables", name)), registry.load("tables", name)
    kind = str(content.get("kind", "scores"))
    if kind not in KINDS:
        raise UsageError(f"{origin}: unknown kind '{kind}'{registry.nearest(kind, KINDS)} (one of {', '.join(KINDS)})")
    return parse(KINDS[kind].spec, content, origin)


def build(spec: TableSpec, request: Request) -> Table:
    """Build a table of any kind."""
    return KINDS[spec.kind].build(spec, request)


def build_all(specs: Sequence[TableSpec], request: Request, *, layout: TableSpec | None = None) -> list[Table]:
    """Build several tables.

    Args:
        layout: the table as its YAML has it; what a spec changes in it is told in a note.
    """
    return [_told(build(spec, request), spec, layout) for spec in specs]


def _told(table: Table, spec: TableSpec, layout: TableSpec | None) -> Table:
    changed = [(key, getattr(layout, key), getattr(spec, key)) for key in ("protocol", "backbone")] if layout else []
    said = [f"{key} {now} instead of {before}" for key, before, now in changed if now != before]
    return replace(table, notes=[f"the layout only: {', '.join(said)}", *table.notes]) if said else table
