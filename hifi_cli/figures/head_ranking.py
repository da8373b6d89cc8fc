"""What decides which heads are chosen: every ranking next to the others, and their overlaps against the damping factor."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import RANKINGS, Array, Ranked, check_k

_LABELS = {
    "richness": "richness $I_h$ alone",
    "correlation": r"correlation alone, $\Sigma_{h'}\,r_{h,h'}$",
    "pagerank-literal": "PageRank as printed",
    "pagerank": "PageRank, transposed",
    "pagerank-personalized": "PageRank, personalized",
}
_SIGNALS, _PAGERANKS = list(_LABELS)[:2], list(_LABELS)[2:]


class Settings(ConfigModel):
    """What is compared."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]
    """Values of PageRank's damping factor d at which the selections are compared."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the rows of two panels.

    `panel` values: one row per task, layer, ranking and head: its `value` relative to the layer's mean, its `rank` from 1,
    whether it is `chosen`. `panel` overlap: one row per task, layer, damping factor, PageRank and the signal that it is
    compared `with`: how many of the k chosen heads they share (`value`), and how many by `chance`.
    """
    rows = []
    for task in request.spec.tasks:
        config = request.config(task)
        k, epsilon = config.heads.k, config.heads.epsilon
        scores, _ = head_selection.scores(config, request.resources)
        check_k(k, scores.num_heads)
        for layer in range(scores.num_layers):
            arrays = scores.richness_array[layer], scores.correlation_array[layer]
            keys = {"task": task, "layer": layer}
            for name in _LABELS:
                ranked = RANKINGS[name](*arrays, config.heads.damping, epsilon)
                rows += [{**keys, "panel": "values", "ranking": name, **row} for row in value_rows(ranked, k)]
            for damping in request.settings.dampings:
                overlaps = overlap_rows(*arrays, damping, epsilon, k)
                rows += [{**keys, "panel": "overlap", "damping": damping, **row} for row in overlaps]
    heads = request.config(request.spec.tasks[0]).heads
    request.notes.append(f"the top k = {heads.k} heads of a layer are chosen; heatmaps at d = {heads.damping:g}")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw each ranking's values as a heatmap of layers and heads, with the chosen heads marked; below, overlaps against d.

    A heatmap of one color gives no basis for a choice; an overlap near k means that the ranking follows one signal alone.
    """
    tasks = list(data["task"].unique())
    values, overlaps = data[data["panel"] == "values"], data[data["panel"] == "overlap"]
    heights = [0.9 + 0.13 * values["layer"].nunique(), 2.1] * len(tasks)
    figure = Figure(figsize=(style.WIDE, sum(heights) + 0.9), layout="constrained")
    rows = figure.subfigures(2 * len(tasks), 1, height_ratios=heights, squeeze=False)[:, 0]
    extent = float(np.quantile(np.abs(values["value"] - 1), 0.98))
    for number, task in enumerate(tasks):
        upper, lower = rows[2 * number], rows[2 * number + 1]
        heatmaps = list(upper.subplots(1, len(_LABELS), sharey=True))
        for ax, (name, label) in zip(heatmaps, _LABELS.items(), strict=True):
            image = _heatmap(ax, values[(values["task"] == task) & (values["ranking"] == name)], extent)
            ax.set_title(label, fontsize=7)
            ax.set_xlabel("head")
        heatmaps[0].set_ylabel(style.panel_title(record, task, "layer"))
        colorbar = upper.colorbar(image, ax=heatmaps, fraction=0.02, pad=0.01, aspect=18)
        colorbar.set_label("value / layer's mean", fontsize=7)
        axes = list(lower.subplots(1, 2, sharey=True))
        for ax, signal in zip(axes, _SIGNALS, strict=True):
            _overlap(ax, overlaps[(overlaps["task"] == task) & (overlaps["with"] == signal)])
            ax.set_title(f"shared with {signal} alone")
        axes[0].set_ylabel("chosen heads shared,\nmean over layers")
        style.shared_legend(lower, axes, loc="outside lower center")
    record.notes.append("dots: chosen heads; where a heatmap has one color, the values give no basis for a choice")
    return figure


def value_rows(ranked: Ranked, k: int) -> list[Row]:
    """One row per head: its value relative to the mean over the heads, its rank from 1, and whether it is chosen."""
    relative = ranked.values / ranked.values.mean()
    ranks = {head: number for number, head in enumerate(ranked.order, 1)}
    return [
        {"head": head, "value": float(value), "rank": ranks[head], "chosen": ranks[head] <= k}
        for head, value in enumerate(relative)
    ]


def overlap_rows(richness: Array, correlation: Array, damping: float, epsilon: float, k: int) -> list[Row]:
    """Compare the heads that each PageRank chooses with those of one signal alone; equal values are ordered by rounding."""
    chosen = {name: {*RANKINGS[name](richness, correlation, damping, epsilon).top(k)} for name in _LABELS}
    chance = k * k / len(richness)
    return [
        {"ranking": name, "with": signal, "value": len(chosen[name] & chosen[signal]), "k": k, "chance": chance}
        for name in _PAGERANKS
        for signal in _SIGNALS
    ]


def _heatmap(ax: Axes, values: style.Frame, extent: float) -> AxesImage:
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


def _overlap(ax: Axes, overlaps: style.Frame) -> None:
    for number, name in enumerate(_PAGERANKS):
        shared = overlaps[overlaps["ranking"] == name].groupby("damping")["value"].mean()
        noise = {"color": "#999999", "linewidth": 0.7, "markersize": 2} if name == "pagerank-literal" else {}
        label = f"{_LABELS[name]}{' (rounding noise)' if noise else ''}"
        ax.plot(shared.index, shared, label=label, **style.line(number) | noise)
    style.mark_chance(ax, overlaps["chance"].iloc[0])
    ax.set_ylim(0, 1.05 * overlaps["k"].iloc[0])
    ax.set_xlabel("damping factor d")
