"""Calibration and churn from stored predictions, against scikit-learn and by hand."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import yaml
from json_output import claim_of, table_of
from scipy import stats
from scipy.special import expit, softmax
from sklearn.metrics import brier_score_loss, log_loss
from synthetic_runs import write_run

from hifi_cli.tasks.metrics import METRICS

CLASSES = {
    "rte": ["entailment", "not_entailment"],
    "cb": ["entailment", "contradiction", "neutral"],
}


def write(task, seed, *, method="full-ft", outputs=None, scale=2, **changes):
    """A run with random predictions of 40 rows; returns the labels' numbers and the logits."""
    classes, rng = CLASSES[task], np.random.default_rng(seed)
    logits = rng.normal(0, scale, (40, outputs or len(classes)))
    labels = np.arange(40) % len(classes)
    predicted = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).astype(int)
    folder = write_run("results", method, task, seed, 0.5, **changes)
    lines = zip(labels, predicted, logits.tolist(), strict=True)
    rows = [
        {"id": str(at), "label": classes[y], "prediction": classes[z], "logits": x}
        for at, (y, z, x) in enumerate(lines)
    ]
    # Rows belong together by their ids: some runs have them in another order.
    if seed % 2:
        rows.reverse()
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return labels, logits


def cells_of(answer, method="full-ft"):
    assert answer.code == 0, answer.err
    return next(row["cells"] for row in table_of(answer)["rows"] if row["method"] == method)


def ece_by_hand(probabilities, labels):
    total, confidence = 0.0, probabilities.max(1)
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            accuracy = (probabilities.argmax(1) == labels)[inside].mean()
            total += inside.mean() * abs(accuracy - confidence[inside].mean())
    return 100 * total


def test_a_confidence_of_one_is_in_the_last_bin():
    """A wrong row of confidence 1 and a correct one of 0.95 have one bin, in which the two errors cancel in part."""
    probabilities = np.array([[0.0, 1.0], [0.95, 0.05]])
    with np.errstate(divide="ignore"):
        logits = np.log(probabilities)
    labels = np.array([0, 0])
    computed = METRICS["ece"].function(logits, labels)
    assert computed == pytest.approx(100 * (1 - 0.05) / 2)
    assert computed == pytest.approx(ece_by_hand(probabilities, labels))


@pytest.mark.parametrize(("task", "outputs"), [("rte", 2), ("rte", 1), ("cb", 3)])
def test_calibration_is_scikit_learns(hifi, task, outputs):
    runs = [write(task, seed, outputs=outputs) for seed in (1, 2, 3)]
    answer = hifi("table --metrics nll,brier,ece --format json")
    cells = cells_of(answer)
    headings = table_of(answer)["headings"]
    assert list(headings.values())[:3] == [
        f"{task.upper()} ({name})" for name in ("NLL", "Brier", "ECE")
    ]
    # Three measures have no mean.
    assert "average" not in headings
    by_hand = {"nll": [], "brier": [], "ece": []}
    for labels, logits in runs:
        positive = expit(logits)
        probabilities = softmax(logits, 1) if outputs > 1 else np.hstack([1 - positive, positive])
        by_hand["nll"].append(log_loss(labels, probabilities))
        by_hand["brier"].append(
            brier_score_loss(labels, probabilities if task == "cb" else probabilities[:, 1])
        )
        by_hand["ece"].append(ece_by_hand(probabilities, labels))
    for name, values in by_hand.items():
        assert cells[f"{task}.{name}"]["value"] == pytest.approx(np.mean(values)), name
        assert cells[f"{task}.{name}"]["std"] == pytest.approx(np.std(values, ddof=1)), name


def test_calibration_is_compared_and_claimed_with_an_interval(hifi):
    """The lower error is the better one."""
    errors = {
        method: [
            ece_by_hand(softmax(logits, 1), labels)
            for labels, logits in (write("rte", s, method=method, scale=scale) for s in range(1, 9))
        ]
        for method, scale in (("bitfit", 0.5), ("full-ft", 8))
    }
    differences = np.subtract(errors["bitfit"], errors["full-ft"])
    expected = [differences.mean(), *stats.ttest_1samp(differences, 0).confidence_interval()]
    answer = hifi("compare bitfit full-ft --metric ece --format json")
    row = json.loads(answer.out)[0]["rows"][0]
    assert [row["mean"], row["low"], row["high"]] == pytest.approx(expected)
    assert row["verdict"] == "better" and "in ece (" in answer.out
    claim = {"kind": "difference", "text": "t", "where": "w", "metric": "ece", "at_most": 0.0}
    own = {"description": "d", "protocol": "hifi", "backbone": "bert-large", "tasks": ["rte"]}
    own["claims"] = {"calibrated": {**claim, "first": "bitfit", "second": "full-ft"}}
    Path("own.yaml").write_text(yaml.safe_dump(own))
    row, _, _ = claim_of(hifi("claims own.yaml --format json"), "calibrated")
    assert [row["ours"], row["low"], row["high"]] == pytest.approx(expected)
    assert row["verdict"] == "reproduced"
    claim = {"kind": "number", "text": "t", "where": "w", "metric": "ece", "methods": "full-ft"}
    own["claims"] = {"low": {**claim, "at_most": 99}, "zero": {**claim, "at_most": 0.01}}
    Path("own.yaml").write_text(yaml.safe_dump(own))
    answer = hifi("claims own.yaml --format json")
    low, zero = (claim_of(answer, name)[0] for name in own["claims"])
    assert [low["verdict"], zero["verdict"], low["runs"]] == ["reproduced", "not reproduced", 8]
    interval = stats.ttest_1samp(errors["full-ft"], 0).confidence_interval()
    assert [low["ours"], low["low"], low["high"]] == pytest.approx(
        [np.mean(errors["full-ft"]), *interval]
    )


def test_churn_is_the_mean_disagreement_of_pairs_of_seeds(hifi):
    predicted = [write("cb", seed)[1].argmax(1) for seed in (1, 2, 3, 4)]
    write("cb", 1, method="bitfit")
    answer = hifi("table --metrics score,churn --format json")
    pairs = [100 * (left != right).mean() for left, right in combinations(predicted, 2)]
    cells = cells_of(answer)
    assert (
        cells["cb.churn"]["value"] == pytest.approx(np.mean(pairs)) and cells["cb"]["value"] == 50
    )
    assert cells["cb.churn"]["std"] is None
    alone = cells_of(answer, "bitfit")["cb.churn"]
    assert alone["value"] is None and "0 of 4 seeds: churn needs two seeds" in alone["notes"]
    rows = table_of(hifi("table --metrics churn --intervals --format json"))["rows"]
    assert [row["cb.churn_low"] for row in rows] == [None, None]
    refused = hifi("compare full-ft bitfit --metric churn")
    assert refused.code == 2 and "has no interval: hifi table --metrics churn" in refused.err


def test_seeds_of_two_backbones_are_no_pairs(hifi):
    for backbone in ("bert-large", "roberta-large"):
        write("rte", 1, backbone=backbone)
    words = "--method full-ft --backbones bert-large,roberta-large --metrics churn"
    answer = hifi(f"table {words} --format json")
    for backbone in ("bert-large", "roberta-large"):
        assert cells_of(answer, backbone)["rte.churn"]["value"] is None


def test_the_lowest_is_the_best_and_tasks_without_classes_have_no_column(hifi):
    found = {}
    for method in ("full-ft", "bitfit"):
        labels, logits = write("cb", len(method), method=method)
        found[method] = log_loss(labels, softmax(logits, 1))
    write_run("results", "full-ft", "stsb", 1, 0.8)
    lines = hifi("table --metrics nll --format md --seeds 6-7").out.splitlines()
    assert "| Method | CB (NLL) |" in lines[2]
    best = min(found, key=found.__getitem__)
    label = {"full-ft": "Full-FT", "bitfit": "BitFit"}[best]
    assert f"| **{found[best]:.3f}**" in next(
        line for line in lines if line.startswith(f"| {label}")
    )
    assert any("negative log-likelihood in nats" in line for line in lines)
    said = "no NLL of STS-B: the rows have no single class"
    assert said in hifi("table --metrics nll --tasks stsb").out
    assert not any(said in line for line in lines)


def test_no_interval_of_an_error_begins_below_0(hifi):
    for seed, scale in ((1, 0.1), (2, 9)):
        write("rte", seed, scale=scale)
    (row,) = table_of(hifi("table --metrics ece --intervals --format json"))["rows"]
    assert row["rte.ece_low"] == 0 < row["rte.ece"] < row["rte.ece_high"]


def test_an_epoch_without_predictions_and_an_unknown_metric_are_said(hifi):
    write("rte", 1)
    cell = cells_of(hifi("table --metrics ece --score last --format json"))["rte.ece"]
    assert cell["value"] is None and "0 of 1 seeds: no ece stored for this score" in cell["notes"]
    answer = hifi("table --metrics brie")
    assert answer.code == 2 and "no run has 'brie'; did you mean 'brier'?" in answer.err


@pytest.mark.slow
def test_the_report_has_a_section_where_there_are_predictions(hifi):
    write("rte", 1)
    assert hifi("report --out report.html").code == 0
    page = Path("report.html").read_text()
    assert "Calibration and churn: Finished runs" in page and "RTE (ECE)" in page
    write_run("others", "full-ft", "rte", 1, 0.5)
    assert hifi("report --results-dir others --out report.html").code == 0
    assert "Calibration" not in Path("report.html").read_text()
