"""AdaLoRA (Zhang et al., ICLR 2023): low-rank updates P diag(E) Q, whose unimportant singular values are set to zero."""

from collections import defaultdict
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel, PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.peft_adapters import PARTS, add_adapters, merge_adapters, peft_config, target_modules
from hifi_cli.models.sparse_parameters import top_k_masks

_BETA = 0.85  # of the moving averages of importance and of its uncertainty, as in the authors' code
_STATES = ("importance", "uncertainty", "kept")


class AdaLoRA(Method):
    """Train updates P diag(E) Q of every matrix, which share a budget of singular values, and the task head.

    The budget falls along a cubic from `initial_r` to `target_r` singular values per matrix. In every step the triplets
    (column of P, value of E, row of Q) with the lowest importance, the smoothed |weight * gradient| times its uncertainty,
    lose their value (equations 8 to 11). A penalty keeps P and Q near orthogonal.
    """

    class Settings(ConfigModel):
        """Ranks, their schedule and the updated matrices."""

        initial_r: PositiveCount = 12
        """Rank of every update at first."""
        target_r: PositiveCount = 8
        """Mean rank of the updates at the end."""
        alpha: int = Field(32, ge=1)
        """The updates are scaled by alpha / initial_r."""
        dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout rate on the input of Q."""
        targets: list[str] = list(PARTS)
        """The updated matrices, as in the method `peft`."""
        warmup_fraction: float = Field(0.1, ge=0, lt=1)
        """Fraction of the steps before the budget begins to fall."""
        final_fraction: float = Field(0.5, ge=0, lt=1)
        """Fraction of the steps after it has reached the target, with the same singular values."""
        interval: PositiveCount = 1
        """Steps between two choices of singular values."""
        orthogonality: float = Field(0.1, ge=0)
        """Weight of the penalty: the mean over P and Q of the Frobenius norm of P'P - I."""

    def prepare(self, encoder: Encoder) -> None:
        settings = self.settings
        if settings.target_r > settings.initial_r:
            raise UsageError(f"settings.target_r={settings.target_r} must be at most settings.initial_r={settings.initial_r}")
        if settings.warmup_fraction + settings.final_fraction >= 1:
            raise UsageError("settings.warmup_fraction and settings.final_fraction must leave steps between them (sum below 1)")
        head = task_head_names(encoder)
        _, added = add_adapters(encoder, self.peft_config(encoder), self.context.seed)
        self._added = [name for name in added if ".lora_" in name]  # without the rank, a constant that is a parameter
        freeze_except(encoder, [*head, *self._added])
        self._state: dict[str, dict[str, Tensor]] = {state: {} for state in _STATES}

    def peft_config(self, encoder: Encoder) -> Any:
        settings = self.settings
        options = {
            "init_r": settings.initial_r,
            "target_r": settings.target_r,
            "lora_alpha": settings.alpha,
            "lora_dropout": settings.dropout,
            "total_step": 1,  # peft's own schedule is not used: it copies to the CPU in every step
        }
        return peft_config(encoder, "adalora", options, target_modules(encoder, settings.targets))

    def set_steps(self, steps: range) -> None:
        self._steps = steps

    def before_step(self, model: nn.Module, step: int) -> None:  # noqa: ARG002
        self._step = step - self._steps.start + 1

    def regularization_loss(self, model: nn.Module) -> Tensor | float:
        by_width: dict[int, list[Tensor]] = defaultdict(list)
        for name in self._added:
            if ".lora_E." not in name:
                parameter = model.get_parameter(name)
                matrix = parameter if ".lora_A." in name else parameter.T
                by_width[matrix.shape[1]].append(matrix)
        penalties: list[Tensor] = []
        for matrices in map(torch.stack, by_width.values()):
            identity = torch.eye(matrices.shape[1], device=matrices.device, dtype=matrices.dtype)
            penalties.append((matrices @ matrices.mT - identity).flatten(1).norm(dim=1))
        weight: float = self.settings.orthogonality
        return weight * torch.cat(penalties).mean()

    @torch.no_grad()
    def after_optimizer_step(self, model: nn.Module) -> None:
        warmup, final = (round(f * len(self._steps)) for f in (self.settings.warmup_fraction, self.settings.final_fraction))
        last = max(len(self._steps) - final, warmup + 1)  # the step that chooses the final singular values
        if self._step <= last:
            self._update_importance(model)
        if self._step == last or (warmup < self._step < last and self._step % self.settings.interval == 0):
            self._state["kept"] = self._choose(self._budget((self._step - warmup) / (last - warmup)))
        if self._state["kept"] and (self._step >= last or self._step % self.settings.interval == 0):
            values: list[Tensor] = [model.get_parameter(name) for name in self._state["kept"]]
            torch._foreach_mul_(values, tuple(self._state["kept"].values()))

    def _update_importance(self, model: nn.Module) -> None:
        """Smooth |weight * gradient| and its deviation from the mean."""
        parameters: list[Tensor] = [model.get_parameter(name) for name in self._added]
        for state in (self._state["importance"], self._state["uncertainty"]):
            if not state:
                state.update(zip(self._added, map(torch.zeros_like, parameters), strict=True))
        importance, uncertainty = (list(self._state[state].values()) for state in ("importance", "uncertainty"))
        gradients: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        sensitivity = torch._foreach_abs(torch._foreach_mul(parameters, gradients))
        torch._foreach_lerp_(importance, sensitivity, 1 - _BETA)
        deviation = torch._foreach_abs(torch._foreach_sub(sensitivity, importance))
        torch._foreach_lerp_(uncertainty, deviation, 1 - _BETA)

    def _budget(self, progress: float) -> int:
        """The number of singular values of all updates together, at a progress between 0 and 1."""
        updates, settings = len(self._added) // 3, self.settings
        initial, target = updates * settings.initial_r, updates * settings.target_r
        return int((initial - target) * (1 - progress) ** 3 + target)

    def _choose(self, budget: int) -> dict[str, Tensor]:
        """For each E, 1 for the singular values of the most important triplets of all updates and 0 for the others, [r, 1]."""
        importance, uncertainty = (list(self._state[state].values()) for state in ("importance", "uncertainty"))
        scores = dict(zip(self._added, torch._foreach_mul(importance, uncertainty), strict=True))
        triplets = {
            name: score
            + scores[name.replace(".lora_E.", ".lora_A.")].mean(1, keepdim=True)
            + scores[name.replace(".lora_E.", ".lora_B.")].mean(0).unsqueeze(1)
            for name, score in scores.items()
            if ".lora_E." in name
        }
        masks = top_k_masks(triplets, budget / sum(map(len, triplets.values())))
        return {name: mask.to(triplets[name].dtype) for name, mask in masks.items()}

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        states = {f"{state}:{name}": tensor for state in _STATES for name, tensor in self._state[state].items()}
        return super().training_state(model) | states

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        delta = {name: tensor for name, tensor in state.items() if name.partition(":")[0] not in _STATES}
        super().load_training_state(model, delta)
        for kind, tensors in self._state.items():
            names = [name for name in self._added if f"{kind}:{name}" in state]
            tensors.update({name: state[f"{kind}:{name}"].to(model.get_parameter(name).device) for name in names})

    def merge(self, encoder: Encoder) -> None:
        merge_adapters(encoder)
