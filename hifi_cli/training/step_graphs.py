"""CUDA graphs (`record_steps: true`): the forward and backward pass of a training step in one launch.

A GPU waits in short steps for the host, which launches about 2,000 kernels one by one. A graph
launches them all. It repeats exactly what was recorded, with the same shapes and addresses. So a
batch gets one more example of padding tokens, up to a multiple of 128 tokens (of the padded width,
if that is less), whose logits are dropped: loss and gradients stay those of the batch, with other
dropout masks. Encoders whose layers compute on padding need no such example. Batches (micro-batches,
if there are several) of the same size share a graph; the first two of a size compute as usual, and
the third is recorded. A method's penalty and hooks, clipping and AdamW compute as usual. With
`record_steps: false` all steps of a size compute as the first two: the same numbers. So do those of
encoders that cannot be recorded.

In bf16, Linears multiply by copies of their weights (`models/bf16_weights`), the numbers that
autocast would cast. Gradients are written to where they are in every step, which casts those of the
copies.

Freeing a graph while another one is recorded spoils the recording. Graphs may be freed by a garbage
collection at any allocation, long after the run that they belong to. So a stage frees its graphs
when it ends (`StepGraphs.close`), and nothing is collected during a recording.
"""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hifi_cli.errors import RecordingFailed
from hifi_cli.methods.base import Method
from hifi_cli.models.bf16_weights import Bf16Weights
from hifi_cli.models.token_packing import PackedBatch, copy_to_device, real_token_index
from hifi_cli.tasks.encode import collate, split_batch
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.device import tf32
from hifi_cli.training.losses import (
    LOSSES,
    ClassWeights,
    Targets,
    label_array,
    loss_normalizer,
)
from hifi_cli.training.runner import ModelRunner, step_out_of_memory

# The example of padding fills a batch up to a multiple of so many tokens.
_MULTIPLE = 128
# Where attention computes on padding, a batch is as wide as a multiple of so many tokens.
_WIDTH_MULTIPLE = 16
# Where transformers makes the attention mask, at least so many tokens of a batch are padding, if the
# encoder has positions for them: of a batch without padding transformers makes no mask, except in a
# recording, which cannot look at it.
_LEAST_PADDING = 1
# Steps of a size that compute before one is recorded: libraries choose their kernels in them.
_WARM_UP = 2
# These adapters of peft copy from the host or wait for the device in their forward pass.
_UNRECORDABLE_ADAPTERS = ("boft", "fourierft", "shira", "waveft")
# Options of peft's adapters that draw on the host what a step leaves out: a graph would leave the
# same out in every step.
_UNRECORDABLE_OPTIONS = ("module_dropout", "rank_dropout")
# Encoders of these types copy from the host in their forward pass, until a version of transformers;
# None: in every version so far. DeBERTa copies a number for its relative positions, the others the 0
# of their attention mask, and MPNet its positions too.
_UNRECORDABLE_ENCODERS: dict[str, tuple[int, int] | None] = {
    "deberta-v2": None,
    "megatron-bert": (5, 21),
    "mpnet": (5, 21),
    "rembert": (5, 21),
}


class _Size(NamedTuple):
    """The shapes of a micro-batch: those of one size share a graph.

    Attributes:
        examples: without that of padding.
        tokens: packed ones, those of padding included; 0: none are packed.
        width: tokens of the padded sequences.
        is_first: whether the gradient begins at 0, as that of the first micro-batch of a step.
    """

    examples: int
    tokens: int
    width: int
    is_first: bool


def unsupported_because(runner: ModelRunner, method: Method) -> str:
    """Say why the steps of a method's stage cannot be recorded.

    A method's values of a single step, such as noise that it draws itself, would be repeated, and
    parameters that it puts in the place of others would not be seen.

    Returns:
        The reasons, joined by commas; empty: the steps can be recorded.
    """
    reasons = []
    if runner.process_state.num_processes > 1:
        reasons.append("several processes")
    has_own_step = type(method).before_step is not Method.before_step
    if has_own_step and not method.before_step_is_recordable:
        reasons.append(f"before_step of method {runner.config.method}")
    reasons.extend(_unrecordable_adapters(method))
    return ", ".join(reasons)


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


def encoder_obstacle(model_type: str) -> str:
    """Name an encoder whose steps cannot be recorded; empty: they can."""
    if model_type not in _UNRECORDABLE_ENCODERS:
        return ""
    recordable_since = _UNRECORDABLE_ENCODERS[model_type]
    major, minor, *_ = transformers.__version__.split(".")
    if recordable_since and (int(major), int(minor)) >= recordable_since:
        return ""
    return f"encoders of type {model_type}"


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
        class_weights: of the loss; None: equal ones.

    Attributes:
        copies_weights: whether Linears multiply by copies in bfloat16, instead of what autocast
            casts: the same numbers. It is here to be switched off for a comparison.
        is_packed: whether the layers get packed tokens, and a batch an example of padding.
        has_fixed_width: whether all batches are padded to `width`.
        width: tokens of the widest padded batch.
        class_weights: as numbers, by which a batch's loss is divided.
        class_weights_on_device: the same, by which a recorded step multiplies.
        bf16_weights: the copies; None: the steps compute in float32, or without copies.
        gradients: of each parameter that gets one, in the same memory in every step.
        uses: micro-batches so far, by their size.
        obstacle: names an encoder whose steps cannot be recorded; empty: they can.
        graphs: the recorded steps, by the size of a micro-batch.
        pool: the memory that all graphs compute in.
        repeated: how many steps were a recorded one again.
    """

    copies_weights: ClassVar[bool] = True

    def __init__(
        self,
        runner: ModelRunner,
        parameters: list[nn.Parameter],
        longest: int,
        class_weights: ClassWeights,
    ) -> None:
        # Free what is garbage already: a graph of a run that failed, for example.
        gc.collect()
        self.runner = runner
        self.parameters = parameters
        self.is_packed = runner.is_padding_free
        self.has_fixed_width = _attends_without_padding(runner)
        self.width = _largest_width(runner, longest)
        self.class_weights = class_weights
        self.class_weights_on_device: Tensor | None = None
        if class_weights is not None:
            self.class_weights_on_device = torch.tensor(class_weights, device=runner.device)
        self.bf16_weights: Bf16Weights | None = None
        if runner.uses_autocast and self.copies_weights:
            self.bf16_weights = Bf16Weights(runner.encoder.model)
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.uses: Counter[_Size] = Counter()
        # Such steps compute as those that are recorded, on the same padded batches: a newer
        # transformers, with which an encoder is recorded, then draws the same dropout masks.
        self.obstacle = encoder_obstacle(runner.encoder.model_type)
        self.graphs: dict[_Size, _RecordedStep] = {}
        self.pool: Any = None
        self.repeated = 0

    def close(self) -> None:
        """Free the graphs and their memory, at the end of the stage that they were recorded in."""
        self.graphs.clear()
        self.bf16_weights = None
        self.gradients.clear()
        self.pool = None

    def accumulate_gradient(
        self,
        examples: list[EncodedExample],
        regularization_loss: Callable[[nn.Module], Tensor | float],
    ) -> Tensor:
        """Compute the gradient of the mean loss over a batch, in micro-batches; return that loss.

        Args:
            examples: the batch.
            regularization_loss: a term of the parameters alone; it is never recorded.

        Raises:
            RunFailed: it does not fit in memory, or cannot be recorded.
        """
        runner = self.runner
        parts = runner.config.gradient_accumulation_steps
        weight = 1 / loss_normalizer(runner.task, examples, self.class_weights)
        losses: list[Tensor] = []
        repeated = []
        with step_out_of_memory(len(examples), parts), tf32(runner.config.tf32):
            for part in split_batch(examples, parts):
                loss, is_repeated = self.accumulate_part(part, weight, is_first=not losses)
                losses.append(loss)
                repeated.append(is_repeated)
            if all(repeated):
                self.repeated += 1
            penalty = regularization_loss(runner.encoder.model)
            if isinstance(penalty, Tensor):
                penalty.backward()
                losses.append(penalty.detach())
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def accumulate_part(
        self, examples: list[EncodedExample], weight: float, *, is_first: bool
    ) -> tuple[Tensor, bool]:
        """Add the gradient of a micro-batch; return its loss, and whether a recorded step was repeated.

        Args:
            examples: of the micro-batch.
            weight: factor on its summed loss.
            is_first: whether the gradient begins at 0.
        """
        if self.bf16_weights and is_first:
            self.bf16_weights.renew_frozen()
        batch = self.batch_of(examples, weight)
        inputs = {
            name: copy_to_device(values, self.runner.device) for name, values in batch.items()
        }
        compute = partial(self.compute, inputs, is_first=is_first)
        tokens = len(inputs["index"]) if self.is_packed else 0
        width = inputs["attention_mask"].shape[-1]
        size = _Size(len(examples), tokens, width, is_first)
        self.uses[size] += 1
        records = self.runner.config.record_steps and not self.obstacle
        if self.uses[size] <= _WARM_UP or not records:
            return compute(), False
        # A recording computes nothing: its step is computed by the first replay, below.
        if size not in self.graphs:
            replay, loss = self.record(compute)
            self.graphs[size] = _RecordedStep(inputs, replay, loss)
        return self._replay(self.graphs[size], inputs), True

    def _replay(self, recorded: _RecordedStep, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the gradient of a micro-batch by a recorded step; return its loss.

        Args:
            recorded: a step of the micro-batch's size.
            inputs: of `batch_of`, on the device.
        """
        for name, values in inputs.items():
            recorded.inputs[name].copy_(values)
        recorded.replay()
        # The graph has written the gradients, but a replay sets no attribute of Python's: the step
        # before has ended by setting `grad` to None.
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        # The next replay writes its loss into the same memory.
        return recorded.loss.clone()

    def batch_of(self, examples: list[EncodedExample], weight: float) -> dict[str, Tensor]:
        """Collate a micro-batch with its labels, and with an example of padding if it is packed.

        Args:
            examples: of the micro-batch.
            weight: factor on its summed loss.

        Returns:
            Tensors on the CPU: those of `collate`; `index` and `offsets` of the packed tokens, as
            `real_token_index` gives them, if the layers get such; `labels` and `weight`.
        """
        width = self._width_of(examples)
        pad = self.runner.pad
        if self.is_packed:
            batch = collate([*examples, padding_example(examples, pad, width)], pad, multiple=width)
            token_mask = batch["attention_mask"].flatten(0, -2)
            batch["index"], batch["offsets"] = real_token_index(token_mask)
        else:
            batch = collate(examples, pad, multiple=width)
        batch["labels"] = torch.from_numpy(label_array(self.runner.task, examples, width))
        batch["weight"] = torch.tensor(weight)
        return batch

    def _width_of(self, examples: list[EncodedExample]) -> int:
        """Return to how many tokens a micro-batch is padded; batches of few widths share a graph."""
        # Where attention has no padding, only embeddings and task head compute on the width: that of
        # the longest train example serves all.
        if self.has_fixed_width:
            return self.width
        tokens = max(map(len, examples))
        if not self.is_packed:
            tokens += _LEAST_PADDING
        return min(_rounded_up(tokens, _WIDTH_MULTIPLE), self.width)

    def compute(self, inputs: dict[str, Tensor], *, is_first: bool) -> Tensor:
        """Compute gradient and loss of a micro-batch; the host only launches kernels.

        Args:
            inputs: of `batch_of`, on the device.
            is_first: whether the gradient begins at 0.
        """
        for parameter in self.parameters:
            parameter.grad = None
        runner = self.runner
        of_model = dict(inputs)
        labels = of_model.pop("labels")
        weight = of_model.pop("weight")
        copies: AbstractContextManager[None] = nullcontext()
        if self.bf16_weights:
            # Between the micro-batches of a step no weight changes.
            if is_first:
                self.bf16_weights.refresh()
            copies = self.bf16_weights.in_use()
        packed = self._packed_batch(of_model) if self.is_packed else None
        with copies:
            logits = runner.forward(of_model, packed)
        if self.is_packed:
            # The last example is that of padding.
            logits = logits[:-1]
        targets = Targets(labels, self.class_weights_on_device, runner.config.label_smoothing)
        loss = LOSSES[runner.task.kind](logits, targets) * weight
        loss.backward()
        self.keep_gradients(self._new_gradients(), is_first=is_first)
        return loss.detach()

    def _new_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Take the gradients of a backward pass out of the parameters, and out of their copies."""
        gradients: dict[nn.Parameter, Tensor] = {}
        if self.bf16_weights:
            gradients = self.bf16_weights.take_gradients()
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            # A weight may be read outside of its Linear too: the gradients of both uses add up.
            if parameter in gradients:
                gradients[parameter] = parameter.grad + gradients[parameter]
            else:
                gradients[parameter] = parameter.grad
            parameter.grad = None
        return gradients

    def keep_gradients(self, new: dict[nn.Parameter, Tensor], *, is_first: bool) -> None:
        """Write new gradients to where they are in every step, or add them to what is there.

        The backward pass cannot write there: it adds to the gradient that a parameter has. To set
        that to 0 first, and to add, moves twice the bytes of writing.

        Args:
            new: of a micro-batch by their parameters, float32, or bfloat16 of copies.
            is_first: whether the gradient begins at 0.
        """
        for parameter in new:
            if parameter not in self.gradients:
                self.gradients[parameter] = torch.zeros_like(parameter)
        if is_first:
            unused = [kept for parameter, kept in self.gradients.items() if parameter not in new]
            if unused:
                torch._foreach_zero_(unused)
        # One call takes any number of tensors, but of one type.
        by_type: dict[torch.dtype, list[nn.Parameter]] = defaultdict(list)
        for parameter, gradient in new.items():
            by_type[gradient.dtype].append(parameter)
        for parameters in by_type.values():
            kept = [self.gradients[parameter] for parameter in parameters]
            values = [new[parameter] for parameter in parameters]
            if is_first:
                torch._foreach_copy_(kept, values)
            else:
                torch._foreach_add_(kept, values)
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient

    def _packed_batch(self, inputs: dict[str, Tensor]) -> PackedBatch:
        """Take the places of the tokens out of the inputs of a packed batch.

        Args:
            inputs: of `batch_of`; those that remain are the model's.
        """
        index = inputs.pop("index")
        offsets = inputs.pop("offsets")
        token_mask = inputs["attention_mask"].flatten(0, -2).bool()
        longest = min(token_mask.shape[1], len(index))
        return PackedBatch(
            index, token_mask, offsets if self.runner.uses_varlen else None, longest=longest
        )

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record what `compute` does, without doing it.

        Args:
            compute: launches the kernels of a step, and returns its loss.

        Returns:
            What does it, and where its loss is then.

        Raises:
            RecordingFailed: PyTorch's allocator and random generator are then in the middle of a
                recording: the process can train nothing more.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with _no_garbage_collection(), torch.cuda.graph(graph, pool=self.pool):
                loss = compute()
        except RuntimeError as error:
            # The first error is the cause; leaving the recording raises another one after it.
            cause = _line_of_cause(str(error.__context__ or error))
            raise RecordingFailed(
                f"the training step cannot be recorded as a CUDA graph ({cause});"
                " set record_steps=false, which computes the same without a recording"
            ) from error
        # The graphs of a stage follow each other, so that they may use the same memory.
        self.pool = graph.pool()
        return graph.replay, loss


def _line_of_cause(message: str) -> str:
    """Return the line of an error's message that says what failed, at most 150 characters of it."""
    # TorchScript puts a traceback of its own before the error.
    _, _, error = message.rpartition("\nRuntimeError: ")
    line, _, _ = error.strip().partition("\n")
    return line[:150]


def _largest_width(runner: ModelRunner, longest: int) -> int:
    """Return to how many tokens the batch with the longest example is padded.

    Args:
        runner: says whether tokens are packed, and which multiples a width is of.
        longest: tokens of the longest example.
    """
    width = _rounded_up(longest, runner.width_multiple)
    if runner.is_padding_free:
        return width
    positions = getattr(runner.encoder.model.config, "max_position_embeddings", 0)
    with_padding = _rounded_up(longest + _LEAST_PADDING, runner.width_multiple)
    # Without a position for the padding, the batch with the longest example has none.
    return min(with_padding, max(positions, width))


def padding_example(
    examples: list[EncodedExample], pad: dict[str, int], width: int
) -> EncodedExample:
    """Make an example of padding that fills a batch up to a multiple of 128 tokens, or of its width.

    Args:
        examples: of the batch; the new one has as many sequences as each of them.
        pad: the padding value of each of the tokenizer's lists.
        width: the most tokens that a sequence can have.
    """
    first = examples[0]
    tokens = sum(
        len(sequence["input_ids"]) for example in examples for sequence in example.sequences
    )
    multiple = min(_MULTIPLE, width)
    missing = multiple - tokens % multiple
    # At least one token in each sequence.
    while missing < len(first.sequences):
        missing += multiple
    sequences = []
    for part in np.array_split(np.arange(missing), len(first.sequences)):
        values = {name: np.full(len(part), pad.get(name, 0)) for name in first.sequences[0]}
        sequences.append(values)
    # Its target words are its first token.
    word_spans = tuple((0, 1) for _ in first.word_spans)
    return EncodedExample(first.row, tuple(sequences), word_spans)


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
