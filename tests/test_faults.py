"""What may happen to a run: kills, signals, rivals, several processes. Nothing is lost or wrong."""

import os
import signal

import pytest

from hifi_cli.training import loop

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
