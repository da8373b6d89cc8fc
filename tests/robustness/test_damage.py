"""Signals, full disks, damaged files and files that would do harm: named, and nothing is lost."""

import errno
import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from finished_runs import fingerprint, read_json, truncate
from tiny_inputs import write_data

from hifi_cli.errors import RunFailed, Terminated, UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import checkpoint, loop

pytestmark = pytest.mark.slow


@pytest.fixture
def saving_every_step(monkeypatch):
    """Training that saves a checkpoint after every step."""
    monkeypatch.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)


def test_a_full_disk_is_told_and_costs_nothing(
    make, data, tmp_path, monkeypatch, saving_every_step
):
    config, workspace = make("hifi-layerwise"), Workspace(tmp_path / "full", data)
    directory = RunDirectory.of(config, workspace.results_dir)

    def fail(temporary, path):
        if Path(path).name == "results.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(temporary, path)

    replace = os.replace
    with (
        monkeypatch.context() as patched,
        pytest.raises(RunFailed, match=r"results\.json: .*No space left on device.*make room"),
    ):
        patched.setattr(os, "replace", fail)
        runs.run(config, workspace)
    assert not directory.results.exists() and directory.checkpoint.is_file()
    assert not [*directory.path.glob(".*")]
    runs.run(config, workspace)
    runs.run(config, Workspace(tmp_path / "uninterrupted", data))
    assert fingerprint(directory.path) == fingerprint(
        RunDirectory.of(config, tmp_path / "uninterrupted").path
    )


def test_a_stopped_command_says_how_it_goes_on(tiny, monkeypatch):
    train_step = loop.Trainer.train_step

    def stopping_step(self, batch):
        train_step(self, batch)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.Trainer, "train_step", stopping_step)
    answer = tiny("train --method bitfit")
    assert (
        answer.code == 143
        and "stopped; the same command without --force continues from its checkpoint" in answer.err
    )


@pytest.mark.parametrize("problem", ["damaged", "of other data", "of another version of hifi"])
def test_a_checkpoint_that_does_not_fit_is_named_and_not_used(
    make, data, tmp_path, monkeypatch, saving_every_step, problem, caplog
):
    config, save = make("full-ft"), checkpoint.Checkpoint.save

    def then_stop(self, *rest):
        save(self, *rest)
        if problem == "damaged":
            truncate(self.path)
        raise Terminated

    other = write_data(tmp_path / "other", rows=40)
    with monkeypatch.context() as patched, pytest.raises(Terminated):
        patched.setattr(checkpoint.Checkpoint, "save", then_stop)
        patched.setattr(checkpoint, "_LAYOUT", 0 if "version" in problem else checkpoint._LAYOUT)
        runs.run(
            config,
            Workspace(tmp_path / "results", other if problem == "of other data" else data),
        )
    for name in ("results", "uninterrupted"):
        runs.run(config, Workspace(tmp_path / name, data))
    assert f"last.pt is {problem}" in caplog.text
    directories = [
        RunDirectory.of(config, tmp_path / name).path for name in ("uninterrupted", "results")
    ]
    assert fingerprint(directories[0]) == fingerprint(directories[1])


@pytest.mark.parametrize("kind", ["scores", "heads"])
def test_damaged_scores_and_heads_are_made_again(finish_run, tiny, tmp_path, kind):
    finish_run("hifi-layerwise")
    (path,) = (tmp_path / "results" / kind).rglob("*.json")
    sound = read_json(path)
    truncate(path)
    answer = tiny("train --method hifi-layerwise --seed 2")
    assert answer.code == 0, answer.err
    assert kind == "heads" or f"{path.relative_to(tmp_path)} is" in answer.err
    again = read_json(path)
    assert {**again, "provenance": None} == {**sound, "provenance": None}


def test_names_cannot_leave_the_results_directory(make, tmp_path):
    config = make("full-ft")
    for name in ("../../out", "/etc/x", "..", ".", "a/../../b", "\x00", "~", "-rf", ".hidden"):
        moved = config.model_copy(
            update={"task": name, "method": name, "protocol": name, "variant": name or None}
        )
        path = (tmp_path / moved.run_path).resolve()
        assert path.is_relative_to(tmp_path / "runs")
        assert len(path.relative_to(tmp_path).parts) == 7


def test_only_plain_tensors_are_read(make, data, tmp_path, caplog):
    """A checkpoint that would run code when unpickled is refused."""
    config = make("full-ft")
    directory = RunDirectory.of(config, tmp_path / "results")
    directory.checkpoint.parent.mkdir(parents=True)

    class Harm:
        def __reduce__(self):
            return (Path(tmp_path / "harmed").touch, ())

    torch.save({"run_id": Harm()}, directory.checkpoint, pickle_module=pickle)
    runs.run(config, Workspace(tmp_path / "results", data))
    assert not (tmp_path / "harmed").exists()
    assert "damaged" in caplog.text


def test_a_run_of_too_few_steps_is_refused_before_anything_is_written_or_removed(make, workspace):
    short = make("eh-ft-bitfit", "epochs=1", "batch_size=64")
    directory = RunDirectory.of(short, workspace.results_dir)
    with pytest.raises(UsageError, match="cannot be shared by 2 stages"):
        runs.run(short, workspace)
    assert not directory.config_file.exists()  # the next command may have other settings
    runs.run(make("eh-ft-bitfit"), workspace)
    before = {file: file.read_bytes() for file in directory.path.iterdir() if file.is_file()}
    with pytest.raises(UsageError, match="cannot be shared by 2 stages"):
        runs.run(short, workspace, force=True)
    assert {
        file: file.read_bytes() for file in directory.path.iterdir() if file.is_file()
    } == before
