"""`hifi compare --rows`: whether a difference holds for new rows."""

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score
from synthetic_runs import write_run

CLASSES = {"rte": ["entailment", "not_entailment"], "mrpc": ["not_equivalent", "equivalent"]}
ROWS = 80


def write(method, seed, share, task="rte", order=None, ids=range(ROWS), **changes):
    """A run that gets about this share of its rows right; returns the numbers of labels and predictions."""
    generator = np.random.default_rng([seed, len(method)])
    classes, labels = CLASSES[task], np.arange(ROWS) % 2
    predicted = np.where(generator.random(ROWS) < share, labels, 1 - labels)
    metrics = {
        "accuracy": float((labels == predicted).mean()),
        "f1": float(f1_score(labels, predicted)),
    }
    primary = "f1" if task == "mrpc" else "accuracy"
    folder = write_run("results", method, task, seed, metrics[primary], metrics=metrics, **changes)
    lines = [
        {"id": str(name), "label": classes[y], "prediction": classes[z], "logits": [0.0, 1.0]}
        for name, y, z in zip(ids, labels, predicted, strict=True)
    ]
    shuffled = [lines[at] for at in order] if order is not None else lines
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in shuffled))
    return labels, predicted


def rows_of(answer):
    assert answer.code == 0, answer.err
    table = json.loads(answer.out)[2]
    return table["rows"], table["notes"]


def test_two_runs_by_accuracy_are_compared_by_mcnemars_test(hifi):
    labels, first = write("full-ft", 1, 0.9)
    _, second = write("bitfit", 1, 0.7)
    only_first = int(((first == labels) & (second != labels)).sum())
    only_second = int(((second == labels) & (first != labels)).sum())
    [row], notes = rows_of(hifi("compare full-ft bitfit --rows --format json"))
    expected = stats.binomtest(only_first, only_first + only_second, 0.5).pvalue
    assert row["p"] == pytest.approx(expected)
    assert row["test"] == f"exact McNemar, {only_first} and {only_second} rows"
    assert row["mean"] == pytest.approx(100 * (only_first - only_second) / ROWS)
    assert row["low"] < row["mean"] < row["high"] and row["rows"] == ROWS
    assert "new rows of the dataset" in notes[0]


def test_two_runs_by_another_metric_are_bootstrapped(hifi):
    """McNemar's test is of rows that are right or wrong, and an F1 is of all rows together."""
    write("full-ft", 1, 0.9, task="mrpc")
    write("bitfit", 1, 0.7, task="mrpc")
    [row], _ = rows_of(hifi("compare full-ft bitfit --rows --format json"))
    assert row["test"] == "bootstrap, 1 pair of runs"


def test_the_verdict_is_that_over_seeds_alone(hifi):
    for seed in range(1, 9):
        write("full-ft", seed, 0.74)
        write("bitfit", seed, 0.70)
    plain, with_rows = (
        json.loads(hifi(f"compare full-ft bitfit --format json{option}").out)
        for option in ("", " --rows")
    )
    assert len(plain) == 2 and with_rows[:2] == plain


def test_several_seeds_are_bootstrapped_and_rows_are_paired_by_their_ids(hifi):
    for seed in (1, 2, 3):
        write("full-ft", seed, 0.9, task="mrpc")
        write("bitfit", seed, 0.7, task="mrpc")
    words = "compare full-ft bitfit --rows --format json"
    [row], _ = rows_of(hifi(words))
    main = json.loads(hifi(words).out)[0]["rows"][0]
    assert row["mean"] == pytest.approx(main["mean"]) and row["pairs"] == 3
    assert row["test"] == "bootstrap, 3 pairs of runs"
    assert row["low"] < row["mean"] < row["high"]
    write("bitfit", 2, 0.7, task="mrpc", order=np.random.default_rng(0).permutation(ROWS))
    assert rows_of(hifi(words))[0] == [row]


def test_what_cannot_be_tested_over_rows_is_left_out_with_its_reason(hifi):
    write("full-ft", 1, 0.9)
    write("bitfit", 1, 0.7, ids=range(100, 100 + ROWS))
    rows, notes = rows_of(hifi("compare full-ft bitfit --rows --format json"))
    assert (
        rows == []
        and "RTE, BitFit: left out: the predictions of" in notes[0]
        and "of other rows" in notes[0]
    )
    write("bitfit", 1, 0.7)
    rows, notes = rows_of(hifi("compare full-ft bitfit --rows --score last --format json"))
    assert rows == [] and "predictions are stored of the best epoch, not of the last" in notes[0]
    write_run("results", "bitfit", "rte", 1, 0.123)
    rows, notes = rows_of(hifi("compare full-ft bitfit --rows --format json"))
    assert rows == [] and "do not give its stored accuracy" in notes[0]


def test_runs_without_predictions_are_named(hifi):
    for method in ("full-ft", "bitfit"):
        write_run("results", method, "rte", 1, 0.5)
    rows, notes = rows_of(hifi("compare full-ft bitfit --rows --format json"))
    assert rows == [] and "no predictions are stored of runs/" in notes[0]
