"""Few-shot samples: the protocol, the same on every machine, and what cannot be sampled."""

import json
from pathlib import Path

import numpy as np
import pytest
from prepared_models import data_of

from hifi_cli.errors import UsageError
from hifi_cli.records.study import Study
from hifi_cli.runs import run as runs
from hifi_cli.runs.inputs import load_task
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import Row

CB = task_spec.load("cb")
ROWS = [Row(str(at), ((f"text {at}", "x"),), at % 3) for at in range(300)]
EXPECTED = {
    "train": ["29", "27", "7", "11", "4", "6"],
    "dev": ["8", "17", "21", "24", "16", "10"],
    "sha256": "ff92281221f174927e51f49a850feba69e13a7f91bfabfa4bdae74d4ed9540fb",
}


def test_train_and_dev_hold_so_many_of_each_class_and_nothing_twice():
    drawn = task_sources.few_shot_sample(CB, ROWS, 16, seed=1)
    for rows in drawn:
        assert sorted(row.label for row in rows) == [0] * 16 + [1] * 16 + [2] * 16
    ids = [row.id for row in drawn[0] + drawn[1]]
    assert len(set(ids)) == len(ids) == 96
    assert {row.id for row in task_sources.few_shot_sample(CB, ROWS, 16, seed=2)[0]} != {
        row.id for row in drawn[0]
    }


def test_one_shuffle_gives_first_train_then_dev():
    """More shots only append: the order is one shuffle of all rows, not one per class or per part."""
    few, more = (
        task_sources.few_shot_sample(CB, ROWS, 4, seed=1),
        task_sources.few_shot_sample(CB, ROWS, 8, seed=1),
    )
    assert {row.id for row in more[0]} == {row.id for row in few[0] + few[1]}


def test_the_sample_is_the_same_on_every_machine():
    """Written down once: SHA-256 over seed and row number decides, and nothing else may."""
    drawn = task_sources.few_shot_sample(CB, ROWS[:30], 2, seed=1)
    assert task_sources.few_shot_rows(*drawn) == EXPECTED
    changed = [Row(row.id, (("other", "x"),), row.label) for row in ROWS[:30]]
    assert (
        task_sources.few_shot_rows(*task_sources.few_shot_sample(CB, changed, 2, seed=1))["sha256"]
        != EXPECTED["sha256"]
    )


def test_what_has_no_classes_or_too_few_rows_is_refused(make):
    for name in ("stsb", "squad", "record", "demo-topics"):
        with pytest.raises(
            UsageError, match="has no few-shot setting: shots are counted per class"
        ):
            load_task(make("full-ft", "shots=16", task=name))
    with pytest.raises(
        UsageError, match="has 10 training rows of 'entailment'; 6 shots require 12"
    ):
        task_sources.few_shot_sample(CB, ROWS[:30], 6, seed=1)


def test_a_few_shot_run(tiny, hifi, data, make, workspace):
    full = tiny("train --method hifi-layerwise")
    few = tiny("train --method hifi-layerwise shots=5 log_every=1")
    assert (full.code, few.code) == (0, 0), few.err
    paths = {
        path.parent.parent.parent.name: path
        for path in Path("results/runs").glob("*/*/*/*/seed1/results.json")
    }
    assert set(paths) == {"rte", "rte-5-shot"}
    results = {name: json.loads(path.read_text()) for name, path in paths.items()}
    assert results["rte-5-shot"]["n_examples"] == {"train": 10, "selection": 10, "reported": 24}
    assert (
        results["rte-5-shot"]["selection"],
        results["rte-5-shot"]["shots"],
        results["rte"]["shots"],
    ) == (
        "few-shot",
        5,
        None,
    )
    assert (
        results["rte-5-shot"]["heads_sha256"] == results["rte"]["heads_sha256"]
    )  # scored once, in the full-shot setting
    assert len(list(Path("results/scores").rglob("*.json"))) == 1
    lines = [
        json.loads(line)
        for line in (paths["rte-5-shot"].parent / "metrics.jsonl").read_text().splitlines()
    ]
    # One step per epoch: the whole set is the batch, and larger than the batch size of other runs.
    assert [line["step"] for line in lines if "step" in line] == [1, 2]
    drawn = task_sources.few_shot_sample(
        task_spec.load("rte"), data_of("rte", workspace).splits["train"], 5, seed=1
    )
    assert results["rte-5-shot"]["fewshot"] == task_sources.few_shot_rows(*drawn)
    again = hifi("eval", paths["rte-5-shot"].parent, "--data-dir", data)
    assert "rte-5-shot" in again.out and "logits identical" in again.out


@pytest.mark.parametrize(
    ("method", "settings", "first"),
    [
        ("full-ft", [], 2),
        ("full-ft", ["learning_rate=1e-30"], 2),  # all epochs are equal
        ("full-ft", ["warmup=0"], 1),
        ("full-ft", ["report=last"], 2),
        ("full-ft", ["report=max"], 2),
        ("eh-ft-bitfit", ["settings.stage1_fraction=0.34"], 4),
        ("eh-ft-bitfit", ["settings.stage1_fraction=0.34", "report=last"], 4),
    ],
)
def test_the_reported_split_is_evaluated_where_the_stored_model_cannot_be_used(
    make, workspace, method, settings, first
):
    """After the last epoch, and after each for a maximum. Where the last model is stored, also after each best epoch so far
    of the last stage whose model is trained: from epoch `first` on. An epoch is one step, the first of which has rate 0.
    """
    runs.run(make(method, "shots=4", "epochs=6", "learning_rate=0.002", *settings), workspace)
    (path,) = workspace.results_dir.glob("runs/*/*/*/*/seed1/results.json")
    results = json.loads(path.read_text())
    lines = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
    epochs = {line["epoch"]: line for line in lines if "epoch" in line}
    selection = [epochs[number]["selection"] for number in range(1, 7)]
    best_so_far = {
        n
        for n in range(first, 7)
        if all(selection[n - 1] > other for other in selection[first - 1 : n - 1])
    }
    evaluated = {number for number, line in epochs.items() if "accuracy" in line}
    if "report=max" in settings:
        assert evaluated == set(range(1, 7))
    else:
        assert evaluated == {6} | (best_so_far if "report=last" in settings else set())
    best = first + selection[first - 1 :].index(max(selection[first - 1 :]))
    scores = {best: results["metrics"]["accuracy"]} | {
        number: epochs[number]["accuracy"] for number in evaluated
    }
    highest = max(scores.values()) if len(scores) == 6 else None
    assert results["scores"] == {"last": scores[6], "best": scores[best], "max": highest}
    assert results["epochs"]["best"] == best and (results["epochs"]["max"] is None) == (
        highest is None
    )
    study = Study(workspace.results_dir)
    (value,) = study.scores(study.runs, "max", "accuracy")
    assert np.isnan(value) if highest is None else value == highest


@pytest.mark.parametrize("method", ["full-ft", "eh-ft-bitfit"])
def test_scores_are_the_same_however_often_the_reported_split_is_evaluated(make, workspace, method):
    settings = ["shots=4", "epochs=6", "learning_rate=0.002"]
    results = [
        runs.run(make(method, *settings, f"report={report}", f"variant={report}"), workspace)
        for report in ("best", "last", "max")
    ]
    assert (
        len({(result.scores.best, result.scores.last, result.epochs.best) for result in results})
        == 1
    )
    assert results[0].epochs.best < 6 and results[0].scores.best != results[0].scores.last
