"""A model on its device: what one training step and one prediction compute."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.models.cpu_kernels import NOISE, wants_bf16
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.frozen_layer_cache import FrozenStates, lowest_trained_layer
from hifi_cli.tasks import losses
from hifi_cli.tasks.batches import collate, evaluation_order, split_batch
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.tasks.tokenization import Example


@dataclass
class ModelRunner:
    """A model on its device, with what a step and a prediction need.

    Attributes:
        auto_batch: whether a batch that does not fit in memory is computed in more parts.
        parts: what a batch is computed in; from `accumulation` on, more where memory asks for it.
    """

    encoder: Encoder
    task: TaskSpec
    config: RunConfig
    pad: dict[str, int]
    auto_batch: bool = False

    def __post_init__(self) -> None:
        own_head = self.config.task_head.kind == "mlp"  # it does not read the pooler below it
        unused = DistributedDataParallelKwargs(find_unused_parameters=own_head)
        self.accelerator = Accelerator(kwargs_handlers=[unused])
        self.parts = self.config.gradient_accumulation_steps
        self.eval_batch_size = self.config.eval_batch_size
        self.model: nn.Module = self.encoder.model
        self.frozen: FrozenStates | None = None
        self.to_device()

    def to_device(self) -> None:
        """Move the model, with whatever was added to it, to where it runs."""
        self.model.to(self.accelerator.device)

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast to bf16 on a GPU, or nothing: on a processor the model's layers see to it themselves."""
        on_gpu = self.accelerator.device.type == "cuda"
        return torch.autocast("cuda", dtype=torch.bfloat16) if on_gpu and wants_bf16(self.config.precision) else nullcontext()

    def logits(self, examples: list[Example]) -> Tensor:
        """The model's output for some examples, float32: [examples, classes or choices], or for spans [examples, 2, tokens]."""
        batch = {name: values.to(self.accelerator.device) for name, values in collate(examples, self.pad).items()}
        known = self.frozen.given(examples) if self.frozen and self.model.training else nullcontext()
        with self.precision(), known:
            output = self.model(**batch)
        span = self.task.kind == "span"
        result: Tensor = torch.stack((output.start_logits, output.end_logits), 1) if span else output.logits
        return result.float()

    def reuse_frozen(self, examples: list[Example]) -> None:
        """Compute the layers below the lowest trained one for these examples, which alone are trained on from now on.

        Raises:
            RunFailed: what they give does not fit in memory.
        """
        layer = lowest_trained_layer(self.encoder)
        self.frozen = FrozenStates(self.encoder, layer) if layer else None
        if self.frozen:
            with self.precision():
                self.frozen.compute(examples, self.pad, self.eval_batch_size, self.accelerator.device)

    def loss(self, examples: list[Example]) -> Tensor:
        """The task's loss, summed over the examples."""
        return losses.loss(self.task, self.logits(examples), examples)

    def accumulate_gradient(
        self, examples: list[Example], extra_loss: Callable[[nn.Module], Tensor | float] | None = None
    ) -> Tensor:
        """The gradient of the mean loss over a batch, whatever it is cut into; returns that loss.

        Args:
            extra_loss: a term of the parameters alone, added once.
        """
        NOISE.reseed()
        shared = self.model is not self.encoder.model  # wrapped by DDP; otherwise every process computes the whole
        world, rank = (self.accelerator.num_processes, self.accelerator.process_index) if shared else (1, 0)
        mine = list(range(len(examples)))[rank::world]
        parts = list(split_batch(mine or [0], self.parts))  # a process without a share takes part with a weight of 0
        total = torch.zeros((), device=self.accelerator.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                # DDP averages over processes; times `world` it is the mean over the whole batch.
                loss = self.loss([examples[index] for index in part]) * (world * bool(mine) / len(examples))
                if last and extra_loss:
                    loss = loss + extra_loss(self.encoder.model)
                self.accelerator.backward(loss)
            total += loss.detach()
        reduced: Tensor = self.accelerator.reduce(total, "mean") if world > 1 else total
        return reduced

    @torch.inference_mode()
    def predict(self, examples: list[Example]) -> Values:
        """Logits of all examples in their own order, as `logits` gives them; -inf beyond a batch's tokens; dropout off."""
        self.model.eval()
        logits = np.zeros(0)
        for batch in evaluation_order([len(example) for example in examples], self.eval_batch_size):
            found = self.logits([examples[index] for index in batch]).cpu().numpy()
            if not logits.size:  # the longest come first, so nothing later is wider
                logits = np.full((len(examples), *found.shape[1:]), -np.inf)
            logits[batch, ..., : found.shape[-1]] = found
        return logits
