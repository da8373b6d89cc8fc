"""The checkpoint of an unfinished run holds every source of randomness."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from hifi_cli.runs import run as runs
from hifi_cli.training import checkpoint, loop
from hifi_cli.training.checkpoint import Checkpoint, set_rng_state
from hifi_cli.training.loop import Trainer


def test_every_source_of_randomness_goes_on_where_it_was(tmp_path):
    def draw():
        return (
            random.random(),
            float(torch.rand(())),
            float(np.random.random()),
            float(np.random.normal()),
        )

    draw()  # NumPy then holds the second of two normal values
    device = torch.device("cpu")
    file = Checkpoint(tmp_path / "state.pt", {"run": 1})
    file.save({}, device)
    drawn = draw()
    assert draw() != drawn
    set_rng_state(file.read()["rng"], device)
    assert draw() == drawn


def test_a_run_saves_after_a_minute_and_not_after_an_epoch(make, workspace, monkeypatch):
    """A step takes 25 seconds, an epoch has six of them, and saving takes 5 seconds: the next time it waits for 100."""
    now, saved = [0.0], []
    train_step, write = Trainer.train_step, torch.save

    def slow_step(self, batch):
        train_step(self, batch)
        now[0] += 25

    def slow_save(state, path):
        saved.append(state["progress"]["step"])
        write(state, path)
        now[0] += 5

    for module in (loop, checkpoint):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Trainer, "train_step", slow_step)
    monkeypatch.setattr(torch, "save", slow_save)
    runs.run(make("bitfit", "epochs=2"), workspace)
    assert saved == [3, 8]
