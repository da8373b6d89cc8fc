"""The checkpoint of an unfinished run holds every source of randomness."""

import random

import numpy as np
import torch

from hifi_cli.runs.checkpoint import Checkpoint, Progress, restore


def test_every_source_of_randomness_goes_on_where_it_was(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    device = torch.device("cpu")

    def draw():
        return random.random(), float(torch.rand(())), float(np.random.random()), float(np.random.normal())

    draw()  # NumPy then holds the second of two normal values
    checkpoint = Checkpoint(tmp_path / "state.pt", "run")
    checkpoint.save(Progress(), {}, {}, optimizer, schedule, device)
    drawn = draw()
    assert draw() != drawn
    restore(checkpoint.read(), optimizer, schedule, device)
    assert draw() == drawn
