"""What may happen to a run: kills, signals, rivals, several processes. Nothing is lost or wrong."""

import json
import os
import signal
import subprocess
import sys

import pytest
from finished_runs import fingerprint, load_arrays, read_json, run_path
from hifi_processes import (
    environment,
    train_command,
)

from hifi_cli.errors import Terminated
from hifi_cli.results.record import RunDirectory
from hifi_cli.training import loop
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache
from hifi_cli.training.step import ModelRunner

pytestmark = pytest.mark.slow


def test_a_stopped_command_says_how_it_goes_on(tiny, monkeypatch):
    train_step = loop.Trainer.train_step

    def stopping_step(self, batch):
        train_step(self, batch)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.Trainer, "train_step", stopping_step)
    answer = tiny("train", "--method", "bitfit")
    assert answer.code == 143 and "stopped; the same command continues from its checkpoint" in answer.err


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
