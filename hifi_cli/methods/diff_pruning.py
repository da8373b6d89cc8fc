"""Diff-Pruning (Guo et al., ACL 2021): a sparse difference is found, then trained."""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from hifi_cli.errors import logger
from hifi_cli.methods.base import Method, MethodContext, Stage
from hifi_cli.methods.common import SparseMethod, names_without_pretrained_values, step_generator
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import top_k_masks

# The interval that the concrete distribution is stretched to before it is cut to [0, 1].
_LOW = -1.5
_HIGH = 1.5


@cache
def _say_once(text: str) -> None:
    """Log a text that every run of a command, and every plan of one, would repeat."""
    logger.info(text)


def hard_concrete(gate: Tensor) -> Tensor:
    """Return values in [0, 1] that can be exactly 0 and 1 (Louizos et al., ICLR 2018).

    Args:
        gate: log alpha of each hard concrete variable, with its noise if it is sampled.
    """
    stretched = torch.sigmoid(gate) * (_HIGH - _LOW) + _LOW
    return stretched.clamp(0, 1)


def _groups_as_in_full_ft(
    parameters: Iterable[nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    """Make parameter groups of what trains as in full fine-tuning: matrices decay, biases do not."""
    groups: list[dict[str, Any]] = []
    for value in parameters:
        decay = weight_decay if value.dim() > 1 else 0.0
        groups.append({"params": [value], "weight_decay": decay})
    return groups


class _Search(Method):
    """The first stage, which trains theta = theta0 + z_tensor * z * difference (equation 5).

    It is a part of `DiffPruning`, whose `prepare` prepares the model for it. A run calls its hooks in the
    first stage; `DiffPruning` reads the differences that it has found when the second one begins, and
    then frees its memory.

    The values of all entries of all tensors are kept in one vector [entries] each. An operation on
    each of hundreds of tensors would take most of a GPU's time.

    The model computes with a copy of theta that `before_step` writes into its weights. No graph
    connects that copy to differences and gates, so `after_backward` carries its gradient over.

    Attributes:
        searched: the parameters that may differ in the end, by name.
        exempt: the others, which train as in full fine-tuning.
        sizes: entries of each of the searched parameters.
        pretrained: theta0 of all entries, [entries].
        difference: of each entry, [entries].
        gate: log alpha of each entry's hard concrete variable, [entries].
        tensor_gate: log alpha of each tensor's, [tensors].
    """

    before_step_is_recordable = True

    def prepare(self, encoder: Encoder) -> None:
        model = encoder.model.requires_grad_(True)
        gate_start = self.settings.gate_start
        exempt = names_without_pretrained_values(encoder, self.context.missing_keys)
        self.exempt = {name: model.get_parameter(name) for name in exempt}
        self.searched = {
            name: value for name, value in model.named_parameters() if name not in exempt
        }
        self.sizes = [value.numel() for value in self.searched.values()]
        self.pretrained = torch.cat([value.detach().flatten() for value in self.searched.values()])
        self.difference = nn.Parameter(torch.zeros_like(self.pretrained))
        self.gate = nn.Parameter(torch.full_like(self.pretrained, gate_start))
        tensor_gates = self.pretrained.new_full((len(self.sizes),), gate_start)
        self.tensor_gate = nn.Parameter(tensor_gates)

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:  # noqa: ARG002
        return self.exempt | {
            "difference": self.difference,
            "gate": self.gate,
            "tensor_gate": self.tensor_gate,
        }

    def on_stage_start(self, model: nn.Module, gradients: Iterator[None]) -> None:  # noqa: ARG002
        # The pretrained values, differences and gates, two gradients, and AdamW's four moments.
        megabytes = 9 * self.gate.numel() * self.gate.element_size() / 1e6
        _say_once(f"Diff-Pruning's search takes {megabytes:,.0f} MB of memory or more")

    def param_groups(
        self,
        model: nn.Module,  # noqa: ARG002
        weight_decay: float,
    ) -> list[dict[str, Any]]:
        # Weight decay would pull the difference to 0, not the weight: the penalty does that
        # already.
        of_difference = {"params": [self.difference], "weight_decay": 0.0}
        # The authors' optimizer of the gates; `DiffPruning` says why it is another one.
        of_gates = {
            "params": [self.gate, self.tensor_gate],
            "weight_decay": 0.0,
            "eps": 1e-8,
            "lr": self.settings.gate_learning_rate,
            "lr_schedule": "constant",
        }
        groups = _groups_as_in_full_ft(self.exempt.values(), weight_decay)
        return [*groups, of_difference, of_gates]

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:  # noqa: ARG002
        # The gates' gradients are tiny: clipped by one norm over all parameters, they would fall
        # below AdamW's epsilon.
        return [[*self.exempt.values(), self.difference], [self.gate, self.tensor_gate]]

    def before_step(self, model: nn.Module, step: int, steps: range) -> None:  # noqa: ARG002
        # `after_backward` needs the graph behind theta.
        generator = step_generator(self.context.seed, step, self.gate.device)
        self._sampled_theta = self.theta(generator)
        self.write(self._sampled_theta)

    def regularization_loss(self, model: nn.Module) -> Tensor:  # noqa: ARG002
        """Return the penalty on entries that may differ (`product`), or on open gates (`sum`)."""
        # The probability that a gate is not exactly 0 (Louizos et al., ICLR 2018, with a
        # temperature of 1). The shift is 0 for an interval around 0 such as [-1.5, 1.5].
        shift = math.log(-_LOW / _HIGH)
        entries = torch.sigmoid(self.gate - shift)
        tensors = torch.sigmoid(self.tensor_gate - shift)
        if self.settings.l0 == "sum":
            number = entries.sum() + tensors.sum()
        else:
            # An entry differs only where its own gate and its tensor's are open.
            parts = [part.sum() for part in entries.split(self.sizes)]
            number = (torch.stack(parts) * tensors).sum()
        return number * float(self.settings.penalty)

    def after_backward(self, model: nn.Module) -> None:  # noqa: ARG002
        """Take the gradient of all theta out of the model, and pass it to differences and gates."""
        gradients = []
        for value in self.searched.values():
            gradients.append(torch.zeros_like(value) if value.grad is None else value.grad)
            value.grad = None
        # The model's parameters are copies of the sampled theta, and autograd ends at them: their
        # gradient is handed on here.
        self._sampled_theta.backward(torch.cat([gradient.flatten() for gradient in gradients]))
        # The graph is as large as the model, and the next step makes another one.
        del self._sampled_theta

    @torch.no_grad()
    def before_evaluation(self, model: nn.Module) -> None:  # noqa: ARG002
        self.write(self.theta())

    def free_memory(self) -> None:
        """Let go of what is as large as the model: the search is over."""
        del self.pretrained, self.difference, self.gate

    def theta(self, generator: Generator | None = None) -> Tensor:
        """Compute theta of all entries, [entries].

        Args:
            generator: samples the gates; None: those of evaluation, without noise.
        """
        noise: Tensor | float = 0.0
        tensor_noise: Tensor | float = 0.0
        if generator:
            noise, tensor_noise = self.logistic_noise(generator)
        tensor_gates = hard_concrete(self.tensor_gate + tensor_noise).unbind()
        per_entry = [gate.expand(size) for gate, size in zip(tensor_gates, self.sizes, strict=True)]
        gates = hard_concrete(self.gate + noise) * torch.cat(per_entry)
        return self.pretrained + gates * self.difference

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Write theta of all entries into the model's parameters."""
        torch._foreach_copy_(list(self.searched.values()), list(self.split(theta).values()))

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """Return views of a value per entry, by the tensors' names and in their shapes."""
        parts = zip(self.searched.items(), values.split(self.sizes), strict=True)
        return {name: part.view(parameter.shape) for (name, parameter), part in parts}

    def logistic_noise(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draw what samples the gates: in one stream, each tensor's entries and then the tensor.

        Returns:
            [entries] and [tensors].
        """
        number = len(self.gate) + len(self.tensor_gate)
        uniform = torch.rand(number, generator=generator, device=self.gate.device)
        # A draw of exactly 0 or 1 would have an infinite logit.
        noise = uniform.clamp_(1e-6, 1 - 1e-6).logit_()
        # Even parts are a tensor's entries, and odd ones the tensor itself.
        sizes: list[int] = []
        for size in self.sizes:
            sizes.extend((size, 1))
        parts = noise.split(sizes)
        of_entries = torch.cat(parts[::2])
        of_tensors = torch.cat(parts[1::2])
        return of_entries, of_tensors


class DiffPruning(SparseMethod):
    """Search a sparse difference with an L0 penalty, then train the largest entries.

    `kept_fraction` of them remain. The search covers the whole backbone, including a pretrained
    pooler. Parameters without pretrained values (the classifier, a new pooler) train as in full
    fine-tuning. As in the authors' code the gates have an optimizer of their own with a constant
    learning rate and AdamW's usual epsilon, and their gradients, of about 1e-9, are clipped
    separately: clipped together with the others, they would fall below the epsilon, and no gate
    would close. In the second stage the gradient is masked, then clipped; as in the first, weight
    decay would pull the weights and not the differences, and there is none.
    """

    class Settings(Method.Settings):
        """The search for the sparse difference, and its sparsity."""

        kept_fraction: float = Field(0.005, gt=0, le=1)
        """Fraction of the searched weights that may differ in the end."""
        search_fraction: float = Field(0.6, gt=0, lt=1)
        """Fraction of the steps for the search: half in the authors' examples, not in the text."""
        gate_start: float = 5.0
        """Initial value of log alpha."""
        gate_learning_rate: float = Field(0.1, gt=0)
        """Learning rate of log alpha, constant."""
        penalty: float = Field(1.25e-7, ge=0)
        """Penalty for each open gate, or for each expected non-zero difference (`l0`)."""
        l0: Literal["sum", "product"] = "product"
        """The penalized gates: `sum`, the gates of entries and those of tensors, as in the authors'
        code; `product`, the expected number of non-zero differences, as in the text. With `product`
        and the authors' other values, small learning rates and large tensors, the tensors' gates
        close in the first steps, and nothing is left to keep."""

    def __init__(self, settings: Settings, context: MethodContext) -> None:
        super().__init__(settings, context)
        self.search = _Search(settings, context)

    def prepare(self, encoder: Encoder) -> None:
        self.search.prepare(encoder)

    def stages(self) -> list[Stage]:
        first = self.settings.search_fraction
        return [Stage(self.search, first), Stage(self, 1 - first, prepare_model=self._prune)]

    @torch.no_grad()
    def _prune(self, encoder: Encoder) -> None:
        """Make the largest differences the trainable ones, and reset all other entries."""
        search = self.search
        # The gates of evaluation, without noise: a closed gate leaves a difference of exactly 0.
        difference = search.theta() - search.pretrained
        masks = top_k_masks(search.split(difference.abs()), self.settings.kept_fraction)
        kept = torch.cat(list(masks.values()))
        search.write(search.pretrained + difference * kept)
        self.choose(encoder.model, masks)
        search.free_memory()

    def param_groups(
        self,
        model: nn.Module,
        weight_decay: float,
    ) -> list[dict[str, Any]]:
        chosen = self.chosen.values
        trained = self.trainable_parameters(model)
        exempt = [value for name, value in trained.items() if name not in chosen]
        of_chosen = {"params": list(chosen.values()), "weight_decay": 0.0}
        return [*_groups_as_in_full_ft(exempt, weight_decay), of_chosen]

    def after_backward(self, model: nn.Module) -> None:  # noqa: ARG002
        self.chosen.gather_gradients()
