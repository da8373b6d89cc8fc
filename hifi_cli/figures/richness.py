"""Information richness I_h of every head under the settings of HiFi's section 5.1: ST, BS, LR, SL, SS and PT (figure 3)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.select import HeadScores

STANDARD: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_length": 128,
    "scoring.max_length": 128,
    "scoring.samples": 300,
}
# What a setting changes, and how a note says it
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "ST": ({}, "batch 32, learning rate 2e-5, 128 tokens, 300 samples"),
    "BS": ({"batch_size": 16}, "batch 16"),
    "LR": ({"learning_rate": 5e-5}, "5e-5"),
    "SL": ({"max_length": 64, "scoring.max_length": 64}, "64 tokens"),
    "SS": ({"scoring.samples": 1000}, "1000 samples"),
    "PT": ({"scoring.warm_steps": 0}, "the pretrained encoder, as in Algorithm 1"),
}


class Settings(ConfigModel):
    """Which settings are compared."""

    warm_steps: int = 115
    """Full fine-tuning steps before scoring, in every setting but PT. Learning rate and batch size have no effect on a forward
    pass of the pretrained encoder, and BS and LR must differ from ST in these alone."""
    variants: list[str] = list(VARIANTS)
    """Names of the compared settings."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute mean and standard deviation of I_h over the samples, one row per task, setting, layer and head."""
    rows = []
    for task in request.spec.tasks:
        for variant in request.settings.variants:
            scores = head_scores(request, task, variant)
            for (layer, head), mean in np.ndenumerate(scores.richness_array):
                keys = {"task": task, "setting": variant, "layer": layer, "head": head}
                rows.append({**keys, "mean": mean, "std": scores.richness_std[layer][head]})
    add_note(request)
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a panel per layer and a line per setting; shade the first setting's standard deviation over samples."""
    panels = list(data.groupby(["task", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, sharex=True)
    for ax, ((task, layer), heads) in zip(axes, panels, strict=True):
        for number, (setting, points) in enumerate(heads.groupby("setting", sort=False)):
            ax.plot(points["head"], points["mean"], label=setting, **style.line(number))
            if not number:
                low, high = points["mean"] - points["std"], points["mean"] + points["std"]
                ax.fill_between(points["head"], low, high, color="#bbbbbb", alpha=0.5, linewidth=0)
        ax.set_title(style.panel_title(record, task, f"layer {layer + 1}"))
        style.set_head_ticks(ax, heads["head"].nunique())
    style.label_outer(axes, "head", "richness $I_h$")
    style.shared_legend(figure, axes)
    record.notes.append(f"shade: standard deviation over samples under {data['setting'].iloc[0]}")
    return figure


def head_scores(request: FigureRequest, task: str, variant: str) -> HeadScores:
    """Return the head scores of a task under a setting."""
    extra = {**STANDARD, "scoring.warm_steps": request.settings.warm_steps, **VARIANTS[variant][0]}
    return head_selection.scores(request.config(task, extra=extra), request.resources)[0]


def add_note(request: FigureRequest) -> None:
    """Explain the settings."""
    settings = request.settings
    meanings = [f"{name}: {VARIANTS[name][1]}" for name in dict.fromkeys(["ST", *settings.variants])]
    which = "all but PT" if "PT" in settings.variants else "all"
    reason = "on the pretrained encoder, BS and LR would be equal to ST"
    steps = f"{which} scored after {settings.warm_steps} steps of full fine-tuning: {reason}"
    request.notes.append(f"{', '.join(meanings)}; {steps}")
