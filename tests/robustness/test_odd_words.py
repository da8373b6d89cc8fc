"""Words that are no numbers, options that do nothing, and paths of another kind are wrong usage, in one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from finished_runs import read_json
from hifi_processes import environment
from tiny_inputs import QUICK

from hifi_cli.config.sources import resolve
from hifi_cli.records import share
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.study import Study
from hifi_cli.runs import run as runs
from hifi_cli.runs.provenance import describe_provenance


def refused(answer, *said, code=2):
    assert answer.code == code, answer
    others = ("warning: ", "note: ")
    (line,) = (line for line in answer.err.splitlines() if not line.startswith(others))
    for text in said:
        assert str(text) in line
    assert "make room" not in line and "report it" not in line


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("epochs=yes", "epochs"),
        ("batch_size=yes", "batch_size"),
        ("learning_rate=yes", "learning_rate"),
        ("gradient_accumulation_steps=true", "gradient_accumulation_steps"),
        ("heads.seed=true", "heads.seed"),
        ("limit=1:30", "limit"),
        ("limit=010", "limit"),
        ("scoring.max_length=1:30", "scoring.max_length"),
        ("task_head.one_logit=1e-400", "task_head.one_logit"),
        ('eval_batch_size="1"', "eval_batch_size"),
        ('learning_rate="1e-4"', "learning_rate"),
        ("swap_texts=1", "swap_texts"),
        ("epochs=1.5", "epochs"),
        ("adam_betas=[0.9,yes]", "adam_betas"),
        ("settings.biases=[1]", "biases"),
        ("heads.given=[[true]]", "heads.given"),
    ],
)
def test_a_word_that_is_no_number_is_refused(hifi, encoders, data, word, key):
    command = ["train", "--task", "rte", "--backbone", encoders["bert"], "--data-dir", data]
    command += ["--method", "bitfit", "--dry-run", "--allow-unused"]
    refused(hifi(*command, word), key)
    Path("settings.yaml").write_text(word.replace("=", ": "))
    refused(hifi(*command, "-c", "settings.yaml"), key)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("limit=1e3", "limit", 1000),
        ("limit=1.5e3", "limit", 1500),
        ("epochs=3.0", "epochs", 3),
        ("limit=1_000", "limit", 1000),
        ("learning_rate=1", "learning_rate", 1.0),
        ("learning_rate=1e0", "learning_rate", 1.0),
        ("learning_rate=.5", "learning_rate", 0.5),
        ("swap_texts=yes", "swap_texts", True),
        ("adam_betas=[0,1e-1]", "adam_betas", (0.0, 0.1)),
        ("variant=2024-01-01", "variant", "2024-01-01"),
    ],
)
def test_numbers_are_taken_as_they_are_written(word, key, value):
    config = resolve(task="rte", method="bitfit", backbone="bert-base", overrides=[word])
    assert getattr(config, key) == value
    assert type(getattr(config, key)) is type(value)


# --- options that do nothing


@pytest.mark.parametrize(
    ("method", "words", "said"),
    [
        ("lora", ["heads.k=4"], "heads.k changes nothing: method lora selects no attention heads"),
        ("lora", ["scoring.samples=9"], "scoring.samples changes nothing"),
        ("hifi-layerwise", ["heads.given=[[0],[1]]", "heads.k=1"], "heads.k changes nothing"),
        ("hifi-layerwise", ["heads.seed=3"], "heads.seed changes nothing"),
        ("hifi-random", ["heads.damping=0.5"], "heads.rank=random is no PageRank"),
        ("hifi-fisher", ["heads.epsilon=1e-3"], "heads.rank=fisher is no PageRank"),
        ("bitfit", ["task_head.width=9"], "task_head.kind is pooler"),
        ("bitfit", ["holdout=0.2"], "selection is validation"),
        ("bitfit", ["hold_factor=0.2"], "hold_steps is 0"),
        ("bitfit", ["final_factor=0.2", "schedule=constant"], "schedule is constant"),
    ],
)
def test_a_key_that_no_method_of_the_command_uses_is_refused(
    hifi, encoders, data, method, words, said
):
    command = ["train", "--task", "rte", "--backbone", encoders["bert"], "--data-dir", data]
    refused(hifi(*command, "--method", method, *words, "--dry-run"), said)
    assert hifi(*command, "--method", method, *words, "--dry-run", "--allow-unused").code == 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("lora,hifi-layerwise", ["heads.k=2"]),
        ("hifi-layerwise", ["heads.rank=random", "heads.seed=3", "scoring.samples=9"]),
        ("bitfit", ["tf32=true", "kernels=torch", "padding_free=false", "deterministic=true"]),
        ("bitfit", ["selection=holdout", "holdout=0.2", "hold_steps=1", "hold_factor=0.2"]),
        ("eh-ft-bitfit", ["task_head.kind=mlp", "task_head.width=9"]),
        ("hifi-page-inv", ["heads.damping=0.5", "heads.epsilon=1e-3"]),
    ],
)
def test_a_key_that_a_method_of_the_command_uses_is_accepted(hifi, encoders, data, method, words):
    command = ["train", "--task", "rte", "--backbone", encoders["bert"], "--data-dir", data]
    answer = hifi(*command, "--method", method, *words, "--dry-run")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("score", ["heads.k=2"], "heads.k changes nothing: hifi score chooses no heads"),
        ("score", ["limit=9"], "limit changes nothing: heads are scored on scoring.samples rows"),
        ("score", ["epochs=9"], "epochs changes nothing: nothing is trained before"),
        ("score", ["max_length=16"], "max_length changes nothing: nothing is trained before"),
        ("score", ["report=last"], "report changes nothing: no score of a head depends on it"),
        ("score", ["scoring.warm_steps=1", "log_every=2"], "log_every changes nothing"),
        ("score", ["task_head.kind=mlp"], "task_head.kind changes nothing"),
        ("score", ["holdout=0.2"], "holdout changes nothing: selection is validation"),
        ("score", ["scoring.warm_steps=1", "limit=9"], "limit changes nothing"),
        ("select", ["learning_rate=1"], "learning_rate changes nothing"),
        ("select", ["heads.seed=3"], "heads.seed changes nothing: heads.rank=pagerank draws"),
        ("select", ["heads.rank=richness", "heads.damping=0.5"], "heads.damping changes nothing"),
        ("select", ["heads.given=[[0],[1]]"], "hifi select chooses heads by their scores"),
        ("select", ["task_head.width=9"], "task_head.width changes nothing"),
    ],
)
def test_a_key_that_changes_no_head_is_refused(tiny, command, words, said):
    refused(tiny(command, *words), said)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("score", ["precision=fp32", "tf32=true", "kernels=torch", "swap_texts=true"]),
        ("score", ["selection=holdout", "holdout=0.2"]),
        ("score", ["scoring.warm_steps=1", "learning_rate=1e-4", "batch_size=8"]),
        ("select", ["heads.rank=random", "heads.seed=3", "heads.k=2"]),
        ("select", ["heads.rank=gradient", "task_head.kind=mlp", "task_head.width=9"]),
    ],
)
def test_a_key_that_changes_heads_is_accepted(tiny, command, words):
    answer = tiny(command, "scoring.samples=8", *words)
    assert answer.code == 0, answer.err


def test_a_file_of_settings_for_several_methods_is_accepted(hifi, encoders, data):
    Path("mine.yaml").write_text("heads: {k: 2}\nscoring: {samples: 9}\n")
    command = ["train", "--task", "rte", "--backbone", encoders["bert"], "--data-dir", data]
    assert hifi(*command, "--method", "lora", "-c", "mine.yaml", "--dry-run").code == 0


def test_the_commands_of_a_grid_over_several_methods_are_accepted(hifi, encoders):
    """A key of the grid is one of every run, whose method may not use it."""
    grid = {"protocol": "hifi", "backbone": str(encoders["bert"]), "tasks": ["rte"]}
    Path("mine.yaml").write_text(
        yaml.safe_dump(grid | {"methods": ["lora", "hifi-layerwise"], "vary": {"heads.k": [1, 2]}})
    )
    lines = hifi("grid mine.yaml --print").out.splitlines()
    assert len(lines) == 4
    for line in lines:
        words = line.split()[1:]
        assert "--allow-unused" in words
        assert hifi(*words, "--dry-run").code == 0
    lines = hifi("grid demo --print").out.splitlines()
    assert lines and "--allow-unused" not in "".join(lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grid", "demo", "--print", "--site", "[1"], "unknown site '[1'"),
        (["grid", "demo", "--print", "--site", "results"], "unknown site 'results'"),
        (["grid", "demo", "--site", "slurm", "--jobs", "2"], "--jobs is for this machine"),
        (["results", "merge", "results", "--results-dir", "hub:a/b"], "a directory is required"),
        (["results", "export", "results", "--organization", "X"], "--format eee"),
        (["ls", "tasks", "--format", "json"], "hifi ls runs"),
        (["ls", "--format", "csv"], "hifi ls runs"),
    ],
)
def test_an_option_that_does_nothing_is_refused(hifi, finish_run, words, said):
    finish_run()
    refused(hifi(*words), said)
    assert not Path("hub:a").exists()


@pytest.mark.parametrize("option", ["--methods", "--tasks", "--protocol"])
def test_a_yaml_that_is_none_of_its_kind_is_refused(hifi, finish_run, option):
    finish_run()
    Path("x.yaml").write_text("{a: 1}")
    refused(hifi("table", option, "x.yaml"), "x.yaml", "unknown key 'a'")


def test_a_data_directory_that_is_not_there_is_named(hifi, monkeypatch):
    words = ["train", "--protocol", "demo", "--method", "bitfit"]
    refused(hifi(*words, "--data-dir", "nowhere"), "there is no directory nowhere", code=3)
    assert hifi(*words, "--data-dir", "nowhere", "--dry-run").code == 0
    monkeypatch.setenv("HIFI_DATA_DIR", "nowhere")
    assert hifi(*words, "epochs=1", "limit=8").code == 0


# --- paths of another kind

LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--task", "rte", "--method", "bitfit", "-c", "folder"],
        ["train", "--task", "rte", "--method", "hifi-layerwise", "--heads", "folder"],
        ["train", "--task", f"{LONG}.csv", "--method", "bitfit"],
        ["train", "--task", "rte", "--method", f"{LONG}.yaml"],
        ["train", "--protocol", "demo", "--method", "bitfit", "--results-dir", "file"],
        ["train", "--protocol", "demo", "--method", "bitfit", "--results-dir", "circle/x"],
        ["claims", "hifi", "--backbone", LONG],
        ["table", "--results-dir", "file"],
        ["table", "--results-dir", LONG],
        ["eval", LONG],
        ["results", "pack", "results", "--out", "file/x"],
    ],
)
def test_a_path_of_another_kind_is_wrong_usage(hifi, finish_run, words):
    finish_run()
    Path("folder").mkdir()
    Path("file").write_text("")
    Path("circle").symlink_to("circle")
    refused(hifi(*words))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.csv", "text,label\na,nan\nb,nan\n"),
        ("data.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": NaN}\n'),
        ("data.jsonl", '{"text": "a", "label": null}\n'),
        ("data.conll", "the\ndog\n\na\ncat\n"),
        ("data.jsonl", '{"text": "a", "label": []}\n{"text": "b", "label": []}\n'),
    ],
)
def test_a_message_about_data_names_the_users_file(hifi, name, content):
    Path(name).write_text(content)
    for words in (["ls", name], ["train", "--task", name, "--method", "bitfit"]):
        answer = hifi(*words)
        refused(answer, name)
        assert "hifi-task-" not in answer.err and "spans require none" not in answer.err


# --- races


def test_a_merge_finds_the_run_that_another_one_copied_meanwhile(finish_run, tmp_path, monkeypatch):
    finish_run()
    copyfile = shutil.copyfile

    def slower(source, target):
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        share.merge(Path("results"), Path("target"))
        copyfile(source, target)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "copyfile", slower)
    assert [*share.merge(Path("results"), Path("target")).values()] == ["same"]
    assert len(Study(Path("target")).records) == 1
    assert not [*Path("target").rglob("*.hifi-part")]


def test_a_merge_names_another_run_that_was_copied_meanwhile(finish_run, tmp_path, monkeypatch):
    run = finish_run()
    monkeypatch.chdir(tmp_path)
    copyfile = shutil.copyfile

    def other_first(source, target):
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        place = Path("target") / run.relative_to(Path("results").resolve())
        shutil.copytree(run, place)
        record = read_json(place / "results.json") | {"config_hash": "another"}
        (place / "results.json").write_text(json.dumps(record))
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", other_first)
    assert [*share.merge(Path("results"), Path("target")).values()] == ["conflict"]


def test_a_run_that_was_merged_while_another_one_was_prepared_is_not_overwritten(
    tiny, finish_run, monkeypatch
):
    run = finish_run()
    shutil.move("results", "theirs")
    load_splits = runs.load_splits

    def merged_meanwhile(inputs):
        assert [*share.merge(Path("theirs"), Path("results")).values()] == ["copied"]
        return load_splits(inputs)

    monkeypatch.setattr(runs, "load_splits", merged_meanwhile)
    refused(tiny("train --method full-ft -q"), "holds a finished run that was copied", code=4)
    theirs = Path("theirs") / run.relative_to(Path("results").resolve())
    assert (run / "results.json").read_bytes() == (theirs / "results.json").read_bytes()


@pytest.mark.parametrize("command", ["pack", "export"])
def test_the_slower_of_two_writers_is_told_that_the_place_is_taken(
    hifi, finish_run, data, monkeypatch, command
):
    run = finish_run()
    words = {
        "pack": ["results", "pack", "results", "--out", "place"],
        "export": ["export", run, "--to", "place", "--data-dir", data],
    }[command]
    replace = Path.replace

    def taken(temporary, path):
        if Path(path).name == "place":
            Path("place").mkdir()
            Path("place/file").write_text("of another process")
        return replace(temporary, path)

    monkeypatch.setattr(Path, "replace", taken)
    refused(hifi(*words), "place exists")
    assert Path("place/file").read_text() == "of another process"
    assert not [*Path().glob(".*.hifi-part")]


# --- what git is asked, and what a killed process left


GIT_OF_THE_RECORD = (
    "from hifi_cli.runs.provenance import describe_provenance; print(describe_provenance()['git'])"
)


@pytest.mark.slow
def test_git_is_asked_about_this_code_alone(tmp_path):
    """A hook of git sets these variables for its own repository."""
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    commit = ["commit", "-q", "--allow-empty", "-m", "m"]
    subprocess.run(["git", "-C", str(other), *identity, *commit], check=True)
    in_a_hook = environment(GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(other))
    said = subprocess.check_output(
        [sys.executable, "-c", GIT_OF_THE_RECORD], env=in_a_hook, text=True
    )
    assert said.strip() == str(describe_provenance()["git"])


def test_a_folder_that_a_killed_process_left_in_a_run_is_removed(make, tmp_path):
    config = make("bitfit", *QUICK)
    directory = RunDirectory.of(config, tmp_path / "results")
    (directory.path / ".a.hifi-part/inner").mkdir(parents=True)
    (directory.path / ".b.hifi-part").write_text("x")
    (directory.path / ".c.hifi-part").symlink_to(tmp_path)
    directory.remove_parts()
    assert not [*directory.path.iterdir()]
    assert tmp_path.is_dir()
