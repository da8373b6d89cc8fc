"""How far the features move within stage 1 and from stage 1 to stage 2 (EH-FT, section 2.3)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame

_PAIRS = {
    "pretrained-stage1": ("pretrained to stage 1", "#dce6f0"),
    "stage1-stage2": ("stage 1 to stage 2", "#6f9fc8"),
    "pretrained-stage2": ("pretrained to stage 2", "#28527a"),
}
_HEIGHT = 0.27  # of a bar; methods are 1 apart


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw three bars per method with their numbers, mean over seeds of the mean distance, and what the paper prints."""
    tasks = list(frame["task"].unique())
    bars = 3 * frame["method"].nunique()
    figure, axes = style.grid(len(tasks), columns=2, height=1.0 + 0.24 * bars, width=style.WIDE if len(tasks) > 1 else 4.6)
    for ax, task in zip(axes, tasks, strict=True):
        panel = frame[frame["task"] == task]
        methods = panel.groupby("method", sort=False)[["label", "published"]].first()
        for number, (pair, (label, color)) in enumerate(_PAIRS.items()):
            distances = panel[panel["pair"] == pair].groupby("method", sort=False)["mean"].agg(["mean", "std"]).fillna(0)
            places = np.arange(len(distances)) + _HEIGHT * (number - 1)
            spread = distances["std"] if distances["std"].any() else None
            bar_style: dict[str, Any] = {"color": color, "edgecolor": "black", "linewidth": 0.6, "capsize": 2}
            ax.barh(places, distances["mean"], _HEIGHT, xerr=spread, label=label, **bar_style)
            for place, (mean, deviation) in zip(places, distances.itertuples(index=False), strict=True):
                ax.text(mean + deviation, place, f" {mean:.2f}", va="center", fontsize=7)
        names = [
            row.label if np.isnan(row.published) else f"{row.label}\n(paper: {row.published:g})"
            for row in methods.itertuples(index=False)
        ]
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.margins(x=0.15)
        style.set_task_title(ax, metadata, task)
        ax.set_xlabel("$L_2$ distance of the features")
        ax.legend(fontsize=6)
    return figure
