"""The scores of a task's predictions; only a metric of the `evaluate` library may use the network."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.hub import is_offline
from hifi_cli.tasks.examples import Output, Predictions, Row, labels_of
from hifi_cli.tasks.metrics import METRICS, Needs
from hifi_cli.tasks.task_spec import TaskSpec


def compute(spec: TaskSpec, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """Compute every metric of a task, in [0, 1], or [-1, 1] for correlations.

    Args:
        spec: the task, on one of its splits.
        rows: of the split.
        predictions: one per row.

    Returns:
        The scores by the names of the metrics, those of the task first.

    Raises:
        UsageError: `evaluate` does not return the primary metric.
        MissingError: the metric of the `evaluate` library cannot be loaded.
    """
    scores: dict[str, float] = {}
    for name in spec.metrics:
        metric = METRICS[name]
        # A metric without a function compares several runs, and is none of a task.
        if metric.function is not None:
            labels, predicted = _inputs(metric.needs, spec, rows, predictions)
            scores[name] = metric.function(labels, predicted)
    if spec.evaluate:
        scores |= _evaluate(spec, spec.evaluate, rows, predictions)
    if spec.primary not in scores:
        raise UsageError(
            f"task {spec.label}: primary '{spec.primary}' is not among its scores, {', '.join(scores)}"
        )
    return scores


def _inputs(
    needs: Needs, spec: TaskSpec, rows: Sequence[Row], predictions: Predictions
) -> tuple[Any, Any]:
    """Return what the function of a metric is given: of labels, and of predictions."""
    if needs == "labels":
        return labels_of(rows), np.asarray(predictions)
    if needs == "tags":
        tags = [spec.rules.label_word(row.label) for row in rows]
        predicted = [output.prediction for output in predictions if isinstance(output, Output)]
        return tags, predicted
    return rows, predictions


def _evaluate(
    spec: TaskSpec, name: str, rows: Sequence[Row], predictions: Predictions
) -> dict[str, float]:
    """Compute a metric of the `evaluate` library, with the library's names of the scores.

    An undefined score (NaN), as the correlation of constant predictions is, counts as 0, as in
    `pearson`.

    Raises:
        MissingError: there is no such metric.
        UsageError: it is no metric, or it fails.
    """
    import evaluate

    # `evaluate` ignores HF_HUB_OFFLINE.
    evaluate.config.HF_EVALUATE_OFFLINE |= is_offline()
    try:
        metric = evaluate.load(name)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise MissingError(
            f"task {spec.label}: the metric '{name}' of evaluate cannot be loaded ({reason:.120})"
        ) from None
    except Exception as error:
        # A metric's file is code, which may raise anything.
        raise _metric_error(spec, name, error) from error
    number = spec.rules.number_type
    outputs = np.asarray(predictions).astype(number).tolist()
    references = labels_of(rows).astype(number).tolist()
    try:
        computed = metric.compute(predictions=outputs, references=references)
        scores = {}
        for key, value in computed.items():
            if not isinstance(value, dict):
                scores[key] = float(np.nan_to_num(value))
        return scores
    except Exception as error:
        raise _metric_error(spec, name, error) from error


def _metric_error(spec: TaskSpec, name: str, error: Exception) -> UsageError:
    """Return the error for a metric of the `evaluate` library, or a file of the user's own, that fails."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UsageError(
        f"task {spec.label}: the metric '{name}' fails ({reason:.120}): it must be a subclass of"
        " evaluate.Metric that returns numbers by name"
    )
