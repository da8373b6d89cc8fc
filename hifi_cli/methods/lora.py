"""LoRA (Hu et al., ICLR 2022), through peft: W + (alpha / r) B A with A and B trained."""

import torch
from pydantic import Field

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import nearest
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder

TARGETS = ("query", "key", "value", "output")


class LoRA(Method):
    """Train low-rank updates of attention projections, and the task head (the pooler too, which peft leaves frozen)."""

    class Settings(ConfigModel):
        """Rank and targets of the updates."""

        r: int = Field(8, ge=1)
        """Rank of the updates."""
        alpha: int = Field(16, ge=1)
        """The update is scaled by alpha / r."""
        dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout rate on the input of A."""
        targets: list[str] = ["query", "value"]
        """Which of query, key, value and output are updated: query and value in LoRA's text, query and key in HiFi's, all four
        in EH-FT's code."""

    def prepare(self, encoder: Encoder) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        for target in self.settings.targets:
            if target not in TARGETS:
                known = ", ".join(TARGETS)
                raise UsageError(f"settings.targets: unknown '{target}'{nearest(target, TARGETS)}; known are {known}")
        head = task_head_names(encoder)
        config = LoraConfig(
            r=self.settings.r,
            lora_alpha=self.settings.alpha,
            lora_dropout=self.settings.dropout,
            target_modules=self._paths(encoder),
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.context.seed)  # peft draws A on the CPU, whatever the model's device is
            inject_adapter_in_model(config, encoder.model)
        added = [name for name, _ in encoder.model.named_parameters() if ".lora_" in name]
        freeze_except(encoder, [*head, *added])

    def merge(self, encoder: Encoder) -> None:
        for path in self._paths(encoder):
            updated = encoder.model.get_submodule(path)
            updated.merge(safe_merge=True)  # type: ignore[operator]
            encoder.model.set_submodule(path, updated.get_base_layer())  # type: ignore[operator]

    def _paths(self, encoder: Encoder) -> list[str]:
        return [encoder.path(layer, target) for layer in range(encoder.num_layers) for target in self.settings.targets]
