"""Scores of predictions, on scikit-learn and scipy; nothing here touches the network unless a task names a metric that does."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hifi_cli import hub
from hifi_cli.config.registry import nearest
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import spans
from hifi_cli.tasks.inputs import Example
from hifi_cli.tasks.task_spec import Row, TaskSpec

Values = NDArray[np.float64]
Predictions = Values | list[spans.Answer]  # class, choice or number per row; or an answer per row


def accuracy(labels: Values, predictions: Values) -> float:
    """Share of equal entries, in [0, 1]."""
    return float(np.mean(labels == predictions))


def f1(labels: Values, predictions: Values) -> float:
    """F1 of class 1, in [0, 1]; 0 when class 1 is neither there nor predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def f1_macro(labels: Values, predictions: Values) -> float:
    """Mean of the F1 of every class that is there or predicted (CB), in [0, 1]."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))


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


def question_em(rows: Sequence[Row], predictions: Values) -> float:
    """MultiRC's EM: share of questions all of whose answers are judged right, in [0, 1]."""
    right: dict[str, bool] = defaultdict(lambda: True)
    for row, prediction in zip(rows, predictions, strict=True):
        right[row.group] &= bool(row.label == prediction)
    return sum(right.values()) / len(right)


def span_em(rows: Sequence[Row], predictions: list[spans.Answer]) -> float:
    """SQuAD's EM: share of answers that equal an accepted one after the official normalisation, in [0, 1]."""
    pairs = zip(rows, predictions, strict=True)
    return float(np.mean([spans.exact_match(answer.text, [text for text, _ in row.answers]) for row, answer in pairs]))


def span_f1(rows: Sequence[Row], predictions: list[spans.Answer]) -> float:
    """SQuAD's F1: mean overlap of words with the nearest accepted answer, in [0, 1]."""
    pairs = zip(rows, predictions, strict=True)
    return float(np.mean([spans.overlap(answer.text, [text for text, _ in row.answers]) for row, answer in pairs]))


METRICS: dict[str, Callable[[Values, Values], float]] = {  # by labels and predictions
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1a": f1,  # MultiRC's F1a is the F1 over all answers
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
ROW_METRICS: dict[str, Callable[[Sequence[Row], Any], float]] = {  # by rows and predictions
    "question_em": question_em,
    "span_em": span_em,
    "span_f1": span_f1,
}


def predictions_of(spec: TaskSpec, examples: Sequence[Example], logits: Values) -> Predictions:
    """What a model predicts: the class or choice of the highest logit (lowest on a tie), the number, or the answer.

    Args:
        logits: [examples, classes or choices], where two classes have one logit or for regression [examples, 1], for spans
            [examples, 2, tokens].

    Returns:
        One prediction per row.
    """
    if spec.kind == "span":
        return spans.best_answers(examples, logits)
    if spec.kind == "regression":
        numbers: Values = logits[:, 0]
        return numbers
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(np.float64)
    classes: Values = logits.argmax(-1).astype(np.float64)
    return classes


def labels_of(rows: Sequence[Row]) -> Values:
    """The rows' labels, float64."""
    return np.array([row.label for row in rows], dtype=np.float64)


def compute(spec: TaskSpec, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """Every metric of a task.

    Raises:
        UsageError: the task names a metric that is not there, or `evaluate` does not give its primary one.
        MissingError: its metric of the `evaluate` library cannot be loaded.
    """
    known = METRICS | ROW_METRICS
    scores = {}
    for name in spec.metrics:
        if name not in known:
            raise UsageError(f"task {spec.label}: unknown metric '{name}'{nearest(name, known)}")
        if name in ROW_METRICS:
            scores[name] = ROW_METRICS[name](rows, predictions)
        else:
            scores[name] = METRICS[name](labels_of(rows), np.asarray(predictions))
    scores |= _evaluate(spec, spec.evaluate, rows, predictions) if spec.evaluate else {}
    if spec.primary not in scores:
        raise UsageError(f"task {spec.label}: primary '{spec.primary}' is not among its scores, {', '.join(scores)}")
    return scores


def is_code(name: str) -> bool:
    """Whether a metric is somebody's code, in a file or in a repository `owner/name`, rather than one of `evaluate`'s own.

    `evaluate` looks for its own metrics' names in the working directory first.
    """
    return not name.isidentifier() or Path(name).exists()


def _evaluate(spec: TaskSpec, name: str, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """The scores of a metric of the `evaluate` library, under the names it gives them."""
    import evaluate

    if hub.is_offline():
        evaluate.config.HF_EVALUATE_OFFLINE = True  # it does not know HF_HUB_OFFLINE
    try:
        metric = evaluate.load(name)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:120]
        raise MissingError(f"task {spec.label}: the metric '{name}' of evaluate cannot be loaded ({reason})") from None
    if spec.kind == "span":
        given: list[Any] = [{"id": row.id, "prediction_text": answer[0]} for row, answer in zip(rows, predictions, strict=True)]
        wanted: list[Any] = [_as_squad(row) for row in rows]
    else:
        number = float if spec.kind == "regression" else int
        given = [number(value) for value in np.asarray(predictions)]
        wanted = [number(row.label or 0) for row in rows]
    found = metric.compute(predictions=given, references=wanted)
    return {key: float(value) for key, value in found.items()}


def _as_squad(row: Row) -> dict[str, Any]:
    texts, starts = zip(*row.answers, strict=True)
    return {"id": row.id, "answers": {"text": list(texts), "answer_start": list(starts)}}


def is_collapsed(predictions: Predictions) -> bool:
    """Whether a model says the same of every example, or something that is no number."""
    if isinstance(predictions, list):
        return len(predictions) > 1 and len({answer.text for answer in predictions}) == 1
    return bool(not np.isfinite(predictions).all() or (len(predictions) > 1 and _constant(predictions)))


def _constant(values: Values) -> bool:
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
