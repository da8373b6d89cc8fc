"""What drives the choice of heads, and what PageRank costs (HiFi, figure 6, right)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.style import Frame, Meta

_READINGS = {
    "richness": "richness $I_h$ alone",
    "correlation": r"correlation alone, $\sum_{h'} r_{h,h'}$",
    "pagerank-literal": "PageRank as printed",
    "pagerank": "PageRank, transposed",
    "pagerank-personalized": "PageRank, personalized",
}


def damping(frame: Frame, meta: Meta) -> Figure:
    """Iterations and milliseconds against d, a line per task: mean over layers; the shade spans them (HiFi, figure 6)."""
    figure, axes = style.grid(2, columns=2, height=2.1, sharex=True)
    columns = {"iterations": ("iterations", 1.0), "seconds": ("time of one layer [ms]", 1e3)}
    for place, (column, (label, factor)) in zip(axes, columns.items(), strict=True):
        for number, (task, inside) in enumerate(frame.groupby("task", sort=False)):
            found = factor * inside.groupby("damping")[column].agg(["mean", "min", "max"])
            place.plot(found.index, found["mean"], label=meta.tasks[str(task)], **style.line(number))
            place.fill_between(found.index, found["min"], found["max"], color="#bbbbbb", alpha=0.25, linewidth=0)
        place.set_xlabel("damping factor d")
        place.set_ylabel(label)
        place.set_ylim(bottom=0)
    axes[0].legend()
    meta.notes.append("lines: mean over layers, shade: from the least to the most of any layer")
    return figure


def ranking(frame: Frame, meta: Meta) -> Figure:
    """Every ranking's values as a map of layers and heads in one scale, chosen heads dotted; below, overlaps against d.

    A flat map has nothing to choose by; a line at the top follows one signal alone.
    """
    tasks = list(frame["task"].unique())
    values, overlap = frame[frame["panel"] == "values"], frame[frame["panel"] == "overlap"]
    names = [name for name in _READINGS if name in set(values["ranking"])]
    layers = int(values["layer"].max()) + 1
    figure = Figure(figsize=(style.WIDE, len(tasks) * (1.1 + 0.13 * layers + 2.0) + 0.9), layout="constrained")
    halves = figure.subfigures(2 * len(tasks), 1, height_ratios=[0.9 + 0.13 * layers, 2.1] * len(tasks), squeeze=False)[:, 0]
    extent = float(np.quantile(np.abs(values["value"] - 1), 0.98))
    for number, task in enumerate(tasks):
        maps = list(halves[2 * number].subplots(1, len(names), sharey=True))
        for place, name in zip(maps, names, strict=True):
            image = _map(place, values[(values["task"] == task) & (values["ranking"] == name)], extent)
            place.set_title(_READINGS[name], fontsize=7)
            place.set_xlabel("head")
        maps[0].set_ylabel("layer" if len(tasks) == 1 else f"{meta.tasks[task]}: layer")
        bar = halves[2 * number].colorbar(image, ax=maps, fraction=0.02, pad=0.01, aspect=18)
        bar.set_label("value / layer's mean", fontsize=7)
        lines = list(halves[2 * number + 1].subplots(1, 2, sharey=True))
        for place, signal in zip(lines, ("richness", "correlation"), strict=True):
            _overlap(place, overlap[(overlap["task"] == task) & (overlap["with"] == signal)])
            place.set_title(f"shared with {signal} alone")
        lines[0].set_ylabel("chosen heads shared, mean of layers")
        halves[2 * number + 1].legend(*lines[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    meta.notes.append("dots: chosen heads; a map of one colour has nothing to choose by")
    return figure


def _map(place: Axes, values: Frame, extent: float) -> AxesImage:
    table = values.pivot(index="layer", columns="head", values="value").to_numpy()
    image = place.imshow(table, vmin=1 - extent, vmax=1 + extent, aspect="auto", interpolation="nearest")
    flat = np.ptp(table) < 1e-4
    if not flat:
        chosen = values[values["chosen"].astype(str) == "True"]
        place.plot(chosen["head"], chosen["layer"], "o", markersize=3, markerfacecolor="white", markeredgecolor="black")
    else:
        place.text(0.5, 0.5, "flat: nothing\nto choose by", transform=place.transAxes, ha="center", va="center", fontsize=7)
    style.heads_axis(place, table.shape[1])
    place.set_yticks(range(len(table)), [str(layer + 1) for layer in range(len(table))])
    return image


def _overlap(place: Axes, inside: Frame) -> None:
    for number, name in enumerate(name for name in _READINGS if name in set(inside["ranking"])):
        found = inside[inside["ranking"] == name].groupby("damping")["value"].mean()
        noise = {"color": "#999999", "linewidth": 0.7, "markersize": 2} if name == "pagerank-literal" else {}
        label = f"{_READINGS[name]}{' (rounding noise)' if noise else ''}"
        place.plot(found.index, found, label=label, **style.line(number) | noise)
    chance = inside["chance"].iloc[0]
    place.axhline(chance, color="#999999", linewidth=0.8)
    end = place.get_yaxis_transform()  # along the axis from 0 to 1, up in data
    place.text(1, chance, "chance", transform=end, fontsize=6, va="bottom", ha="right", color="#666666")
    place.set_ylim(0, 1.05 * inside["k"].iloc[0])
    place.set_xlabel("damping factor d")
