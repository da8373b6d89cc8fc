"""A model on its device: the gradient of a training batch, and predictions."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, TorchDynamoPlugin
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.token_packing import PackedBatch, copy_to_device, packed_forward
from hifi_cli.tasks import losses
from hifi_cli.tasks.batches import collate, evaluation_order, split_batch
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.tasks.tokenization import Example
from hifi_cli.training import distributed
from hifi_cli.training.device import FrozenCasts, configure, tf32, uses_bf16, uses_cpu_kernels

_GPU_MULTIPLE = 8  # tokens: GPU kernels require aligned attention masks
_NO_MEMORY = ("could not create a primitive", "CUBLAS_STATUS_ALLOC_FAILED")  # oneDNN's words, and cuBLAS's


@dataclass
class ModelRunner:
    """A model on its device, with what a step and a prediction need.

    Attributes:
        device: where it computes.
        model: the model of `encoder`, wrapped in DDP between `wrap` and `unwrap` if several processes train it.
    """

    encoder: Encoder
    task: TaskSpec
    config: RunConfig
    pad: dict[str, int]

    def __post_init__(self) -> None:
        own_head = self.config.task_head.kind == "mlp"  # it does not read the pooler below it
        # every process has the same buffers: nothing trained is a buffer
        ddp = DistributedDataParallelKwargs(find_unused_parameters=own_head, broadcast_buffers=False)
        self.device = configure(self.config)
        self.accelerator = _plain_accelerator(ddp)
        self.uses_autocast = uses_bf16(self.config.precision, self.device) and not uses_cpu_kernels(self.config)
        self.model: nn.Module = self.encoder.model
        self.is_padding_free = self.config.padding_free and self.encoder.can_pack
        self.frozen_casts: FrozenCasts | None = None
        self.to_device()

    def to_device(self) -> None:
        """Move the model, with whatever was added to it, to where it runs."""
        self.model.to(self.device)

    def wrap(self) -> None:
        """Wrap the model in DDP, if several processes train it, and cast frozen weights if it trains in bfloat16."""
        self.frozen_casts = FrozenCasts(self.encoder.model) if self.uses_autocast else None
        self.model = self.accelerator.prepare_model(self.encoder.model, device_placement=False)

    def unwrap(self) -> None:
        """Undo `wrap`: what trains is about to change, and until then every process computes the same."""
        self.model, self.frozen_casts = self.encoder.model, None

    def autocast(self) -> AbstractContextManager[Any]:
        """torch.autocast to bfloat16, in training and if the run requires it; CPU kernels cast their inputs themselves."""
        is_used = self.uses_autocast and self.encoder.model.training
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if is_used else nullcontext()

    def logits(self, examples: list[Example]) -> Tensor:
        """The model's output for some examples, float32.

        Returns:
            [examples, classes or choices]; for spans [examples, 2, tokens], for token classification [examples, tags, tokens].
        """
        batch = collate(examples, self.pad, multiple=_GPU_MULTIPLE if self.device.type == "cuda" else 1)
        with ExitStack() as contexts:
            contexts.enter_context(self.autocast())
            if self.is_padding_free:
                token_mask = batch.pop("attention_mask").bool().flatten(0, -2)
                contexts.enter_context(packed_forward(self.encoder, PackedBatch.of(token_mask, self.device)))
            output = self.model(**{name: copy_to_device(values, self.device) for name, values in batch.items()})
        if self.task.kind == "span":
            return torch.stack((output.start_logits, output.end_logits), 1).float()
        logits: Tensor = output.logits.float()
        return logits.transpose(1, 2) if self.task.kind == "token-classification" else logits

    def loss(self, examples: list[Example]) -> Tensor:
        """The task's loss, summed as `losses.loss` says."""
        return losses.loss(self.task, self.logits(examples), examples)

    def accumulate_gradient(
        self,
        examples: list[Example],
        regularization_loss: Callable[[nn.Module], Tensor | float] | None = None,
    ) -> Tensor:
        """Compute the gradient of the mean loss over a batch, in micro-batches; returns that loss.

        Args:
            regularization_loss: a term that depends on the parameters alone, added once.

        Raises:
            RunFailed: it does not fit in memory.
        """
        with _out_of_memory(
            f"a batch of {len(examples)} in {self.config.gradient_accumulation_steps} parts",
            f"set gradient_accumulation_steps={2 * self.config.gradient_accumulation_steps}",
        ):
            loss = self._accumulate_gradient(examples, regularization_loss)
        mean: Tensor = self.accelerator.reduce(loss, "mean") if self.is_ddp else loss
        return mean

    def _accumulate_gradient(
        self, examples: list[Example], regularization_loss: Callable[[nn.Module], Tensor | float] | None
    ) -> Tensor:
        """Compute the gradient and the loss of this process's examples; DDP averages the gradient."""
        world, rank = (self.accelerator.num_processes, self.accelerator.process_index) if self.is_ddp else (1, 0)
        indices = list(range(len(examples)))[rank::world]
        # a process without examples takes part with a weight of 0
        micro_batches = list(split_batch(indices or [0], self.config.gradient_accumulation_steps))
        total, summands = torch.zeros((), device=self.device), losses.count(self.task, examples)
        with tf32(self.config.tf32), self.frozen_casts.in_use() if self.frozen_casts else nullcontext():
            for number, micro_batch in enumerate(micro_batches):
                is_last = number == len(micro_batches) - 1
                with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                    # DDP averages over processes; times `world` it is the mean over the whole batch.
                    loss = self.loss([examples[index] for index in micro_batch]) * (world * bool(indices) / summands)
                    if is_last and regularization_loss:
                        loss = loss + regularization_loss(self.encoder.model)
                    self.accelerator.backward(loss)
                total += loss.detach()
        return total

    @property
    def is_ddp(self) -> bool:
        """Whether every process computes a part of each training batch; otherwise each computes the whole batch."""
        return self.model is not self.encoder.model

    def predict(self, examples: list[Example]) -> Values:
        """Logits of all examples in their own order, as `logits` gives them; -inf beyond a batch's tokens; dropout off.

        The processes of a run share the batches, and each gets all logits.

        Raises:
            RunFailed: they do not fit.
        """
        size = self.config.eval_batch_size
        with _out_of_memory(f"an evaluation batch of {size}", "set a smaller eval_batch_size"):
            own = self.predict_own_batches(examples)
        return _in_order([batch for part in distributed.gather(own) for batch in part], len(examples))

    @torch.inference_mode()
    def predict_own_batches(self, examples: list[Example]) -> list[tuple[list[int], Values]]:
        """The batches of this process: the numbers of their examples, and their logits."""
        self.encoder.model.eval()
        batches = evaluation_order(examples, self.config.eval_batch_size)
        own = batches[self.accelerator.process_index :: self.accelerator.num_processes]
        with tf32(False):  # also where the user allows it for the whole process
            return [(batch, self.logits([examples[index] for index in batch]).cpu().numpy()) for batch in own]


def _plain_accelerator(ddp: DistributedDataParallelKwargs) -> Accelerator:
    """An Accelerator that only distributes: precision, micro-batches and compilation are a run's own configuration.

    Otherwise `accelerate launch`, its environment variables, or a Trainer before it in the same process would decide them.
    """
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != "no":
        AcceleratorState._reset_state()
    return Accelerator(
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_plugin=TorchDynamoPlugin(backend="no"),
        kwargs_handlers=[ddp],
    )


def _in_order(batches: list[tuple[list[int], Values]], examples: int) -> Values:
    """The logits of batches, by the numbers of their examples; -inf where a batch is narrower than the widest one."""
    if not batches:
        return np.zeros(0)
    widest = max((logits for _, logits in batches), key=lambda logits: logits.shape[-1])
    joined = np.full((examples, *widest.shape[1:]), -np.inf)
    for batch, logits in batches:
        joined[batch, ..., : logits.shape[-1]] = logits
    return joined


@contextmanager
def _out_of_memory(subject: str, fix: str) -> Iterator[None]:
    """Turn every way of running out of memory into one error."""
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        raise RunFailed(f"{subject} does not fit in memory; {fix}, or take a smaller max_length or backbone") from None


def _is_out_of_memory(error: Exception) -> bool:
    is_known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or should_reduce_batch_size(error)
    return is_known or any(words in str(error) for words in _NO_MEMORY)
