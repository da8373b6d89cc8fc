"""Head scores: HiFi's figures 3, 4, 5 and 8 to 11, and their agreement in numbers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.style import Frame, Meta


def richness(frame: Frame, meta: Meta) -> Figure:
    """A panel per layer, a line per setting; the first setting's deviation over samples as a shade (HiFi, figure 3)."""
    panels = list(frame.groupby(["task", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, sharex=True)
    for place, ((task, layer), inside) in zip(axes, panels, strict=True):
        for number, (setting, points) in enumerate(inside.groupby("setting", sort=False)):
            place.plot(points["head"], points["mean"], label=setting, **style.line(number))
            if not number:
                low, high = points["mean"] - points["std"], points["mean"] + points["std"]
                place.fill_between(points["head"], low, high, color="#bbbbbb", alpha=0.5, linewidth=0)
        place.set_title(_layer(meta, task, layer))
        style.heads_axis(place, inside["head"].nunique())
    _outer(axes, "head", "information richness $I_h$")
    style.legend_above(figure, axes[0])
    meta.notes.append(f"shade: standard deviation over samples under {frame['setting'].iloc[0]}")
    return figure


def correlation(frame: Frame, meta: Meta) -> Figure:
    """A heatmap per layer and setting, all in one colour scale (HiFi, figures 4 and 8 to 11)."""
    panels = list(frame.groupby(["task", "setting", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, height=1.7, sharex=True, sharey=True)
    image = None
    for place, ((task, setting, layer), inside) in zip(axes, panels, strict=True):
        values = inside.pivot(index="head", columns="other", values="normalized").to_numpy(copy=True)
        np.fill_diagonal(values, np.nan)
        image = place.imshow(values, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        many = frame["setting"].nunique() > 1
        place.set_title(f"{setting}, layer {layer + 1}" if many else _layer(meta, task, layer))
        style.heads_axis(place, len(values))
        place.set_yticks(place.get_xticks())
    assert image is not None
    figure.colorbar(image, ax=axes, label="correlation $r_{h,h'}$, normalized", fraction=0.03, pad=0.02, aspect=35)
    _outer(axes, "head", "head")
    return figure


def robustness(frame: Frame, meta: Meta) -> Figure:
    """Agreement with ST per layer and, beside, its mean over layers; a panel per measure."""
    titles = {
        "richness": "rank correlation of $I_h$",
        "correlation": "rank correlation of $r_{h,h'}$",
        "chosen": "share of the chosen heads",
    }
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks) * len(titles), columns=len(titles), height=2.2, sharey=True)
    layers = list(range(1, int(frame["layer"].max()) + 2))
    mean_at = layers[-1] + 1.2
    for row, task in enumerate(tasks):
        for column, (measure, title) in enumerate(titles.items()):
            place = axes[row * len(titles) + column]
            inside = frame[(frame["task"] == task) & (frame["measure"] == measure)]
            for number, (setting, points) in enumerate(inside.groupby("setting", sort=False)):
                place.plot(points["layer"] + 1, points["value"], label=setting, **style.line(number))
                place.plot(mean_at, points["value"].mean(), **style.line(number))
            if measure == "chosen":
                place.axhline(inside["chance"].iloc[0], color="#999999", linewidth=0.8)
                place.text(1, inside["chance"].iloc[0], "chance", fontsize=6, va="bottom", color="#666666")
            place.set_title(f"{title}{f', {meta.tasks[task]}' if len(tasks) > 1 else ''}")
            shown = layers[:: 1 + len(layers) // 13]
            place.set_xticks([*shown, mean_at], [*map(str, shown), "mean"])
            place.set_ylim(min(-0.05, frame["value"].min() - 0.05), 1.05)
    _outer(axes, "layer", "agreement with ST")
    style.legend_above(figure, axes[0])
    return figure


def singular_values(frame: Frame, meta: Meta) -> Figure:
    """A panel per task, a line per layer; xi = 0.9 is marked (HiFi, figure 5)."""
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks), columns=2, height=2.0, sharex=True, sharey=True)
    for place, task in zip(axes, tasks, strict=True):
        inside = frame[frame["task"] == task]
        for number, ((layer, head), points) in enumerate(inside.groupby(["layer", "head"], sort=False)):
            shown = style.line(number, mark=False)
            place.plot(points["t"], points["mean"], label=f"layer {layer + 1}, head {head}", **shown)
            low, high = points["mean"] - points["std"], (points["mean"] + points["std"]).clip(upper=1)
            place.fill_between(points["t"], low, high, color=shown["color"], alpha=0.12, linewidth=0)
        place.axhline(0.9, color="#666666", linewidth=0.7)
        place.annotate(r"$\xi$ = 0.9", (inside["t"].max(), 0.9), ha="right", va="top", fontsize=6, color="#404040")
        place.set_title(meta.tasks[task])
        place.legend(loc="lower right")
    _outer(axes, "first t singular values", "share of their sum")
    return figure


def _layer(meta: Meta, task: str, layer: int) -> str:
    """A panel's title; layers are counted from 1, as the paper does."""
    return f"layer {layer + 1}" if len(meta.tasks) == 1 else f"{meta.tasks[task]}, layer {layer + 1}"


def _outer(axes: list[Axes], x: str, y: str) -> None:
    """The names of axes that all panels share, at the outermost ones."""
    for place in axes:
        spot = place.get_subplotspec()
        if spot is not None:
            if place.xaxis.get_tick_params().get("labelbottom", True):
                place.set_xlabel(x)
            if spot.is_first_col():
                place.set_ylabel(y)
