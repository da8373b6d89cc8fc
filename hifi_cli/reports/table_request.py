"""The options of a table besides its specification."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hifi_cli.config.choices import Score
from hifi_cli.records.cost_files import ResultCosts, TrainingCosts
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.server_scores import ServerScores
from hifi_cli.tasks.task_spec import RowCount


@dataclass(frozen=True)
class TableRequest:
    """The options of a table besides its specification.

    Attributes:
        results: read only by table types that need runs.
        score: `best`, `last` or `max`; None: the one that each protocol reports.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included in the means.
        published: whether the paper's numbers are shown.
        server_scores: test scores that stand in the cells instead of the runs' validation scores.
        result_costs, training_costs: by method, for tables of costs.
        row_counts: by task and split, for tables of row counts.
    """

    results: Results
    score: Score | None = None
    counted: frozenset[str] = COUNTED
    published: bool = False
    server_scores: ServerScores | None = None
    result_costs: Mapping[str, ResultCosts] = field(default_factory=dict)
    training_costs: Mapping[str, TrainingCosts] = field(default_factory=dict)
    row_counts: Mapping[str, Mapping[str, RowCount]] = field(default_factory=dict)
