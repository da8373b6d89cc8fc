"""Stored runs of before a configuration key: the key is filled in, the hashes are made anew, and nothing else changes."""

import json
import shutil
import sys

import pytest
from project_files import ROOT, load_script

from hifi_cli.config.run_config import config_hash_of
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.share import merge

renew_hashes = load_script("renew_hashes")


def renew(monkeypatch, *words):
    """Run the script; its exit code."""
    monkeypatch.setattr(sys, "argv", ["renew_hashes.py", *map(str, words)])
    return renew_hashes.main()


def without_the_key(record, key):
    """A record as it was before the key, with the hashes of that time."""
    config = {name: value for name, value in record["config"].items() if name != key}
    without_seed = {name: value for name, value in config.items() if name != "seed"}
    hashes = {"config_hash": config_hash_of(config), "setting_hash": config_hash_of(without_seed)}
    return record | {"config": config} | hashes


@pytest.mark.parametrize("study", ["study", "study-cpu", "laptop-pilot"])
def test_the_committed_studies_have_the_hashes_of_today(monkeypatch, capsys, study):
    assert renew(monkeypatch, ROOT / "results" / study) == 0
    how = f"a key was added: python scripts/renew_hashes.py results/{study} --write"
    assert "differs" not in capsys.readouterr().out, how


@pytest.fixture
def study_of_before(tmp_path):
    """The packed study of two runs as it was before `layer_decay`, and their records of today."""
    lines = (ROOT / "results/study/runs.jsonl").read_text().splitlines()[:2]
    runs = [json.loads(line) for line in lines]
    former = [run | {"record": without_the_key(run["record"], "layer_decay")} for run in runs]
    study = tmp_path / "study"
    study.mkdir()
    (study / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in former))
    shutil.copy(ROOT / "results/study/predictions.parquet", study)
    return study, {run["path"]: run["record"] for run in runs}


def test_a_packed_study_of_before_a_key_becomes_that_of_today(monkeypatch, capsys, study_of_before):
    study, today = study_of_before
    former = (study / "runs.jsonl").read_bytes()
    assert renew(monkeypatch, study) == 0
    assert (study / "runs.jsonl").read_bytes() == former
    assert "config.layer_decay differs in 2" in capsys.readouterr().out
    assert renew(monkeypatch, study, "--write") == 0
    assert renew_hashes.read_packed(study) == today


def test_runs_in_directories_are_renewed_with_their_config_yaml(
    monkeypatch, tmp_path, study_of_before
):
    study, today = study_of_before
    merge(study, tmp_path / "results")
    assert renew(monkeypatch, tmp_path / "results", "--write") == 0
    assert renew_hashes.read_runs(tmp_path / "results") == today
    for path, record in today.items():
        config_file = RunDirectory(tmp_path / "results" / path).config_file
        assert record["config_hash"] in config_file.read_text().splitlines()[0]


def test_a_part_that_should_not_change_is_named_and_nothing_is_written(
    monkeypatch, capsys, study_of_before
):
    study, _ = study_of_before
    former = (study / "runs.jsonl").read_bytes()
    usual = renew_hashes.renewed
    monkeypatch.setattr(
        renew_hashes, "renewed", lambda record, hashes: usual(record, hashes) | {"seed": 77}
    )
    assert renew(monkeypatch, study, "--write") == 1
    assert "seed10: seed" in capsys.readouterr().out
    assert (study / "runs.jsonl").read_bytes() == former


def test_a_value_gets_its_name_of_today(monkeypatch, capsys, tmp_path):
    """`kernels: graphs` is `auto`, with the version of dropout masks that `auto` has today."""
    line, *_ = (ROOT / "results/study/runs.jsonl").read_text().splitlines()
    run = json.loads(line)
    draws = run["record"]["draws"]
    assert draws["dropout on cuda"] == 2
    former = with_value(run["record"], "kernels", "graphs")
    former["draws"] = draws | {"dropout on cuda": 1}
    assert former["config_hash"] != run["record"]["config_hash"]
    (tmp_path / "runs.jsonl").write_text(json.dumps(run | {"record": former}) + "\n")
    assert renew(monkeypatch, tmp_path, "--write") == 0
    assert "config.kernels differs in 1" in capsys.readouterr().out
    assert renew_hashes.read_packed(tmp_path) == {run["path"]: run["record"]}


def with_value(record, key, value):
    """A record of a program in which a key had another value, with the hashes of that time."""
    config = record["config"] | {key: value}
    without_seed = {name: setting for name, setting in config.items() if name != "seed"}
    hashes = {"config_hash": config_hash_of(config), "setting_hash": config_hash_of(without_seed)}
    return record | {"config": config} | hashes
