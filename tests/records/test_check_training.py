"""`hifi results check` on edits of packed records: training, metrics and inputs that contradict the rest of a record."""

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hifi_cli.config import registry
from hifi_cli.config.run_config import config_hash_of
from hifi_cli.digests import digest
from hifi_cli.methods.base import Method
from hifi_cli.methods.find import implementation_of
from hifi_cli.records.check import check
from hifi_cli.records.check_training import IN_STAGES
from hifi_cli.records.study import PREDICTIONS

STUDY = Path(__file__).parents[2] / "results/study"
CB = "runs/study-ehft/minilm/cb/full-ft/seed{}"
MRPC = "runs/study/minilm/mrpc/hifi-layerwise/seed{}"
PATHS = [CB.format(4), CB.format(5), CB.format(6), MRPC.format(4), MRPC.format(5), MRPC.format(6)]
SEARCH = (
    "runs/study-ehft/minilm/mrpc/linear-probing/"
    "selection--holdout--holdout--0.3--learning_rate--0.03/seed2"
)
PATHS.append(SEARCH)
RUN = CB.format(4)
HIFI = MRPC.format(4)


@pytest.fixture(scope="module")
def stored():
    """Records and predictions of three seeds of two methods, by path."""
    lines = map(json.loads, (STUDY / "runs.jsonl").read_text().splitlines())
    records = {line["path"]: line["record"] for line in lines if line["path"] in PATHS}
    predictions = pd.read_parquet(STUDY / PREDICTIONS, filters=[("run", "in", PATHS)])
    assert [*records] and set(records) == set(PATHS)
    return records, predictions


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def checked(stored, edit, path):
    """Check the other seeds of a run after an edit of its record; all runs after one of no path."""
    records, predictions = copy.deepcopy(stored[0]), stored[1].copy()
    if path:
        seeds = [other for other in PATHS if Path(other).parent == Path(path).parent]
        records = {other: records[other] for other in seeds}
        predictions = predictions[predictions["run"].isin(seeds)]
        edit(records[path])
    else:
        predictions = edit(records, predictions)
    lines = [json.dumps({"path": at, "record": record}) for at, record in records.items()]
    Path("packed").mkdir(exist_ok=True)
    Path("packed/runs.jsonl").write_text("\n".join(lines) + "\n")
    predictions.to_parquet(Path("packed") / PREDICTIONS)
    return check(Path("packed"))


def at(*keys, value):
    """An edit that sets a value in a record."""

    def edit(record):
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    return edit


def without(*keys):
    """An edit that removes a key from a record."""

    def edit(record):
        for key in keys[:-1]:
            record = record[key]
        del record[keys[-1]]

    return edit


def both(*edits):
    def edit(record):
        for each in edits:
            each(record)

    return edit


def invented_in_every_epoch(record):
    record["metrics"]["matthews"] = 0.9
    for line in record["epoch_metrics"]:
        line["matthews"] = 0.9


def last_score_without_its_epoch(record):
    """An invented last score, where no epoch but the best one has metrics."""
    best = record["epochs"]["best"]
    for line in record["epoch_metrics"]:
        if line["epoch"] != best:
            del line["accuracy"], line["f1_macro"]
    last = {"last": 0.99, "max": record["scores"]["best"]}
    record["scores"].update(last)
    record["epochs"]["max"] = best


def diverged(record):
    """A bad seed that is said to have diverged."""
    nothing = dict.fromkeys(("scores", "epochs", "time_s", "delta_sha256", "delta_bytes"))
    record.update(nothing, status="diverged", metrics={}, collapsed=True, classes=None, losses=None)


def with_config(**keys):
    """An edit of the configuration, with the hashes that belong to it."""

    def edit(record):
        config = record["config"] | keys
        without_seed = {key: value for key, value in config.items() if key != "seed"}
        known = {key: value for key, value in keys.items() if key in record}
        hashes = {
            "config_hash": config_hash_of(config),
            "setting_hash": config_hash_of(without_seed),
        }
        record.update(known, **hashes, config=config)

    return edit


def first_process(**keys):
    return lambda record: record["processes"][0].update(keys)


HALF = [{"first_step": 1, "last_step": 100}, {"first_step": 102, "last_step": 480}]


def two_processes(record):
    """A step between two processes that none of them trained."""
    record["processes"] = [record["processes"][0] | keys for keys in HALF]


def seconds_that_balance(record):
    """A process before the run's own, with time that the run's own has too much."""
    own = record["processes"][0]
    before = own | {"last_step": 100, "seconds": -1000.0}
    after = own | {"first_step": 101, "seconds": own["seconds"] + 1000.0}
    record["processes"] = [before, after]


FOUND = {
    # random draws
    "no draws": (
        at("draws", value={}),
        "draws lacks the version of dropout on cuda, order of data",
    ),
    "a draw less": (without("draws", "task head"), "draws lacks the version of task head"),
    "draws of another method": (at("draws", "choice of heads", value=2), "draws names choice of"),
    # metrics
    "an invented metric": (
        at("metrics", "matthews", value=0.9),
        "metrics has matthews, which the task does not have",
    ),
    "an invented metric everywhere": (invented_in_every_epoch, "epoch 1 has matthews"),
    "a metric less": (without("metrics", "f1_macro"), "metrics lacks f1_macro"),
    "an epoch without metrics": (last_score_without_its_epoch, "which is measured after it"),
    "an invented split": (
        at("extra_validation", value={"mismatched": {"last": 0.9, "best": 0.9, "max": 0.9}}),
        "extra_validation: the task has no mismatched",
    ),
    "another primary metric": (
        at("primary_metric", value="f1_macro"),
        "primary_metric is f1_macro",
    ),
    "another split": (at("split", value="test"), "split is test"),
    "no maximum": (
        both(at("scores", "max", value=None), at("epochs", "max", value=None)),
        "scores.max is None, and by its configuration the maximum is known",
    ),
    "a maximum of another epoch": (at("epochs", "max", value=1), "epochs.max is 1, and another"),
    "classes in another order": (
        lambda record: record["classes"].update(
            labels=dict(reversed(record["classes"]["labels"].items()))
        ),
        "classes are neutral, contradiction, entailment",
    ),
    # training
    "no process": (at("processes", value=[]), "processes is empty"),
    "steps that are no epochs": (first_process(last_step=7), "are no"),
    "another batch size": (
        with_config(batch_size=16),
        "480 steps, and by rows and batch_size 240",
    ),
    "no memory": (at("peak_memory_bytes", value=0), "peak_memory_bytes is 0"),
    "fewer steps": (first_process(last_step=15), "has other training steps (processes)"),
    "a step that nobody trained": (two_processes, "do not train each step once"),
    "a process in fp32": (first_process(precision="fp32"), "that of its processes fp32"),
    "another device": (first_process(device="CPU"), "provenance.device is"),
    "a tenth of the time": (at("time_s", value=1.5), "time_s is 1.5, and its processes trained"),
    "less time in all": (at("wall_s", value=0.5), "wall_s is 0.5, and its processes trained"),
    "no time": (at("time_s", value=None), "is done, and lacks time_s"),
    "no weights": (at("delta_sha256", value=None), "is done, and lacks delta_sha256"),
    "a start": (
        at("started_from", value=[{"run": "x", "config_hash": "y", "delta_sha256": "z"}]),
        "start_from is None, and started_from there",
    ),
    "a bad seed that diverged": (diverged, "is diverged, and has predictions"),
    "a bad seed that diverged in its last epochs": (
        both(diverged, lambda record: record.update(epoch_metrics=record["epoch_metrics"][:3])),
        "processes have 480 steps, and 3 epochs were measured",
    ),
    "a run that diverged without a reason": (diverged, "is diverged, and has no reason"),
    "a run that diverged and did not collapse": (
        both(diverged, at("collapsed", value=False)),
        "is diverged, and collapsed is False",
    ),
    "a run that diverged with its losses": (
        both(diverged, at("losses", value={"first": 1.0, "last": 0.5})),
        "is diverged, and has losses",
    ),
    "a run that is done and diverged": (
        at("reason", value="the loss is nan at step 3"),
        "is done, and has a reason why it diverged",
    ),
    "seconds that balance": (seconds_that_balance, "and -1000 s"),
    "more repeated steps than steps": (
        first_process(repeated_steps=481),
        "process 1 repeated 481 of 480 steps",
    ),
    "no thread": (
        both(first_process(threads=0), at("provenance", "threads", value=0)),
        "process 1 says 0 threads",
    ),
    "nothing trained": (
        both(at("params", "trainable", value=0), at("params", "trainable_backbone", value=0)),
        "params.trainable is 0",
    ),
    "a larger file of weights": (
        at("delta_bytes", value=10**9),
        "has other size of the weights (delta_bytes)",
    ),
    "fewer stored numbers": (
        both(at("params", "stored", value=1), at("params", "stored_bytes", value=4)),
        "has other trained, stored or total parameters (params)",
    ),
    "another start than the configuration's": (
        both(
            with_config(start_from=CB.format(5)),
            at("started_from", value=[{"run": HIFI, "config_hash": "y", "delta_sha256": "z"}]),
        ),
        f"start_from is {CB.format(5)}, and started_from {HIFI}",
    ),
    # epochs
    "a score of selecting rows where there are none": (
        lambda record: record["epoch_metrics"][2].update(selection=0.9),
        "1 epoch with a score of selecting rows, and selection is validation (epoch 3)",
    ),
    "an epoch's metric below its range": (
        lambda record: record["epoch_metrics"][2].update(f1_macro=-3.0),
        "epoch 3: f1_macro -3 is outside its range",
    ),
    # rows
    "few-shot rows": (
        at("fewshot", value={"train": ["1"], "dev": ["2"], "sha256": "x"}),
        "shots is None, and fewshot there",
    ),
    "fewer rows that select": (at("n_examples", "selection", value=7), "7 rows select the epoch"),
    "a limit": (with_config(limit=50), "limit is 50, and n_examples exceeds it"),
    "fewer rows than the limit": (
        both(with_config(limit=100), at("n_examples", "train", value=50)),
        "50 of 250 rows of train, and limit is 100",
    ),
    "other truncated rows that select": (
        at("truncated", "selection", value=7),
        "truncated: 7 rows select the epoch, and 0 are reported",
    ),
    "other truncated rows to train on": (
        at("truncated", "train", value=7),
        "has other truncated rows (truncated) than",
    ),
    "a split more": (at("n_examples", "bonus", value=3), "n_examples is of bonus"),
    "no data": (at("data", value={}), "data lacks the digest of train, validation"),
    "a command of other things than words": (
        at("provenance", "command", value=["hifi", 5]),
        "provenance: it lacks the command",
    ),
    "no provenance": (at("provenance", value={}), "provenance: it lacks the version of hifi"),
    # schema
    "an older schema": (at("schema_version", value=1), "is of schema 1, and has task_digest"),
    "no task": (at("task_digest", value=None), "task_digest is missing"),
    "a later schema": (at("schema_version", value=3), "it is of schema 3, and this version"),
}


@pytest.mark.parametrize("name", FOUND)
def test_an_edit_is_found(stored, name):
    edit, said = FOUND[name]
    path = RUN
    findings = checked(stored, edit, path).findings
    assert [*findings] == [path]
    assert any(said in problem for problem in findings[path]), findings


def in_epoch(number, **keys):
    return lambda record: record["epoch_metrics"][number - 1].update(keys)


def moved_count(which):
    """An edit that counts one row of a class under another one."""

    def edit(record):
        counts = record["classes"][which]
        counts["contradiction"] += 1
        counts["entailment"] -= 1

    return edit


def renumbered_epochs(record):
    for line in record["epoch_metrics"]:
        line["epoch"] += 1


def unchanged(record):
    """No edit: a further sentence about the one before."""


# Edits of one record, none of which hides another one.
FOUND_TOGETHER = {
    "repeated and counted": [
        # First, as it computes the hashes.
        (with_config(start_from=CB.format(5)), f"start_from is {CB.format(5)}, and started_from"),
        (at("setting_hash", value="0" * 16), "setting_hash is not that of its configuration"),
        (at("limit", value=500), "limit is 500, and in its configuration None"),
        (at("report", value="last"), "report is last, and in its configuration best"),
        (
            at("gradient_accumulation_steps", value=9),
            "gradient_accumulation_steps is 9, and in its configuration 1",
        ),
        (at("wall_s", value=-1.0), "wall_s is -1"),
        (at("truncated", "train", value=251), "truncated.train is 251 of 250 rows"),
        (at("truncated", "reported", value=-1), "truncated.reported is -1 of 56 rows"),
        (at("params", "stored_bytes", value=7), "stored numbers do not have 7 bytes"),
        (at("delta_bytes", value=5), "delta_bytes is 5, and stored_bytes 7"),
        (at("epochs", "max", value=None), "epochs.max is None, and by its configuration"),
        (first_process(threads=3), "provenance.threads is "),
        (first_process(processes=0), " 0 processes and"),
        (first_process(first_step=2), "processes do not train each step once, from 1 on"),
        (first_process(repeated_steps=-1), "process 1 repeated -1 of 479 steps"),
        (moved_count("labels"), "other numbers of rows than its predictions (by label)"),
        (moved_count("predicted"), "other numbers of rows than its predictions (by prediction)"),
    ],
    "lower scores": [
        (at("scores", "last", value=0.1), "last is 0.1000, and by its epoch metrics"),
        (at("metrics", "accuracy", value=0.1), "accuracy is 0.1000, and by its predictions"),
        (at("metrics", "f1_macro", value=-3.0), "f1_macro -3 is outside its range"),
        (in_epoch(2, f1_macro=1.5), "epoch 2: f1_macro 1.5 is outside its range"),
        (at("n_examples", "reported", value=40), "has predictions of 56 of 40 rows (n_examples)"),
        (at("n_examples", "train", value=-1), "n_examples.train is -1"),
    ],
    "another metric than the primary one": [
        (at("metrics", "f1_macro", value=0.99), "f1_macro is 0.9900, and by its predictions"),
        (unchanged, " in the metrics of its epoch"),
        (at("epochs", "last", value=14), "epochs: 15 in all and 14 as the last"),
        (first_process(seconds=10**6), "and its processes trained for 1000000.0 s"),
    ],
    "a later epoch that was better": [
        (at("epochs", "best", value=1), "epoch 1 is the best, and epoch "),
        (at("epochs", "total", value=16), "epochs: 16 in all and 15 as the last"),
    ],
    "numbers of epochs": [(renumbered_epochs, "has metrics of 15 epochs, and its configuration")],
    "a limit of train rows": [(with_config(limit=100), "limit is 100, and n_examples exceeds it")],
    "a limit of reported rows": [
        (
            both(with_config(limit=50), at("n_examples", "train", value=50)),
            "limit is 50, and n_examples exceeds it",
        ),
    ],
    "a run that is said to have diverged": [
        (
            at("status", value="diverged"),
            "is diverged, and has scores and epochs and metrics and classes",
        ),
        (unchanged, " and time_s and delta_sha256 and delta_bytes"),
        (unchanged, "is diverged, and has metrics of all 15 epochs"),
    ],
}


@pytest.mark.parametrize("name", FOUND_TOGETHER)
def test_edits_that_stand_together_are_all_found(stored, name):
    edits = [edit for edit, _ in FOUND_TOGETHER[name]]
    problems = checked(stored, both(*edits), RUN).findings[RUN]
    lacking = [
        said for _, said in FOUND_TOGETHER[name] if not any(said in problem for problem in problems)
    ]
    assert lacking == [], problems


def test_a_search_without_its_selecting_scores_is_found(stored):
    def edit(records, predictions):
        for line in records[SEARCH]["epoch_metrics"]:
            del line["selection"]
        return predictions

    (problem,) = checked(stored, edit, None).findings[SEARCH]
    assert problem == (
        "5 epochs without a score of selecting rows, and selection is holdout"
        " (epoch 1, 2, 3 and 2 more)"
    )


def test_an_earlier_epoch_that_was_better_is_found(stored):
    """A search that takes the epoch with the better reported score."""

    def edit(records, predictions):
        record = records[SEARCH]
        assert record["epochs"]["best"] > 1
        record["epoch_metrics"][0]["selection"] = 0.99
        return predictions

    (problem,) = checked(stored, edit, None).findings[SEARCH]
    assert "is the best, and epoch 1 has 0.9900" in problem


def test_a_method_whose_yaml_is_not_here_is_no_finding(stored):
    def edit(records, predictions):
        with_config(method="somebodys")(records[RUN])
        path = RUN.replace("full-ft", "somebodys")
        records[path] = records.pop(RUN)
        return predictions.replace({"run": {RUN: path}})

    assert checked(stored, edit, None).findings == {}


def test_the_methods_with_several_stages_are_those_whose_class_has_them():
    shipped = {name: implementation_of(name) for name in registry.names("methods")}
    several = {
        cls.__module__.rpartition(".")[2]
        for cls in shipped.values()
        if cls.stages is not Method.stages
    }
    assert several == IN_STAGES


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-7.0, "selection -7 is outside its range"),
        (1.5, "selection 1.5 is outside its range"),
        (float("nan"), "has selection nan, which is no score"),
    ],
)
def test_a_selecting_score_outside_of_its_range_is_found(stored, value, said):
    def edit(records, predictions):
        record = records[SEARCH]
        lines = [
            line for line in record["epoch_metrics"] if line["epoch"] != record["epochs"]["best"]
        ]
        lines[0]["selection"] = value
        return predictions

    problems = checked(stored, edit, None).findings[SEARCH]
    assert any(problem.endswith(said) for problem in problems), problems


@pytest.mark.parametrize("file", ["predictions", "run"])
def test_a_run_that_lost_its_line_of_a_packed_study_is_found(stored, file):
    """A bad merge leaves it so: its predictions, or its own files, are there still."""

    def edit(records, predictions):
        record = records.pop(RUN)
        if file == "predictions":
            return predictions
        folder = Path("packed") / RUN
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(record))
        return predictions[predictions["run"] != RUN]

    found = checked(stored, edit, None)
    said = {
        "predictions": "has predictions, and no record in runs.jsonl",
        "run": "lies beside runs.jsonl, which lacks it, and no command reads it",
    }
    assert found.findings == {RUN: [said[file]]}
    assert found.runs == len(PATHS)


def test_a_start_that_was_trained_again_is_noted(stored):
    def edit(records, predictions):
        with_config(start_from=CB.format(5))(records[RUN])
        link = {"run": CB.format(5), "config_hash": "y", "delta_sha256": "z"}
        records[RUN]["started_from"] = [link]
        return predictions

    found = checked(stored, edit, None)
    note = f"started from other weights than {CB.format(5)} has (started_from)"
    assert note in found.differing[RUN]


def test_a_head_below_0_is_found(stored):
    heads = [[0, 1, -1]] * 6
    edit = both(at("heads", value=heads), at("heads_sha256", value=digest(heads, 64)))
    findings = checked(stored, edit, HIFI).findings
    assert findings[HIFI] == ["heads have a number below 0"]


def test_heads_of_another_number_of_layers_are_found(stored):
    def edit(records, predictions):
        heads = records[HIFI]["heads"][:-1]
        records[HIFI].update(heads=heads, heads_sha256=digest(heads, 64))
        return predictions

    findings = checked(stored, edit, None).findings
    assert any("has other number of layers (heads)" in problem for problem in findings[HIFI])


@pytest.mark.parametrize(
    "edit",
    [
        at("heads", value=[[0, 1, 2]] * 6),
        at("heads_sha256", value="0" * 64),
        at("heads_sha256", value=None),
        # A key that only another version of the program knows says nothing about heads.
        both(at("heads_sha256", value=None), at("config", "later_key", value=1)),
    ],
)
def test_heads_and_their_digest_belong_together(stored, edit):
    findings = checked(stored, edit, HIFI).findings
    assert "heads_sha256 is not that of its heads" in findings[HIFI]


@pytest.mark.parametrize("heads", [[[0, 1]] * 6, [[0, 1, 2, 3]] * 6, [[0, 1, 1]] * 6])
def test_another_number_of_heads_than_the_configuration_selects_is_found(stored, heads):
    edit = both(at("heads", value=heads), at("heads_sha256", value=digest(heads, 64)))
    findings = checked(stored, edit, HIFI).findings
    assert any("and not layerwise with k=3" in problem for problem in findings[HIFI])


def test_runs_as_they_are_have_neither_findings_nor_notes(stored):
    found = checked(stored, lambda records, predictions: predictions, None)
    assert (found.findings, found.differing, found.recomputed) == ({}, {}, len(PATHS))


def test_the_size_of_the_plain_model_is_that_of_other_methods(stored):
    def edit(records, predictions):
        for seed in (4, 5):
            records[CB.format(seed)]["params"]["total"] *= 10
        return predictions

    findings = checked(stored, edit, None).findings
    assert all(
        "has other number of parameters in all" in problems[0] for problems in findings.values()
    )
    assert findings


def test_predictions_of_another_seed_are_found(stored):
    """With its scores: only the weights are the run's own."""

    def edit(records, predictions):
        own, other = records[RUN], records[CB.format(5)]
        for key in ("metrics", "scores", "epochs", "epoch_metrics", "classes"):
            own[key] = other[key]
        copied = predictions[predictions["run"] == CB.format(5)].assign(run=RUN)
        return pd.concat([predictions[predictions["run"] != RUN], copied], ignore_index=True)

    findings = checked(stored, edit, None).findings
    assert findings == {CB.format(5): [f"has the logits of {RUN} (predictions)"]}


@pytest.mark.parametrize(
    ("key", "name"),
    [("method", "hifi-wo-corr"), ("task", "my-mrpc"), ("backbone", "my-encoder")],
)
def test_two_names_of_one_training_may_have_the_same_weights(stored, key, name):
    """Two rankings may select the same heads: every heads.k that is the number of heads does."""

    def edit(records, predictions):
        record = copy.deepcopy(records[HIFI])
        path = HIFI.replace(record[key], name)
        value = record["config"]["backbone"] | {"name": name} if key == "backbone" else name
        with_config(**{key: value})(record)
        record[key] = name
        records[path] = record
        own_yaml = Path(f"packed/{path}/own/tasks/{name}.yaml")
        own_yaml.parent.mkdir(parents=True)
        own_yaml.write_text(registry.find("tasks", "mrpc").read_text())
        copied = predictions[predictions["run"] == HIFI].assign(run=path)
        return pd.concat([predictions, copied], ignore_index=True)

    assert checked(stored, edit, None).findings == {}


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_logits_is_found_and_hides_nothing(stored, count):
    def edit(records, predictions):
        logits = predictions["logits"].copy()
        for index in predictions.index[predictions["run"] == RUN]:
            logits[index] = np.resize(logits[index], count)
        records[CB.format(5)]["collapsed"] = True
        return predictions.assign(logits=logits)

    findings = checked(stored, edit, None).findings
    assert findings[RUN] == ["56 rows without 3 logits (id 0, 1, 2 and 53 more)"]
    assert findings[CB.format(5)][0].startswith("collapsed is True")


INPUTS = {
    "data": (at("data", "train", value="0" * 64), "has other data than"),
    "encoder": (at("backbone_weights", value="0" * 64), "has other backbone_weights than"),
    "task": (at("task_digest", value="0" * 64), "task_digest is not that of the task's YAML here"),
    "code": (at("method_code", value="0" * 64), "has other method_code than"),
    "draws": (at("draws", "task head", value=9), "has other draws than"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_runs_with_other_inputs_are_noted(hifi, stored, name):
    """They may be what they say, and tables leave them out."""
    edit, said = INPUTS[name]
    found = checked(stored, edit, RUN)
    assert [*found.differing] == [RUN]
    assert any(fact.startswith(said) for fact in found.differing[RUN])
    assert found.findings == {}
    answer = hifi("results check packed")
    assert answer.code == 0
    assert f"{RUN}: note: {said}" in answer.out
