"""Head scores under the settings of HiFi's section 5.1: ST, BS, LR, SL and SS, and PT, the pretrained encoder as it is."""

from typing import Any

import numpy as np

from hifi_cli.analysis.base import FigureRequest
from hifi_cli.config.run_config import ConfigModel
from hifi_cli.runs import head_selection

_STANDARD: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_length": 128,
    "scoring.max_length": 128,
    "scoring.samples": 300,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "ST": {},
    "BS": {"batch_size": 16},
    "LR": {"learning_rate": 5e-5},
    "SL": {"max_length": 64, "scoring.max_length": 64},
    "SS": {"scoring.samples": 1000},
    "PT": {"scoring.warm_steps": 0},
}


_MEANINGS = {
    "ST": "ST: batch 32, learning rate 2e-5, 128 tokens, 300 samples",
    "BS": "BS: batch 16",
    "LR": "LR: 5e-5",
    "SL": "SL: 64 tokens",
    "SS": "SS: 1000 samples",
    "PT": "PT: the pretrained encoder, as Algorithm 1 has it",
}


class VariantSettings(ConfigModel):
    """Which settings are compared.

    Attributes:
        warm_steps: full fine-tuning steps before scoring, in every setting but PT. Learning rate and batch size cannot act
            on a forward pass over the pretrained encoder, and ST must differ from BS and LR in these alone.
        variants: names of settings.
    """

    warm_steps: int = 115
    variants: list[str] = list(VARIANTS)


def scores(asked: FigureRequest, task: str, variant: str, warm_steps: int) -> dict[str, Any]:
    """The scores file of a task under a setting, `richness`, `richness_std` and `correlation` as arrays.

    Returns:
        richness [layers, heads], correlation [layers, heads, heads], and the rest of the file.
    """
    extra = {**_STANDARD, "scoring.warm_steps": warm_steps, **VARIANTS[variant]}
    found, _ = head_selection.scores(asked.config(task, extra=extra), asked.resources)
    return {**found, **{key: np.array(found[key]) for key in ("richness", "richness_std", "correlation")}}


def note(settings: VariantSettings) -> str:
    """What the settings are."""
    meanings = [_MEANINGS[name] for name in dict.fromkeys(["ST", *settings.variants])]
    which = "all but PT" if "PT" in settings.variants else "all"
    warm = f"{settings.warm_steps} steps of full fine-tuning, without which BS and LR could not differ from ST"
    return f"{', '.join(meanings)}; {which} scored after {warm}"
