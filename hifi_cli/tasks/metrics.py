"""Scores of predictions, on scikit-learn and scipy; nothing here touches the network."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError
from hifi_cli.registry import nearest
from hifi_cli.tasks.spec import TaskSpec

Values = NDArray[np.float64]


def accuracy(labels: Values, predictions: Values) -> float:
    """Share of equal entries, in [0, 1]."""
    return float(np.mean(labels == predictions))


def f1(labels: Values, predictions: Values) -> float:
    """F1 of class 1, in [0, 1]; 0 when class 1 is neither there nor predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def matthews(labels: Values, predictions: Values) -> float:
    """Matthews correlation, in [-1, 1]; 0 when either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: Values, predictions: Values) -> float:
    """Pearson correlation, in [-1, 1]; 0 when either side is constant."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(labels) or _constant(predictions) else float(pearsonr(labels, predictions).statistic)


def spearman(labels: Values, predictions: Values) -> float:
    """Spearman rank correlation, in [-1, 1]; 0 when either side is constant."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(labels) or _constant(predictions) else float(spearmanr(labels, predictions).statistic)


METRICS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def predictions_of(spec: TaskSpec, logits: Values) -> Values:
    """What a model predicts: the class of the highest logit (lowest on a tie), or the number.

    Args:
        logits: [examples, classes], or [examples, 1] for regression.
    """
    return logits[:, 0] if spec.kind == "regression" else logits.argmax(-1).astype(np.float64)


def compute(spec: TaskSpec, labels: Values, predictions: Values) -> dict[str, float]:
    """Every metric of a task.

    Raises:
        UsageError: the task names a metric that is not there.
    """
    for name in spec.metrics:
        if name not in METRICS:
            raise UsageError(f"task {spec.label}: unknown metric '{name}'{nearest(name, METRICS)}")
    return {name: METRICS[name](labels, predictions) for name in spec.metrics}


def is_collapsed(predictions: Values) -> bool:
    """Whether a model says the same of every example, or something that is no number."""
    return bool(not np.isfinite(predictions).all() or (len(predictions) > 1 and _constant(predictions)))


def _constant(values: Values) -> bool:
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
