"""CUDA graphs (`record_steps: true`): the forward and backward pass of a training step in one launch.

A GPU waits in short steps for the host, which launches about 2,000 kernels one by one. A graph
launches them all. It repeats exactly what was recorded, with the same shapes and addresses. So a
batch gets one more example of padding tokens, up to a multiple of 128 tokens (of the longest train
example's, if that has fewer), whose logits are dropped: loss and gradients stay those of the batch,
with other dropout masks. Batches of the same size share a graph; the first two of a size compute
as usual, and the third is recorded. Clipping, a method's hooks and AdamW compute as usual. With
`record_steps: false` all steps of a size compute as the first two: the same numbers.

Every batch is as wide as the longest train example. Only embeddings and task head compute on that
width: attention on padding would make steps slower, so that such runs are not recorded.

Freeing a graph while another one is recorded spoils the recording. Graphs may be freed by a garbage
collection at any allocation, long after the run that they belong to. So a stage frees its graphs
when it ends (`StepGraphs.close`), and nothing is collected during a recording.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hifi_cli.errors import RecordingFailed
from hifi_cli.methods.base import Method
from hifi_cli.models.token_packing import PackedBatch, copy_to_device, real_token_index
from hifi_cli.tasks.encode import collate
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.device import tf32
from hifi_cli.training.losses import task_loss
from hifi_cli.training.runner import ModelRunner, step_out_of_memory

# The example of padding fills a batch up to a multiple of so many tokens.
_MULTIPLE = 128
# Steps of a size that compute before one is recorded: libraries choose their kernels in them.
_WARM_UP = 2
# These adapters of peft copy from the host or wait for the device in their forward pass.
_UNRECORDABLE_ADAPTERS = ("boft", "fourierft", "shira", "waveft")
# Options of peft's adapters that draw on the host what a step leaves out: a graph would leave the
# same out in every step.
_UNRECORDABLE_OPTIONS = ("module_dropout", "rank_dropout")


def unsupported_because(runner: ModelRunner, method: Method) -> str:
    """Say why the steps of a method's stage cannot be recorded.

    A method's values of a single step, such as noise that it draws itself, would be repeated, and
    parameters that it puts in the place of others would not be seen.

    Returns:
        The reasons, joined by commas; empty: the steps can be recorded.
    """
    config = runner.config
    reasons = []
    if runner.processes.num_processes > 1:
        reasons.append("several processes")
    if config.gradient_accumulation_steps > 1:
        reasons.append("gradient_accumulation_steps")
    # `task_loss` copies them from the host.
    if config.class_weights is not None:
        reasons.append("class_weights")
    if not runner.task.rules.is_recordable:
        reasons.append(f"task {config.task}")
    if _has_values_of_a_step(method):
        reasons.append(f"method {config.method}")
    reasons.extend(_unrecordable_adapters(method))
    if not _attends_without_padding(runner):
        reasons.append("attention on padded batches")
    return ", ".join(reasons)


def _has_values_of_a_step(method: Method) -> bool:
    """Whether a method computes something anew in each step."""
    hooks = type(method)
    return (
        hooks.before_step is not Method.before_step
        or hooks.regularization_loss is not Method.regularization_loss
    )


def _unrecordable_adapters(method: Method) -> list[str]:
    """Name what the adapters of one of peft's methods have that cannot be recorded."""
    reasons = []
    # The settings of peft's methods have the type of the adapter.
    adapter = str(getattr(method.settings, "type", "")).lower()
    if adapter in _UNRECORDABLE_ADAPTERS:
        reasons.append(f"adapters of type {adapter}")
    options = getattr(method.settings, "options", {})
    drawn = [name for name in _UNRECORDABLE_OPTIONS if options.get(name)]
    if drawn:
        reasons.append(f"{' and '.join(drawn)} of the adapters")
    return reasons


def _attends_without_padding(runner: ModelRunner) -> bool:
    """Whether `varlen_attention` computes all attention of a run."""
    # Prefix-Tuning has an attention of its own.
    if not runner.uses_varlen or runner.encoder.attention_function is not sdpa_attention_forward:
        return False
    # The kernel for float32 has no dropout, and no local attention, which some encoders with rotary
    # positions have.
    has_dropout_or_windows = runner.config.dropout != 0 or runner.encoder.module_names.rotary
    return runner.uses_autocast or not has_dropout_or_windows


@dataclass
class _RecordedStep:
    """A recorded step, for batches of one size.

    Attributes:
        inputs: where the inputs of a batch are copied to.
        replay: computes the step from what the inputs hold.
        loss: where the loss is then.
    """

    inputs: dict[str, Tensor]
    replay: Callable[[], None]
    loss: Tensor


class StepGraphs:
    """Computes the gradients of training steps in the place of `ModelRunner.accumulate_gradient`.

    Args:
        runner: has the model.
        parameters: all that may get a gradient.
        longest: tokens of the longest example.

    Attributes:
        width: tokens of every padded batch.
        gradients: of each parameter that gets one, in the same memory in every step.
        uses: steps so far, by examples and tokens of their batch.
        graphs: the recorded steps, by examples and tokens of a batch.
        pool: the memory that all graphs compute in.
        repeated: how many steps were a recorded one again.
    """

    def __init__(self, runner: ModelRunner, parameters: list[nn.Parameter], longest: int) -> None:
        # Free what is garbage already: a graph of a run that failed, for example.
        gc.collect()
        self.runner = runner
        self.parameters = parameters
        self.width = _rounded_up(longest, runner.width_multiple)
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.uses: Counter[tuple[int, int]] = Counter()
        self.graphs: dict[tuple[int, int], _RecordedStep] = {}
        self.pool: Any = None
        self.repeated = 0

    def close(self) -> None:
        """Free the graphs and their memory, at the end of the stage that they were recorded in."""
        self.graphs.clear()
        self.gradients.clear()
        self.pool = None

    def accumulate_gradient(self, examples: list[EncodedExample]) -> Tensor:
        """Compute the gradient of the mean loss over a batch; return that loss.

        Raises:
            RunFailed: it does not fit in memory, or cannot be recorded.
        """
        batch = self.batch_of(examples)
        inputs = {
            name: copy_to_device(values, self.runner.device) for name, values in batch.items()
        }
        size = len(examples), len(inputs["index"])
        self.uses[size] += 1
        with step_out_of_memory(len(examples), 1), tf32(self.runner.config.tf32):
            if self.uses[size] <= _WARM_UP or not self.runner.config.record_steps:
                loss = self.compute(inputs, len(examples))
                self.gradients = {
                    parameter: parameter.grad
                    for parameter in self.parameters
                    if parameter.grad is not None
                }
                return loss
            if size not in self.graphs:
                replay, loss = self.record(partial(self.compute, inputs, len(examples)))
                self.graphs[size] = _RecordedStep(inputs, replay, loss)
            recorded = self.graphs[size]
            for name, values in inputs.items():
                recorded.inputs[name].copy_(values)
            recorded.replay()
            self.repeated += 1
        # The optimizer's step before has removed the gradients.
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        return recorded.loss.clone()

    def batch_of(self, examples: list[EncodedExample]) -> dict[str, Tensor]:
        """Collate a batch with its example of padding, its labels, and the places of its tokens."""
        tokens = sum(map(len, examples))
        multiple = min(_MULTIPLE, self.width)
        # At least one token, so that there is an example of padding in every batch.
        missing = multiple - tokens % multiple
        pad = self.runner.pad
        sequence = {name: np.full(missing, pad.get(name, 0)) for name in examples[0].sequences[0]}
        padding = EncodedExample(examples[0].row, (sequence,))
        batch = collate([*examples, padding], pad, multiple=self.width)
        batch["index"], batch["offsets"] = real_token_index(batch["attention_mask"])
        batch["labels"] = torch.tensor([example.row.label for example in examples])
        return batch

    def compute(self, inputs: dict[str, Tensor], examples: int) -> Tensor:
        """Compute gradient and loss of a batch on the device; the host only launches kernels.

        Args:
            inputs: of `batch_of`, on the device.
            examples: their number, without that of padding.
        """
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        if self.gradients:
            torch._foreach_zero_([*self.gradients.values()])
        runner = self.runner
        of_model = dict(inputs)
        index = of_model.pop("index")
        offsets = of_model.pop("offsets")
        labels = of_model.pop("labels")
        packed = PackedBatch(
            index,
            of_model["attention_mask"].bool(),
            offsets if runner.uses_varlen else None,
            longest=min(self.width, len(index)),
        )
        # The last example is that of padding.
        logits = runner.forward(of_model, packed)[:-1]
        smoothing = runner.config.label_smoothing
        total = task_loss(runner.task, logits, [], label_smoothing=smoothing, labels=labels)
        loss = total * (1 / examples)
        loss.backward()
        return loss.detach()

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record what `compute` does, without doing it.

        Returns:
            What does it, and where its loss is then.

        Raises:
            RecordingFailed: PyTorch's allocator and random generator are then in
                the middle of a recording: the process can train nothing more.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph, pool=self.pool):
                loss = compute()
        except RuntimeError as error:
            # The first error is the cause; leaving the recording raises another one after it.
            cause = str(error.__context__ or error).strip().partition("\n")[0][:150]
            raise RecordingFailed(
                f"the training step cannot be recorded as a CUDA graph ({cause});"
                " set record_steps=false, which computes the same without a recording"
            ) from error
        # The graphs of a stage follow each other, so that they may use the same memory.
        self.pool = graph.pool()
        return graph.replay, loss


def _rounded_up(count: int, multiple: int) -> int:
    """Round a number up to a multiple."""
    return -(-count // multiple) * multiple


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off inside this block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
