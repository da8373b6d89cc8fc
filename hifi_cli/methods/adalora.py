"""AdaLoRA (Zhang et al., ICLR 2023): low-rank updates P diag(E) Q that share a budget of ranks."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel, PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.peft_adapters import (
    PARTS,
    add_adapters,
    merge_adapters,
    peft_config,
    target_modules,
)


class AdaLoRA(Method):
    """Train updates P diag(E) Q of matrices, which share a budget of ranks, and the task head.

    The budget falls along a cubic from `initial_r` to `target_r` singular values per matrix. In
    every step the triplets (column of P, value of E, row of Q) with the lowest importance, the
    smoothed |weight * gradient| times its uncertainty, lose their value (equations 8 to 11); peft
    chooses them. A penalty keeps P and Q near orthogonal.
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
        if settings.target_r >= settings.initial_r:
            bound = f"settings.initial_r={settings.initial_r}"
            raise UsageError(f"settings.target_r={settings.target_r} must be below {bound}")
        if settings.warmup_fraction + settings.final_fraction >= 1:
            raise UsageError("settings.warmup_fraction and settings.final_fraction must leave steps between them")
        head = task_head_names(encoder)
        self._tuner, added = add_adapters(encoder, self.peft_config(encoder), self.context.seed)
        # without the rank, a constant that is a parameter
        self._added = [name for name in added if ".lora_" in name]
        freeze_except(encoder, [*head, *self._added])

    def peft_config(self, encoder: Encoder) -> Any:
        settings = self.settings
        options = {
            "init_r": settings.initial_r,
            "target_r": settings.target_r,
            "lora_alpha": settings.alpha,
            "lora_dropout": settings.dropout,
            "deltaT": settings.interval,
            "total_step": 1,  # `set_steps` sets the schedule, once the number of steps is known
        }
        return peft_config(encoder, "adalora", options, target_modules(encoder, settings.targets))

    def set_steps(self, steps: range) -> None:
        config, settings = self._tuner.peft_config["default"], self.settings
        config.total_step, self._first = len(steps), steps.start
        config.tinit = round(settings.warmup_fraction * len(steps))
        latest = len(steps) - max(config.tinit, 1) - 1  # peft chooses from the second step on
        config.tfinal = min(round(settings.final_fraction * len(steps)), latest)

    def before_step(self, model: nn.Module, step: int) -> None:  # noqa: ARG002
        self._step = step - self._first + 1

    def regularization_loss(self, model: nn.Module) -> Tensor | float:
        norms = []
        for name in self._added:
            if ".lora_E." not in name:
                factor = model.get_parameter(name)
                product = factor @ factor.T if ".lora_A." in name else factor.T @ factor
                norms.append((product - torch.eye(len(product), device=product.device)).norm())
        weight: float = self.settings.orthogonality
        return weight * torch.stack(norms).mean()

    def after_optimizer_step(self, model: nn.Module) -> None:  # noqa: ARG002
        self._tuner.update_and_allocate(self._step)

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        allocator = self._tuner.rankallocator
        pattern = self._tuner.peft_config["default"].rank_pattern or {}
        states = {"importance": allocator.exp_avg_ipt, "uncertainty": allocator.exp_avg_unc}
        states["kept"] = {name: torch.tensor(kept) for name, kept in pattern.items()}
        flat = {f"{kind}:{name}": value for kind, values in states.items() for name, value in values.items()}
        return super().training_state(model) | flat

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        kinds = ("", "importance", "uncertainty", "kept")
        states: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for key, value in state.items():
            kind, _, name = key.rpartition(":")
            states[kind][name] = value.to(model.get_parameter(name).device)
        super().load_training_state(model, states[""])
        allocator = self._tuner.rankallocator
        allocator.exp_avg_ipt, allocator.exp_avg_unc = states["importance"], states["uncertainty"]
        allocator.ipt = dict(states["importance"])  # only tells peft that the averages have begun
        kept = {name: value.tolist() for name, value in states["kept"].items()}
        self._tuner.peft_config["default"].rank_pattern = kept

    def merge(self, encoder: Encoder) -> None:
        merge_adapters(encoder)
