"""What decides which heads are chosen: every ranking next to the others, and their overlaps against the damping factor."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame

_LABELS = {
    "richness": "richness $I_h$ alone",
    "correlation": r"correlation alone, $\Sigma_{h'}\,r_{h,h'}$",
    "pagerank-literal": "PageRank as printed",
    "pagerank": "PageRank, transposed",
    "pagerank-personalized": "PageRank, personalized",
}


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw each ranking's values as a heatmap of layers and heads, with the chosen heads marked; below, overlaps against d.

    A heatmap of one color gives no basis for a choice; an overlap near k means that the ranking follows one signal alone.
    """
    tasks = list(frame["task"].unique())
    values, overlaps = frame[frame["panel"] == "values"], frame[frame["panel"] == "overlap"]
    names = [name for name in _LABELS if name in set(values["ranking"])]
    layers = int(values["layer"].max()) + 1
    figure = Figure(figsize=(style.WIDE, len(tasks) * (1.1 + 0.13 * layers + 2.0) + 0.9), layout="constrained")
    rows = figure.subfigures(2 * len(tasks), 1, height_ratios=[0.9 + 0.13 * layers, 2.1] * len(tasks), squeeze=False)[:, 0]
    extent = float(np.quantile(np.abs(values["value"] - 1), 0.98))
    for number, task in enumerate(tasks):
        upper, lower = rows[2 * number], rows[2 * number + 1]
        heatmaps = list(upper.subplots(1, len(names), sharey=True))
        for ax, name in zip(heatmaps, names, strict=True):
            image = _heatmap(ax, values[(values["task"] == task) & (values["ranking"] == name)], extent)
            ax.set_title(_LABELS[name], fontsize=7)
            ax.set_xlabel("head")
        heatmaps[0].set_ylabel("layer" if len(tasks) == 1 else f"{metadata.tasks[task]}: layer")
        colorbar = upper.colorbar(image, ax=heatmaps, fraction=0.02, pad=0.01, aspect=18)
        colorbar.set_label("value / layer's mean", fontsize=7)
        axes = list(lower.subplots(1, 2, sharey=True))
        for ax, signal in zip(axes, ("richness", "correlation"), strict=True):
            _overlap(ax, overlaps[(overlaps["task"] == task) & (overlaps["with"] == signal)])
            ax.set_title(f"shared with {signal} alone")
        axes[0].set_ylabel("chosen heads shared,\nmean over layers")
        style.shared_legend(lower, axes, loc="outside lower center")
    metadata.notes.append("dots: chosen heads; where a heatmap has one color, the values give no basis for a choice")
    return figure


def _heatmap(ax: Axes, values: Frame, extent: float) -> AxesImage:
    table = values.pivot(index="layer", columns="head", values="value").to_numpy()
    image = ax.imshow(table, vmin=1 - extent, vmax=1 + extent, aspect="auto", interpolation="nearest")
    if np.ptp(table) < 1e-4:
        text = "all values equal:\nno basis for a choice"
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=7)
    else:
        chosen = values[values["chosen"].astype(str) == "True"]
        ax.plot(chosen["head"], chosen["layer"], "o", markersize=3, markerfacecolor="white", markeredgecolor="black")
    style.set_head_ticks(ax, table.shape[1])
    ax.set_yticks(range(len(table)), [str(layer + 1) for layer in range(len(table))])
    return image


def _overlap(ax: Axes, overlaps: Frame) -> None:
    for number, name in enumerate(name for name in _LABELS if name in set(overlaps["ranking"])):
        shared = overlaps[overlaps["ranking"] == name].groupby("damping")["value"].mean()
        noise = {"color": "#999999", "linewidth": 0.7, "markersize": 2} if name == "pagerank-literal" else {}
        label = f"{_LABELS[name]}{' (rounding noise)' if noise else ''}"
        ax.plot(shared.index, shared, label=label, **style.line(number) | noise)
    style.mark_chance(ax, overlaps["chance"].iloc[0])
    ax.set_ylim(0, 1.05 * overlaps["k"].iloc[0])
    ax.set_xlabel("damping factor d")
