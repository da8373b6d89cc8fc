"""What may happen to a run: kills, signals, rivals, several processes. Nothing is lost or wrong."""

import os
import signal

import pytest
from finished_runs import fingerprint

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
    assert (
        answer.code == 143
        and "stopped; the same command continues from its checkpoint" in answer.err
    )


SLOWER = [
    pytest.param([name], marks=pytest.mark.exhaustive)
    for name in ("diff-pruning", "child-tuning-f", "mixout", "lora", "full-ft")
]


@pytest.mark.parametrize(
    "settings",
    [["eh-ft-bitfit"], ["child-tuning-d"], ["prefix-tuning", "settings.mlp=8"], *SLOWER],
    ids=lambda words: words[0],
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
        if len(made) in (
            1,
            4,
            6,
            8,
            11,
        ):  # 12 steps, 6 an epoch; stage 1 of two is the first step alone
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
    directories = [
        RunDirectory.of(config, tmp_path / name).path for name in ("uninterrupted", "stopped")
    ]
    assert fingerprint(directories[0]) == fingerprint(directories[1])
    assert results.scores == uninterrupted_results.scores


def _terminate(*_):
    raise Terminated
