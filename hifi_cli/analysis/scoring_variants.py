"""Head scores under the settings of HiFi's section 5.1: ST, BS, LR, SL and SS; and PT, the pretrained encoder."""

from typing import Any

from hifi_cli.analysis.figure_request import FigureRequest
from hifi_cli.config.base import ConfigModel
from hifi_cli.records.head_files import HeadScores
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
    "PT": "PT: the pretrained encoder, as in Algorithm 1",
}


class VariantSettings(ConfigModel):
    """Which settings are compared."""

    warm_steps: int = 115
    """Full fine-tuning steps before scoring, in every setting but PT. Learning rate and batch size have no effect on a forward
    pass of the pretrained encoder, and BS and LR must differ from ST in these alone."""
    variants: list[str] = list(VARIANTS)
    """Names of the compared settings."""


def head_scores(request: FigureRequest, task: str, variant: str) -> HeadScores:
    """Return the head scores of a task under a setting."""
    extra = {**_STANDARD, "scoring.warm_steps": request.settings.warm_steps, **VARIANTS[variant]}
    return head_selection.scores(request.config(task, extra=extra), request.resources)[0]


def note(settings: VariantSettings) -> str:
    """Return a note that explains the settings."""
    meanings = [_MEANINGS[name] for name in dict.fromkeys(["ST", *settings.variants])]
    which = "all but PT" if "PT" in settings.variants else "all"
    reason = "on the pretrained encoder, BS and LR would be equal to ST"
    return f"{', '.join(meanings)}; {which} scored after {settings.warm_steps} steps of full fine-tuning: {reason}"
