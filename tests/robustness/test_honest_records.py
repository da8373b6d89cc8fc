"""Honest runs of methods that store unusual deltas, under every selection, have no finding; edited ones have."""

import json
from dataclasses import replace

import pytest

from hifi_cli.runs import run as runs

pytestmark = pytest.mark.slow

METHODS = [
    *("diff-pruning", "rocoft-row", "prefix-tuning-mlp", "adalora", "random-parameters"),
    *("eh-ft-prefix-reserve", "lp-ft", "mixout", "child-tuning-d", "hifi-random", "hifi-lora"),
]
SELECTIONS = {
    "holdout": ["selection=holdout"],
    "last": ["report=last"],
    "maximum": ["report=max", "selection=holdout"],
    "patience": ["epochs=4", "patience=1"],
    "few-shot": ["shots=4"],
    "one logit": ["task_head.kind=mlp", "task_head.width=8", "task_head.one_logit=true"],
}


def findings_of(hifi):
    """What a check finds but that the test's data are smaller than the official ones."""
    findings = json.loads(hifi("results check --format json").out)["findings"]
    found = [problem for problems in findings.values() for problem in problems]
    return [problem for problem in found if not problem.endswith("and limit is not set")]


def edit_record(workspace, edit):
    """Edit the record of the only run."""
    (path,) = workspace.results_dir.glob("runs/**/results.json")
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def fewer_shots(record):
    """A run that says to have trained on two rows less."""
    record["n_examples"]["train"] -= 2
    record["fewshot"]["train"] = record["fewshot"]["train"][:-2]


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_run_has_no_finding(make, workspace, hifi, method):
    for seed in (1, 2):
        runs.run(make(method, seed=seed), workspace)
    assert findings_of(hifi) == []


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_run_of_any_selection_has_no_finding(make, workspace, hifi, name):
    for seed in (1, 2):
        runs.run(make("bitfit", *SELECTIONS[name], seed=seed), workspace)
    assert findings_of(hifi) == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda record: record["fewshot"].update(dev=record["fewshot"]["train"]), "of dev"),
        (fewer_shots, "6 rows of train (n_examples), and 4 shots of each class are 8"),
    ],
)
def test_edited_few_shot_rows_are_found(make, workspace, hifi, edit, said):
    runs.run(make("bitfit", "shots=4"), workspace)
    edit_record(workspace, edit)
    assert said in "\n".join(findings_of(hifi))


def test_an_extra_split_without_its_scores_is_found(make, workspace, task_kinds_data, hifi):
    def remove_mismatched(record):
        record["extra_validation"] = {}
        for values in (record["metrics"], *record["epoch_metrics"]):
            del values["accuracy_mismatched"]

    config = make("bitfit", "epochs=1", "max_length=32", task="mnli")
    runs.run(config, replace(workspace, data_dir=task_kinds_data))
    edit_record(workspace, remove_mismatched)
    said = "data has validation_mismatched, and extra_validation lacks mismatched"
    assert said in findings_of(hifi)


def test_a_run_that_diverged_has_no_finding(make, workspace, hifi):
    result = runs.run(make("full-ft", "learning_rate=1e30", "max_grad_norm=null"), workspace)
    assert not result.is_done
    assert findings_of(hifi) == []


@pytest.mark.parametrize("task", ["multirc", "squad", "conll2003", "copa", "mnli"])
def test_a_run_of_any_kind_of_task_has_no_finding(make, workspace, task_kinds_data, hifi, task):
    config = make("bitfit", "epochs=1", "max_length=32", task=task)
    runs.run(config, replace(workspace, data_dir=task_kinds_data))
    assert findings_of(hifi) == []
