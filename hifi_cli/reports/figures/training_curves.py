"""Loss, gradient norms and distance from the pretrained weights over the steps of training (EH-FT, figures 5 and 7)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame

_TITLES = {
    "distance": r"distance from pretrained, $\|\theta_f - \theta_f^*\|_2$",
    "loss": "training loss",
    "head_gradient": "gradient norm, head",
    "backbone_gradient": "gradient norm, backbone",
}


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a row per task and a panel per curve, over the stage that fine-tunes the whole model."""
    tasks, curves = list(frame["task"].unique()), metadata.inputs.settings["curves"]
    panels = len(tasks) * len(curves)
    columns = len(curves) if len(curves) > 1 else 2
    figure, axes = style.grid(panels, columns=columns, height=2.3, width=style.WIDE if panels > 1 else 4.6)
    for row, task in enumerate(tasks):
        row_axes = dict(zip(curves, axes[row * len(curves) : (row + 1) * len(curves)], strict=True))
        runs_by_label = _runs_of_last_stage(frame[frame["task"] == task])
        for curve, ax in row_axes.items():
            for number, (label, runs) in enumerate(runs_by_label):
                _plot(ax, runs, curve, label, number)
            ax.set_title(f"{_TITLES[curve]}, {metadata.tasks[task]}" if len(tasks) > 1 else _TITLES[curve])
            ax.set_xlabel("iterations of full fine-tuning")
            if not curve.endswith("gradient"):
                ax.set_ylim(bottom=0)
        _share_log_axis([ax for curve, ax in row_axes.items() if curve.endswith("gradient")])
    style.shared_legend(figure, axes)
    if "distance" in curves:
        metadata.notes.append("distance: a line per seed; EH-FT: stage 2, which starts with the pretrained backbone")
    if set(curves) - {"distance"}:
        metadata.notes.append(
            "mean over seeds, running mean over 5 % of the iterations; gradients before clipping; EH-FT: stage 2"
        )
    return figure


def _plot(ax: Axes, runs: Frame, curve: str, label: str, number: int) -> None:
    """Plot a line per seed for the distance; otherwise the smoothed mean over seeds, geometric for gradient norms."""
    table = runs.pivot(index="stage_step", columns="seed", values=curve).dropna()
    values, line = table.to_numpy(), style.line(number, marker=False)
    if curve == "distance":
        for seed, distances in enumerate(values.T):
            ax.plot(table.index, distances, label=None if seed else label, alpha=0.85, **line)
        return
    mean = values.mean(1) if curve == "loss" else np.exp(np.log(np.maximum(values, 1e-12)).mean(1))
    smooth = pd.Series(mean).rolling(max(1, len(mean) // 20), min_periods=1).mean()
    ax.plot(table.index, smooth, label=label, **line)


def _share_log_axis(axes: list[Axes]) -> None:
    """Give panels one logarithmic y axis with plain numbers, so that they can be compared."""
    for ax in axes:
        ax.set_yscale("log")
    limits = [ax.get_ylim() for ax in axes]
    for ax in axes:
        low, high = min(low for low, _ in limits), max(high for _, high in limits)
        ax.set_ylim(low, high)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _runs_of_last_stage(frame: Frame) -> list[tuple[str, Any]]:
    """Each method's rows of the last stage, by legend label, which names stage 1's fraction where several are compared."""
    last = frame.groupby(["method", "stage1_fraction"])["stage"].transform("max")
    full = frame[frame["stage"] == last]
    several = full.groupby("method")["stage1_fraction"].nunique().max() > 1
    runs_by_label = []
    for (_, fraction), runs in full.groupby(["method", "stage1_fraction"], sort=False):
        label = str(runs["label"].iloc[0])
        runs_by_label.append((f"{label}, {100 * fraction:g} % stage 1" if several and fraction else label, runs))
    return runs_by_label
