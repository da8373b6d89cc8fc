"""What a user asks of a table besides its name."""

from dataclasses import dataclass, field
from typing import Any

from hifi_cli.config.choices import Score
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results


@dataclass(frozen=True)
class TableRequest:
    """What a user asks of a table besides its name.

    Attributes:
        results: read only by the kinds of tables that need runs.
        score: `best`, `last` or `max`; None: what each protocol reports.
        counted: marks (`collapsed`, `limited`, `unequal`) whose runs enter the means.
        published: whether the paper's numbers stand beside ours.
        measured: what was measured for a table that is not about runs, by row or column.
    """

    results: Results
    score: Score | None = None
    counted: frozenset[str] = COUNTED
    published: bool = False
    measured: dict[str, Any] = field(default_factory=dict)
