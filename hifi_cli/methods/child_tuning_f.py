"""Child-Tuning-F (Xu et al., EMNLP 2021): each step updates a random child network."""

import torch
from pydantic import Field
from torch import nn

from hifi_cli.methods.base import Method
from hifi_cli.methods.common import step_generator
from hifi_cli.models.encoder import Encoder


class ChildTuningF(Method):
    """Keep each gradient entry with probability p, divided by p, by a new mask in every step.

    The full gradient is clipped, then masked, before Adam's moments. The expected gradient is the
    clipped one. No weight stays frozen: moments and weight decay change all weights.
    """

    before_step_is_recordable = True

    class Settings(Method.Settings):
        """Size of the gradient mask."""

        p: float = Field(0.3, gt=0, le=1)
        """Fraction of the gradient that is kept."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)

    def before_step(self, model: nn.Module, step: int, steps: range) -> None:  # noqa: ARG002
        self._step = step

    def before_optimizer_step(self, model: nn.Module) -> None:
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        sizes = [gradient.numel() for gradient in gradients]
        device = gradients[0].device
        generator = step_generator(self.context.seed, self._step, device)
        # One draw for all tensors, and one call for all below: hundreds of small operations would
        # keep a GPU waiting for the host.
        draws = torch.rand(sum(sizes), generator=generator, device=device)
        # In place, so that the mask is of 1.0 and 0.0: multiplying by bool is slower on a GPU.
        kept = draws.lt_(self.settings.p).split(sizes)
        masks = [mask.view_as(value) for mask, value in zip(kept, gradients, strict=True)]
        torch._foreach_mul_(gradients, masks)
        torch._foreach_div_(gradients, self.settings.p)
