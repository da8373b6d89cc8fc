"""Rankings of heads against one another: a matrix of rank correlations, and the scores of the heads that each chooses."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame
from hifi_cli.statistics import mean_interval


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw one row of panels per task; both panels of a row have one line per ranking, methods without one stand below."""
    tasks = list(frame["task"].unique())
    correlations, scores = frame[frame["panel"] == "correlation"], frame[frame["panel"] == "score"]
    height = 1.1 + 0.2 * len({*frame["label"], *correlations["other_label"]})
    figure = Figure(figsize=(style.WIDE, height * len(tasks) + 0.7), layout="constrained")
    axes = figure.subplots(len(tasks), 2, squeeze=False, sharey="row", width_ratios=[1.15, 1])
    for (left, right), task in zip(axes, tasks, strict=True):
        pairs, runs = correlations[correlations["task"] == task], scores[scores["task"] == task]
        ranked = list(dict.fromkeys([*pairs["label"], *pairs["other_label"]]))
        lines = [*ranked, *(label for label in dict.fromkeys(runs["label"]) if label not in ranked)]
        _matrix(left, pairs, ranked)
        _scores(right, runs, lines)
        left.set_yticks(range(len(lines)), lines)
        left.set_ylim(len(lines) - 0.5, -0.5)
        style.set_task_title(left, metadata, task)
    return figure


def _matrix(ax: Axes, pairs: Frame, ranked: list[str]) -> None:
    table = np.full((len(ranked), len(ranked)), np.nan)
    for label, other, value in zip(pairs["label"], pairs["other_label"], pairs["value"], strict=True):
        table[ranked.index(other), ranked.index(label)] = value
    ax.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto", interpolation="nearest")
    noise = float(pairs["noise"].iloc[0]) if len(pairs) else 0.0
    for row, column in np.argwhere(np.tri(len(ranked), k=-1)).tolist():
        value = table[row, column]
        text = "-" if np.isnan(value) else f"{value:.2f}".replace("-", style.MINUS).replace("0.", ".")
        color = "#888888" if abs(value) <= noise else "white" if value > 0.7 or value < -0.5 else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    ax.set_xticks(range(len(ranked) - 1), ranked[:-1], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(ranked) - 1.5)
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def _scores(ax: Axes, runs: Frame, lines: list[str]) -> None:
    ax.tick_params(axis="y", labelleft=False)
    if runs.empty:
        ax.set_xticks([])
        ax.text(0.5, 0.5, "no finished runs", transform=ax.transAxes, ha="center", va="center", color="#666666")
        return
    for label, group in runs.groupby("label"):
        values, line = 100 * group["score"].to_numpy(), lines.index(str(label))
        interval = mean_interval([values])
        ax.plot(values, np.full(len(values), line), "o", markersize=2.5, color="#666666", markeredgewidth=0, zorder=3.5)
        if interval:
            ax.plot(interval, [line, line], color="#0072B2", linewidth=1.2, zorder=3)
            if label == "random":
                ax.axvspan(*interval, color="#dddddd", linewidth=0, zorder=0)
        ax.plot(values.mean(), line, "D", color="#0072B2", zorder=4)
    ax.grid(axis="y", color="#eeeeee", zorder=1)
    ax.set_axisbelow(True)
    ax.set_xlabel(f"{runs['metric'].iloc[0]} [%]")
