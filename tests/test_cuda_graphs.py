"""Steps that CUDA graphs repeat train as others do. Recording needs a GPU: here what was recorded is called again."""

import pytest
import torch
from prepared_models import prepare
from step_trace import (
    BATCH_SIZE,
    DEVICE,
    CountOperations,
    StepCounts,
    gpu_config,
    meta_as_a_gpu,
    new_trainer,
)

from hifi_cli.training import cuda_graphs, loop
from hifi_cli.training.cuda_graphs import StepGraphs
from hifi_cli.training.data import load_splits

METHODS = ["full-ft", "hifi-layerwise", "lora"]


@pytest.mark.parametrize("method", METHODS)
def test_repeated_steps_train_as_others(make, resources, monkeypatch, method):
    """In float64. As on a GPU, a repeated step sees the inputs of its recording with new values."""
    replays, results = [], []

    def record(_, compute):
        loss = torch.zeros(())
        return lambda: replays.append(loss.copy_(compute())), loss

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(cuda_graphs, "obstacles", lambda *_: "")
    for kernels in ("kernels=auto", "kernels=graphs"):
        prepared, config = prepare(
            make,
            resources,
            method,
            kernels,
            "dropout=0.0",
            "log_every=1",
            "epochs=6",
            "report=last",
            "learning_rate=0.003",
        )
        prepared.encoder.model.double()
        trainer = loop.Trainer(prepared, load_splits(config, resources))
        trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
    assert len(replays) > len(trainer.graphs.graphs) > 1 and results[0][0].std() > 1e-3
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_recorded_neither_copies_from_the_host_nor_waits(monkeypatch, method):
    counts = StepCounts()

    def record(_, compute):
        with CountOperations(counts):
            return lambda: None, compute()

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(cuda_graphs, "obstacles", lambda *_: "")
    with meta_as_a_gpu(), CountOperations(StepCounts()):
        trainer = new_trainer(gpu_config(method, "kernels=graphs"), DEVICE)
        trainer.setup_phase(0)
        for _ in range(3):
            trainer.train_step(trainer.splits.train[:BATCH_SIZE])
    assert counts.operations and counts.copies + counts.synchronizations == []


@pytest.mark.parametrize(
    ("words", "obstacle"),
    [
        (("full-ft", "dropout=0.0"), ""),
        (("full-ft", "dropout=0.1", "precision=bf16"), ""),
        (("full-ft", "dropout=0.1"), "attention on padded batches"),
        (("prefix-tuning", "precision=bf16"), "attention on padded batches"),
        (("child-tuning-f", "precision=bf16"), "method child-tuning-f"),
        (("full-ft", "dropout=0", "gradient_accumulation_steps=2"), "gradient_accumulation_steps"),
    ],
)
def test_what_does_not_allow_graphs_is_named(make, resources, words, obstacle):
    runner, _ = prepare(make, resources, *words, "kernels=torch")
    runner.device, runner.uses_varlen = torch.device("cuda"), True
    assert cuda_graphs.obstacles(runner, runner.method) == obstacle
