"""AdaLoRA (Zhang et al., ICLR 2023): low-rank updates P diag(E) Q that share a budget of ranks."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.config.base import PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.peft import PARTS, Peft


class AdaLoRA(Peft):
    """Train updates P diag(E) Q of matrices, which share a budget of ranks, and the task head.

    The budget falls along a cubic from `initial_r` to `target_r` singular values per matrix. In
    every step the triplets (column of P, value of E, row of Q) with the lowest importance, the
    smoothed |weight * gradient| times its uncertainty, lose their value (equations 8 to 11); peft
    chooses them. A penalty keeps P and Q near orthogonal.
    """

    before_step_is_recordable = True

    class Settings(Method.Settings):
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

    def adapter(self) -> tuple[str, dict[str, Any]]:
        settings = self.settings
        if (
            settings.target_r >= settings.initial_r
            or settings.warmup_fraction + settings.final_fraction >= 1
        ):
            rule = "target_r must be below initial_r, and warmup_fraction + final_fraction below 1"
            raise UsageError(f"adalora's settings: {rule}")
        options = {
            "init_r": settings.initial_r,
            "target_r": settings.target_r,
            "lora_alpha": settings.alpha,
            "lora_dropout": settings.dropout,
            "deltaT": settings.interval,
            # `before_step` sets the schedule, once the number of steps is known.
            "total_step": 1,
        }
        return "adalora", options

    def before_step(self, model: nn.Module, step: int, steps: range) -> None:  # noqa: ARG002
        config = self.tuner.peft_config["default"]
        total = len(steps)
        config.total_step = total
        config.tinit = round(self.settings.warmup_fraction * total)
        # peft makes its last choice in the step total - tfinal. That step must come after the warm-up,
        # and after the first step, which begins the averages that the choice reads. In a short run,
        # rounding could bring it earlier.
        latest = total - max(config.tinit, 1) - 1
        config.tfinal = min(round(self.settings.final_fraction * total), latest)
        # peft counts the steps of the stage from 1.
        self._step = step - steps.start + 1

    def regularization_loss(self, model: nn.Module) -> Tensor | float:
        # Q is peft's `lora_A`, [r, in], and P its `lora_B`, [out, r]: both as rows, so that one
        # product gives P'P and QQ'.
        rows: list[Tensor] = []
        for name, factor in model.named_parameters():
            if ".lora_A." in name:
                rows.append(factor)
            elif ".lora_B." in name:
                rows.append(factor.T)
        norms = [(q @ q.T - torch.eye(len(q), device=q.device)).norm() for q in rows]
        return self.settings.orthogonality * torch.stack(norms).mean()

    def after_optimizer_step(self, model: nn.Module) -> None:  # noqa: ARG002
        self.tuner.update_and_allocate(self._step)

    def training_state(self, model: nn.Module) -> dict[str, Any]:
        allocator = self.tuner.rankallocator
        return {
            "parameters": super().training_state(model),
            "importance": allocator.exp_avg_ipt,
            "uncertainty": allocator.exp_avg_unc,
            "kept": self.tuner.peft_config["default"].rank_pattern,
        }

    def load_training_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        super().load_training_state(model, state["parameters"])
        allocator = self.tuner.rankallocator
        allocator.exp_avg_ipt = _on_devices_of(model, state["importance"])
        allocator.exp_avg_unc = _on_devices_of(model, state["uncertainty"])
        # It only tells peft that the averages have begun.
        allocator.ipt = dict(allocator.exp_avg_ipt)
        self.tuner.peft_config["default"].rank_pattern = state["kept"]


def _on_devices_of(model: nn.Module, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move a value of each parameter to the parameter's device."""
    return {name: value.to(model.get_parameter(name).device) for name, value in values.items()}
