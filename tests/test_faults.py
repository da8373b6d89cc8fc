"""What may happen to a run: kills, signals, rivals, several processes. Nothing is lost or wrong."""

import json
import os
import signal
import subprocess
import sys

import pytest
from finished_runs import fingerprint, load_arrays, read_json, run_path
from hifi_processes import (
    call_hifi,
    environment,
    finish,
    run_copy,
    start,
    train_command,
)
from tiny_inputs import QUICK

from hifi_cli.config.sources import resolve
from hifi_cli.errors import Terminated
from hifi_cli.results.directory import RunDirectory
from hifi_cli.training import loop
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache
from hifi_cli.training.loop import Checkpoint
from hifi_cli.training.step import ModelRunner

pytestmark = pytest.mark.slow

SHORT = ["batch_size=8", "heads.k=2", "scoring.samples=12", "log_every=7", "epochs=4"]
LONG = [*SHORT, "epochs=24"]


def train_uninterrupted(encoders, data, root, settings):
    """The files of a run without any interruption."""
    backbone = str(encoders["bert"])
    config = resolve(task="rte", method="hifi-layerwise", backbone=backbone, protocol="hifi", overrides=settings)
    runs.run(config, ResourceCache(root / "results", data))
    return fingerprint(run_path(root))


def left_behind(root):
    """Hidden files of a run, as killed processes leave them."""
    return [path.name for path in run_path(root).rglob(".*") if path.is_file()]


def test_stopped_and_killed_a_run_ends_as_if_nothing_had_happened(encoders, data, tmp_path, hifi, monkeypatch):
    """SIGTERM in the second epoch of four, SIGKILL in the third; then the same command to the end."""
    command = train_command(encoders, data, *SHORT)
    with monkeypatch.context() as patched:
        send_signal_after_step(8, signal.SIGTERM, patched)
        stopped = hifi(*command)
    assert_stopped(stopped.code, 143, stopped.err, tmp_path)
    checkpoint = run_path(tmp_path) / "checkpoints" / "last.pt"
    written = checkpoint.stat().st_mtime_ns
    killed = run_copy(train_until_killed, command, 15, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.stat().st_mtime_ns > written
    finished = hifi(*command)
    assert finished.code == 0, finished.err
    assert left_behind(tmp_path) in ([], [".lock"])
    assert fingerprint(run_path(tmp_path)) == train_uninterrupted(encoders, data, tmp_path / "uninterrupted", SHORT)


def train_until_killed(command, step):
    """Train in a process that is killed after so many optimizer steps, with a checkpoint after each of them."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(Checkpoint, "is_due", lambda _: True)
    send_signal_after_step(step, signal.SIGKILL, monkeypatch)
    call_hifi(command)


def send_signal_after_step(step, number, monkeypatch):
    """Send this process a signal after so many optimizer steps."""
    train_step = loop.Trainer.train_step

    def sending_step(self, batch):
        train_step(self, batch)
        if self.progress.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop.Trainer, "train_step", sending_step)


def assert_stopped(exit_code, expected_code, output, root):
    """A stopped run has its exit code, its message and a checkpoint, and no results."""
    assert exit_code == expected_code, output
    assert "stopped; the same command continues from its checkpoint" in output
    assert "Traceback" not in output
    assert (run_path(root) / "checkpoints" / "last.pt").is_file()
    assert not (run_path(root) / "results.json").exists()


SLOWER = [
    pytest.param([name], marks=pytest.mark.exhaustive)
    for name in ("diff-pruning", "child-tuning-f", "mixout", "lora", "full-ft")
]


@pytest.mark.parametrize(
    "settings", [["eh-ft-bitfit"], ["child-tuning-d"], ["prefix-tuning", "settings.mlp=8"], *SLOWER], ids=lambda words: words[0]
)
def test_a_stop_after_any_step_costs_nothing(make, data, tmp_path, settings, monkeypatch):
    """Also in the middle of an epoch, at the end of a stage, and during an evaluation, which ends first."""
    config = make(*settings, "dropout=0.1", "log_every=4")
    uninterrupted_results = runs.run(config, ResourceCache(tmp_path / "uninterrupted", data))
    train_step, predict, made = loop.Trainer.train_step, ModelRunner.predict, []
    predictions = []

    def stopping_step(self, batch):
        made.append(self.progress.step)
        train_step(self, batch)
        if len(made) in (1, 4, 6, 8, 11):  # 12 steps, 6 an epoch; stage 1 of two is the first step alone
            os.kill(os.getpid(), signal.SIGTERM)

    def stopping_predict(self, examples):
        if len(made) == 12:
            predictions.append(len(examples))
            if len(predictions) == 1:  # of the last epoch
                os.kill(os.getpid(), signal.SIGTERM)
        return predict(self, examples)

    monkeypatch.setattr(loop.Trainer, "train_step", stopping_step)
    monkeypatch.setattr(ModelRunner, "predict", stopping_predict)
    previous = signal.signal(signal.SIGTERM, _terminate)
    stops = 0
    try:
        while True:
            try:
                results = runs.run(config, ResourceCache(tmp_path / "stopped", data))
                break
            except Terminated:
                stops += 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert made == list(range(12))  # no step twice
    assert (stops, len(predictions)) == (6, 1)
    directories = [RunDirectory.of(config, tmp_path / name).path for name in ("uninterrupted", "stopped")]
    assert fingerprint(directories[0]) == fingerprint(directories[1])
    assert results.scores == uninterrupted_results.scores


def _terminate(*_):
    raise Terminated


@pytest.mark.exhaustive
def test_of_two_processes_on_one_run_one_works(encoders, data, tmp_path):
    command = train_command(encoders, data, *QUICK)
    both = [start(*command, cwd=tmp_path) for _ in range(2)]
    ends = [finish(process) for process in both]
    assert sorted(code for code, _ in ends) in ([0, 4], [0, 0]), ends
    for code, output in ends:
        assert "another process is writing" in output if code == 4 else "accuracy" in output
    assert read_json(run_path(tmp_path) / "results.json")["status"] == "done"


@pytest.mark.exhaustive
def test_two_processes_of_one_run_give_the_gradient_and_scores_of_one(encoders, data, tmp_path):
    """torchrun with gloo: equal within rounding, one writer, one set of files; 47 rows, so that a batch has one example."""
    settings = ["epochs=2", "batch_size=2", "dropout=0.0", "limit=47"]
    for name, launcher in (
        ("one", [sys.executable]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
    ):
        (tmp_path / name).mkdir()
        command = [
            *launcher,
            "-m",
            "hifi_cli",
            *map(str, train_command(encoders, data, *settings, "scoring.samples=12", "heads.k=2")),
        ]
        ended = subprocess.run(
            command, cwd=tmp_path / name, env=environment(), capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
    results = [read_json(run_path(tmp_path / name) / "results.json") for name in ("one", "two")]
    assert results[1]["provenance"]["processes"] == 2
    assert results[1]["scores"] == pytest.approx(results[0]["scores"], abs=1e-6)
    deltas = [load_arrays(run_path(tmp_path / name) / "delta.safetensors") for name in ("one", "two")]
    for name, value in deltas[0].items():
        if not name.endswith("key.row_bias"):  # softmax cancels it: its gradient is rounding alone, which AdamW enlarges
            assert deltas[1][name] == pytest.approx(value, abs=5e-5), name
    lines = [json.loads(line) for line in (run_path(tmp_path / "two") / "metrics.jsonl").read_text().splitlines()]
    assert sum("epoch" in line for line in lines) == 2  # only one process writes
