"""Diff-Pruning (Guo et al., ACL 2021): a sparse difference to the pretrained weights is found, then trained."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.methods.base import Method, Phase, copy_tensors, names_without_pretrained_values, step_generator
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.sparse_parameters import SparseParameters, top_k_masks

logger = logging.getLogger("hifi")

_LOW, _HIGH = -1.5, 1.5  # the interval that the concrete distribution is stretched to before it is cut to [0, 1]
_NUMBERS_PER_WEIGHT = 12  # weight, pretrained, gradient, sampled weight; difference and gate with gradient and two moments


@dataclass
class GatedDifference:
    """The difference of one tensor: theta = theta0 + z_tensor * z * difference.

    Attributes:
        difference, gate: the tensor's shape; `gate` is log alpha of each entry's hard concrete variable.
        tensor_gate: log alpha of the whole tensor's.
    """

    pretrained: Tensor
    difference: nn.Parameter
    gate: nn.Parameter
    tensor_gate: nn.Parameter

    def weight(self, generator: Generator | None) -> Tensor:
        """theta, with sampled gates, or with those of evaluation without a generator."""
        gates = [hard_concrete(gate, generator) for gate in (self.gate, self.tensor_gate)]
        return self.pretrained + gates[0] * gates[1] * self.difference

    def expected_nonzeros(self) -> Tensor:
        """How many entries differ from the pretrained tensor, in expectation."""
        shift = math.log(-_LOW / _HIGH)
        return (torch.sigmoid(self.gate - shift) * torch.sigmoid(self.tensor_gate - shift)).sum()


def hard_concrete(gate: Tensor, generator: Generator | None) -> Tensor:
    """A value in [0, 1] that can be exactly 0 and 1 (Louizos et al., ICLR 2018)."""
    if generator is not None:
        uniform = torch.rand(gate.shape, generator=generator).clamp_(1e-6, 1 - 1e-6)
        gate = gate + torch.logit(uniform).to(gate.device)
    return (torch.sigmoid(gate) * (_HIGH - _LOW) + _LOW).clamp(0, 1)


class DiffPruning(Method):
    """Search a sparse difference to the pretrained weights with an L0 penalty, then train the `kept_fraction` largest entries.

    The search covers the whole backbone, including a pretrained pooler. Parameters without pretrained values (the classifier,
    a new pooler) train as in full fine-tuning. As in the authors' code the gates have an optimizer of their own with a
    constant learning rate, and their gradients, of about 1e-9, are clipped separately: clipped together with the others, they
    would fall below AdamW's epsilon, and no gate would close. In the second phase the gradient is masked, then clipped.
    """

    class Settings(ConfigModel):
        """The search for the sparse difference, and its sparsity."""

        kept_fraction: float = Field(0.005, gt=0, le=1)
        """Fraction of the searched weights that may differ in the end."""
        search_fraction: float = Field(0.6, gt=0, lt=1)
        """Fraction of the steps for the search; the text does not state it."""
        gate_start: float = 5.0
        """Initial value of log alpha."""
        gate_learning_rate: float = Field(0.1, gt=0)
        """Learning rate of log alpha, constant."""
        penalty: float = Field(1.25e-7, ge=0)
        """Penalty for each expected non-zero difference."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
        self._exempt = names_without_pretrained_values(encoder, self.context.missing_keys)
        self._chosen: SparseParameters | None = None
        self._sampled: dict[str, Tensor] = {}
        self.gated = {
            name: self._gate(parameter) for name, parameter in encoder.model.named_parameters() if name not in self._exempt
        }

    def phases(self) -> list[Phase]:
        first = self.settings.search_fraction
        return [Phase(self, first), Phase(self, 1 - first, prepare_model=self._prune)]

    def on_phase_start(self, model: nn.Module, gradients: Iterator[None]) -> None:  # noqa: ARG002
        if self.gated:
            weights = sum(gated.difference.numel() for gated in self.gated.values())
            size = 4 * _NUMBERS_PER_WEIGHT * weights / 2**30
            logger.info(f"diff-pruning keeps {_NUMBERS_PER_WEIGHT} numbers per weight while it searches: about {size:.1f} GiB")

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        exempt = {name: model.get_parameter(name) for name in self._exempt}
        if self._chosen:
            return exempt | self._chosen.values
        search = {}
        for name, gated in self.gated.items():
            search[f"{name}/difference"] = gated.difference
            search[f"{name}/gate"] = gated.gate
            search[f"{name}/tensor_gate"] = gated.tensor_gate
        return exempt | search

    def param_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        if self._chosen:
            return super().param_groups(model, weight_decay)
        exempt, differences, gates = self._searched(model)
        rate = self.settings.gate_learning_rate
        return [  # a decay would pull the difference, not the weight: the penalty is what keeps it small
            {"params": exempt, "weight_decay": weight_decay},
            {"params": differences, "weight_decay": 0.0},
            {"params": gates, "weight_decay": 0.0, "lr": rate, "lr_schedule": "constant"},
        ]

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        if self._chosen:
            return super().clip_groups(model)
        exempt, differences, gates = self._searched(model)
        return [[*exempt, *differences], gates]

    def before_step(self, model: nn.Module, step: int) -> None:
        if not self._chosen:
            generator = step_generator(self.context.seed, step)
            self._sampled = {name: gated.weight(generator) for name, gated in self.gated.items()}
            _write(model, self._sampled)

    def regularization_loss(self, model: nn.Module) -> Tensor | float:  # noqa: ARG002
        if self._chosen:
            return 0.0
        nonzeros = torch.stack([gated.expected_nonzeros() for gated in self.gated.values()]).sum()
        return nonzeros * float(self.settings.penalty)

    def after_backward(self, model: nn.Module) -> None:
        if self._chosen:
            self._chosen.gather_gradients()
            return
        parameters = {name: model.get_parameter(name) for name in self._sampled}
        with_gradient = [name for name, parameter in parameters.items() if parameter.grad is not None]
        torch.autograd.backward(
            [self._sampled[name] for name in with_gradient], [parameters[name].grad for name in with_gradient]
        )
        for parameter in parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def after_optimizer_step(self, model: nn.Module) -> None:
        if self._chosen:
            self._chosen.scatter()
        else:
            self._sampled.clear()
            _write(model, {name: gated.weight(None) for name, gated in self.gated.items()})

    @torch.no_grad()
    def _prune(self, encoder: Encoder) -> None:
        """Keep the largest differences as the only trainable ones, and reset all other entries to their pretrained values."""
        differences = {name: gated.weight(None) - gated.pretrained for name, gated in self.gated.items()}
        masks = top_k_masks({name: difference.abs() for name, difference in differences.items()}, self.settings.kept_fraction)
        for name, difference in differences.items():
            encoder.model.get_parameter(name).copy_(self.gated[name].pretrained + difference * masks[name])
        self._chosen = SparseParameters(encoder.model, masks)
        self.gated.clear()

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        if not self._chosen:
            return super().delta(model)
        return {name: model.get_parameter(name).detach() for name in self._exempt} | self._chosen.delta()

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        self._chosen = SparseParameters.from_delta(model, delta)
        copy_tensors(self.delta(model), delta)

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        if self._chosen:
            self.load_delta(model, state)
        else:
            copy_tensors(self.training_state(model), state)
            self.after_optimizer_step(model)

    def _searched(self, model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
        """What trains while the search lasts: exempt parameters, differences and gates."""
        exempt = [model.get_parameter(name) for name in self._exempt]
        differences = [gated.difference for gated in self.gated.values()]
        return exempt, differences, [gate for gated in self.gated.values() for gate in (gated.gate, gated.tensor_gate)]

    def _gate(self, parameter: nn.Parameter) -> GatedDifference:
        start = self.settings.gate_start
        return GatedDifference(
            pretrained=parameter.detach().clone(),
            difference=nn.Parameter(torch.zeros_like(parameter)),
            gate=nn.Parameter(torch.full_like(parameter, start)),
            tensor_gate=nn.Parameter(torch.full((1,), start, device=parameter.device)),
        )


@torch.no_grad()
def _write(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, weight in weights.items():
        model.get_parameter(name).copy_(weight)
