"""Measures of stored predictions besides a score: calibration, and agreement between seeds."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.errors import HifiError
from hifi_cli.records.study import Study
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.metrics import METRICS, OF_PREDICTIONS

# The measures of stored predictions, each with its description.
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


def measure(
    study: Study, runs: pd.DataFrame, epoch_choice: EpochChoice | None, metric: str
) -> pd.Series:
    """Return a measure of the predictions of each run.

    Args:
        study: where the runs come from.
        runs: rows of `Study.runs`, of one task where the measure is of pairs of seeds.
        epoch_choice: the epoch that is asked for; None: the one that each run reports.
        metric: one of `MEASURES`.

    Returns:
        NaN where there are no predictions of the epoch, or their classes are not known here.
    """
    # The predictions of the runs that have them, by the index of `runs`.
    known: dict[Any, pd.DataFrame] = {}
    for index, run in runs.iterrows():
        # Predictions are stored of the kept epoch alone.
        if epoch_choice not in (None, run.kept):
            continue
        predictions = _stored(study, run.path, run.task)
        if predictions is not None:
            known[index] = predictions
    # A measure is of each run's probabilities, or, as churn, of several seeds together.
    values: dict[Any, float] = {}
    function = METRICS[metric].function
    if function:
        for index, table in known.items():
            values[index] = function(np.stack(table["logits"]), table["label"].to_numpy())
    if METRICS[metric].needs == "seeds":
        seeds_of_one = runs.loc[[*known]].groupby(["method", "backbone"])
        for same in seeds_of_one.groups.values():
            values |= _churn({index: known[index] for index in same})
    return pd.Series(values, index=runs.index, dtype=float)


def _churn(predictions: Mapping[Any, pd.DataFrame]) -> dict[Any, float]:
    """Compute how many examples another seed predicts otherwise, in percent, mean over the others.

    Args:
        predictions: of each seed of one method on one task.
    """
    predicted = pd.DataFrame({index: table["prediction"] for index, table in predictions.items()})
    churn = {}
    for index in predicted:
        shares = predicted.ne(predicted[index], axis=0).mean()
        churn[index] = float(100 * shares.drop(index).mean())
    return churn


@cache
def _stored(study: Study, path: str, task: str) -> pd.DataFrame | None:
    """Return the predictions of a run; None: there are none, or the task's classes are not known here.

    Columns: `logits` of all classes, index of the `label`, and `prediction`, by the example's id.
    """
    table = study.usable_predictions(path)
    classes = classes_of(task)
    if table is None or not classes:
        return None
    logits: Array = np.array(table["logits"].to_list(), dtype=np.float64)
    # The sigmoid of z is the softmax of 0 and z.
    if logits.shape[1] == 1:
        logits = np.hstack([np.zeros_like(logits), logits])
    labels = table["label"].map(classes.index)
    return table.assign(logits=[*logits], label=labels).set_index("id")
