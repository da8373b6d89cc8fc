"""Scores of stored predictions on samples of their rows, for tests over rows.

A bootstrap needs a score of thousands of samples, in which a row may stand several times. Nearly
every metric is a function of sums over the rows, so that a sample's score follows from how often
it has each row. `hifi_cli.tasks.metrics` says what the metrics are; tests compare the two.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.paired_tests import Floats
from hifi_cli.row_tests import RowScore
from hifi_cli.tasks.metrics import entities, exact_match, word_f1
from hifi_cli.tasks.task_spec import TaskSpec

# From sums over rows, [..., sums], to scores, [...].
Sums = Callable[[Floats], Floats]


def score_of_rows(task: TaskSpec, metric: str, predictions: pd.DataFrame) -> RowScore | None:
    """Return how a metric of one model's predictions follows from how often each row is drawn.

    Args:
        predictions: columns `label` and `prediction`, as a run stores them.

    Returns:
        None: the metric needs more than the stored predictions, as one of whole questions does.
    """
    labels = [*predictions["label"]]
    predicted = [*predictions["prediction"]]
    form = task.rules.predicts
    if "number" in form:
        return _of_numbers(metric, np.array(labels, float), np.array(predicted, float))
    if "classes" in form:
        has_label = indicators(task.labels, labels)
        is_predicted = indicators(task.labels, predicted)
        return _of_classes(metric, has_label, is_predicted, has_one_class=False)
    if "text" in form:
        return _of_answers(metric, labels, predicted)
    if "tags" in form:
        return _of_tags(metric, labels, predicted)
    if not task.classes:
        return None
    labels_of_one = [[label] for label in labels]
    predictions_of_one = [[prediction] for prediction in predicted]
    return _of_classes(
        metric,
        indicators(task.classes, labels_of_one),
        indicators(task.classes, predictions_of_one),
        has_one_class=True,
    )


def indicators(classes: Sequence[str], chosen: Sequence[Collection[str]]) -> Floats:
    """Return 1 where a row has a class and 0 elsewhere, [rows, classes]."""
    indicators = np.zeros((len(chosen), len(classes)))
    for row, names in enumerate(chosen):
        for name in names:
            indicators[row, classes.index(name)] = 1
    return indicators


def _of_sums(row_sums: Floats, score: Sums) -> RowScore:
    """Return the score that is computed from the sums over a sample's rows.

    Args:
        row_sums: what each row adds to each sum, [rows, sums].
    """
    return lambda row_counts: score(row_counts @ row_sums)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return a quotient, and 0 where there is nothing to divide by, as the metrics do."""
    is_defined = denominator != 0
    return np.where(is_defined, numerator / np.where(is_defined, denominator, 1), 0.0)


# --- classes


@dataclass(frozen=True)
class _ClassSums:
    """Counts of a sample's rows by class, [..., classes] each.

    Attributes:
        correct: rows that have the class and are predicted to have it.
        labelled: rows that have the class.
        chosen: rows that are predicted to have the class.
    """

    correct: Floats
    labelled: Floats
    chosen: Floats

    @classmethod
    def of(cls, sums: Floats) -> "_ClassSums":
        """Split the sums over rows, [..., 3 * classes], which stand in the order of the fields."""
        return cls(*np.split(sums, 3, axis=-1))


def _f1_of_each_class(sums: _ClassSums) -> Floats:
    """Return the F1 of every class, [..., classes]."""
    return _ratio(2 * sums.correct, sums.labelled + sums.chosen)


def _f1_of_second_class(sums: _ClassSums) -> Floats:
    """Return the F1 of the second of two classes, the positive one of GLUE and SuperGLUE."""
    return _f1_of_each_class(sums)[..., 1]


def _f1_macro(sums: _ClassSums) -> Floats:
    """Return the mean F1 over the classes that a row has or is predicted to have, as scikit-learn's."""
    occurs = sums.labelled + sums.chosen > 0
    total = (_f1_of_each_class(sums) * occurs).sum(axis=-1)
    return _ratio(total, occurs.sum(axis=-1))


def _f1_macro_of_several(sums: _ClassSums) -> Floats:
    """Return the mean F1 over all classes, where a row may have several."""
    return _f1_of_each_class(sums).mean(axis=-1)


def _f1_micro(sums: _ClassSums) -> Floats:
    """Return the F1 of the counts of all classes together."""
    correct = sums.correct.sum(axis=-1)
    labelled = sums.labelled.sum(axis=-1)
    chosen = sums.chosen.sum(axis=-1)
    return _ratio(2 * correct, labelled + chosen)


def _matthews(sums: _ClassSums) -> Floats:
    """Return the correlation of labels and predictions for any number of classes (Gorodkin 2004)."""
    rows = sums.labelled.sum(axis=-1)
    covariance = sums.correct.sum(axis=-1) * rows - (sums.labelled * sums.chosen).sum(axis=-1)
    spread_of_labels = rows**2 - (sums.labelled**2).sum(axis=-1)
    spread_of_predictions = rows**2 - (sums.chosen**2).sum(axis=-1)
    return _ratio(covariance, np.sqrt(spread_of_labels * spread_of_predictions))


def _of_classes(
    metric: str, labels: Floats, predicted: Floats, *, has_one_class: bool
) -> RowScore | None:
    """Return the score of predicted classes.

    Args:
        labels: 1 where a row has a class, [rows, classes].
        predicted: likewise.
        has_one_class: whether each row has exactly one class.
    """
    if metric == "accuracy":
        is_right = (labels == predicted).all(axis=1)
        return _mean(is_right.astype(float))
    if metric == "binary_accuracy":
        is_right = labels[:, 0] == predicted[:, 0]
        return _mean(is_right.astype(float))
    scores: dict[str, Callable[[_ClassSums], Floats]] = {
        "f1_micro": _f1_micro,
        "f1_macro": _f1_macro_of_several,
    }
    if has_one_class:
        scores["f1_macro"] = _f1_macro
        scores["matthews"] = _matthews
    if has_one_class and labels.shape[1] == 2:
        scores["f1"] = _f1_of_second_class
        scores["f1a"] = _f1_of_second_class
    if metric not in scores:
        return None
    score = scores[metric]
    # The addends of each row, in the order of the fields of `_ClassSums`.
    row_sums = np.concatenate([labels * predicted, labels, predicted], axis=1)
    return _of_sums(row_sums, lambda sums: score(_ClassSums.of(sums)))


def _mean(values: Floats) -> RowScore:
    """Return the mean over a sample's rows of one value a row."""
    return lambda row_counts: row_counts @ values / row_counts.sum(axis=1)


# --- numbers


def _of_numbers(metric: str, labels: Floats, predicted: Floats) -> RowScore | None:
    """Return the correlation of labels and predicted numbers."""
    if metric == "pearson":
        columns = _centered(labels), _centered(predicted)
        return lambda row_counts: _weighted_pearson(*columns, row_counts)
    if metric == "spearman":
        return lambda row_counts: _weighted_pearson(
            _ranks(labels, row_counts), _ranks(predicted, row_counts), row_counts
        )
    return None


def _centered(values: Floats) -> Floats:
    """Return values minus their mean, which keeps digits in sums of squares."""
    return values - values.mean()


def _weighted_pearson(first: Floats, second: Floats, row_counts: Floats) -> Floats:
    """Return the correlation of two columns in each sample; 0 where one is constant.

    Args:
        first: [rows], or of each sample [samples, rows].
        second: likewise.
        row_counts: how often a sample has a row, [samples, rows].
    """
    rows = row_counts.sum(axis=1)

    def mean(values: Floats) -> Floats:
        return (row_counts * values).sum(axis=1) / rows

    covariance = mean(first * second) - mean(first) * mean(second)
    variance = mean(first**2) - mean(first) ** 2
    other_variance = mean(second**2) - mean(second) ** 2
    # Rounding leaves a little more than nothing of a constant column.
    is_constant = np.minimum(variance, other_variance) < 1e-12
    return _ratio(
        np.where(is_constant, 0.0, covariance), np.sqrt(np.abs(variance * other_variance))
    )


def _ranks(values: Floats, row_counts: Floats) -> Floats:
    """Return the rank of each row's value in each sample, the mean rank of equal ones, [samples, rows].

    The ranks are divided by the number of rows and centered, which changes no correlation.
    """
    ascending = np.argsort(values, kind="stable")
    _, first_places, places = np.unique(values[ascending], return_index=True, return_inverse=True)
    # How often a sample has each distinct value, in ascending order.
    counts = np.add.reduceat(row_counts[:, ascending], first_places, axis=1)
    lower = np.cumsum(counts, axis=1) - counts
    mean_ranks = lower + (counts + 1) / 2
    ranks = np.empty_like(row_counts)
    ranks[:, ascending] = mean_ranks[:, places]
    return ranks / row_counts.sum(axis=1, keepdims=True) - 0.5


# --- answers and tags


def _of_answers(
    metric: str, labels: Sequence[Sequence[str]], predicted: Sequence[str]
) -> RowScore | None:
    """Return the mean score of answers in a text, each compared with all accepted ones."""
    functions = {"span_em": exact_match, "span_f1": word_f1}
    if metric not in functions:
        return None
    pairs = zip(predicted, labels, strict=True)
    return _mean(np.array([functions[metric](answer, accepted) for answer, accepted in pairs]))


def _of_tags(
    metric: str, labels: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> RowScore | None:
    """Return the score of the tags of sentences' words."""
    row_sums: list[list[float]] = []
    for tags, other in zip(labels, predicted, strict=True):
        in_label = {*entities(tags)}
        in_prediction = {*entities(other)}
        right_words = sum(tag == chosen for tag, chosen in zip(tags, other, strict=True))
        counts: list[Any] = [
            len(in_label & in_prediction),
            len(in_label),
            len(in_prediction),
            right_words,
            len(tags),
        ]
        row_sums.append(counts)
    scores: dict[str, Sums] = {
        "ner_precision": lambda sums: _ratio(sums[..., 0], sums[..., 2]),
        "ner_recall": lambda sums: _ratio(sums[..., 0], sums[..., 1]),
        "ner_f1": lambda sums: _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2]),
        "word_accuracy": lambda sums: _ratio(sums[..., 3], sums[..., 4]),
    }
    if metric not in scores:
        return None
    return _of_sums(np.array(row_sums, float), scores[metric])
