"""What a results directory says is used only where it is whole, known, and lies where it belongs."""

import json
import shutil
from pathlib import Path

import pytest
from finished_runs import read_json, run_path
from hifi_processes import ROOT
from project_files import copy_yaml
from run_folders import demo_folder

from hifi_cli.files import json_text

pytestmark = pytest.mark.slow


def refused(answer, *said, code=2):
    assert answer.code == code, answer
    assert (
        len([line for line in answer.err.splitlines() if not line.startswith("warning: ")]) == 1
    ), answer.err
    for text in said:
        assert str(text) in answer.err, answer.err


@pytest.fixture
def trained(finish_run, tmp_path):
    """The directory of a finished run."""
    return finish_run().relative_to(tmp_path)


@pytest.mark.parametrize(
    ("part", "copy"),
    [
        ("seed1", "seed2"),
        ("hifi", "hifi-backup"),
    ],
)
def test_a_copied_run_does_not_count_twice(hifi, trained, part, copy):
    (source,) = (path for path in (trained, *trained.parents) if path.name == part)
    target = shutil.copytree(source, source.with_name(copy))
    copied = target / trained.relative_to(source)
    for words in (["table"], ["report"]):
        answer = hifi(*words)
        assert answer.code == 0, answer
        (line,) = [line for line in answer.err.splitlines() if line.startswith("left out: ")]
        assert "1 damaged run" in line
        assert f"{copied} holds the run that belongs in" in line
    listed = hifi("ls runs").out.splitlines()
    states = [line.split()[0] for line in listed[1:]]
    assert sorted(states) == ["damaged", "done"]
    # pack, merge and push copy nothing of a directory with such a run
    refused(hifi("results pack results"), copied, trained)
    shutil.rmtree(target)
    assert hifi("table").code == 0


def test_a_score_is_that_of_the_configuration_in_its_record(hifi, tiny, trained, data):
    """An edited or a missing config.yaml neither makes the run another one nor changes how it is rebuilt."""
    path = trained / "config.yaml"
    before = hifi("table").out
    for edit in (
        lambda: path.write_text(
            path.read_text().replace("learning_rate: 2.0e-05", "learning_rate: 0.5")
        ),
        path.unlink,
    ):
        edit()
        refused(
            tiny("train --method full-ft learning_rate=0.5"),
            "learning_rate is 2e-05 there",
            code=4,
        )
        assert "finished before" in tiny("train --method full-ft").err
        assert hifi("table").out == before
        assert "logits identical" in hifi("eval", trained, "--data-dir", data).out
        assert hifi("ls runs").out.splitlines()[1].startswith("done")


# --- a run's own files


@pytest.fixture
def own_task(hifi):
    """Trains on a task file of the user's own, called as a shipped one, and gives the run's directory."""

    def train(seed, *changes):
        copy_yaml(hifi, "tasks/demo-entailment", "demo-entailment.yaml")
        path = Path("demo-entailment.yaml")
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        answer = hifi(
            "train --task ./demo-entailment.yaml --protocol demo --method linear-probing "
            f"--seed {seed} epochs=1 limit=40"
        )
        path.unlink()
        assert answer.code == 0, answer.err
        return demo_folder(method="linear-probing", seed=seed)

    return train


def test_a_metric_that_a_runs_own_files_name_runs_with_trust_only(hifi, own_task, tmp_path):
    run = own_task(1)
    own = run / "own/tasks/demo-entailment.yaml"
    text = own.read_text()
    (tmp_path / "always").mkdir()  # `always` is found in the working directory
    (tmp_path / "always/always.py").write_text("raise SystemExit(7)")
    Path("new.tsv").write_text("sentence1\tsentence2\nthe dog sleeps .\tthe hound sleeps .\n")
    for name in ("somebody/metric", "always", tmp_path / "always/always.py"):
        own.write_text(text.replace("primary:", f"evaluate: {name}\nprimary:"))
        for words in (["eval", run], ["predict", run, "new.tsv"], ["export", run, "--to", "model"]):
            refused(hifi(*words), own, name, "--trust")
    assert hifi("predict", run, "new.tsv", "--trust").code == 0


def test_a_backbone_inside_a_package_that_a_run_brings_is_not_imported(
    hifi, trained, data, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m hifi_cli` has the working directory
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    result = read_json(trained / "results.json")
    result["config"]["backbone"] |= {"path": None, "package": "trap.inside"}
    (trained / "results.json").write_text(json_text(result))
    refused(hifi("eval", trained, "--data-dir", data), trained / "results.json", "package")
    assert not (tmp_path / "ran").exists()


def test_a_run_is_repeated_in_its_place_from_the_only_copy_of_its_own_files(hifi, own_task):
    run = own_task(1)
    copy = run / "own/tasks/demo-entailment.yaml"
    text = copy.read_text()
    answer = hifi("train", "-c", run / "config.yaml", "--force")
    assert answer.code == 0, answer.err
    assert copy.read_text() == text
    assert hifi("eval", run).code == 0
    # On the shipped file: no copy may stand for it
    answer = hifi(
        "train --task demo-entailment --protocol demo --method linear-probing "
        "epochs=1 limit=40 --force"
    )
    assert answer.code == 0, answer.err
    assert not copy.exists()


def test_own_files_belong_to_one_run(hifi, own_task):
    """Two runs of one task's name: the first on a file of the user's own with the labels swapped, the second on the shipped one."""
    swapped = own_task(1, ("[entailment, not_entailment]", "[not_entailment, entailment]"))
    words = ["--task", "demo-entailment", "--protocol", "demo", "--method", "linear-probing"]
    assert hifi("train", *words, "--seed", "2", "epochs=1", "limit=40").code == 0
    both = [swapped, swapped.with_name("seed2")]
    for run_dirs in (both, both[::-1]):
        answer = hifi("eval", *run_dirs)
        assert answer.code == 0, answer
        for line in answer.out.splitlines():
            _, metric, now, _, stored, *verdict = line.split()
            assert (metric, now, verdict) == ("accuracy", stored, ["logits", "identical"])
    shutil.rmtree(swapped / "own")
    answer = hifi("eval", swapped)  # with the shipped file its labels are the wrong way round
    assert answer.code == 2 and "was made on other validation data" in answer.err
    answer = hifi("eval", *both)
    assert answer.code == 2 and answer.out.startswith(f"{both[1]}  accuracy ")
    *notes, last = answer.err.splitlines()
    assert any(line.startswith(f"{swapped} is left out: ") for line in notes), answer.err
    assert last == f"hifi: 1 of 2 runs could not be evaluated: {swapped}"


@pytest.mark.parametrize("changed", ["metrics", "scores", "logits"])
def test_eval_fails_where_a_run_does_not_give_what_it_stored(hifi, trained, data, changed):
    evaluation = ["eval", trained, "--data-dir", data]
    assert hifi(*evaluation).code == 0
    results = read_json(trained / "results.json")
    if changed == "logits":
        path = trained / "predictions.jsonl"
        first, *rest = path.read_text().splitlines()
        row = json.loads(first)
        row["logits"][0] += 0.01
        path.write_text("\n".join([json.dumps(row), *rest]) + "\n")
    else:
        results[changed] = {name: value + 0.01 for name, value in results[changed].items()}
        (trained / "results.json").write_text(json_text(results))
    refused(hifi(*evaluation), trained, "logits" if changed == "logits" else "accuracy", code=1)


# --- another machine


def test_no_file_of_a_run_of_a_shipped_backbone_names_a_place_of_this_machine(hifi):
    words = ["--protocol", "demo", "--task", "demo-entailment", "--method", "linear-probing"]
    assert hifi("train", *words, "epochs=1", "limit=40").code == 0
    for path in demo_folder(method="linear-probing").iterdir():
        assert str(ROOT).encode() not in path.read_bytes(), path


def test_a_backbone_that_lies_elsewhere_now_is_named(hifi, tiny, data, encoders, tmp_path):
    there = shutil.copytree(encoders["bert"], tmp_path / "first/tiny-bert")
    assert tiny("train --method full-ft --backbone", there).code == 0
    run = run_path(tmp_path, "full-ft")
    shutil.move(there, tmp_path / "now-here")
    Path("new.tsv").write_text("sentence1\tsentence2\nthe dog sees\tthe cat\n")
    commands = {
        "eval": [run, "--data-dir", data],
        "predict": [run, "new.tsv"],
        "export": [run, "--to", "model", "--data-dir", data],
    }
    for command, words in commands.items():
        refused(hifi(command, *words), there, "--backbone", code=3)
        answer = hifi(command, *words, "--backbone", tmp_path / "now-here")
        assert answer.code == 0, answer
    refused(
        hifi("eval", *commands["eval"], "--backbone", encoders["roberta"]),
        run,
        "another encoder",
        "--backbone",
    )
