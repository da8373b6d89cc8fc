"""Methods of the peft library: adapters of any type that peft puts into modules of the encoder."""

from typing import Any

from hifi_cli.config.base import ConfigModel
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.peft_adapters import add_adapters, merge_adapters, peft_config, target_modules


class Peft(Method):
    """Train the adapters that peft adds to the chosen modules, and the task head.

    Some types rewrite the weights that they adapt when they are added (PiSSA, OLoRA): W is then
    W - B A at first, and the same is computed again when a run is reloaded.
    """

    class Settings(ConfigModel):
        """The adapters' type, their options and places."""

        type: str = "lora"
        """A type of peft (`PeftType`), for example `lora`, `ia3` or `vera`, that adapts modules:
        not those that add virtual tokens (`prompt_tuning`, `p_tuning`), or that need more than a
        batch's texts."""
        options: dict[str, Any] = {}
        """Fields of the type's configuration class in peft, for example `{r: 8, lora_alpha: 16}`;
        the others keep peft's defaults."""
        targets: list[str] = ["query", "value"]
        """The adapted modules: query, key, value, output, ffn, ffn_output, norms (every LayerNorm
        and RMSNorm of the backbone), or what names of the encoder's modules end with; encoders of
        unknown families have only the last two."""

    def prepare(self, encoder: Encoder) -> None:
        if self.settings.type.lower() == "adalora":  # which must be called in every step
            raise UsageError("settings.type=adalora: use the method adalora")
        head = task_head_names(encoder)
        _, added = add_adapters(encoder, self.peft_config(encoder), self.context.seed)
        freeze_except(encoder, [*head, *added])

    def peft_config(self, encoder: Encoder) -> Any:
        settings = self.settings
        return peft_config(encoder, settings.type, settings.options, target_modules(encoder, settings.targets))

    def merge(self, encoder: Encoder) -> None:
        merge_adapters(encoder)
