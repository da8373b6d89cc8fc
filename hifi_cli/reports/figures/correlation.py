"""Correlation between the heads of a layer (HiFi, figures 4 and 8 to 11)."""

import numpy as np
from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a heatmap per layer and setting, all in one color scale."""
    panels = list(frame.groupby(["task", "setting", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, height=1.7, sharex=True, sharey=True)
    image = None
    for ax, ((task, setting, layer), pairs) in zip(axes, panels, strict=True):
        values = pairs.pivot(index="head", columns="other", values="normalized").to_numpy(copy=True)
        np.fill_diagonal(values, np.nan)
        image = ax.imshow(values, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        several_settings = frame["setting"].nunique() > 1
        ax.set_title(f"{setting}, layer {layer + 1}" if several_settings else style.layer_title(metadata, task, layer))
        style.set_head_ticks(ax, len(values))
        ax.set_yticks(ax.get_xticks())
    assert image is not None
    figure.colorbar(image, ax=axes, label="correlation $r_{h,h'}$, normalized", fraction=0.03, pad=0.02, aspect=35)
    style.label_outer(axes, "head", "head")
    return figure
