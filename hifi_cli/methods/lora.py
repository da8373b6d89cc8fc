"""LoRA (Hu et al., ICLR 2022), through peft: W + (alpha / r) B A with A and B trained."""

from typing import Any

from pydantic import Field

from hifi_cli.config.base import ConfigModel
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.peft_adapters import add_adapters, merge_adapters, peft_config, target_modules


class LoRA(Method):
    """Train low-rank updates of projections, and the task head (the pooler too, unlike peft)."""

    class Settings(ConfigModel):
        """Rank and targets of the updates."""

        r: int = Field(8, ge=1)
        """Rank of the updates."""
        alpha: int = Field(16, ge=1)
        """The update is scaled by alpha / r."""
        dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout rate on the input of A."""
        targets: list[str] = ["query", "value"]
        """Which of query, key, value, output, ffn and ffn_output are updated: query and value in
        LoRA's text, query and key in HiFi's, the four projections of attention in EH-FT's code."""

    def prepare(self, encoder: Encoder) -> None:
        head = task_head_names(encoder)
        _, added = add_adapters(encoder, self.peft_config(encoder), self.context.seed)
        freeze_except(encoder, [*head, *added])

    def peft_config(self, encoder: Encoder) -> Any:
        options = {
            "r": self.settings.r,
            "lora_alpha": self.settings.alpha,
            "lora_dropout": self.settings.dropout,
        }
        return peft_config(encoder, "lora", options, target_modules(encoder, self.settings.targets))

    def unfreeze_all(self, encoder: Encoder) -> None:
        # not merged: EH-FT (LoRA) with `reserve` also trains A and B in its second stage
        encoder.model.requires_grad_(True)

    def merge(self, encoder: Encoder) -> None:
        merge_adapters(encoder)
