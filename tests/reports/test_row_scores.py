"""Scores of samples of rows are the metrics of the rows themselves, repeated as often as a sample has them."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hifi_cli.reports.row_scores import score_of_rows
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.metrics import METRICS, word_f1

ROWS = 60


def samples(generator):
    """How often each of some samples has each row; the first sample has each once."""
    drawn = [np.bincount(generator.integers(0, ROWS, ROWS), minlength=ROWS) for _ in range(5)]
    return np.array([np.ones(ROWS), *drawn], dtype=float)


def repeated(values, counts):
    return np.repeat(np.asarray(values), counts.astype(int), axis=0)


def check(task, metric, labels, predictions, expected):
    """Compare the scores of samples with a function of the samples' labels and predictions."""
    table = pd.DataFrame({"label": labels, "prediction": predictions})
    score = score_of_rows(task, metric, table)
    row_counts = samples(np.random.default_rng(9))
    found = score(row_counts)
    assert found.shape == (len(row_counts),)
    for value, counts in zip(found, row_counts, strict=True):
        chosen = np.repeat(np.arange(ROWS), counts.astype(int))
        assert value == pytest.approx(expected(chosen), abs=1e-9)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "f1a", "f1_macro", "f1_micro", "matthews"])
@pytest.mark.parametrize("is_degenerate", [False, True])
def test_scores_of_two_classes(metric, is_degenerate):
    task, generator = task_spec.load("mrpc"), np.random.default_rng(1)
    labels, predicted = generator.integers(0, 2, (2, ROWS))
    if is_degenerate:
        predicted[:] = 0
    names = np.array(task.classes)
    check(
        task,
        metric,
        [*names[labels]],
        [*names[predicted]],
        lambda rows: METRICS[metric].function(
            labels[rows].astype(float), predicted[rows].astype(float)
        ),
    )


@pytest.mark.parametrize(
    "metric", ["accuracy", "binary_accuracy", "f1_macro", "f1_micro", "matthews"]
)
@pytest.mark.parametrize("class_is_missing", [False, True])
def test_scores_of_three_classes(metric, class_is_missing):
    task, generator = task_spec.load("cb"), np.random.default_rng(2)
    labels, predicted = generator.integers(0, 2 if class_is_missing else 3, (2, ROWS))
    names = np.array(task.classes)
    check(
        task,
        metric,
        [*names[labels]],
        [*names[predicted]],
        lambda rows: METRICS[metric].function(
            labels[rows].astype(float), predicted[rows].astype(float)
        ),
    )


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro", "f1_micro"])
def test_scores_of_several_classes_a_row(metric):
    task = task_spec.load("demo-topics")
    generator, names = np.random.default_rng(3), np.array(task.labels)
    labels, predicted = generator.integers(0, 2, (2, ROWS, len(names))).astype(bool)
    labels[:, 0] = False
    predicted[:, 0] = False
    check(
        task,
        metric,
        [[*names[row]] for row in labels],
        [[*names[row]] for row in predicted],
        lambda rows: METRICS[metric].function(
            labels[rows].astype(float), predicted[rows].astype(float)
        ),
    )


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_correlations(metric):
    """With many ties in the labels, as a task's whole numbers have."""
    generator = np.random.default_rng(4)
    labels = generator.integers(0, 4, ROWS).astype(float)
    predicted = labels + generator.normal(0, 1, ROWS)
    task = task_spec.load("stsb")
    function = getattr(stats, f"{metric}r")
    check(task, metric, labels, predicted, lambda rows: function(labels[rows], predicted[rows])[0])
    check(task, metric, labels, np.full(ROWS, 0.1), lambda rows: 0.0)


@pytest.mark.parametrize("metric", ["ner_f1", "ner_precision", "ner_recall", "word_accuracy"])
def test_scores_of_tags(metric):
    task, generator = task_spec.load("demo-roles"), np.random.default_rng(5)
    names = np.array(task.labels)
    labels, predicted = (
        [[*names[row]] for row in generator.integers(0, len(names), (ROWS, 7))] for _ in range(2)
    )

    def expected(rows):
        chosen = [labels[row] for row in rows], [predicted[row] for row in rows]
        return METRICS[metric].function(*chosen)

    check(task, metric, labels, predicted, expected)


def test_scores_of_answers():
    task, generator = task_spec.load("squad"), np.random.default_rng(6)
    words = np.array(["a", "red", "big", "cat", "sat"])
    labels = [[" ".join(words[generator.integers(0, 5, 3)]) for _ in range(2)] for _ in range(ROWS)]
    predicted = [" ".join(words[generator.integers(0, 5, 2)]) for _ in range(ROWS)]
    of_rows = np.array([word_f1(*pair) for pair in zip(predicted, labels, strict=True)])
    check(task, "span_f1", labels, predicted, lambda rows: of_rows[rows].mean())


def test_the_oracle_is_scikit_learn():
    """The project's metrics are compared with scikit-learn elsewhere; here once, without them between."""
    generator = np.random.default_rng(7)
    task, names = task_spec.load("cb"), np.array(task_spec.load("cb").classes)
    labels, predicted = names[generator.integers(0, 3, (2, ROWS))]
    for metric, function in (
        ("matthews", sklearn_metrics.matthews_corrcoef),
        ("accuracy", sklearn_metrics.accuracy_score),
    ):
        check(
            task,
            metric,
            [*labels],
            [*predicted],
            lambda rows, f=function: f(labels[rows], predicted[rows]),
        )


@pytest.mark.parametrize(
    ("task", "metric"),
    [("multirc", "question_em"), ("cb", "pearson"), ("cb", "f1"), ("record", "entity_f1")],
)
def test_a_metric_of_more_than_single_rows_has_none(task, metric):
    table = pd.DataFrame({"label": ["x"], "prediction": ["x"]})
    spec = task_spec.load(task)
    if spec.classes:
        table = table.replace("x", spec.classes[0])
    assert score_of_rows(spec, metric, table) is None
