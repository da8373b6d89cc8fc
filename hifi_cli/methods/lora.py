"""LoRA (Hu et al., ICLR 2022), through peft: W + (alpha / r) B A with A and B trained."""

from typing import Any

from pydantic import Field

from hifi_cli.methods.base import Method
from hifi_cli.methods.peft import Peft
from hifi_cli.models.encoder import Encoder


class LoRA(Peft):
    """Train low-rank updates of projections, and the task head (the pooler too, unlike peft)."""

    class Settings(Method.Settings):
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

    def adapter(self) -> tuple[str, dict[str, Any]]:
        options = {
            "r": self.settings.r,
            "lora_alpha": self.settings.alpha,
            "lora_dropout": self.settings.dropout,
        }
        return "lora", options

    def unfreeze_all(self, encoder: Encoder) -> None:
        # Not merged: EH-FT (LoRA) with `reserve` also trains A and B in its second stage.
        encoder.model.requires_grad_(True)
