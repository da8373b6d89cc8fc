"""A training step: forward, loss, backward, the method's hooks, optimizer; and predictions."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    TorchDynamoPlugin,
)
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.errors import RunFailed
from hifi_cli.methods.base import Method, Phase
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.token_packing import PackedBatch, copy_to_device, packed_forward
from hifi_cli.tasks import losses, metrics
from hifi_cli.tasks.encode import collate, evaluation_order, rows_of, split_batch
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Example, Split, TaskSpec
from hifi_cli.training import machine
from hifi_cli.training.machine import tf32, uses_bf16, uses_cpu_kernels

_GPU_MULTIPLE = 8  # tokens: GPU kernels require aligned attention masks


class NonFiniteLogits(RunFailed):
    """A model gives logits that are not finite: its weights are not, or are too large."""


@dataclass
class ModelRunner:
    """A model on its device, with what a step and a prediction need.

    Attributes:
        model: the model of `encoder`, wrapped in DDP between `wrap` and `unwrap` if several
            processes train it.
    """

    encoder: Encoder
    task: TaskSpec
    config: RunConfig
    pad: dict[str, int]
    device: torch.device

    def __post_init__(self) -> None:
        self.accelerator = _plain_accelerator(self.config)
        self.uses_autocast = uses_bf16(self.config.precision, self.device) and not uses_cpu_kernels(self.config, self.device)
        self.model: nn.Module = self.encoder.model
        self.is_padding_free = self.config.padding_free and self.encoder.can_pack
        self.to_device()

    def to_device(self) -> None:
        """Move the model, with whatever was added to it, to where it runs."""
        self.model.to(self.device)

    def wrap(self) -> None:
        """Wrap the model in DDP, if several processes train it."""
        self.model = self.accelerator.prepare_model(self.encoder.model, device_placement=False)

    def unwrap(self) -> None:
        """Undo `wrap`: what trains is about to change; until then every process computes all."""
        self.model = self.encoder.model

    @property
    def is_ddp(self) -> bool:
        """Whether each process computes a part of a training batch, not all of it."""
        return self.model is not self.encoder.model

    def autocast(self) -> AbstractContextManager[Any]:
        """torch.autocast to bfloat16 in training; CPU kernels cast their inputs themselves."""
        is_used = self.uses_autocast and self.encoder.model.training
        if not is_used:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def logits(self, examples: list[Example]) -> Tensor:
        """The model's output for some examples, float32.

        Returns:
            [examples, classes or choices]; for spans [examples, 2, tokens], for token
            classification [examples, tags, tokens].
        """
        batch = collate(examples, self.pad, multiple=_GPU_MULTIPLE if self.device.type == "cuda" else 1)
        with ExitStack() as contexts:
            contexts.enter_context(self.autocast())
            if self.is_padding_free:
                token_mask = batch.pop("attention_mask").bool().flatten(0, -2)
                packed = PackedBatch.of(token_mask, self.device)
                contexts.enter_context(packed_forward(self.encoder, packed))
            inputs = {name: copy_to_device(values, self.device) for name, values in batch.items()}
            output = self.model(**inputs)
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
        parts = self.config.gradient_accumulation_steps
        with _out_of_memory(
            f"a batch of {len(examples)} in {parts} parts",
            f"set gradient_accumulation_steps={2 * parts}",
        ):
            loss = self._accumulate_gradient(examples, regularization_loss)
        mean: Tensor = self.accelerator.reduce(loss, "mean") if self.is_ddp else loss
        return mean

    def _accumulate_gradient(
        self,
        examples: list[Example],
        regularization_loss: Callable[[nn.Module], Tensor | float] | None,
    ) -> Tensor:
        """Compute gradient and loss of this process's examples; DDP averages the gradient."""
        world, rank = 1, 0
        if self.is_ddp:
            world, rank = self.accelerator.num_processes, self.accelerator.process_index
        indices = list(range(len(examples)))[rank::world]
        # a process without examples takes part with a weight of 0
        parts = list(split_batch(indices or [0], self.config.gradient_accumulation_steps))
        total = torch.zeros((), device=self.device)
        summands = losses.count(self.task, examples)
        with tf32(self.config.tf32):
            for number, part in enumerate(parts):
                is_last = number == len(parts) - 1
                with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                    # DDP averages over processes; times `world` it is the mean over the whole
                    # batch.
                    weight = world * bool(indices) / summands
                    loss = self.loss([examples[index] for index in part]) * weight
                    if is_last and regularization_loss:
                        loss = loss + regularization_loss(self.encoder.model)
                    self.accelerator.backward(loss)
                total += loss.detach()
        return total

    def predict(self, examples: list[Example]) -> Values:
        """Logits of all examples, without dropout; -inf beyond a batch's tokens.

        The processes of a run share the batches, and each gets all logits.

        Raises:
            RunFailed: they do not fit in memory.
        """
        size = self.config.eval_batch_size
        with _out_of_memory(f"an evaluation batch of {size}", "set a smaller eval_batch_size"):
            own = self.predict_own_batches(examples)
        return _in_order([batch for part in machine.gather(own) for batch in part], len(examples))

    @torch.inference_mode()
    def predict_own_batches(self, examples: list[Example]) -> list[tuple[list[int], Values]]:
        """The batches of this process: the numbers of their examples, and their logits."""
        self.encoder.model.eval()
        batches = evaluation_order(examples, self.config.eval_batch_size)
        own = batches[self.accelerator.process_index :: self.accelerator.num_processes]
        with tf32(False):  # also where the user allows it for the whole process
            return [(batch, self.logits([examples[index] for index in batch]).cpu().numpy()) for batch in own]

    def measure(self, examples: list[Example], split: Split = "validation") -> tuple[dict[str, float], Values]:
        """Compute every metric of the task on some examples of a split; returns their logits too.

        Raises:
            NonFiniteLogits: a logit is not finite.
        """
        logits = self.predict(examples)
        if np.isnan(logits).any() or np.isposinf(logits).any():  # -inf is beyond a batch's tokens
            raise NonFiniteLogits("the model's logits are not finite; try a smaller learning_rate=...")
        predictions = metrics.predictions_of(self.task, examples, logits)
        return metrics.compute(self.task.on_split(split), rows_of(examples), predictions), logits


@dataclass(frozen=True)
class PhaseState:
    """The optimizer of a phase and what belongs to it.

    Attributes:
        training: the learning rate and the like of this phase.
        clip_groups: parameters whose gradients are clipped by one norm.
    """

    method: Method
    training: TrainingConfig
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LambdaLR
    clip_groups: list[list[nn.Parameter]]

    @classmethod
    def create(cls, runner: ModelRunner, phase: Phase, steps: int) -> "PhaseState":
        """A new AdamW over what the phase trains, and its schedule over `steps` steps."""
        training, model = phase.training or runner.config, runner.encoder.model
        optimizer = torch.optim.AdamW(
            phase.method.param_groups(model, training.weight_decay),
            lr=training.learning_rate,
            betas=training.adam_betas,
            eps=training.adam_epsilon,
            fused=True,
        )
        schedules = {"run": learning_rate_factor(training, steps), "constant": lambda _: 1.0}
        factors = [schedules[group.get("lr_schedule", "run")] for group in optimizer.param_groups]
        lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return cls(phase.method, training, optimizer, lr_scheduler, phase.method.clip_groups(model))

    @property
    def has_trained(self) -> bool:
        """Whether a step had a learning rate above 0: the first step of a warm-up has rate 0."""
        steps = self.lr_scheduler.last_epoch  # taken so far, in spite of its name
        return any(factor(step) > 0 for factor in self.lr_scheduler.lr_lambdas for step in range(steps))


def train_step(
    runner: ModelRunner,
    state: PhaseState,
    batch: list[Example],
    step: int,
    on_backward_end: Callable[[], None],
) -> Tensor:
    """One optimizer step on a batch; returns its loss, which nothing waits for.

    Args:
        step: finished steps of the run.
        on_backward_end: called with the gradient of the whole batch, before it is clipped.
    """
    method, model = state.method, runner.encoder.model
    method.before_step(model, step)
    loss = runner.accumulate_gradient(batch, method.regularization_loss)
    method.after_backward(model)
    on_backward_end()
    if state.training.max_grad_norm:
        for parameters in state.clip_groups:
            runner.accelerator.clip_grad_norm_(parameters, state.training.max_grad_norm)
    method.before_optimizer_step(model)
    state.optimizer.step()
    state.lr_scheduler.step()
    method.after_optimizer_step(model)
    state.optimizer.zero_grad(set_to_none=True)
    return loss


def learning_rate_factor(training: TrainingConfig, steps: int) -> Callable[[int], float]:
    """Linear warm-up over the fraction `warmup` of all steps, then linear decay or a constant."""
    warmup_steps = math.ceil(training.warmup * steps)

    def factor(step: int) -> float:
        if step < training.hold_steps:
            return training.hold_factor
        if step < warmup_steps:
            return step / warmup_steps
        if training.schedule == "constant":
            return 1.0
        remaining = max(0.0, (steps - step) / max(1, steps - warmup_steps))
        return training.final_factor + (1 - training.final_factor) * remaining

    return factor


def _plain_accelerator(config: RunConfig) -> Accelerator:
    """An Accelerator that only distributes: precision and micro-batches are the run's own.

    Otherwise `accelerate launch`, its environment variables, or a Trainer before it in the same
    process would decide them.
    """
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != "no":
        AcceleratorState._reset_state()
    own_head = config.task_head.kind == "mlp"  # it does not read the pooler below it
    # every process has the same buffers: nothing trained is a buffer
    ddp = DistributedDataParallelKwargs(find_unused_parameters=own_head, broadcast_buffers=False)
    return Accelerator(
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_plugin=TorchDynamoPlugin(backend="no"),
        kwargs_handlers=[ddp],
    )


def _in_order(batches: list[tuple[list[int], Values]], examples: int) -> Values:
    """The logits of batches, by the numbers of their examples; -inf where a batch is narrower."""
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
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        is_onednn = "could not create a primitive" in str(error)
        if not (is_memory or is_onednn or should_reduce_batch_size(error)):
            raise
        raise RunFailed(f"{subject} does not fit in memory; {fix}, or take a smaller max_length or backbone") from None
