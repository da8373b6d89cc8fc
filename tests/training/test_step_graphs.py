"""Steps that CUDA graphs repeat train as others do. Recording needs a GPU: here what was recorded is called again."""

import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from prepared_models import prepare, splits_of
from step_trace import (
    BATCH_SIZE,
    DEVICE,
    CountOperations,
    CountTensorsFromPython,
    StepCounts,
    gpu_config,
    meta_as_a_gpu,
    new_trainer,
    tiny_bert,
)
from tiny_inputs import OFTEN_TESTED_FAMILIES, random_encoder, write_encoder

from hifi_cli.errors import RecordingFailed, RunFailed
from hifi_cli.models.families import FAMILIES
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
    for may_record in (False, True):
        prepared, config = prepare(
            make,
            workspace,
            method,
            "dropout=0.0",
            "log_every=1",
            "epochs=3",
            "report=last",
            "learning_rate=0.003",
        )
        prepared.encoder.model.double()
        prepared.may_record = may_record
        trainer = loop.Trainer(prepared, prepared.method, splits_of(config, workspace))
        trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
    assert len(replays) > len(recorded) > 1 and results[0][0].std() > 1e-3
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


def test_steps_without_a_recording_have_the_numbers_of_repeated_ones(make, workspace, monkeypatch):
    """Every bit, dropout included: `record_steps` is no part of a run's identity."""
    results, repeated = [], []
    words = ("dropout=0.1", "log_every=1")

    def record(_, compute):
        loss = torch.zeros(())
        return lambda: loss.copy_(compute()), loss

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")
    for how in ("record_steps=true", "record_steps=false"):
        trainer = recorded_trainer(make, workspace, "full-ft", how, *words)
        trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
        repeated.append([process["repeated_steps"] for process in trainer.progress.processes])
        hashed = trainer.config.config_hash
    assert hashed == make("full-ft", "epochs=3", *words).config_hash
    torch.testing.assert_close(*results, rtol=0, atol=0)
    # Some sizes of a batch come more than twice; not every step has such a size.
    (of_recorded,), of_others = repeated
    assert 0 < of_recorded < trainer.progress.step and of_others == [0]


def test_steps_of_both_stages_are_counted(make, workspace, monkeypatch):
    monkeypatch.setattr(StepGraphs, "record", lambda _, step: (lambda: None, step()))
    monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")
    counted = []

    class CountSteps(loop.Callback):
        def on_step_end(self, trainer):
            counted.append((trainer.progress.stage_index, trainer.stage.repeated_steps))

    words = ("eh-ft-bitfit", "settings.stage1_fraction=0.5")
    trainer = recorded_trainer(make, workspace, *words, callback=CountSteps())
    trainer.train()
    of_stages = [max(count for stage, count in counted if stage == which) for which in (0, 1)]
    assert min(of_stages) > 0
    assert trainer.progress.processes[-1]["repeated_steps"] == sum(of_stages)


@pytest.mark.parametrize(
    ("word", "may_record"), [("auto", True), ("graphs", True), ("torch", False)]
)
def test_a_gpu_records_by_default(make, workspace, monkeypatch, caplog, word, may_record):
    """What cannot be recorded is said in one line; a CPU says nothing."""
    # These adapters wait for the device.
    words = ("fourierft", f"kernels={word}", "dropout=0.1")
    runner, config = prepare(make, workspace, *words)
    assert not runner.may_record and config.kernels == word.replace("graphs", "auto")
    monkeypatch.setattr("torch.nn.Module.to", lambda model, *_: model)
    monkeypatch.setattr("hifi_cli.training.runner.has_varlen_kernels", lambda *_: True)
    on_a_gpu = replace(runner, device=torch.device("cuda"))
    assert on_a_gpu.may_record == may_record
    for trained in (runner, on_a_gpu):
        caplog.clear()
        loop.Trainer(trained, runner.method, splits_of(config, workspace)).new_stage()
        said = [line for line in caplog.messages if "CUDA graphs" in line]
        assert len(said) == (may_record and trained is on_a_gpu), said
        assert all("not recorded as CUDA graphs: adapters of type" in line for line in said)


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


def recorded_trainer(make, workspace, *words, callback=None, **names):
    prepared, config = prepare(make, workspace, *words, "epochs=3", **names)
    prepared.may_record = True
    splits = splits_of(config, workspace)
    return loop.Trainer(prepared, prepared.method, splits, callback=callback)


@pytest.mark.parametrize("method", ["full-ft", "eh-ft-bitfit"])
def test_the_graphs_of_a_stage_are_freed_at_its_end(make, workspace, monkeypatch, method):
    """By reference counts alone: a collection could come while the next run records its graphs."""
    fakes, alive = FakeGraphs(monkeypatch), {}

    class CountGraphs(loop.Callback):
        def on_step_end(self, trainer):
            if trainer.progress.step == trainer.stage.steps.start + 1:
                alive[trainer.progress.stage_index] = fakes.alive()

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
    message = r"recorded as a CUDA graph \(operation not permitted when stream is capturing at [^\n]{,110}\); set record_steps=false"
    with pytest.raises(RecordingFailed, match=message):
        recorded_trainer(make, workspace, "full-ft").train()
    assert gc.isenabled()


def test_the_cause_of_a_failed_recording_is_not_the_traceback_of_torchscript(
    make, workspace, monkeypatch
):
    """The message that a GPU gave for the relative positions of DeBERTa."""
    FakeGraphs(monkeypatch)

    @contextmanager
    def refused(graph, pool):
        yield
        raise RuntimeError(
            "The following operation failed in the TorchScript interpreter.\n"
            "Traceback of TorchScript (most recent call last):\n"
            '  File "modeling_deberta_v2.py", line 62, in make_log_bucket_position\n'
            "        torch.tensor(mid - 1).type_as(relative_pos),\n"
            "        ~~~~~~~~~~~~~~~~~~~~~~~~~~~~ <--- HERE\n"
            "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture.\n"
        )

    monkeypatch.setattr(torch.cuda, "graph", refused)
    message = r"recorded as a CUDA graph \(Cannot copy between CPU and CUDA tensors during CUDA graph capture\.\); set record_steps=false"
    with pytest.raises(RecordingFailed, match=message):
        recorded_trainer(make, workspace, "full-ft").train()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        *((method, ()) for method in (*METHODS, "diff-pruning", "prefix-tuning")),
        ("full-ft", ("class_weights=[1.0,3.0]", "label_smoothing=0.1")),
        *(
            pytest.param(method, (), marks=pytest.mark.slow)
            for method in ("mixout", "child-tuning-f", "adalora", "prefix-tuning-mlp")
        ),
        pytest.param("full-ft", ("precision=fp32",), marks=pytest.mark.slow),
        pytest.param("full-ft", ("padding_free=false",), marks=pytest.mark.slow),
        # Its own attention gets a mask that is made for it.
        pytest.param("prefix-tuning", ("padding_free=false",), marks=pytest.mark.slow),
        pytest.param("full-ft", ("gradient_accumulation_steps=2",), marks=pytest.mark.slow),
    ],
)
def test_what_is_recorded_neither_copies_from_the_host_nor_waits(monkeypatch, method, words):
    assert refused_in_a_recording(monkeypatch, method, *words) == []


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (torch.float32, ()),
        (torch.bfloat16, ("padding_free=false",)),
        pytest.param(torch.bfloat16, (), marks=pytest.mark.slow),
        pytest.param(torch.float32, ("padding_free=false",), marks=pytest.mark.slow),
    ],
    ids=["fp32-packed", "bf16-padded", "bf16-packed", "fp32-padded"],
)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in OFTEN_TESTED_FAMILIES else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_exactly_the_encoders_that_a_gpu_refuses_to_record_have_an_obstacle(
    monkeypatch, family, dtype, words
):
    """Autocast knows no meta device: for bf16 the weights themselves are of that type."""

    def new_model():
        # Without the cache of decoders, as every encoder is loaded.
        return random_encoder(family, use_cache=False).to(dtype)

    obstacle = step_graphs.encoder_obstacle(family)
    refused = refused_in_a_recording(monkeypatch, "full-ft", *words, new_model=new_model)
    if refused:
        assert obstacle == f"encoders of type {family}", refused
    # Before transformers 5.21 these two copy in some versions, and in others they do not.
    elif family not in ("megatron-bert", "rembert"):
        assert obstacle == ""


def refused_in_a_recording(monkeypatch, method, *words, new_model=tiny_bert):
    """What a step does that a GPU refuses to record: copies from the host, and waits for the GPU."""
    counts = StepCounts()

    def record(_, compute):
        capturing = "transformers.utils.import_utils.is_cuda_stream_capturing"
        with (
            patch(capturing, lambda: True),
            CountTensorsFromPython(counts),
            CountOperations(counts),
        ):
            return lambda: None, compute()

    monkeypatch.setattr(StepGraphs, "record", record)
    monkeypatch.setattr(step_graphs, "unsupported_because", lambda *_: "")
    monkeypatch.setattr(step_graphs, "encoder_obstacle", lambda _: "")
    with meta_as_a_gpu(), CountOperations(StepCounts()):
        trainer = new_trainer(gpu_config(method, "kernels=auto", *words), DEVICE, new_model)
        trainer.runner.may_record = True
        trainer.begin_stage(0)
        for _ in range(3):
            trainer.train_step(trainer.splits.train[:BATCH_SIZE])
    assert counts.operations
    return counts.copies + counts.synchronizations


def test_encoders_with_an_obstacle_are_of_known_families():
    """The test above goes over these alone."""
    assert step_graphs._UNRECORDABLE_ENCODERS.keys() <= FAMILIES.keys()


@pytest.mark.parametrize(
    ("model_type", "version", "obstacle"),
    [
        ("deberta-v2", "5.23.0", "encoders of type deberta-v2"),
        ("mpnet", "5.20.1", "encoders of type mpnet"),
        ("mpnet", "5.21.0.dev0", ""),
        ("rembert", "5.8.0", "encoders of type rembert"),
        ("megatron-bert", "6.0.0", ""),
        ("bert", "5.8.0", ""),
        ("a family of its own", "5.8.0", ""),
    ],
)
def test_an_obstacle_ends_with_a_version_of_transformers(
    monkeypatch, model_type, version, obstacle
):
    monkeypatch.setattr(step_graphs.transformers, "__version__", version)
    assert step_graphs.encoder_obstacle(model_type) == obstacle


def test_an_encoder_that_cannot_be_recorded_trains_as_with_record_steps_false(
    make, workspace, monkeypatch, caplog, tmp_path
):
    """The losses are the same to the bit, dropout included, and one line says why."""
    backbone = write_encoder(tmp_path / "encoder", "roberta")
    random_encoder("deberta-v2").base_model.save_pretrained(backbone)
    recorded, losses = [], []
    monkeypatch.setattr(
        StepGraphs, "record", lambda _, step: recorded.append(step) or (lambda: None, step())
    )
    for obstacle, how in (("encoders of type deberta-v2", "true"), ("", "false")):
        if not obstacle:
            monkeypatch.setattr(step_graphs, "encoder_obstacle", lambda _: "")
        words = ("log_every=1", "dropout=0.1", f"record_steps={how}")
        caplog.clear()
        trainer = recorded_trainer(make, workspace, "full-ft", *words, backbone=backbone)
        trainer.train()
        said = [line for line in caplog.messages if "CUDA graphs" in line]
        expected = f"training steps are not recorded as CUDA graphs: {obstacle}"
        assert said == ([expected] if obstacle else [])
        assert trainer.progress.processes[-1]["repeated_steps"] == 0
        log = trainer.progress.log_history
        losses.append([line.loss for line in log if hasattr(line, "loss")])
    assert recorded == [] and losses[0] == losses[1] and len({*losses[0]}) > 1


@pytest.mark.parametrize(
    ("words", "obstacle"),
    [
        (("full-ft", "dropout=0.0"), ""),
        (("full-ft", "dropout=0.1", "precision=bf16"), ""),
        (("full-ft", "dropout=0.1"), ""),
        (("prefix-tuning", "precision=bf16"), ""),
        (("child-tuning-f", "precision=bf16"), ""),
        (("full-ft", "dropout=0", "gradient_accumulation_steps=2"), ""),
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
