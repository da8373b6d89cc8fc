"""Signals, full disks, damaged files and files that would do harm: named, and nothing is lost."""

import errno
import os
import pickle
import shutil
import signal
from pathlib import Path

import pytest
import torch
from finished_runs import fingerprint, read_json, truncate
from safetensors.torch import load_file, save_file
from tiny_inputs import write_data

from hifi_cli.config import draws
from hifi_cli.errors import ConflictError, RunFailed, Terminated, UsageError
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


def stop_at_the_first_checkpoint(config, workspace, monkeypatch):
    """Train until a checkpoint is saved; returns its path."""
    save = checkpoint.Checkpoint.save

    def then_stop(self, *rest):
        save(self, *rest)
        raise Terminated

    with monkeypatch.context() as patched, pytest.raises(Terminated):
        patched.setattr(checkpoint.Checkpoint, "save", then_stop)
        runs.run(config, workspace)
    return RunDirectory.of(config, workspace.results_dir).checkpoint


def test_a_damaged_checkpoint_is_named_and_the_run_starts_anew(
    make, data, tmp_path, monkeypatch, saving_every_step, caplog
):
    config = make("full-ft")
    results = Workspace(tmp_path / "results", data)
    truncate(stop_at_the_first_checkpoint(config, results, monkeypatch))
    runs.run(config, results)
    runs.run(config, Workspace(tmp_path / "uninterrupted", data))
    assert "last.pt is damaged" in caplog.text
    directories = [
        RunDirectory.of(config, tmp_path / name).path for name in ("uninterrupted", "results")
    ]
    assert fingerprint(directories[0]) == fingerprint(directories[1])


def change_the_data(tmp_path, **_):
    """Other train rows than before the stop."""
    write_data(tmp_path / "data", rows=40)


def change_the_tokenizer(encoder, **_):
    """A tokenizer that lowers no letters, as another version of it may."""
    file = encoder / "tokenizer.json"
    file.write_text(file.read_text().replace('"lowercase":true', '"lowercase":false'))
    file = encoder / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"do_lower_case": true', '"do_lower_case": false'))
    with (encoder / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("another\n")


def change_the_weights(encoder, **_):
    """The weights of another pretraining."""
    weights = load_file(encoder / "model.safetensors")
    weights = {name: value + 1e-3 for name, value in weights.items()}
    save_file(weights, encoder / "model.safetensors", metadata={"format": "pt"})


def change_the_order_of_the_data(monkeypatch, **_):
    """A version of the program that draws the order of the data otherwise."""
    monkeypatch.setitem(draws.VERSIONS, "order of data", 2)


def change_the_layout(monkeypatch, **_):
    """A version of the program whose checkpoints hold other things."""
    monkeypatch.setattr(checkpoint, "_LAYOUT", 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_the_data, "differs in: the data of train, the data of validation;"),
        (change_the_weights, "differs in: the encoder's weights, configuration or tokenizer;"),
        (change_the_tokenizer, "differs in: the encoder's weights, configuration or tokenizer;"),
        (change_the_order_of_the_data, r"differs in: the random draws \(order of data\);"),
        (change_the_layout, "is of another version of hifi: continue the run with that version"),
    ],
)
def test_a_change_between_stop_and_resume_is_refused_by_name_and_costs_nothing(
    make, encoders, tmp_path, monkeypatch, saving_every_step, change, named
):
    encoder = shutil.copytree(encoders["bert"], tmp_path / "encoder")
    write_data(tmp_path / "data")
    config = make("bitfit", backbone=encoder)
    path = stop_at_the_first_checkpoint(
        config, Workspace(tmp_path / "results", tmp_path / "data"), monkeypatch
    )
    saved = path.read_bytes()
    with monkeypatch.context() as patched:
        change(tmp_path=tmp_path, encoder=encoder, monkeypatch=patched)
        with pytest.raises(ConflictError, match=named) as refused:
            runs.run(config, Workspace(tmp_path / "results", tmp_path / "data"))
    assert "delete the file to train from the beginning" in str(refused.value)
    assert path.read_bytes() == saved


def test_damaged_settings_of_a_stopped_run_are_named_and_the_run_goes_on_without_them(
    make, data, tmp_path, monkeypatch, saving_every_step, caplog
):
    config = make("bitfit")
    results = Workspace(tmp_path / "results", data)
    stop_at_the_first_checkpoint(config, results, monkeypatch)
    directory = RunDirectory.of(config, tmp_path / "results")
    # Cut between two lines it would be that of a run with other settings, which is refused as well.
    directory.config_file.write_text("heads: {k: ")
    with pytest.raises(UsageError, match=r"config\.yaml.*delete it: the run's command writes it"):
        runs.run(config, results)
    directory.config_file.unlink()
    other = config.model_copy(update={"learning_rate": 0.5})
    with pytest.raises(ConflictError, match="differs in: the configuration"):
        runs.run(other, results)
    assert not directory.config_file.exists()
    runs.run(config, results)
    assert "resuming at epoch" in caplog.text
    runs.run(config, Workspace(tmp_path / "uninterrupted", data))
    undisturbed = RunDirectory.of(config, tmp_path / "uninterrupted")
    assert fingerprint(directory.path) == fingerprint(undisturbed.path)


def test_a_checkpoint_that_cannot_be_read_now_is_kept(
    make, workspace, monkeypatch, saving_every_step
):
    """A disk that is away for a moment, or too little memory, is no damage of the file."""
    config = make("bitfit")
    path = stop_at_the_first_checkpoint(config, workspace, monkeypatch)
    saved = path.read_bytes()
    for error in (
        OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):

        def fail(*_, _error=error, **__):
            raise _error

        with monkeypatch.context() as patched, pytest.raises(RunFailed, match="cannot be read"):
            patched.setattr(torch, "load", fail)
            runs.run(config, workspace)
        assert path.read_bytes() == saved


def test_other_conditions_and_libraries_are_told_where_a_run_goes_on(
    make, workspace, monkeypatch, saving_every_step, caplog
):
    config = make("bitfit")
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "2.0.1")
        patched.setattr(torch, "get_num_threads", lambda: 7)
        stop_at_the_first_checkpoint(config, workspace, monkeypatch)
    runs.run(config, workspace)
    (line,) = [text for text in caplog.messages if "goes on with" in text]
    assert f"torch {torch.__version__} (before: 2.0.1), threads 1 (before: 7)" in line
    caplog.clear()
    runs.run(make("bitfit", seed=2), workspace)
    assert "goes on with" not in caplog.text


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
