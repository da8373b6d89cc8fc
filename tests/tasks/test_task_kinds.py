"""Tasks that are not plain classification, from their files through training to a reloaded run."""

import json
import shutil
from pathlib import Path

import pytest
from prepared_models import splits_of
from tiny_inputs import ROWS_OF_A_KIND as ROWS

from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import sources, task_spec

CASES = {  # settings, and a score that is far above chance
    "copa": ([], 0.8),
    "swag": ([], 0.6),
    "multirc": (["max_length=32"], 0.8),
    "squad": (["max_length=20", "stride=4"], 0.5),
    "conll2003": (["max_length=40"], 0.5),
}


@pytest.mark.parametrize("task", CASES)
def test_a_run_learns_is_stored_and_is_made_again(make, task_kinds_data, tmp_path, task):
    workspace, (settings, learned) = (
        Workspace(tmp_path / "results", task_kinds_data),
        CASES[task],
    )
    config = make("full-ft", *settings, "epochs=12", "learning_rate=0.003", task=task)
    results = runs.run(config, workspace)
    rows = ROWS * (2 if task == "multirc" else 1)
    assert results.n_examples == {"train": rows, "selection": rows, "reported": rows}
    assert results.scores.best > learned and not results.collapsed
    directory = RunDirectory.of(config, workspace.results_dir)
    again = evaluate(directory.path, workspace)
    assert again.largest_difference == 0 and not again.differing
    if task == "squad":
        predictions = directory.read_predictions()
        assert [row.id for row in predictions] == [f"q{at}" for at in range(ROWS)]
        assert (
            results.metrics["span_em"]
            == sum([row.prediction] == row.label for row in predictions) / ROWS
        )


@pytest.mark.parametrize("task", ["copa", "squad", "conll2003"])
def test_heads_are_selected_for_every_kind_of_head(make, task_kinds_data, tmp_path, task):
    workspace = Workspace(tmp_path / "results", task_kinds_data)
    config = make("hifi-layerwise", *CASES[task][0], task=task)
    assert runs.run(config, workspace).status == "done"
    assert not evaluate(RunDirectory.of(config, workspace.results_dir).path, workspace).differing


def test_mnlis_two_scores_come_from_one_model_and_are_kept_apart(make, task_kinds_data, tmp_path):
    workspace = Workspace(tmp_path / "results", task_kinds_data)
    config = make("full-ft", "epochs=12", "learning_rate=0.003", task="mnli")
    results = runs.run(config, workspace)
    matched, mismatched = results.metrics["accuracy"], results.metrics["accuracy_mismatched"]
    assert (
        matched > 0.8 and mismatched < 0.2
    )  # the mismatched labels are shifted: whoever knows one set fails the other
    assert results.scores.best == matched
    assert results.extra_validation["mismatched"].best == mismatched
    directory = RunDirectory.of(config, workspace.results_dir)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    by_epoch = [line["accuracy_mismatched"] for line in lines if "epoch" in line]
    assert results.extra_validation["mismatched"].model_dump() == {
        "last": by_epoch[-1],
        "best": by_epoch[results.epochs.best - 1],
        "max": max(by_epoch),
    }
    assert not evaluate(directory.path, workspace).differing
    shutil.copytree(task_kinds_data / "MNLI", tmp_path / "MNLI")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    assert evaluate(directory.path, Workspace(workspace.results_dir, tmp_path)).differing == [
        "accuracy_mismatched"
    ]


def test_a_few_shot_run_reports_both_mnli_sets_and_its_table_has_an_average(
    hifi, encoders, task_kinds_data
):
    answer = hifi(
        f"train --task mnli --method full-ft --protocol hifi-fewshot --backbone {encoders['bert']} "
        f"--data-dir {task_kinds_data} shots=4 epochs=12 learning_rate=0.003"
    )
    assert answer.code == 0, answer.err
    results = json.loads(next(Path("results/runs").rglob("results.json")).read_text())
    assert set(results["metrics"]) == {"accuracy", "accuracy_mismatched"} and set(
        results["extra_validation"]
    ) == {"mismatched"}
    words = "--backbone tiny-bert --tasks mnli --methods full-ft --seeds 1 --shots 4".split()
    row = json.loads(hifi("table", "hifi-2-fewshot", *words, "--format", "json").out)["rows"][0]
    matched, mismatched = (
        100 * results["metrics"][key] for key in ("accuracy", "accuracy_mismatched")
    )
    assert row["mnli-m"] == pytest.approx(matched) and row["mnli-mm"] == pytest.approx(mismatched)
    assert row["average"] == pytest.approx((matched + mismatched) / 2)


def test_windows_of_a_row_stay_on_one_side_of_a_holdout(make, task_kinds_data, tmp_path):
    workspace = Workspace(tmp_path / "results", task_kinds_data)
    config = make(
        "full-ft",
        "max_length=16",
        "stride=2",
        "selection=holdout",
        "holdout=0.25",
        "limit=20",
        task="squad",
    )
    splits = splits_of(config, workspace)
    train, held = (
        {example.row.id for example in part} for part in (splits.train, splits.selection)
    )
    assert len(train) == 15 and len(held) == 5 and not train & held
    assert len(splits.train) > len(train)
    assert {example.row.id for example in splits.reported} == {f"q{at}" for at in range(20)}


def test_a_validation_split_is_cut_off_rows_without_labels(task_kinds_data):
    """Answers are no labels, so that there is nothing to stratify by."""
    squad = task_spec.load("squad").model_copy(update={"cut": task_spec.Cut(validation=0.25)})
    data = sources.load(squad, data_dir=task_kinds_data)
    assert len(data.rows("validation")) == ROWS / 4
    assert len(data.rows("train")) == ROWS - ROWS / 4
