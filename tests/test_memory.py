"""A batch that does not fit in memory is one clear error."""

import pytest
import torch

from hifi_cli.errors import RunFailed
from hifi_cli.training import run as runs
from hifi_cli.training.step import ModelRunner

TRAINING = (
    "a batch of 8 examples in 2 parts does not fit in memory; set gradient_accumulation_steps=4"
)
EVALUATION = "an evaluation batch of 16 does not fit in memory; set a smaller eval_batch_size"


@pytest.mark.parametrize(
    ("largest", "error", "fix", "words"),
    [
        (3, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"), TRAINING, []),
        (4, MemoryError(), EVALUATION, []),
        (
            3,
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            TRAINING,
            [],
        ),
        (4, RuntimeError("could not create a primitive"), EVALUATION, []),  # oneDNN's
        (
            8,
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
            "a batch of 8 examples in 1 part does not fit in memory; set gradient_accumulation_steps=2",
            ["kernels=graphs", "gradient_accumulation_steps=1"],
        ),
    ],
)
def test_the_error_names_the_setting_that_saves_memory(
    make, resources, monkeypatch, largest, error, fix, words
):
    forward = ModelRunner.forward

    def limited(self, inputs, packed):
        if len(inputs["input_ids"]) > largest:
            raise error
        return forward(self, inputs, packed)

    monkeypatch.setattr(ModelRunner, "forward", limited)
    monkeypatch.setattr("hifi_cli.training.cuda_graphs.obstacles", lambda *_: "")
    with pytest.raises(RunFailed, match=fix):
        runs.run(
            make("full-ft", "gradient_accumulation_steps=2", "eval_batch_size=16", *words),
            resources,
        )
