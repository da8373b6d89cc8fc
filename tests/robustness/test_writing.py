"""What is written is whole or absent: full disks, quotas, killed writers, power failures."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from finished_runs import fingerprint
from hifi_processes import ROOT
from safetensors.torch import save_file

from hifi_cli import files
from hifi_cli.errors import RunFailed, Terminated
from hifi_cli.files import atomic_path, write_text
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import checkpoint, loop


@pytest.fixture
def limit_sizes():
    """Limits the size of files that this process writes, as a quota does: the disk itself has room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"weights": torch.zeros(100_000)}, path),
        lambda path: save_file({"weights": torch.zeros(100_000)}, path),
        lambda path: path.write_bytes(bytes(400_000)),
    ],
    ids=["torch", "safetensors", "python"],
)
def test_a_write_that_a_quota_ends_is_told_as_such_and_leaves_nothing(tmp_path, limit_sizes, write):
    (tmp_path / "out").write_text("former")
    limit_sizes(100_000)
    with (
        pytest.raises(RunFailed, match=r"cannot write .*out: .*make room"),
        atomic_path(tmp_path / "out") as temporary,
    ):
        write(temporary)
    assert (tmp_path / "out").read_text() == "former"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_other_errors_in_the_block_stay_what_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2"), atomic_path(tmp_path / "out"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """After a power failure a name never stands for an empty file."""
    events = []
    sync, rename = os.fsync, Path.replace

    def watched_sync(handle):
        events.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name))
        sync(handle)

    def watched_rename(path, target):
        events.append(("rename", target.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    with atomic_path(tmp_path / "folder") as folder:
        folder.mkdir()
        (folder / "results.json").write_text("{}")
        (folder / "delta").write_text("0")
    assert events[-1] == ("rename", "folder")
    assert {"results.json", "delta"} <= {name for _, name in events[:-1]}
    events.clear()
    write_text(tmp_path / "results.json", "{}")
    assert [kind for kind, _ in events] == ["sync", "rename"]


# --- what killed writers left

_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from hifi_cli.files import atomic_path
with atomic_path(Path(sys.argv[1])) as part:
    part.mkdir()
    (part / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_writer_of(path):
    """Start a process that is killed while it writes a directory."""
    process = subprocess.run(
        [sys.executable, "-c", _KILLED_WRITER, path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert process.returncode == -signal.SIGKILL


def parts_in(folder):
    """The names of what is being written, or was left."""
    return [path.name for path in folder.iterdir() if path.name.endswith(".hifi-part")]


def test_the_next_writer_removes_what_killed_ones_left(tmp_path):
    kill_a_writer_of(tmp_path / "study")
    assert len(parts_in(tmp_path)) == 1
    write_text(tmp_path / "another", "text")
    assert not parts_in(tmp_path)


def test_what_a_living_process_or_another_machine_writes_is_left_alone(tmp_path):
    with atomic_path(tmp_path / "first") as first:
        first.mkdir()
        write_text(tmp_path / "second", "text")
        (first / "file").write_text("whole")
    assert (tmp_path / "first/file").read_text() == "whole"
    elsewhere = tmp_path / ".study.0a1b2c3d-1-00000000.hifi-part"
    older = tmp_path / ".study.5c3a3719.hifi-part"  # as former versions named them
    elsewhere.mkdir()
    older.mkdir()
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    os.utime(older, (two_days_ago, two_days_ago))
    write_text(tmp_path / "third", "text")
    assert parts_in(tmp_path) == [elsewhere.name]


def test_a_name_as_long_as_a_disk_takes_can_be_written(tmp_path):
    write_text(tmp_path / ("n" * 255), "text")
    assert (tmp_path / ("n" * 255)).read_text() == "text"


@pytest.mark.slow
def test_merge_and_pack_remove_what_killed_ones_left(finish_run, hifi, tmp_path):
    run = finish_run("bitfit")
    target = tmp_path / "elsewhere" / run.relative_to(tmp_path / "results")
    kill_a_writer_of(target)
    kill_a_writer_of(tmp_path / "study")
    assert hifi("results merge results --results-dir elsewhere").code == 0
    assert hifi("results pack results --out study").code == 0
    assert not list(tmp_path.rglob("*.hifi-part"))


# --- checkpoints that cannot be saved


@pytest.fixture
def failing_checkpoints(monkeypatch):
    """Training in which a checkpoint is saved after every step, and its disk is full."""
    monkeypatch.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)

    def fail(self, *_):
        raise RunFailed(f"cannot write {self.path}: the disk is full")

    monkeypatch.setattr(checkpoint.Checkpoint, "save", fail)


@pytest.mark.slow
def test_a_run_that_needs_no_more_room_goes_on_without_checkpoint(
    make, data, tmp_path, monkeypatch, caplog, limit_sizes
):
    """The checkpoint has the moments of AdamW too, so it is larger than the delta."""
    config = make("full-ft")
    runs.run(config, Workspace(tmp_path / "undisturbed", data))
    undisturbed = RunDirectory.of(config, tmp_path / "undisturbed")
    monkeypatch.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)
    limit_sizes(2 * undisturbed.delta.stat().st_size)
    runs.run(config, Workspace(tmp_path / "results", data))
    assert "no checkpoint is saved: cannot write" in caplog.text
    directory = RunDirectory.of(config, tmp_path / "results")
    assert fingerprint(directory.path) == fingerprint(undisturbed.path)
    assert not list(tmp_path.rglob("*.hifi-part"))


@pytest.mark.slow
def test_a_run_whose_results_would_not_fit_either_ends_at_once(
    make, workspace, monkeypatch, failing_checkpoints
):
    """It would otherwise train for hours and lose everything."""
    monkeypatch.setattr(files, "has_room", lambda *_: False)
    with pytest.raises(RunFailed, match="the disk is full"):
        runs.run(make("full-ft"), workspace)


@pytest.mark.slow
def test_a_signal_ends_a_run_with_its_own_code_where_no_checkpoint_can_be_saved(
    make, workspace, monkeypatch, failing_checkpoints, caplog
):
    train_step = loop.Trainer.train_step

    def stopping_step(self, batch):
        train_step(self, batch)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(files, "has_room", lambda *_: False)
    monkeypatch.setattr(loop.Trainer, "train_step", stopping_step)
    with pytest.raises(Terminated) as stopped:
        runs.run(make("full-ft"), workspace)
    assert stopped.value.exit_code == 143
    assert "no checkpoint is saved" in caplog.text


def test_room_is_tried_by_writing(tmp_path, limit_sizes):
    limit_sizes(100_000)
    assert files.has_room(tmp_path, [90_000, 90_000])
    assert not files.has_room(tmp_path, [10, 110_000])
    assert not list(tmp_path.iterdir())
