"""The table of `hifi compare --rows`: whether a difference holds for new rows of the data."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.registry import label_of
from hifi_cli.errors import HifiError
from hifi_cli.records.study import Study
from hifi_cli.reports.pairs import Pairs
from hifi_cli.reports.row_scores import score_of_rows
from hifi_cli.reports.table import Cell, Row, Table, interval_columns, value_column
from hifi_cli.row_tests import REPLICATES, RowScore, bootstrap_difference, mcnemar_p
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import counted_noun, format_interval

HEADINGS = {
    "other": "Compared with",
    "mean": "Difference",
    "interval": "95 % interval",
    "p": "p",
    "test": "Test",
    "rows": "Rows",
}
NOTES = (
    "about new rows of the dataset and new seeds; the verdict above is about new seeds on these rows;"
    " p without correction for several comparisons",
    f"bootstrap: {REPLICATES:,} draws of rows and of pairs of runs with replacement, percentile interval;"
    " with fewer than about five seeds it is too narrow for new seeds",
)
# Where the score of the stored predictions differs more from the stored score, they are not those
# that the score is of.
_TOLERANCE = 1e-4


class NotTested(Exception):
    """Raised where the runs of a task are not compared over rows; the message says why."""


def row_table(
    study: Study,
    all_pairs: Sequence[Pairs],
    *,
    epoch_choice: EpochChoice | None,
    metric: str | None,
) -> Table:
    """Compare a method with each of the others over the rows of each task.

    Args:
        study: where the runs come from.
        all_pairs: the pairs of the method's runs with those of each other one.
        epoch_choice: which epoch is compared; predictions are stored of the kept epoch alone.
        metric: None: each task's primary one.
    """
    first = all_pairs[0].labels[0]
    rows: list[Row] = []
    notes: list[str] = []
    for pairs in all_pairs:
        other = pairs.labels[1]
        for _, of_task in pairs.frame.groupby("task"):
            # The name in the frame carries the file of a user's own task; the group's key does not.
            task: str = of_task["task"].iloc[0]
            label = label_of("tasks", task)
            try:
                cells = _tested(study, of_task, task, epoch_choice, metric)
            except NotTested as why:
                notes.append(f"{label}, {other}: left out: {why}")
                continue
            rows.append(Row(task, label, "runs", {"other": Cell(other), **cells}))
    return Table(
        title=f"{first} minus each other, for new rows of each dataset",
        rows=sorted(rows, key=lambda row: str(row.name)),
        headings=HEADINGS,
        columns=[
            *(value_column(key) for key in HEADINGS),
            *interval_columns("mean"),
            value_column("pairs"),
        ],
        index_title="Task",
        formats={"mean": "+z.2f", "p": ".3g", "rows": ",.0f"},
        notes=[*notes, *NOTES],
    )


def _tested(
    study: Study,
    pairs: pd.DataFrame,
    task: str,
    epoch_choice: EpochChoice | None,
    metric: str | None,
) -> dict[str, Cell]:
    """Test the pairs of runs of one task.

    Args:
        study: where the runs come from.
        pairs: rows of `Pairs.frame`.
        task: the task's name.
        epoch_choice: which epoch is compared.
        metric: None: the task's primary one.

    Returns:
        Cells: `mean` in percent with its interval, `interval` as a text, `p`, `test`: its name,
        `rows`: of each run, `pairs`: of runs.

    Raises:
        NotTested: predictions are missing, or the metric needs more than they hold.
    """
    spec = _spec_of(task)
    name = metric or str(pairs["metric_first"].iloc[0])
    first, second = _aligned_predictions(study, pairs, epoch_choice)
    scores = []
    others = []
    for path, predictions in first.items():
        scores.append(_checked_score(study, spec, name, path, predictions))
    for path, predictions in second.items():
        others.append(_checked_score(study, spec, name, path, predictions))
    # All runs have the same rows.
    rows = len(next(iter(first.values())))
    found = bootstrap_difference(scores, others, rows)
    # The bootstrap computes fractions of 1; tables have percent.
    low, high = (100 * edge for edge in found.interval)
    p = found.p
    test = f"bootstrap, {counted_noun(len(scores), 'pair')} of runs"
    # Where each row is right or wrong and there is one run of each method, an exact test takes the
    # place of the bootstrap's p. The interval stays the bootstrap's.
    if len(scores) == 1 and name == "accuracy":
        only_first, only_second = _discordant(*first.values(), *second.values())
        p = mcnemar_p(only_first, only_second)
        test = f"exact McNemar, {only_first} and {only_second} rows"
    return {
        "mean": Cell(100 * found.difference, interval=(low, high)),
        "interval": Cell(format_interval(low, high, "+.2f")),
        "p": Cell(p),
        "test": Cell(test),
        "rows": Cell(rows),
        "pairs": Cell(len(scores)),
    }


def _spec_of(task: str) -> TaskSpec:
    """Return a task as its YAML says.

    Raises:
        NotTested: the YAML is not here.
    """
    try:
        return task_spec.load(task)
    except HifiError:
        raise NotTested(
            "the task's YAML is not here: put it into a file and name it with --task"
        ) from None


def _aligned_predictions(
    study: Study, pairs: pd.DataFrame, epoch_choice: EpochChoice | None
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Return the predictions of each run by its path, those of the first method and of the second.

    All have the same rows in the same order.

    Raises:
        NotTested: a run has no predictions of the epoch, or those of other rows.
    """
    sides: list[dict[str, pd.DataFrame]] = []
    for side in ("path_first", "path_second"):
        tables: dict[str, pd.DataFrame] = {}
        for path in pairs[side]:
            # A run stores the predictions of one epoch, which may not be the one of the score.
            kept = study.results[path].kept
            if epoch_choice not in (None, kept):
                raise NotTested(
                    f"predictions are stored of the {kept} epoch, not of the {epoch_choice}"
                )
            table = study.usable_predictions(path)
            if table is None:
                raise NotTested(f"no predictions are stored of {path}")
            tables[path] = table.set_index("id")
        sides.append(tables)
    first, second = sides
    # A draw takes the same rows of all runs, so that all tables must have one order.
    ids = next(iter(first.values())).index
    for tables in sides:
        for path, table in tables.items():
            if not ids.is_unique or {*table.index} != {*ids} or len(table) != len(ids):
                raise NotTested(f"the predictions of {path} are of other rows")
            tables[path] = table.loc[ids]
    return first, second


def _checked_score(
    study: Study, spec: TaskSpec, metric: str, path: str, predictions: pd.DataFrame
) -> RowScore:
    """Return the score of a run's predictions, which gives the stored score on the rows as they are.

    Raises:
        NotTested: the metric needs more than the predictions hold, or they are not those of the score.
    """
    score = score_of_rows(spec, metric, predictions)
    if score is None:
        raise NotTested(f"{metric} needs more than the stored predictions")
    stored = study.results[path].metrics.get(metric)
    computed = float(score(np.ones((1, len(predictions))))[0])
    if stored is None or abs(computed - stored) > _TOLERANCE:
        raise NotTested(f"the predictions of {path} do not give its stored {metric}")
    return score


def _discordant(first: pd.DataFrame, second: pd.DataFrame) -> tuple[int, int]:
    """Count the rows that the first run alone gets right, and those that the second does."""
    is_right = first["prediction"].eq(first["label"])
    other_is_right = second["prediction"].eq(second["label"])
    return int((is_right & ~other_is_right).sum()), int((other_is_right & ~is_right).sum())
