"""Recorded steps of every method, repeated on the CPU as a CUDA graph repeats them on a GPU.

A GPU repeats the operations of a step, not its Python code. `test_step_graphs.py` calls the code
again instead. Here the code is left out, so that a number that Python keeps from the recording is
seen.
"""

import gc
from collections import Counter
from unittest.mock import patch

import pytest
import torch
from prepared_models import prepare, pretrained_of, splits_of
from recorded_cases import (
    OBSTACLES,
    OTHER_FAMILIES,
    RECORDED_METHODS,
    SETTINGS_OF_THE_LOSS,
    TASKS_OF_KINDS,
)
from recorded_operations import RecordedOperations, attention_within_sequences
from tiny_inputs import random_encoder, write_encoder, write_target_words
from torch.autograd.graph import get_gradient_edge

from hifi_cli.config.specs import method_spec
from hifi_cli.models import cpu_kernels, token_packing
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training import loop, step_graphs
from hifi_cli.training.step_graphs import StepGraphs

# These adapters of peft draw a number on the host, to leave a module out of a step. In the shipped
# methods that never happens: a run whose options ask for it is not recorded.
DRAW_ON_THE_HOST = ("loha", "lokr")
# Their initial values are computed in float32 only.
PREPARED_IN_FLOAT32 = ("olora", "pissa")
# The dropout of a GPU's usual runs: in float32 no attention kernel has any.
WITH_DROPOUT = ("dropout=0.1", "precision=bf16")
# Enough for a method of one stage: sizes of batches are recorded in the first epoch, and repeated in
# it and the second.
TWO_EPOCHS = ("epochs=2",)
# A GPU pads batches to this multiple; see `runner._GPU_MULTIPLE`.
GPU_MULTIPLE = 8


class RepeatedSteps(StepGraphs):
    """Steps that are repeated operation by operation, each compared with the same step computed.

    Attributes:
        made: every object of this class, one for each stage that is recorded.
        recordings: one for each size of a batch.
        with_new_values: how many steps had other values than their recording.
        compared_with_usual: how many repeated steps were compared with one of stock PyTorch.
    """

    made: list["RepeatedSteps"]

    def __init__(self, *args):
        super().__init__(*args)
        self.recordings = []
        self.with_new_values = 0
        self.compared_with_usual = 0
        self.made.append(self)

    def record(self, compute):
        random_state = torch.get_rng_state()
        before = {parameter: gradient.clone() for parameter, gradient in self.gradients.items()}
        # transformers asks for it, and then makes no mask that depends on a number of the device.
        with (
            patch("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True),
            RecordedOperations() as recording,
        ):
            loss = compute()
        # A CUDA graph computes nothing while it is recorded, and so draws and adds nothing.
        torch.set_rng_state(random_state)
        for parameter, gradient in self.gradients.items():
            gradient.copy_(before[parameter])
        self.recordings.append(recording)
        return recording.replay, loss

    def accumulate_part(self, examples, weight, *, is_first):
        random_state = torch.get_rng_state()
        recordings = len(self.recordings)
        before = {parameter: gradient.clone() for parameter, gradient in self.gradients.items()}
        loss, is_repeated = super().accumulate_part(examples, weight, is_first=is_first)
        if not is_repeated:
            return loss, is_repeated
        if len(self.recordings) == recordings:
            self.with_new_values += 1
        repeated = self.loss_and_gradients(loss)
        torch.set_rng_state(random_state)
        for parameter, gradient in self.gradients.items():
            gradient.copy_(before[parameter])
        again = self.compute(self.batch_of(examples, weight), is_first=is_first)
        # The operations are the same, and so is every bit.
        torch.testing.assert_close(repeated, self.loss_and_gradients(again), rtol=0, atol=0)
        has_parts = self.runner.config.gradient_accumulation_steps > 1
        if self.parameters[0].dtype == torch.float64 and not has_parts:
            # Mixout draws in its forward pass.
            torch.set_rng_state(random_state)
            # The loss is computed in float32 from logits in float64.
            torch.testing.assert_close(repeated, self.usual_step(examples), rtol=1e-5, atol=1e-7)
            self.compared_with_usual += 1
        return loss, is_repeated

    def usual_step(self, examples):
        """Loss and gradients of a step that is not recorded, without the example of padding."""
        for parameter in self.parameters:
            parameter.grad = None
        uses_varlen = self.runner.uses_varlen
        self.runner.uses_varlen = False
        loss = self.runner.accumulate_gradient(examples, self.class_weights)
        self.runner.uses_varlen = uses_varlen
        usual = self.loss_and_gradients(loss)
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        return usual

    def loss_and_gradients(self, loss):
        """Copies of the loss, and of each gradient by its parameter's place in `parameters`."""
        gradients = {
            str(place): parameter.grad.clone()
            for place, parameter in enumerate(self.parameters)
            if parameter.grad is not None
        }
        return {"loss": loss.clone(), **gradients}


@pytest.fixture
def new_trainer(make, workspace, task_kinds_data, tmp_path, monkeypatch):
    """Makes trainers whose steps are recorded wherever a GPU would record them."""
    real_unsupported_because = step_graphs.unsupported_because

    def unsupported_on_a_gpu(runner, method):
        cpu = runner.device
        runner.device = torch.device("cuda")
        try:
            return real_unsupported_because(runner, method)
        finally:
            runner.device = cpu

    monkeypatch.setattr(step_graphs, "unsupported_because", unsupported_on_a_gpu)
    monkeypatch.setattr(step_graphs, "StepGraphs", RepeatedSteps)
    monkeypatch.setattr(RepeatedSteps, "made", [], raising=False)
    monkeypatch.setattr(token_packing, "varlen_attention", attention_within_sequences)
    # A GPU has no use for the CPU's kernels, nor for its spare rows in bf16.
    monkeypatch.setattr(cpu_kernels, "install", lambda _: None)
    monkeypatch.setattr(token_packing.PackedBatch, "spare", 0)

    kinds = Workspace(tmp_path / "kinds", task_kinds_data)

    def build(method, *words, dtype=torch.float32, callback=None, task="rte", family="bert"):
        words = ["epochs=4", "report=last", *words]
        if method_spec(method).implementation == "two_stage":
            # A first stage of the usual length ends before a size of a batch is recorded.
            words.append("settings.stage1_fraction=0.5")
        where = workspace
        if task in TASKS_OF_KINDS:
            where = kinds
        if task == "wic":
            where = Workspace(tmp_path / "wic", write_target_words(tmp_path / "data"))
        names = {"task": task}
        if family != "bert":
            names["backbone"] = write_encoder(tmp_path / family, "roberta")
            random_encoder(family).base_model.save_pretrained(names["backbone"])
        if dtype == torch.float64 and method not in PREPARED_IN_FLOAT32:
            # Parameters that the method takes from the model have its type then.
            pretrained_of(make(method, *words, **names), where).model.double()
        runner, config = prepare(make, where, method, *words, **names)
        runner.encoder.model.to(dtype)
        runner.uses_varlen = runner.is_padding_free
        runner.may_record = True
        runner.width_multiple = GPU_MULTIPLE
        return loop.Trainer(runner, runner.method, splits_of(config, where), callback=callback)

    return build


def test_a_replay_repeats_operations_on_new_values_in_the_same_memory():
    """Views, changes in place and gradients included; random numbers are drawn anew."""
    weight = torch.randn(4, 3, requires_grad=True)
    weight.grad = torch.zeros(4, 3)
    inputs, total = torch.randn(2, 4), torch.zeros(2)

    def compute():
        weight.grad.zero_()
        hidden = torch.nn.functional.dropout(inputs @ weight, 0.5)
        hidden[:, 0].mul_(2)
        loss = hidden.square().sum()
        loss.backward()
        total.add_(hidden.detach().sum(1))
        return loss.detach()

    with RecordedOperations() as recording:
        loss = compute()
    assert recording.host_reads == []
    inputs.copy_(torch.randn(2, 4))
    results = []
    for again in (recording.replay, lambda: loss.copy_(compute())):
        torch.manual_seed(1)
        total.zero_()
        again()
        results.append([loss.clone(), weight.grad.clone(), total.clone()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_number_that_the_host_reads_is_named_and_repeated():
    inputs = torch.tensor([1.0, 2.0])
    with RecordedOperations() as recording:
        scaled = inputs * float(inputs.sum())
        chosen = inputs[inputs > 1]
        constant = inputs * float(torch.tensor(2.0))
    inputs.copy_(torch.tensor([0.5, 4.0]))
    recording.replay()
    # A number that was the host's own is not read from the device.
    assert recording.host_reads == ["_local_scalar_dense", "index"]
    # The sum of the recording was 3.
    assert scaled.tolist() == [1.5, 12.0]
    assert chosen.tolist() == [4.0] and constant.tolist() == [1.0, 8.0]


@pytest.mark.slow
@pytest.mark.parametrize("method", OBSTACLES)
def test_the_stages_that_are_not_recorded_name_why(new_trainer, method):
    trainer = new_trainer(method, "dropout=0")
    found = []
    for index in range(len(trainer.method_stages)):
        trainer.begin_stage(index)
        reason = step_graphs.unsupported_because(trainer.runner, trainer.stage.method)
        assert bool(reason) == (trainer.stage.graphs is None)
        found.append(reason)
    assert found == OBSTACLES[method]


@pytest.mark.slow
@pytest.mark.parametrize("method", RECORDED_METHODS)
def test_repeated_operations_give_loss_and_gradients_of_the_step(new_trainer, method):
    """The same bits as the step itself, and within rounding those of a step of stock PyTorch."""
    trainer = new_trainer(method, "dropout=0", dtype=torch.float64)
    trainer.train()
    assert_each_stage_was_repeated(trainer)
    assert all(stage.compared_with_usual >= stage.with_new_values for stage in RepeatedSteps.made)


@pytest.mark.slow
@pytest.mark.parametrize("method", RECORDED_METHODS)
def test_repeated_operations_draw_new_dropout(new_trainer, method):
    """The masks that the step itself would draw; in bf16, as on a GPU."""
    trainer = new_trainer(method, *WITH_DROPOUT)
    trainer.train()
    assert_each_stage_was_repeated(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("dropout=0",), WITH_DROPOUT, ("dropout=0.1",)], ids=" ".join)
@pytest.mark.parametrize("task", [*TASKS_OF_KINDS, "wic", "stsb"])
def test_every_kind_of_task_is_repeated(new_trainer, task, words):
    """Without dropout also as stock PyTorch computes it; in float32 attention computes on padding."""
    dtype = torch.float64 if words == ("dropout=0",) else torch.float32
    trainer = new_trainer("full-ft", *words, dtype=dtype, task=task)
    trainer.train()
    assert_each_stage_was_repeated(trainer)
    (stage,) = RepeatedSteps.made
    assert (stage.compared_with_usual > 0) == (dtype == torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [*SETTINGS_OF_THE_LOSS, (*SETTINGS_OF_THE_LOSS[-1], "dropout=0.1")],
    ids=" ".join,
)
def test_every_setting_of_the_loss_is_repeated(new_trainer, words):
    trainer = new_trainer("full-ft", "dropout=0", *words, dtype=torch.float64)
    trainer.train()
    assert_each_stage_was_repeated(trainer)


@pytest.mark.parametrize(
    "method",
    [
        "diff-pruning",
        pytest.param("full-ft", marks=pytest.mark.slow),
        pytest.param("adalora", marks=pytest.mark.slow),
    ],
)
def test_micro_batches_and_a_penalty_train_as_one_that_is_not_recorded(new_trainer, method):
    """The weights after all steps, within rounding: penalty, loss and gradient are those of the batch."""
    results = []
    words = (
        "dropout=0",
        "class_weights=[1.0,3.0]",
        "log_every=1",
        "learning_rate=0.001",
        "epochs=3",
    )
    for how in ("gradient_accumulation_steps=1", "gradient_accumulation_steps=2", "kernels=torch"):
        trainer = new_trainer(method, *words, how, dtype=torch.float64)
        if how == "kernels=torch":
            trainer.runner.may_record = False
        trainer.train()
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
    assert all(stage.with_new_values > 0 for stage in RepeatedSteps.made)
    for result in results[:2]:
        torch.testing.assert_close(result, results[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("full-ft", ("gradient_accumulation_steps=2",)),
        ("hifi-layerwise", ()),
        pytest.param("full-ft", (), marks=pytest.mark.slow),
        pytest.param("lora", (), marks=pytest.mark.slow),
        pytest.param("hifi-layerwise", ("gradient_accumulation_steps=2",), marks=pytest.mark.slow),
        pytest.param("rocoft-row", (), marks=pytest.mark.slow),
        pytest.param("adapter", (), marks=pytest.mark.slow),
    ],
)
def test_steps_with_copies_of_weights_train_as_under_autocast_alone(
    new_trainer, monkeypatch, method, words
):
    """Losses and what trained, to the bit, dropout included."""
    results = []
    for copies_weights in (True, False):
        monkeypatch.setattr(RepeatedSteps, "copies_weights", copies_weights)
        how = ("log_every=1", "learning_rate=0.003", *TWO_EPOCHS)
        trainer = new_trainer(method, *WITH_DROPOUT, *words, *how)
        trainer.train()
        assert trainer.progress.processes[-1]["repeated_steps"] > 0
        losses = [line.loss for line in trainer.progress.log_history if hasattr(line, "loss")]
        results.append((torch.tensor(losses), trainer.delta))
    assert results[0][0].std() > 1e-3
    torch.testing.assert_close(*results, rtol=0, atol=0)


def operations_of_a_recorded_step(trainer):
    """How often a recorded step computes each operation, and how many weights it casts alone."""
    trainer.train()
    recording = RepeatedSteps.made[-1].recordings[-1]
    names = Counter(call.operation.overloadpacket.__name__ for call in recording.calls)
    weights = {parameter.data_ptr() for parameter in trainer.model.parameters()}
    cast = [
        call
        for call in recording.calls
        if call.operation.overloadpacket.__name__ == "_to_copy"
        and call.arguments[0].data_ptr() in weights
    ]
    return names, len(cast)


@pytest.mark.parametrize(
    ("method", "tuned", "trained"), [("full-ft", 0, 28), ("hifi-layerwise", 6, 16)]
)
def test_a_recorded_step_casts_weights_and_writes_rows_and_gradients_in_few_operations(
    new_trainer, monkeypatch, method, tuned, trained
):
    """Of a BERT with two layers: 6 Linears each, pooler and classifier, with weights and biases."""
    linears = 2 * (2 * 6 + 2)
    counts = []
    for copies_weights in (False, True):
        monkeypatch.setattr(RepeatedSteps, "copies_weights", copies_weights)
        trainer = new_trainer(method, *WITH_DROPOUT, *TWO_EPOCHS)
        counts.append(operations_of_a_recorded_step(trainer))
    (alone, cast_alone), (together, cast_together) = counts
    assert (cast_alone, cast_together) == (linears, 0)
    # Each of the gradients that autocast casts back is cast by the one call that keeps them.
    assert alone["_to_copy"] - together["_to_copy"] == linears + trained
    # Autocast's step writes rows and biases of each tuned projection; both unpack the tokens.
    assert alone["index_copy_"] - together["index_copy_"] == max(2 * tuned - 2, 0)
    # Gradients are written: those of copies, and float32 ones where other parameters train.
    assert together["_foreach_copy_"] <= 3 and together["_foreach_zero_"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", [("dropout=0",), WITH_DROPOUT], ids=" ".join)
@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_every_family_is_repeated(new_trainer, monkeypatch, family, words):
    """Those with attention of their own, and decoders, on padded batches.

    Those that a GPU refuses to record compute the same there, without a recording. A CPU, where
    nothing is copied from the host, repeats them too, so that they are compared with stock PyTorch.
    """
    monkeypatch.setattr(step_graphs, "encoder_obstacle", lambda _: "")
    dtype = torch.float64 if words == ("dropout=0",) else torch.float32
    trainer = new_trainer("full-ft", *words, dtype=dtype, family=family)
    trainer.train()
    assert_each_stage_was_repeated(trainer)


def assert_each_stage_was_repeated(trainer):
    """Steps of every stage without obstacle were repeated, and none of them read on the host."""
    obstacles = OBSTACLES.get(trainer.config.method, [""] * len(trainer.method_stages))
    assert len(RepeatedSteps.made) == obstacles.count("")
    for stage in RepeatedSteps.made:
        assert stage.with_new_values > len(stage.recordings) > 0
        host_reads = {name for recording in stage.recordings for name in recording.host_reads}
        if trainer.config.method in DRAW_ON_THE_HOST:
            assert host_reads == {"_local_scalar_dense"}
        else:
            assert host_reads == set()


@pytest.mark.slow
@pytest.mark.parametrize("method", RECORDED_METHODS)
def test_no_autograd_node_of_a_parameter_survives_a_step(new_trainer, monkeypatch, method):
    """By reference counts alone, in bf16 as on a GPU: parameters, and their copies that multiply.

    A node that adds to a gradient belongs to the stream of the forward pass that made it. One that
    survived its step would make a recording on another stream fail.
    """
    monkeypatch.setattr(step_graphs, "StepGraphs", StepGraphs)
    loss = torch.zeros(())
    monkeypatch.setattr(StepGraphs, "record", lambda _, step: (lambda: loss.copy_(step()), loss))
    in_use, survivors = [], []

    def nodes():
        graphs = trainer.stage.graphs
        parameters = {*graphs.parameters, *graphs.bf16_weights.trained.values()}
        return [get_gradient_edge(value).node for value in parameters if value.requires_grad]

    def marked_nodes():
        return sum("of this step" in node.metadata for node in nodes())

    def mark(*_):
        if trainer.model.training and trainer.stage.graphs:
            for node in nodes():
                node.metadata["of this step"] = True
            # A node that the forward pass did not use is gone already.
            in_use.append(marked_nodes())

    class CountSurvivors(loop.Callback):
        def on_train_begin(self, trainer):
            trainer.model.register_forward_hook(mark)

        def on_step_end(self, trainer):
            if trainer.stage.graphs:
                survivors.append(marked_nodes())

    words = ("dropout=0", "epochs=2", "precision=bf16")
    trainer = new_trainer(method, *words, callback=CountSurvivors())
    gc.disable()
    try:
        trainer.train()
    finally:
        gc.enable()
    assert min(in_use) > 0
    assert survivors and max(survivors) == 0
