"""What a results directory says is used only where it is whole, known, and lies where it belongs."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from finished_runs import read_json, run_path
from hifi_processes import ROOT, call_hifi, run_copy
from project_files import copy_yaml

from hifi_cli.config import registry
from hifi_cli.files import file_digest, write_json
from hifi_cli.tasks import metrics

pytestmark = pytest.mark.slow


def refused(answer, *said, code=2):
    assert answer.code == code, answer
    assert len([line for line in answer.err.splitlines() if not line.startswith("warning: ")]) == 1, answer.err
    for text in said:
        assert str(text) in answer.err, answer.err


@pytest.fixture
def trained(finish_run, tmp_path):
    """The directory of a finished run."""
    return finish_run().relative_to(tmp_path)


@pytest.mark.parametrize(
    ("part", "copy"),
    [
        ("seed1", "seed1-copy"),
        ("seed1", "seed2"),
        ("full-ft", "full-ft-old"),
        ("tiny-bert", "tiny-bert.1"),
        ("hifi", "hifi-backup"),
    ],
)
def test_a_copied_run_does_not_count_twice(hifi, trained, part, copy):
    (source,) = (path for path in (trained, *trained.parents) if path.name == part)
    target = shutil.copytree(source, source.with_name(copy))
    copied = target / trained.relative_to(source)
    for words in (["table"], ["compare", "full-ft", "bitfit"], ["report"]):
        refused(hifi(*words), copied, trained)
    states = {line.split()[0] for line in hifi("ls", "runs").out.splitlines() if str(copied) in line}
    assert states == {"damaged"}
    shutil.rmtree(target)
    assert hifi("table").code == 0


def test_a_results_directory_may_be_moved(hifi, trained, data):
    before = hifi("table").out
    Path("elsewhere").mkdir()
    Path("results").rename("elsewhere/moved")
    assert hifi("table", "--results-dir", "elsewhere/moved").out.replace("--results-dir elsewhere/moved", "") == before
    assert "logits identical" in hifi("eval", Path("elsewhere/moved") / trained.relative_to("results"), "--data-dir", data).out


def test_a_score_is_that_of_the_configuration_in_its_record(hifi, tiny, trained, data):
    """An edited or a missing config.yaml neither makes the run another one nor changes how it is rebuilt."""
    path = trained / "config.yaml"
    before = hifi("table").out
    for edit in (
        lambda: path.write_text(path.read_text().replace("learning_rate: 2.0e-05", "learning_rate: 0.5")),
        path.unlink,
    ):
        edit()
        refused(tiny("train", "--method", "full-ft", "learning_rate=0.5"), "learning_rate is 2e-05 there", code=4)
        assert "finished before" in tiny("train", "--method", "full-ft").err
        assert hifi("table").out == before
        assert "logits identical" in hifi("eval", trained, "--data-dir", data).out
        assert hifi("ls", "runs").out.splitlines()[1].startswith("done")


def test_a_delta_of_another_file_format_is_refused(hifi, trained, data):
    from safetensors.numpy import load_file, save_file

    path = trained / "delta.safetensors"
    save_file(load_file(path), path, metadata={"hifi": json.dumps({"method": "full-ft"})})
    write_json(trained / "results.json", read_json(trained / "results.json") | {"delta_sha256": file_digest(path)})
    refused(hifi("eval", trained, "--data-dir", data), path, "missing")


# --- a run's own files


METRIC = """
from pathlib import Path

import datasets
import evaluate

Path({mark!r}).touch()


class Always(evaluate.Metric):
    def _info(self):
        numbers = datasets.Value("int32")
        features = datasets.Features({{"predictions": numbers, "references": numbers}})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {{"always": 0.5}}
"""


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
        words = ["--protocol", "demo", "--method", "linear-probing", "--seed", seed, "epochs=1", "limit=40"]
        with registry.only_user_files({}):  # what follows is as in a later process
            answer = hifi("train", "--task", "./demo-entailment.yaml", *words)
        path.unlink()
        assert answer.code == 0, answer.err
        return Path("results/runs/demo/demo/demo-entailment/linear-probing") / f"seed{seed}"

    return train


def test_code_that_a_runs_own_files_name_runs_with_trust_only(hifi, own_task, tmp_path):
    folder, mark = tmp_path / "always", tmp_path / "ran"
    run = own_task(1)
    own = run / "own/tasks/demo-entailment.yaml"
    text = own.read_text()
    folder.mkdir()
    (folder / "always.py").write_text(METRIC.format(mark=str(mark)))
    for name in ("somebody/metric", "always", folder, folder / "always.py"):  # `always` is found in the working directory
        own.write_text(text.replace("primary:", f"evaluate: {name}\nprimary:"))
        refused(hifi("eval", run), own, name, "--trust")
    assert not metrics.is_code("google_bleu")  # one of evaluate's own
    Path("new.tsv").write_text("sentence1\tsentence2\nthe dog sleeps .\tthe hound sleeps .\n")
    assert hifi("predict", run, "new.tsv").code == 0
    assert hifi("export", run, "--to", "model").code == 0
    assert not mark.exists()
    trusted = run_copy(evaluate_with_trust, run, tmp_path / "home", cwd=tmp_path)  # `evaluate` keeps what a process loaded
    assert mark.exists(), trusted.stderr
    assert trusted.returncode == 1  # the run stored no such score
    assert "always 50.00  stored none" in trusted.stdout


def evaluate_with_trust(run, home):
    """`hifi eval --trust` in this process; `evaluate` copies the code into this directory."""
    import evaluate

    for name in [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]:
        del sys.modules[name]  # another test loaded a metric, from another directory
    sys.path.insert(0, str(home / "modules"))
    evaluate.config.HF_MODULES_CACHE, evaluate.config.HF_METRICS_CACHE = home / "modules", home / "metrics"
    call_hifi(["eval", run, "--trust"])


def test_a_backbone_inside_a_package_that_a_run_brings_is_not_imported(hifi, trained, data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m hifi_cli` has the working directory
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    result = read_json(trained / "results.json")
    result["config"]["backbone"] |= {"path": None, "package": "trap.inside"}
    write_json(trained / "results.json", result)
    refused(hifi("eval", trained, "--data-dir", data), trained / "results.json", "package")
    assert not (tmp_path / "ran").exists()


def test_a_run_is_repeated_in_its_place_from_the_only_copy_of_its_own_files(hifi, own_task):
    run = own_task(1)
    copy = run / "own/tasks/demo-entailment.yaml"
    text = copy.read_text()
    with registry.only_user_files({}):
        answer = hifi("train", "-c", run / "config.yaml", "--force")
    assert answer.code == 0, answer.err
    assert copy.read_text() == text
    assert hifi("eval", run).code == 0
    words = ["--task", "demo-entailment", "--protocol", "demo", "--method", "linear-probing", "epochs=1", "limit=40"]
    assert hifi("train", *words, "--force").code == 0  # on the shipped file: no copy may stand for it
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
    refused(answer, swapped, "accuracy", code=1)
    now, stored = (float(answer.out.split()[at]) for at in (2, 4))
    assert now == pytest.approx(100 - stored) and now != stored


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
        write_json(trained / "results.json", results)
    refused(hifi(*evaluation), trained, "logits" if changed == "logits" else "accuracy", code=1)


# --- another machine


def test_a_run_of_a_shipped_backbone_is_read_by_an_installation_elsewhere(hifi, small_demo_directory, tmp_path):
    words = ["--protocol", "demo", "--task", "demo-entailment", "--method", "linear-probing"]
    assert hifi("train", *words, "epochs=1", "limit=40").code == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "hifi_cli", elsewhere / "hifi_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", elsewhere / "configs")
    shutil.copytree(small_demo_directory, elsewhere / "configs/tasks/demo", dirs_exist_ok=True)
    shutil.move("results", elsewhere / "moved")
    run = elsewhere / "moved/runs/demo/demo/demo-entailment/linear-probing/seed1"
    for path in run.iterdir():
        assert str(ROOT).encode() not in path.read_bytes(), path
    said = run_copy(evaluate_elsewhere, elsewhere, run, cwd=elsewhere)
    assert said.returncode == 0, said.stderr
    assert "logits identical" in said.stdout


def evaluate_elsewhere(installation, run):
    """`hifi eval` by the modules of another installation."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "hifi_cli"]:
        del sys.modules[name]
    sys.path.insert(0, str(installation))
    import hifi_cli

    assert Path(hifi_cli.__file__).is_relative_to(installation)
    call_hifi(["eval", run, "--results-dir", "moved", "-v"])


def test_a_backbone_that_lies_elsewhere_now_is_named(hifi, tiny, data, encoders, tmp_path):
    there = shutil.copytree(encoders["bert"], tmp_path / "first/tiny-bert")
    assert tiny("train", "--method", "full-ft", "--backbone", there).code == 0
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
    refused(hifi("eval", *commands["eval"], "--backbone", encoders["roberta"]), run, "other weights", "--backbone")
