"""What is written is whole or absent: full disks, quotas, killed writers, power failures."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from finished_runs import fingerprint
from hifi_processes import ROOT
from safetensors.torch import save_file

from hifi_cli import files, stopping
from hifi_cli.errors import RunFailed, Terminated
from hifi_cli.files import atomic_path, write_text
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import log as run_log
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


def test_a_read_only_disk_is_not_told_to_have_no_room(tmp_path):
    with (
        pytest.raises(RunFailed, match=r"nothing was changed: name another place, and repeat$"),
        atomic_path(tmp_path / "out"),
    ):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_other_errors_in_the_block_stay_what_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2"), atomic_path(tmp_path / "out"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


@pytest.fixture
def events(monkeypatch):
    """What this process tells the disk, in order: a file, or a folder's names, to be there; a new name."""
    told = []
    sync, rename, remove = os.fsync, Path.replace, Path.unlink

    def watched_sync(handle):
        told.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name))
        sync(handle)

    def watched_rename(path, target):
        told.append(("rename", target.name))
        return rename(path, target)

    def watched_remove(path, **how):
        if path.exists():
            told.append(("remove", path.name))
        return remove(path, **how)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    monkeypatch.setattr(Path, "unlink", watched_remove)
    return told


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, events):
    """After a power failure a name never stands for an empty file."""
    with atomic_path(tmp_path / "folder") as folder:
        folder.mkdir()
        (folder / "results.json").write_text("{}")
        (folder / "delta").write_text("0")
    at = events.index(("rename", "folder"))
    assert {"results.json", "delta"} <= {name for _, name in events[:at]}
    events.clear()
    write_text(tmp_path / "results.json", "{}")
    assert [kind for kind, _ in events] == ["sync", "rename", "sync"]


def test_a_new_name_is_on_the_disk_before_the_next_file_is_touched(tmp_path, events):
    """The folders' own names too, where they are new."""
    write_text(tmp_path / "runs/seed1/results.json", "{}")
    at = events.index(("rename", "results.json"))
    assert events[at + 1 :] == [("sync", "seed1"), ("sync", "runs"), ("sync", tmp_path.name)]


@pytest.mark.slow
def test_a_record_is_on_the_disk_before_its_checkpoint_is_removed(
    make, workspace, monkeypatch, events
):
    """A power failure in between would otherwise leave neither of them, after hours of training."""
    monkeypatch.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)
    runs.run(make("bitfit"), workspace)
    in_order = [("rename", "metrics.jsonl"), ("sync", "seed1"), ("rename", "results.json")]
    last = [events[-index] for index in (3, 2, 1)]
    assert last == [("rename", "results.json"), ("sync", "seed1"), ("remove", "last.pt")]
    assert [event for event in events if event in in_order][-4:-1] == in_order


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


# --- logs that cannot be written


@pytest.fixture
def undisturbed(make, data, tmp_path):
    """The files of a run that nothing disturbs."""
    config = make("hifi-layerwise")
    runs.run(config, Workspace(tmp_path / "undisturbed", data))
    return RunDirectory.of(config, tmp_path / "undisturbed").path


@pytest.mark.slow
def test_a_log_that_cannot_be_written_for_a_while_ends_no_training(
    make, workspace, monkeypatch, caplog, undisturbed
):
    """Nor does half a line that a full disk took stay in it."""
    append, write = RunDirectory.append_metrics, RunDirectory.write_metrics
    appended, written = [], []

    def append_half(self, line):
        appended.append(line)
        if len(appended) == 1:
            with self.metrics.open("a") as file:
                file.write('{"step": 9, "lo')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, line)

    def write_later(self, lines):
        written.append(lines)
        if len(written) == 2:
            raise RunFailed("cannot write metrics.jsonl: No space left on device")
        write(self, lines)

    config = make("hifi-layerwise")
    monkeypatch.setattr(RunDirectory, "append_metrics", append_half)
    monkeypatch.setattr(RunDirectory, "write_metrics", write_later)
    runs.run(config, workspace)
    assert len(written) > 3
    assert caplog.text.count("the run goes on, but its log lacks lines") == 1
    assert fingerprint(RunDirectory.of(config, workspace.results_dir).path) == fingerprint(
        undisturbed
    )


@pytest.mark.slow
@pytest.mark.parametrize("saves", [True, False])
def test_a_directory_that_is_removed_while_a_run_trains_is_written_again(
    make, workspace, monkeypatch, caplog, undisturbed, saves
):
    config = make("hifi-layerwise")
    train_step, count = loop.Trainer.train_step, []

    def remove_the_results(self, batch):
        train_step(self, batch)
        count.append(batch)
        if len(count) == 3:
            shutil.rmtree(workspace.results_dir)

    monkeypatch.setattr(checkpoint.Checkpoint, "is_due", lambda _: saves)
    monkeypatch.setattr(loop.Trainer, "train_step", remove_the_results)
    runs.run(config, workspace)
    path = RunDirectory.of(config, workspace.results_dir).path
    assert fingerprint(path) == fingerprint(undisturbed)
    assert {file.name for file in path.iterdir() if file.is_file()} == {
        file.name for file in undisturbed.iterdir() if file.is_file()
    }
    assert saves or "its log lacks lines" in caplog.text


@pytest.mark.slow
def test_a_tracker_that_fails_ends_no_training(make, workspace, monkeypatch, caplog, undisturbed):
    """As where its server is away, or its disk is full."""

    def fail(*_, **__):
        raise ConnectionError("no answer")

    told = []
    trackers = [
        SimpleNamespace(name="wandb", log=fail, finish=fail),
        SimpleNamespace(name="aim", log=lambda *_, **__: told.append("line"), finish=fail),
    ]
    monkeypatch.setattr(run_log, "start_trackers", lambda *_: trackers)
    config = make("hifi-layerwise")
    runs.run(config, workspace, report_to=["wandb", "aim"])
    assert told
    assert [text for text in caplog.messages if "told no more" in text] == [
        "rte/hifi-layerwise/seed1: wandb is told no more: no answer",
        "rte/hifi-layerwise/seed1: aim is told no more: no answer",
    ]
    assert fingerprint(RunDirectory.of(config, workspace.results_dir).path) == fingerprint(
        undisturbed
    )


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
    monkeypatch.setattr(loop, "has_room", lambda *_: False)
    with pytest.raises(RunFailed, match="the disk is full"):
        runs.run(make("full-ft"), workspace)


@pytest.fixture
def listening():
    """Signals stop this process as they stop a command."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    stopping.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["save_delta", "outcome_of", "result_of"])
def test_a_signal_waits_while_the_results_are_stored(
    make, workspace, monkeypatch, listening, place
):
    """What was trained since the last checkpoint would be lost otherwise."""
    store = getattr(runs, place)

    def stopped_store(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return store(*arguments)

    config = make("bitfit")
    monkeypatch.setattr(runs, place, stopped_store)
    with pytest.raises(Terminated) as stopped:
        runs.run(config, workspace)
    assert stopped.value.exit_code == 143
    directory = RunDirectory.of(config, workspace.results_dir)
    assert directory.read_result().is_done and not directory.checkpoint.exists()


@pytest.mark.slow
@pytest.mark.parametrize("steps_are_left", [True, False])
def test_a_signal_as_soon_as_a_run_shows_leaves_a_checkpoint(
    make, workspace, monkeypatch, listening, undisturbed, steps_are_left
):
    """Its log is there then, by which a user or a script sees that it trains."""
    config = make("hifi-layerwise")
    if not steps_are_left:
        # The former process was killed while it stored its results.
        with monkeypatch.context() as patched, pytest.raises(Terminated):
            patched.setattr(checkpoint.Checkpoint, "is_due", lambda _: True)
            patched.setattr(runs, "evaluate_kept_epoch", exit_by_signal)
            runs.run(config, workspace)
    write = RunDirectory.write_metrics

    def write_and_stop(self, lines):
        write(self, lines)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched, pytest.raises(Terminated):
        patched.setattr(RunDirectory, "write_metrics", write_and_stop)
        runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    assert directory.checkpoint.is_file() and not directory.results.exists()
    runs.run(config, workspace)
    assert fingerprint(directory.path) == fingerprint(undisturbed)


def exit_by_signal(*_):
    """Stands for the end of a process at this place."""
    raise Terminated


@pytest.mark.slow
def test_a_signal_ends_a_run_with_its_own_code_where_no_checkpoint_can_be_saved(
    make, workspace, monkeypatch, failing_checkpoints, caplog
):
    train_step = loop.Trainer.train_step

    def stopping_step(self, batch):
        train_step(self, batch)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "has_room", lambda *_: False)
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
