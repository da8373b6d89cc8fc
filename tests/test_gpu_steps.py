"""Training steps on a GPU: the CPU never waits for one, and the numbers are the CPU's. Skipped where there is no GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from step_trace import BATCH_SIZE, TINY_SHAPE, TRACED_METHODS, gpu_config, new_trainer
from tiny_inputs import TINY

from hifi_cli.methods.diff_pruning import GatedDifferences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

STEPS = 3  # of each phase
NO_DROPOUT = TINY_SHAPE | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_NOISE = {"mixout": ["settings.p=0"], "child-tuning-f": ["settings.p=1"]}  # a GPU draws other numbers than a CPU


@contextmanager
def waiting_is_an_error(device: str) -> Iterator[None]:
    """Inside this block the CPU must not wait for the GPU."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train(method: str, device: str, *overrides: str) -> tuple[list[float], torch.Tensor]:
    """The losses of some steps of each phase, and the logits of the trained model, reloaded from its delta."""
    config = gpu_config(method, *TINY.get(method, []), f"device={device}", "learning_rate=1e-3", *overrides)
    trainer, losses = new_trainer(config, NO_DROPOUT, "cpu"), []
    batch = trainer.train_examples[:BATCH_SIZE]
    for phase in range(len(trainer.phases)):
        trainer.setup_phase(phase)
        for step in range(STEPS):
            if step:  # the first step creates what later ones reuse
                with waiting_is_an_error(device):
                    trainer.train_step(batch)
            else:
                trainer.train_step(batch)
            losses.append(trainer.loss_sum.item())
            trainer.reset_loss()
    trainer.runner.unwrap()
    delta = {name: value.detach().cpu() for name, value in trainer.method.delta(trainer.model).items()}
    with torch.no_grad():
        trainer.method.load_delta(trainer.model, delta)
    return losses, torch.from_numpy(trainer.runner.predict(batch))


@pytest.mark.parametrize("method", TRACED_METHODS)
def test_losses_and_logits_are_the_cpus_and_no_step_waits(method, monkeypatch):
    monkeypatch.setattr(GatedDifferences, "logistic_noise", lambda *_: (0.0, 0.0))
    losses, logits = train(method, "cuda", *NO_NOISE.get(method, []))
    cpu_losses, cpu_logits = train(method, "cpu", *NO_NOISE.get(method, []))
    assert losses == pytest.approx(cpu_losses, rel=1e-4)
    torch.testing.assert_close(logits, cpu_logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["mixout", "child-tuning-f", "diff-pruning"])
def test_noise_repeats_and_is_drawn_without_waiting(method):
    first, second = train(method, "cuda"), train(method, "cuda")
    assert first[0] == pytest.approx(second[0], rel=1e-5)
    assert first[0] != pytest.approx(train(method, "cpu")[0], rel=1e-5)


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "bitfit", "prefix-tuning"])
def test_no_step_waits_in_bf16(method):
    losses, _ = train(method, "cuda", "precision=bf16")
    assert losses == pytest.approx(train(method, "cpu")[0], rel=0.05)
