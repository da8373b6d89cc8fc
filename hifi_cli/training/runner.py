"""A model on its device: what a training step, an evaluation and a prediction compute."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils import reduce
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.token_packing import (
    PackedBatch,
    copy_to_device,
    has_varlen_kernels,
    packed_forward,
)
from hifi_cli.tasks import scores
from hifi_cli.tasks.encode import collate, rows_of, split_batch
from hifi_cli.tasks.examples import Values
from hifi_cli.tasks.task_spec import EncodedExample, Split, TaskSpec
from hifi_cli.text import counted_noun
from hifi_cli.training import processes
from hifi_cli.training.batches import batches_by_length, in_order
from hifi_cli.training.device import tf32, uses_bf16
from hifi_cli.training.losses import ClassWeights, logits_of, loss_normalizer, task_loss

# On a GPU the width of a batch is rounded up to a multiple of this many tokens, because the
# attention kernels require aligned masks.
_GPU_MULTIPLE = 8


class Diverged(RunFailed):
    """The training loss, or what the model predicts, is no longer a finite number."""


@dataclass(frozen=True)
class _BatchShare:
    """The part of a batch that one process computes.

    Attributes:
        parts: its examples, in micro-batches; at least one.
        weight: factor on the summed loss of each part.
    """

    parts: list[list[EncodedExample]]
    weight: float


@dataclass
class ModelRunner:
    """A model on its device, with what a step and a prediction need.

    Attributes:
        encoder: the model and its parts.
        task: with the primary metric of the run.
        config: of the run.
        pad: the padding value of each of the tokenizer's lists.
        device: where the model is; making the runner moves it there.
        model: the model of `encoder`, wrapped in DDP between `wrap` and `unwrap` if several
            processes train it.
        process_state: accelerate's: which of how many processes that train together this one is.
        uses_autocast: whether training computes in bfloat16.
        is_padding_free: whether the layers get packed tokens.
        uses_varlen: whether kernels for sequences of any length compute attention.
        width_multiple: a batch is as wide as a multiple of so many tokens.
        may_record: whether training steps are recorded and repeated, where that is possible.
    """

    encoder: Encoder
    task: TaskSpec
    config: RunConfig
    pad: dict[str, int]
    device: torch.device

    def __post_init__(self) -> None:
        self.process_state = processes.process_state()
        self.uses_autocast = uses_bf16(self.config.precision, self.device)
        self.is_padding_free = self.config.padding_free and self.encoder.can_pack
        self.width_multiple = _GPU_MULTIPLE if self.device.type == "cuda" else 1
        self.uses_varlen = (
            self.is_padding_free
            and self.config.kernels != "torch"
            and has_varlen_kernels(self.device, self.encoder.head_size)
        )
        self.may_record = self.device.type == "cuda" and self.config.kernels != "torch"
        self.model: nn.Module = self.encoder.model.to(self.device)

    @property
    def batch_size(self) -> int:
        """The examples of a training step."""
        return self.config.batch_size

    def wrap(self) -> None:
        """Wrap the model in DDP, if several processes train it."""
        if self.process_state.num_processes == 1:
            return
        device_ids = [self.device] if self.device.type == "cuda" else None
        # EH-FT's task head does not read the pooler below it, and DDP would wait for the pooler's
        # gradient.
        has_unused_parameters = self.config.task_head.kind == "mlp"
        self.model = DistributedDataParallel(
            self.encoder.model,
            device_ids=device_ids,
            # Nothing that trains is a buffer: all processes have the same ones.
            broadcast_buffers=False,
            find_unused_parameters=has_unused_parameters,
        )

    def unwrap(self) -> None:
        """Undo `wrap`, because what trains is about to change.

        Until the next `wrap`, every process computes the gradients of all examples by itself.
        """
        self.model = self.encoder.model

    def logits(self, examples: list[EncodedExample]) -> Tensor:
        """Compute the model's output for some examples.

        Returns:
            float32 [examples, classes or choices]; for spans [examples, 2, tokens], for token
            classification [examples, tags, tokens].
        """
        batch = collate(examples, self.pad, multiple=self.width_multiple)
        inputs = {name: copy_to_device(values, self.device) for name, values in batch.items()}
        packed = None
        if self.is_padding_free:
            # The choices of an example are sequences of their own.
            token_mask = batch["attention_mask"].flatten(0, -2)
            device_mask = inputs["attention_mask"].flatten(0, -2)
            packed = PackedBatch.of(token_mask, device_mask, varlen=self.uses_varlen)
        return self.forward(inputs, packed)

    def forward(self, inputs: dict[str, Tensor], packed: PackedBatch | None) -> Tensor:
        """Compute the model's output for a batch on the device, as `logits` does.

        Args:
            inputs: padded, as `collate` makes them.
            packed: where the real tokens are; None: the layers compute on padding too.
        """
        with ExitStack() as contexts:
            # Evaluations compute in float32 on all hardware, so that scores do not depend on
            # bfloat16.
            if self.uses_autocast and self.encoder.model.training:
                contexts.enter_context(torch.autocast(self.device.type, dtype=torch.bfloat16))
            if packed:
                contexts.enter_context(packed_forward(self.encoder, packed))
            output = self.model(**inputs)
        return logits_of(self.task, output)

    def loss(self, examples: list[EncodedExample]) -> Tensor:
        """Compute the task's loss, summed as `task_loss` says, without weights and smoothing."""
        return task_loss(self.task, self.logits(examples), examples)

    def accumulate_gradient(
        self,
        examples: list[EncodedExample],
        class_weights: ClassWeights = None,
        regularization_loss: Callable[[nn.Module], Tensor | float] | None = None,
    ) -> Tensor:
        """Compute the gradient of the mean loss over a batch, in micro-batches; return that loss.

        Under DDP each process computes a part of the batch, and the gradients are averaged.

        Args:
            examples: the batch; every process gets all of it.
            class_weights: one for each class, in the loss; None: equal ones.
            regularization_loss: a term that depends on the parameters alone, added once.

        Raises:
            RunFailed: it does not fit in memory.
        """
        share = self._share_of(examples, class_weights)
        smoothing = self.config.label_smoothing
        total = torch.zeros((), device=self.device)
        with (
            step_out_of_memory(len(examples), self.config.gradient_accumulation_steps),
            tf32(self.config.tf32),
        ):
            for part in share.parts:
                is_last = part is share.parts[-1]
                with self._gradients_exchanged_if(is_last):
                    loss = task_loss(self.task, self.logits(part), part, class_weights, smoothing)
                    loss = loss * share.weight
                    # Once a step and in every process: DDP's mean over equal terms is the term
                    # itself.
                    if is_last and regularization_loss:
                        loss = loss + regularization_loss(self.encoder.model)
                    loss.backward()
                total += loss.detach()
        if self._ddp is None:
            return total
        mean: Tensor = reduce(total, "mean")
        return mean

    @property
    def _ddp(self) -> DistributedDataParallel | None:
        """The model as several processes train it; None: this one computes all examples itself."""
        if isinstance(self.model, DistributedDataParallel):
            return self.model
        return None

    def _share_of(self, examples: list[EncodedExample], class_weights: ClassWeights) -> _BatchShare:
        """Return what this process computes of a batch.

        Args:
            examples: the whole batch.
            class_weights: of the loss; None: equal ones.
        """
        rank = 0
        world = 1
        if self._ddp is not None:
            rank = self.process_state.process_index
            world = self.process_state.num_processes
        # Every world-th example, so that processes differ by one example at most.
        own = examples[rank::world]
        # The loss is a sum, divided by the whole batch's normalizer. DDP averages the gradients
        # over the processes, which divides once more by their number: `world` undoes that.
        weight = world / loss_normalizer(self.task, examples, class_weights)
        if not own:
            # DDP waits for a backward pass in every process. One without examples computes an
            # example whose loss counts zero times.
            own = examples[:1]
            weight = 0.0
        parts = list(split_batch(own, self.config.gradient_accumulation_steps))
        return _BatchShare(parts, weight)

    def _gradients_exchanged_if(self, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a part's backward pass.

        The processes exchange gradients once, in the last part, when each has its sum.
        """
        if self._ddp is None or is_last:
            return nullcontext()
        return self._ddp.no_sync()

    @torch.inference_mode()
    def predict(self, examples: list[EncodedExample]) -> Values:
        """Compute the logits of all examples, without dropout.

        The processes of a run share the batches, and each gets all logits.

        Returns:
            float64, of the shape that `logits` has; -inf beyond the tokens of an example's batch.

        Raises:
            RunFailed: they do not fit in memory.
        """
        self.encoder.model.eval()
        size = self.config.eval_batch_size
        batches = batches_by_length(examples, size)
        rank = self.process_state.process_index
        world = self.process_state.num_processes
        # TF32 is off, also where the user's program allows it: scores are those of float32.
        with (
            _out_of_memory(f"an evaluation batch of {size}", "set a smaller eval_batch_size"),
            tf32(False),
        ):
            own_logits = [
                self.logits(batch.examples).cpu().numpy() for batch in batches[rank::world]
            ]
        # Process r computed the batches r, r + world, ...: their logits go back to these places.
        of_batches: list[Values] = [np.empty(0)] * len(batches)
        for process, logits in enumerate(processes.gather(own_logits)):
            of_batches[process::world] = logits
        return _padded(in_order(batches, of_batches))

    def measure(
        self, examples: list[EncodedExample], split: Split = "validation"
    ) -> tuple[dict[str, float], Values]:
        """Compute every metric of the task on some examples.

        Args:
            examples: those of a split.
            split: its name; some splits have metrics of their own.

        Returns:
            The metrics by name, as fractions, and the logits as `predict` gives them.

        Raises:
            Diverged: a logit is not finite.
        """
        logits = self.predict(examples)
        if count_rows_without_finite_logits(logits):
            raise Diverged("the logits are not finite")
        predictions = self.task.rules.predictions(examples, logits)
        of_split = self.task.on_split(split)
        return scores.compute(of_split, rows_of(examples), predictions), logits


def count_rows_without_finite_logits(logits: Values) -> int:
    """Count the examples with a logit that is NaN or infinite, of which no prediction follows.

    Minus infinity does not count: `ModelRunner.predict` pads with it, so that no padding is the
    highest logit.

    Args:
        logits: as `ModelRunner.predict` gives them.
    """
    not_finite = np.isnan(logits) | np.isposinf(logits)
    of_examples = not_finite.any(axis=tuple(range(1, logits.ndim)))
    return int(np.count_nonzero(of_examples))


def _padded(logits: list[Values]) -> Values:
    """Stack the logits of examples; -inf where those of a batch had fewer tokens.

    Args:
        logits: [..., classes or tokens] of each example.
    """
    widest = max(logits, key=lambda values: values.shape[-1])
    stacked = np.full((len(logits), *widest.shape), -np.inf)
    for row, values in zip(stacked, logits, strict=True):
        row[..., : values.shape[-1]] = values
    return stacked


def step_out_of_memory(examples: int, parts: int) -> AbstractContextManager[None]:
    """Turn running out of memory in a training step into one error, which names the remedy.

    Args:
        examples: of the batch.
        parts: micro-batches that it is computed in.
    """
    subject = f"a batch of {counted_noun(examples, 'example')} in {counted_noun(parts, 'part')}"
    return _out_of_memory(subject, f"set gradient_accumulation_steps={2 * parts}")


@contextmanager
def _out_of_memory(subject: str, fix: str) -> Iterator[None]:
    """Turn every way of running out of memory into one error.

    Args:
        subject: what does not fit.
        fix: what makes it smaller.

    Raises:
        RunFailed: in place of the errors of Python, PyTorch and oneDNN.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_of_onednn = "could not create a primitive" in str(error)
        is_of_memory = isinstance(error, MemoryError) or should_reduce_batch_size(error)
        if not (is_of_onednn or is_of_memory):
            raise
        raise RunFailed(
            f"{subject} does not fit in memory; {fix}, or take a smaller max_length or backbone"
        ) from None
