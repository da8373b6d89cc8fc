"""What stored predictions of classes say besides a score: calibration, and agreement between seeds."""

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hifi_cli.config.epoch_rule import EpochChoice, EpochRule
from hifi_cli.errors import HifiError
from hifi_cli.records.study import Study
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.metrics import METRICS, OF_PREDICTIONS

# What is measured on stored predictions, with what each measure is.
MEASURES = {
    name: metric.description for name, metric in METRICS.items() if metric.needs in OF_PREDICTIONS
}
# Those of a single run's predictions.
OF_ONE_RUN = [name for name, metric in METRICS.items() if metric.needs == "probabilities"]
CHURN = "churn is of pairs of seeds, which are not independent, and has no interval: hifi table --metrics churn"
Array = NDArray[Any]


def classes_of(task: str) -> list[str]:
    """Return the classes of a task whose rows each have one; none where its YAML is not here."""
    with suppress(HifiError):
        return task_spec.load(task).classes
    return []


def measure(study: Study, runs: pd.DataFrame, score: EpochChoice | None, metric: str) -> pd.Series:
    """Return a measure of the predictions of each run of one task.

    It is NaN where there are no predictions of the epoch whose `score` is asked for.
    """
    rules = map(EpochRule, runs["report"], runs["selection"])
    kept = pd.Series([rule.kept for rule in rules], runs.index, dtype=object)
    chosen = runs[kept.eq(score) | (score is None)]
    stored = {index: _stored(study, run.path, run.task) for index, run in chosen.iterrows()}
    known = {index: table for index, table in stored.items() if table is not None}
    values: dict[Any, float] = {}
    if function := METRICS[metric].function:
        for index, table in known.items():
            values[index] = function(np.stack(table["logits"]), table["label"].to_numpy())
    groups = runs.loc[[*known]].groupby("method").groups if METRICS[metric].needs == "seeds" else {}
    for same in groups.values():
        predictions = pd.DataFrame({index: known[index]["prediction"] for index in same})
        differ = {index: predictions.ne(predictions[index], axis=0).mean() for index in same}
        values |= {index: 100 * shares.drop(index).mean() for index, shares in differ.items()}
    return pd.Series(values, index=runs.index, dtype=float)


@cache
def _stored(study: Study, path: str, task: str) -> pd.DataFrame | None:
    """Return `logits` of all classes, index of the `label`, and `prediction`, by the example's id."""
    table, classes = study.usable_predictions(path), classes_of(task)
    if table is None or not classes:
        return None
    logits: Array = np.array(table["logits"].to_list(), dtype=np.float64)
    if logits.shape[1] == 1:  # the sigmoid of z is the softmax of 0 and z
        logits = np.hstack([np.zeros_like(logits), logits])
    labels = table["label"].map(classes.index)
    return table.assign(logits=[*logits], label=labels).set_index("id")
