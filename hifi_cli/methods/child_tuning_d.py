"""Child-Tuning-D (Xu et al., EMNLP 2021): the weights with the most Fisher information train."""

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import nn

from hifi_cli.methods.common import SparseMethod
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import top_k_masks


class ChildTuningD(SparseMethod):
    """Train the fraction p of the layers' weights with the highest Fisher information.

    All embeddings and the task head train too. The Fisher information is the mean over the training
    batches of the squared gradient (equation 6); the gradient of each tensor is clipped first, as
    in the authors' code. In training the full gradient is clipped, then masked (equation 4). Masked
    weights never change, not even by weight decay.
    """

    class Settings(SparseMethod.Settings):
        """Which weights train."""

        p: float = Field(0.3, gt=0, le=1)
        """Fraction of the layers' weights that trains, over all layers together."""
        mask: bool = True
        """Whether the mask acts. In EH-FT's released program it does not: it is keyed by the
        original parameters, while DeepSpeed's fp16 optimizer trains fp32 copies of them. Every
        weight then trains with plain AdamW."""
        fisher_max_grad_norm: float | None = Field(1.0, gt=0)
        """Norm to which each tensor's gradient is clipped before it is squared; null: none."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
        self._masked = encoder.layer_parameters if self.settings.mask else []

    def on_stage_start(self, model: nn.Module, gradients: Iterator[None]) -> None:
        if not self._masked:
            return
        parameters = {name: model.get_parameter(name) for name in self._masked}
        fisher = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        # The sum over the batches is enough: dividing it by their number changes no order.
        for _ in gradients:
            for name, parameter in parameters.items():
                if parameter.grad is None:
                    continue
                if self.settings.fisher_max_grad_norm:
                    nn.utils.clip_grad_norm_(parameter, self.settings.fisher_max_grad_norm)
                fisher[name] += parameter.grad**2
        self.choose(model, top_k_masks(fisher, self.settings.p))

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        # Equation 4 masks the clipped gradient: the norm is that of all parameters, also of those
        # that the mask will leave out.
        return [list(model.parameters())]

    def before_optimizer_step(self, model: nn.Module) -> None:  # noqa: ARG002
        self.chosen.gather_gradients()
