"""The options of a table besides its specification."""

from dataclasses import dataclass, field
from typing import Any

from hifi_cli.config.choices import Score
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results


@dataclass(frozen=True)
class TableRequest:
    """The options of a table besides its specification.

    Attributes:
        results: read only by table types that need runs.
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        published: whether the paper's numbers are shown.
        measured: measurements for a table that is not about runs, by row or column.
    """

    results: Results
    score: Score | None = None
    counted: frozenset[str] = COUNTED
    published: bool = False
    measured: dict[str, Any] = field(default_factory=dict)
