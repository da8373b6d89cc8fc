"""`hifi results check`: every way to falsify a stored run that its own files show."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import study
from finished_runs import read_json
from json_output import printed
from run_folders import run_folder

from hifi_cli.config.run_config import config_hash_of
from hifi_cli.records.check import check
from hifi_cli.runs import run as runs

CB = run_folder(protocol="laptop", backbone="minilm", task="cb").parents[1]
RUN = CB / "full-ft/seed1"


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory):
    return study.unpack(tmp_path_factory.mktemp("stored") / "study")


@pytest.fixture(autouse=True)
def stored(hifi, all_runs):
    """Two seeds of two methods, as they were trained."""
    for run in ("full-ft/seed1", "full-ft/seed2", "bitfit/seed1", "bitfit/seed2"):
        shutil.copytree(all_runs / CB.relative_to("results") / run, CB / run)


def change(run, **keys):
    """Change the record of a run; `config` may change too, with the hashes that belong to it."""
    record = read_json(run / "results.json") | keys
    config = record["config"]
    without_seed = {key: value for key, value in config.items() if key != "seed"}
    hashes = {"config_hash": config_hash_of(config), "setting_hash": config_hash_of(without_seed)}
    (run / "results.json").write_text(json.dumps(record | hashes))
    (run / "config.yaml").write_text(json.dumps(config))  # YAML too


def predictions(run, function):
    """Change each line of the predictions."""
    path = run / "predictions.jsonl"
    rows = [function(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def raised(record, by=0.02):
    """All scores of a record, raised alike."""
    epochs = [
        {**line, "accuracy": min(1.0, line["accuracy"] + by)} for line in record["epoch_metrics"]
    ]
    return {
        "metrics": {**record["metrics"], "accuracy": record["metrics"]["accuracy"] + by},
        "scores": {name: min(1.0, score + by) for name, score in record["scores"].items()},
        "epoch_metrics": epochs,
    }


def copy_as(record, to, **keys):
    shutil.copytree(RUN, to)
    change(to, **keys, config=record["config"] | keys)


def one_class(record):
    """A collapsed run that says it is none, with the right score for it."""
    rows = predictions(
        RUN, lambda row: {**row, "prediction": "contradiction", "logits": [0.0, 1.0, 0.0]}
    )
    accuracy = sum(row["label"] == "contradiction" for row in rows) / len(rows)
    change(RUN, metrics={**record["metrics"], "accuracy": accuracy})


def first_rows(record):
    """A run on a part of the rows without its limit."""
    path = RUN / "predictions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    change(RUN, n_examples={"train": 20, "selection": 20, "reported": 20})


def shorter(record):
    change(RUN, epoch_metrics=record["epoch_metrics"][:-3])


def another_rate(record):
    content = {**record, "config": {**record["config"], "learning_rate": 0.5}}
    (RUN / "results.json").write_text(json.dumps(content))


def scores(record, **keys):
    change(RUN, scores=record["scores"] | keys)


def logits_that_contradict_nothing(record):
    """Right predictions and their score, with NaN as every logit."""
    nothing = [math.nan, math.nan, math.nan]
    rows = predictions(RUN, lambda row: {**row, "prediction": row["label"], "logits": nothing})
    assert all(row["prediction"] == row["label"] for row in rows)


def epoch_that_contradicts_nothing(record):
    """A last score of one's choice, with NaN as its epoch's metric: a packed study has no metrics.jsonl."""
    lines = [dict(line) for line in record["epoch_metrics"]]
    lines[-1]["accuracy"] = math.nan
    change(RUN, epoch_metrics=lines, scores=record["scores"] | {"last": 0.95})


FALSIFIED = {
    "predictions with logits that are no numbers": (
        logits_that_contradict_nothing,
        "56 rows with logits that are not finite, and a score",
    ),
    "a last score whose epoch has no number": (
        epoch_that_contradicts_nothing,
        "epoch 15 has accuracy nan, which is no score",
    ),
    "a score that its predictions do not give": (
        lambda record: change(RUN, **raised(record)),
        "and by its predictions",
    ),
    "a run under another seed": (
        lambda record: copy_as(record, CB / "full-ft/seed7", seed=7),
        "has the weights of",
    ),
    "a run under another method": (
        lambda record: copy_as(record, CB / "lora/seed1", method="lora"),
        "has the weights of",
    ),
    "epochs that were not trained": (shorter, "metrics of 12 epochs, and its configuration 15"),
    "a best score of no epoch": (lambda record: scores(record, best=0.95), "best is 0.9500"),
    "a last score of no epoch": (lambda record: scores(record, last=0.95), "last is 0.9500"),
    "a maximum of no epoch": (lambda record: scores(record, max=0.95), "max is 0.9500"),
    "a removed limit": (first_rows, "20 of 56 rows of validation, and limit is not set"),
    "a collapsed run that says it is none": (
        one_class,
        "collapsed is False, and its predictions say True",
    ),
    "a run that says it collapsed": (
        lambda record: change(RUN, collapsed=True),
        "collapsed is True, and its predictions say False",
    ),
    "a score above 1": (
        lambda record: change(RUN, metrics={**record["metrics"], "f1_macro": 1.25}),
        "f1_macro 1.25 is outside its range",
    ),
    "a setting that was not used": (another_rate, "config_hash is not that"),
    "a run at another path": (
        lambda record: shutil.move(RUN, CB / "full-ft/seed9"),
        f"holds the run that belongs in {RUN}",
    ),
    "a damaged record": (
        lambda record: (RUN / "results.json").write_text('{"epochs": 3}'),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", FALSIFIED)
def test_a_falsified_run_is_found(hifi, name):
    falsify, said = FALSIFIED[name]
    falsify(read_json(RUN / "results.json"))
    answer = hifi("results check")
    assert answer.code == 1 and said in answer.out, answer
    assert re.search(
        r"1 of [45] runs cannot be what it says|of [45] runs cannot be what they say", answer.err
    )
    assert len(answer.err.splitlines()) == 1
    assert all(line.startswith(f"{CB.relative_to('results')}/") for line in answer.out.splitlines())


def test_the_number_of_runs_and_what_is_said_of_them_agree(hifi):
    change(RUN, collapsed=True)
    assert "1 of 4 runs cannot be what it says" in hifi("results check").err
    change(CB / "bitfit/seed1", collapsed=True)
    assert "2 of 4 runs cannot be what they say" in hifi("results check").err


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["full-ft/seed1"], ["full-ft/seed1"]),
        # Two and two: one of them is wrong, and nobody knows which.
        (
            ["bitfit/seed1", "bitfit/seed2"],
            ["bitfit/seed1", "bitfit/seed2", "full-ft/seed1", "full-ft/seed2"],
        ),
    ],
)
def test_where_no_value_is_that_of_most_runs_every_run_is_named(hifi, changed, named):
    for run in changed:
        counts = read_json(CB / run / "results.json")["n_examples"]
        change(CB / run, n_examples=counts | {"train": counts["train"] + 1})
    found = []
    for path, problems in check(Path("results")).findings.items():
        if any("has other train rows" in problem for problem in problems):
            found.append("/".join(Path(path).parts[-2:]))
    assert found == named


def test_quiet_prints_findings_alone(hifi):
    assert hifi("results check -q").out == ""
    change(RUN, collapsed=True)
    (line,) = hifi("results check -q").out.splitlines()
    assert "collapsed is True" in line


def test_honest_runs_pass_and_are_counted(hifi):
    answer = hifi("results check results")
    assert answer.code == 0
    assert (
        answer.out
        == "4 runs checked, scores of 4 recomputed from their predictions: nothing found\n"
    )
    content = printed(hifi("results check --format json"))
    nothing = {
        "not_recomputed": {},
        "findings": {},
        "differing": {},
        "pruned": [],
        "figures_without_runs": [],
    }
    assert content == {"runs": 4, "recomputed": 4, **nothing}
    assert hifi("results check nowhere").code == 3


def test_settings_that_select_the_same_heads_may_leave_the_same_weights(hifi):
    record = read_json(RUN / "results.json")
    heads = {**record["config"]["heads"], "damping": 0.5}
    copy = CB / "full-ft/damping/seed1"
    shutil.copytree(RUN, copy)
    change(
        copy, variant="damping", config=record["config"] | {"variant": "damping", "heads": heads}
    )
    assert hifi("results check").code == 0


def test_a_packed_study_is_checked_as_its_runs_are(hifi):
    change(RUN, **raised(read_json(RUN / "results.json")))
    (RUN / "metrics.jsonl").unlink()  # which a packed study has not
    before = hifi("results check")
    assert hifi("results pack results --out packed").code == 0
    after = hifi("results check packed")
    assert (after.code, after.out) == (before.code, before.out) == (1, after.out) and after.out


@pytest.mark.slow
def test_every_kind_of_task_is_recomputed(make, workspace, task_kinds_data, data, hifi, tmp_path):
    """Nothing is wrong but that the test's data are smaller than the official ones."""
    kinds = dict.fromkeys(("copa", "multirc", "squad", "mnli", "conll2003"), task_kinds_data)
    tasks = {"stsb": data, "cola": data, **kinds, "demo-topics": None}
    for task, where in tasks.items():
        config = make("full-ft", "epochs=1", "max_length=32", task=task)
        runs.run(config, replace(workspace, data_dir=where))
    checked = json.loads(hifi("results check --format json").out)
    assert checked["runs"] == checked["recomputed"] == len(tasks) + 4
    assert all(
        problem.endswith("and limit is not set")
        for found in checked["findings"].values()
        for problem in found
    )
    for task in tasks:
        (run,) = run_folder(tmp_path / "results", task=task).parents[1].rglob("seed1")
        record = read_json(run / "results.json")
        metrics = {name: value - 0.01 for name, value in record["metrics"].items()}
        (run / "results.json").write_text(json.dumps({**record, "metrics": metrics}))
    findings = json.loads(hifi("results check --format json").out)["findings"]
    found = {
        path.split("/")[3]
        for path, problems in findings.items()
        if "by its predictions" in " ".join(problems)
    }
    assert found == tasks.keys()
