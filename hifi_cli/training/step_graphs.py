"""CUDA graphs (`kernels: graphs`): the forward and backward pass of a training step in one launch.

A GPU waits in short steps for the host, which launches about 2,000 kernels one by one. A graph
launches them all. It repeats exactly what was recorded, with the same shapes and addresses. So a
batch gets one more example of padding tokens, up to a multiple of 128 tokens (of the longest train
example's, if that has fewer), whose logits are dropped: loss and gradients stay those of the batch,
with other dropout masks. Batches of the same size share a graph; the first two of a size compute
as usual, and the third is recorded. Clipping, a method's hooks and AdamW compute as usual.

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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hifi_cli.errors import RunFailed
from hifi_cli.methods.base import Method
from hifi_cli.models.token_packing import PackedBatch, copy_to_device, real_token_index
from hifi_cli.tasks.encode import collate
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.device import tf32
from hifi_cli.training.losses import task_loss
from hifi_cli.training.runner import ModelRunner, step_out_of_memory

_MULTIPLE = 128  # tokens
_WARM_UP = 2  # steps of a size before its graph: libraries choose their kernels in them
# These adapters of peft copy from the host or wait for the device in their forward pass.
_UNRECORDABLE_ADAPTERS = ("boft", "fourierft", "shira", "waveft")
# Options of peft's adapters that draw on the host what a step leaves out: a graph would leave the
# same out in every step.
_UNRECORDABLE_OPTIONS = ("module_dropout", "rank_dropout")


def unsupported_because(runner: ModelRunner, method: Method) -> str:
    """What does not allow that the steps of a method's stage are recorded; empty: nothing.

    A method's values of a single step, such as noise that it draws itself, would be repeated, and
    parameters that it puts in the place of others would not be seen.
    """
    config, task, hooks = runner.config, runner.task, type(method)
    # the settings of peft's methods have the type of the adapter
    adapter = str(getattr(method.settings, "type", "")).lower()
    options = getattr(method.settings, "options", {})
    drawn = [name for name in _UNRECORDABLE_OPTIONS if options.get(name)]
    found = {
        "no GPU": runner.device.type != "cuda",
        "several processes": runner.processes.num_processes > 1,
        "gradient_accumulation_steps": config.gradient_accumulation_steps > 1,
        "class_weights": config.class_weights is not None,  # `task_loss` copies them from the host
        f"task {config.task}": not task.rules.is_recordable,
        f"method {config.method}": hooks.before_step is not Method.before_step
        or hooks.regularization_loss is not Method.regularization_loss,
        f"adapters of type {adapter}": adapter in _UNRECORDABLE_ADAPTERS,
        f"{' and '.join(drawn)} of the adapters": bool(drawn),
        "attention on padded batches": not (
            runner.uses_varlen
            and runner.encoder.attention_function is sdpa_attention_forward  # not Prefix-Tuning's
            # float32 has no kernel for dropout, nor for local attention, which some rotary ones have
            and (
                runner.uses_autocast
                or (config.dropout == 0 and not runner.encoder.module_names.rotary)
            )
        ),
    }
    return ", ".join(name for name, applies in found.items() if applies)


class StepGraphs:
    """Computes the gradients of training steps in the place of `ModelRunner.accumulate_gradient`.

    Args:
        parameters: all that may get a gradient.
        longest: tokens of the longest example.

    Attributes:
        gradients: of each parameter that gets one, in the same memory in every step.
        graphs: by examples and tokens of a batch: where its inputs are copied to, what computes,
            and where the loss is then.
    """

    def __init__(self, runner: ModelRunner, parameters: list[nn.Parameter], longest: int) -> None:
        # Frees what is garbage already: a graph of a run that failed, for example.
        gc.collect()
        self.runner, self.parameters = runner, parameters
        self.width = -(-longest // runner.width_multiple) * runner.width_multiple
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.uses: Counter[tuple[int, int]] = Counter()
        self.graphs: dict[
            tuple[int, int], tuple[dict[str, Tensor], Callable[[], None], Tensor]
        ] = {}
        self.pool: Any = None

    def close(self) -> None:
        """Free the graphs and their memory, at the end of the stage that they were recorded in."""
        self.graphs.clear()
        self.gradients.clear()
        self.pool = None

    def accumulate_gradient(self, examples: list[EncodedExample]) -> Tensor:
        """Compute the gradient of the mean loss over a batch; returns that loss.

        Raises:
            RunFailed: it does not fit in memory.
        """
        batch = self.batch_of(examples)
        inputs = {
            name: copy_to_device(values, self.runner.device) for name, values in batch.items()
        }
        size = len(examples), len(inputs["index"])
        self.uses[size] += 1
        with step_out_of_memory(len(examples), 1), tf32(self.runner.config.tf32):
            if self.uses[size] <= _WARM_UP:
                loss = self.compute(inputs, len(examples))
                self.gradients = {
                    parameter: parameter.grad
                    for parameter in self.parameters
                    if parameter.grad is not None
                }
                return loss
            if size not in self.graphs:
                compute = partial(self.compute, inputs, len(examples))
                self.graphs[size] = (inputs, *self.record(compute))
            recorded, replay, loss = self.graphs[size]
            for name, values in inputs.items():
                recorded[name].copy_(values)
            replay()
        for parameter, gradient in self.gradients.items():  # the optimizer's step removed it
            parameter.grad = gradient
        return loss.clone()

    def batch_of(self, examples: list[EncodedExample]) -> dict[str, Tensor]:
        """The batch with its example of padding, its labels, and the places of its tokens."""
        tokens, multiple = sum(map(len, examples)), min(_MULTIPLE, self.width)
        missing = multiple - tokens % multiple
        pad = self.runner.pad
        sequence = {name: np.full(missing, pad.get(name, 0)) for name in examples[0].sequences[0]}
        padding = EncodedExample(examples[0].row, (sequence,))
        batch = collate([*examples, padding], pad, multiple=self.width)
        batch["index"], batch["offsets"] = real_token_index(batch["attention_mask"])
        batch["labels"] = torch.tensor([example.row.label for example in examples])
        return batch

    def compute(self, inputs: dict[str, Tensor], examples: int) -> Tensor:
        """Compute gradient and loss of a batch on the device; the host only launches kernels."""
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        if self.gradients:
            torch._foreach_zero_([*self.gradients.values()])
        runner, given = self.runner, dict(inputs)
        index, offsets, labels = (given.pop(name) for name in ("index", "offsets", "labels"))
        packed = PackedBatch(
            index,
            given["attention_mask"].bool(),
            offsets if runner.uses_varlen else None,
            min(self.width, len(index)),
        )
        logits = runner.forward(given, packed)[:-1]
        smoothing = runner.config.label_smoothing
        total = task_loss(runner.task, logits, [], label_smoothing=smoothing, labels=labels)
        loss = total * (1 / examples)
        loss.backward()
        return loss.detach()

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record what `compute` does, without doing it; return what does it, and its loss.

        Raises:
            RunFailed: it cannot be recorded. PyTorch's allocator and random generator are then in
                the middle of a recording: the process can train nothing more.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph, pool=self.pool):
                loss = compute()
        except RuntimeError as error:
            # The first error is the cause; leaving the recording raises another one after it.
            cause = str(error.__context__ or error).strip().partition("\n")[0][:150]
            raise RunFailed(
                f"the training step cannot be recorded as a CUDA graph ({cause});"
                " set kernels=auto, which does not record"
            ) from error
        # The graphs of a stage follow each other, so that they may use the same memory.
        self.pool = graph.pool()
        return graph.replay, loss


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
