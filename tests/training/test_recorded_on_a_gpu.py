"""Recorded steps on a GPU against the same steps computed there, and against the CPU's.

`test_recorded_steps.py` repeats operations on the CPU, as a CUDA graph repeats them. Here a GPU
records and repeats: `pytest -m gpu -n 4`, on a machine that has one.
"""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from prepared_models import prepare, splits_of
from recorded_cases import (
    OBSTACLES,
    OTHER_FAMILIES,
    RECORDED_METHODS,
    SETTINGS_OF_THE_LOSS,
    TASKS_OF_KINDS,
)
from tiny_inputs import random_encoder, write_encoder, write_target_words

from hifi_cli.config.specs import method_spec
from hifi_cli.methods import diff_pruning
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import step_graphs
from hifi_cli.training.loop import Trainer

pytestmark = pytest.mark.gpu

# A GPU draws other numbers than a CPU: these methods draw none with these settings.
WITHOUT_NOISE = {
    "mixout": ["settings.p=0"],
    "child-tuning-f": ["settings.p=1"],
}
# Rounding of steps that follow each other. bf16 has three digits, and FlashAttention adds in any order.
TOLERANCE = 1e-3
TOLERANCE_BF16 = 0.03


@pytest.fixture
def losses_of(make, workspace, task_kinds_data, tmp_path):
    """Trains, and returns the loss of every step and how many steps repeated a recorded one."""
    places = {task: Workspace(tmp_path / "kinds", task_kinds_data) for task in TASKS_OF_KINDS}
    places["wic"] = Workspace(tmp_path / "wic", write_target_words(tmp_path / "data"))
    backbones = {}

    def train(method, *words, task="rte", family="bert"):
        words = ["epochs=4", "report=last", "log_every=1", *WITHOUT_NOISE.get(method, []), *words]
        if method_spec(method).implementation == "two_stage":
            # A first stage of the usual length ends before a size of a batch is recorded.
            words.append("settings.stage1_fraction=0.5")
        where = places.get(task, workspace)
        names = {"task": task}
        if family != "bert":
            if family not in backbones:
                backbones[family] = write_encoder(tmp_path / family, "roberta")
                random_encoder(family).base_model.save_pretrained(backbones[family])
            names["backbone"] = backbones[family]
        runner, config = prepare(make, where, method, *words, **names)
        trainer = Trainer(runner, runner.method, splits_of(config, where))
        with no_noise():
            trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        return torch.tensor(losses), trainer.progress.processes[-1]["repeated_steps"]

    return train


@contextmanager
def no_noise():
    """Diff-Pruning's gates without their noise, which has no setting."""
    with patch.object(diff_pruning._Search, "logistic_noise", lambda *_: (0.0, 0.0)):
        yield


def assert_recorded_as_computed(losses_of, method, *words, is_recorded=True, **names):
    """Without dropout in float32 and TF32 as the CPU; with dropout in bf16 as the same steps computed."""
    computed_on_cpu, _ = losses_of(
        method, "device=cpu", "kernels=torch", "dropout=0", *words, **names
    )
    for precision, tolerance in (("tf32=false", TOLERANCE), ("tf32=true", TOLERANCE_BF16)):
        how = ("device=cuda", "dropout=0", precision)
        recorded, repeated = losses_of(method, *how, *words, **names)
        assert (repeated > 0) == is_recorded
        torch.testing.assert_close(recorded, computed_on_cpu, rtol=tolerance, atol=tolerance)
    how = ("device=cuda", "dropout=0.1", "precision=bf16")
    recorded, repeated = losses_of(method, *how, *words, **names)
    computed, not_repeated = losses_of(method, *how, "record_steps=false", *words, **names)
    assert (repeated > 0) == is_recorded and not_repeated == 0
    assert recorded.std() > 0
    torch.testing.assert_close(recorded, computed, rtol=TOLERANCE_BF16, atol=TOLERANCE_BF16)


@pytest.mark.parametrize("method", RECORDED_METHODS)
def test_every_method(losses_of, method):
    assert_recorded_as_computed(losses_of, method)


@pytest.mark.parametrize("task", [*TASKS_OF_KINDS, "wic", "stsb"])
def test_every_kind_of_task(losses_of, task):
    assert_recorded_as_computed(losses_of, "full-ft", task=task)


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_every_family(losses_of, family):
    """Those that cannot be recorded compute the same without a recording."""
    is_recorded = step_graphs.encoder_obstacle(family) == ""
    assert_recorded_as_computed(losses_of, "full-ft", family=family, is_recorded=is_recorded)


@pytest.mark.parametrize("words", SETTINGS_OF_THE_LOSS, ids=" ".join)
def test_every_setting_of_the_loss(losses_of, words):
    assert_recorded_as_computed(losses_of, "full-ft", *words)


@pytest.mark.parametrize("method", OBSTACLES)
def test_a_stage_that_cannot_be_recorded_computes(losses_of, method):
    _, repeated = losses_of(method, "device=cuda", "dropout=0")
    assert repeated == 0
