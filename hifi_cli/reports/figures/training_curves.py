"""Courses of training and sweeps: HiFi's figure 6 (left), EH-FT's figures 5, 6 and 7."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.style import Frame, Meta

_AXES = {"heads.k": "selected heads k per layer", "settings.share": "share of stage 1"}


def sweep(frame: Frame, meta: Meta) -> Figure:
    """Mean score and its deviation over seeds against the varied key, a panel per task, a line per method."""
    tasks = list(frame["task"].unique())
    width = style.WIDE if len(tasks) > 1 else style.NARROW
    figure, axes = style.grid(len(tasks), columns=2, height=2.2, width=width)
    for place, task in zip(axes, tasks, strict=True):
        inside = frame[frame["task"] == task]
        for number, (_, runs) in enumerate(inside.groupby("method", sort=False)):
            found = 100 * runs.groupby("x")["score"].agg(["mean", "std"]).fillna(0)
            spread = found["std"] if found["std"].any() else None
            place.errorbar(found.index, found["mean"], yerr=spread, capsize=2, **style.line(number))
        style.name_task(place, meta, task)
        place.set_ylabel(str(inside["metric"].iloc[0]))
        key = str(inside["key"].iloc[0])
        place.set_xlabel(_AXES.get(key, key))
        if key == "heads.k":
            place.set_xticks(sorted(inside["x"].unique()))
            _shares_above(place, inside)
    return figure


def _shares_above(place: Axes, inside: Frame) -> None:
    """The share of the model's parameters that k heads are, as a second axis."""
    share = 100 * inside.groupby("x")["trained_share"].first()
    above = place.secondary_xaxis("top")
    shown = share.index[:: max(1, len(share) // 4)]
    above.set_xticks(list(shown), [f"{share[k]:.1f} %" for k in shown])
    above.tick_params(labelsize=6, length=2)
    above.set_xlabel("of the model's parameters trained, without the task head", fontsize=6)


def distance(frame: Frame, meta: Meta) -> Figure:
    """L2 distance from the pretrained weights against the steps of full fine-tuning (EH-FT, figure 5)."""
    frame = frame.dropna(subset=["distance"])
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks), columns=2, height=2.6, width=style.WIDE if len(tasks) > 1 else 4.6)
    for place, task in zip(axes, tasks, strict=True):
        for number, (label, runs) in enumerate(_courses(frame[frame["task"] == task])):
            for seed, (_, run) in enumerate(runs.groupby("seed", sort=False)):
                shown = style.line(number, mark=False)
                place.plot(run["stage_step"], run["distance"], label=None if seed else label, alpha=0.85, **shown)
        style.name_task(place, meta, task)
        place.set_xlabel("iterations of full fine-tuning")
        place.set_ylabel(r"$\|\theta_f - \theta_f^*\|_2$")
        place.set_ylim(bottom=0)
        place.legend(loc="lower right")
    meta.notes.append("a line per seed; EH-FT: stage 2, which begins with the pretrained backbone")
    return figure


def convergence(frame: Frame, meta: Meta) -> Figure:
    """Training loss of the stage that fine-tunes everything, and the gradient norms of head and backbone (EH-FT, figure 7)."""
    tasks = list(frame["task"].unique())
    titles = {
        "loss": "training loss",
        "head_gradient": "gradient norm, head",
        "backbone_gradient": "gradient norm, backbone",
    }
    figure, axes = style.grid(3 * len(tasks), columns=3, height=2.2)
    for row, task in enumerate(tasks):
        for column, (name, title) in enumerate(titles.items()):
            place = axes[3 * row + column]
            for number, (label, runs) in enumerate(_courses(frame[frame["task"] == task])):
                _course(place, runs, name, label, number)
            place.set_title(f"{title}, {meta.tasks[task]}" if len(tasks) > 1 else title)
            place.set_xlabel("iterations of full fine-tuning")
        axes[3 * row].set_ylim(bottom=0)
        _same_decades(axes[3 * row + 1 : 3 * row + 3])
    style.legend_above(figure, axes[0])
    meta.notes.append("mean over seeds, running mean over 5 % of the iterations; gradients before clipping; EH-FT: stage 2")
    return figure


def _same_decades(places: list[Axes]) -> None:
    """One logarithmic axis for panels that are to be compared, with plain numbers."""
    for place in places:
        place.set_yscale("log")
    low, high = min(place.get_ylim()[0] for place in places), max(place.get_ylim()[1] for place in places)
    for place in places:
        place.set_ylim(low, high)
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        place.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        place.yaxis.set_minor_formatter(NullFormatter())


def _course(place: Axes, runs: Frame, name: str, label: str, number: int) -> None:
    """The mean over seeds, smoothed; geometric for gradients, whose axis is logarithmic."""
    table = runs.pivot(index="stage_step", columns="seed", values=name).dropna()
    values = table.to_numpy()
    mean = values.mean(1) if name == "loss" else np.exp(np.log(np.maximum(values, 1e-12)).mean(1))
    smooth = style.smoothed(mean, max(1, len(mean) // 20))
    place.plot(table.index, smooth, label=label, **style.line(number, mark=False))


def _courses(frame: Frame) -> list[tuple[str, Any]]:
    """Each method's runs in their last stage, by the label a legend shows; stage 1's share where several are compared."""
    last = frame.groupby(["method", "share"])["stage"].transform("max")
    full = frame[frame["stage"] == last]
    several = full.groupby("method")["share"].nunique().max() > 1
    found = []
    for (_, share), runs in full.groupby(["method", "share"], sort=False):
        label = str(runs["label"].iloc[0])
        found.append((f"{label}, {100 * share:g} % stage 1" if several and share else label, runs))
    return found
