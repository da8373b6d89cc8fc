"""Child-Tuning-F (Xu et al., EMNLP 2021): each step updates a random child network, drawn without the task's data."""

import torch
from pydantic import Field
from torch import nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.methods.base import Method, step_generator
from hifi_cli.models.encoder import Encoder


class ChildTuningF(Method):
    """Keep each gradient entry with probability p and divide it by p, with a new random mask in every step.

    The full gradient is clipped, then masked, before Adam's moments. The expected gradient is the clipped one. No weight stays
    frozen: moments and weight decay change all weights.
    """

    class Settings(ConfigModel):
        """Size of the gradient mask."""

        p: float = Field(0.3, gt=0, le=1)
        """Fraction of the gradient that is kept."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)

    def before_step(self, model: nn.Module, step: int) -> None:  # noqa: ARG002
        self._draws = step_generator(self.context.seed, step)

    def before_optimizer_step(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                draws = torch.rand(parameter.shape, generator=self._draws).to(parameter.device)
                parameter.grad.mul_(draws < self.settings.p).div_(self.settings.p)
