"""Steps that CUDA graphs repeat train as others do. Recording needs a GPU: here what was recorded is called again."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from prepared_models import prepare, splits_of
from step_trace import (
    BATCH_SIZE,
    DEVICE,
    CountOperations,
    StepCounts,
    gpu_config,
    meta_as_a_gpu,
    new_trainer,
)

from hifi_cli.errors import RunFailed
from hifi_cli.training import loop, step_graphs
from hifi_cli.training.step_graphs import StepGraphs

METHODS = ["full-ft", "hifi-layerwise", "lora"]


@pytest.mark.parametrize("method", METHODS)
def test_repeated_steps_train_as_others(make, workspace, monkeypatch, method):
    """In float64. As on a GPU, a repeated step sees the inputs of its recording with new values."""
    replays, recorded, results = [], [], []

    def record(_, compute):
        recorded.append(compute)
        loss = torch.zeros(())
        return lambda: replays.append(loss.copy_(compute())), loss

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")
    for kernels in ("kernels=auto", "kernels=graphs"):
        prepared, config = prepare(
            make,
            workspace,
            method,
            kernels,
            "dropout=0.0",
            "log_every=1",
            "epochs=6",
            "report=last",
            "learning_rate=0.003",
        )
        prepared.encoder.model.double()
        trainer = loop.Trainer(prepared, prepared.method, splits_of(config, workspace))
        trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
    assert len(replays) > len(recorded) > 1 and results[0][0].std() > 1e-3
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


class FakeGraphs:
    """Stands in for CUDA graphs: a recording computes, and no graph may be freed meanwhile.

    An automatic collection may come at any allocation; here one comes in every recording, if the
    collector is on.
    """

    def __init__(self, monkeypatch):
        self.is_recording, self.freed_while_recording, self.made = False, 0, []
        self.pools = []
        fakes = self

        class Graph:
            def __init__(self):
                fakes.made.append(weakref.ref(self))

            def __del__(self):
                fakes.freed_while_recording += fakes.is_recording

            def replay(self):
                pass

            def pool(self):
                return "the pool"

        @contextmanager
        def recording(graph, pool):
            fakes.is_recording = True
            fakes.pools.append(pool)
            if gc.isenabled():
                gc.collect()
            yield
            fakes.is_recording = False

        self.new_graph = Graph
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", recording)
        monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")

    def alive(self):
        return sum(graph() is not None for graph in self.made)


def recorded_trainer(make, workspace, *words, callback=None):
    prepared, config = prepare(make, workspace, *words, "kernels=graphs", "epochs=6")
    splits = splits_of(config, workspace)
    return loop.Trainer(prepared, prepared.method, splits, callback=callback)


@pytest.mark.parametrize("method", ["full-ft", "eh-ft-bitfit"])
def test_the_graphs_of_a_stage_are_freed_at_its_end(make, workspace, monkeypatch, method):
    """By reference counts alone: a collection could come while the next run records its graphs."""
    fakes, alive = FakeGraphs(monkeypatch), {}

    class CountGraphs(loop.Callback):
        def on_step_end(self, trainer):
            if trainer.progress.step == trainer.stage.steps.start + 1:
                alive[trainer.progress.stage] = fakes.alive()

    trainer = recorded_trainer(make, workspace, method, callback=CountGraphs())
    gc.collect()
    gc.disable()
    try:
        trainer.train()
        assert len(fakes.made) > 1 and fakes.alive() == 0
        # A recording leaves the collector as it was.
        assert not gc.isenabled()
    finally:
        gc.enable()
    # the first step of a stage records nothing: what lives then is of the stage before
    assert set(alive.values()) == {0}


def test_a_failed_run_frees_its_graphs_though_its_error_is_kept(make, workspace, monkeypatch):
    """The frames of an error's traceback hold what was computing the step."""
    fakes = FakeGraphs(monkeypatch)

    class FailOnceRecorded(loop.Callback):
        def on_backward_end(self, trainer):
            if fakes.made:
                self.graphs = trainer.stage.graphs
                self.held = (
                    len(trainer.stage.graphs.gradients),
                    trainer.stage.graphs.pool,
                    fakes.alive(),
                )
                raise RunFailed("stopped")

    trainer = recorded_trainer(make, workspace, "full-ft", callback=FailOnceRecorded())
    with pytest.raises(RunFailed, match="stopped"):
        trainer.train()
    graphs, (gradients, pool, alive) = trainer.callback.graphs, trainer.callback.held
    assert gradients > 0 and pool == "the pool" and alive == 1
    assert graphs.gradients == {} and graphs.pool is None and fakes.alive() == 0


def test_graphs_of_a_failed_run_are_not_freed_while_another_records(make, workspace, monkeypatch):
    fakes = FakeGraphs(monkeypatch)

    class MakeGarbage(loop.Callback):
        """Leaves a graph in a cycle, which only a collection frees, after the trainer started."""

        def on_step_end(self, trainer):
            cycle = [fakes.new_graph()]
            cycle.append(cycle)

    trainer = recorded_trainer(make, workspace, "full-ft", callback=MakeGarbage())
    trainer.train()
    recorded = len(fakes.made) - trainer.progress.step
    assert recorded > 1 and fakes.freed_while_recording == 0
    # The graphs of a stage share their memory.
    assert fakes.pools == [None] + ["the pool"] * (recorded - 1)


def test_a_stage_begins_without_the_graphs_of_a_failed_run(make, workspace, monkeypatch):
    """Their memory is wanted, and only a collection frees what is in a cycle."""
    fakes = FakeGraphs(monkeypatch)
    trainer = recorded_trainer(make, workspace, "full-ft")
    gc.disable()
    try:
        cycle = [fakes.new_graph()]
        cycle.append(cycle)
        del cycle
        assert fakes.alive() == 1
        trainer.begin_stage(0)
        assert trainer.stage.graphs and fakes.alive() == 0
    finally:
        gc.enable()


def test_a_step_that_cannot_be_recorded_names_the_cause_and_the_remedy(
    make, workspace, monkeypatch
):
    FakeGraphs(monkeypatch)

    @contextmanager
    def refused(graph, pool):
        try:
            yield
            raise RuntimeError(
                f"operation not permitted when stream is capturing {'at length ' * 50}\nsecond line"
            )
        finally:
            raise RuntimeError("the recording was invalidated")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    message = r"recorded as a CUDA graph \(operation not permitted when stream is capturing at [^\n]{,110}\); set kernels=auto"
    with pytest.raises(RunFailed, match=message):
        recorded_trainer(make, workspace, "full-ft").train()
    assert gc.isenabled()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_recorded_neither_copies_from_the_host_nor_waits(monkeypatch, method):
    counts = StepCounts()

    def record(_, compute):
        with CountOperations(counts):
            return lambda: None, compute()

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")
    with meta_as_a_gpu(), CountOperations(StepCounts()):
        trainer = new_trainer(gpu_config(method, "kernels=graphs"), DEVICE)
        trainer.begin_stage(0)
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
        (("boft", "dropout=0"), "adapters of type boft"),
        (("fourierft", "dropout=0"), "adapters of type fourierft"),
        (("oft", "dropout=0"), ""),
        (
            ("oft", "dropout=0", "settings.options.module_dropout=0.5"),
            "module_dropout of the adapters",
        ),
        (
            (
                "lokr",
                "dropout=0",
                "settings.options.rank_dropout=0.1",
                "settings.options.module_dropout=0.1",
            ),
            "module_dropout and rank_dropout of the adapters",
        ),
    ],
)
def test_what_does_not_allow_graphs_is_named(make, workspace, words, obstacle):
    runner, _ = prepare(make, workspace, *words, "kernels=torch")
    runner.device, runner.uses_varlen = torch.device("cuda"), True
    assert step_graphs.unsupported_because(runner, runner.method) == obstacle
