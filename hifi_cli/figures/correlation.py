"""Correlation r_hh' between the heads of a layer under several settings (HiFi, figures 4 and 8 to 11)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.figures import richness, style
from hifi_cli.figures.figure import FigureRequest

Settings = richness.Settings


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute r_hh' and its ratio to the layer's largest, one row per task, setting, layer and pair of heads."""
    rows = []
    for task in request.spec.tasks:
        for variant in request.settings.variants:
            correlation = richness.head_scores(request, task, variant).correlation_array
            for (layer, head, other), value in np.ndenumerate(correlation):
                keys = {"task": task, "setting": variant, "layer": layer, "head": head, "other": other}
                rows.append({**keys, "correlation": value, "normalized": value / correlation[layer].max()})
    richness.add_note(request)
    request.notes.append("divided by each layer's largest value: one color scale for all")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a heatmap per layer and setting, all in one color scale."""
    panels = list(data.groupby(["task", "setting", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, height=1.7, sharex=True, sharey=True)
    several_settings = data["setting"].nunique() > 1
    for ax, ((task, setting, layer), pairs) in zip(axes, panels, strict=True):
        values = pairs.pivot(index="head", columns="other", values="normalized").to_numpy(copy=True)
        np.fill_diagonal(values, np.nan)
        image = ax.imshow(values, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        words = [*([setting] if several_settings else []), f"layer {layer + 1}"]
        ax.set_title(style.panel_title(record, task, *words))
        style.set_head_ticks(ax, len(values))
        ax.set_yticks(ax.get_xticks())
    label = "correlation $r_{h,h'}$, normalized"
    figure.colorbar(image, ax=axes, label=label, fraction=0.03, pad=0.02, aspect=35)
    style.label_outer(axes, "head", "head")
    return figure
