"""PageRank's iterations and time against the damping factor d (HiFi, figure 6, right)."""

import time

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import RANKINGS


class Settings(ConfigModel):
    """What is timed."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]
    """Values of PageRank's damping factor d."""
    repeats: int = 20
    """Repetitions of each timing; the shortest one counts."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Measure iterations to convergence and seconds, one row per task, damping factor and layer.

    Raises:
        UsageError: the ranking is not a PageRank.
    """
    how = request.config(request.spec.tasks[0]).heads
    pageranks = [name for name in RANKINGS if name.startswith("pagerank")]
    if how.rank not in pageranks:
        known = ", ".join(pageranks)
        raise UsageError(f"heads.rank={how.rank} has no damping factor; this figure requires one of {known}")
    rows = []
    for task in request.spec.tasks:
        scores, _ = head_selection.scores(request.config(task), request.resources)
        for damping in request.settings.dampings:
            for layer in range(scores.num_layers):
                arrays = scores.richness_array[layer], scores.correlation_array[layer]
                seconds = []
                for _ in range(request.settings.repeats):
                    start = time.perf_counter()
                    ranked = RANKINGS[how.rank](*arrays, damping, how.epsilon)
                    seconds.append(time.perf_counter() - start)
                keys = {"task": task, "damping": damping, "layer": layer}
                rows.append({**keys, "iterations": ranked.iterations, "seconds": min(seconds)})
    timed = "time of one layer, the shortest of several"
    request.notes.append(f"ranking {how.rank}, epsilon {how.epsilon:g}; {timed}")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw iterations and milliseconds by d: a line per task for the mean over layers, a shade from minimum to maximum."""
    figure, axes = style.grid(2, columns=2, height=2.1, sharex=True)
    columns = {"iterations": ("iterations", 1.0), "seconds": ("time of one layer [ms]", 1e3)}
    for ax, (column, (label, factor)) in zip(axes, columns.items(), strict=True):
        for number, (task, panel) in enumerate(data.groupby("task", sort=False)):
            layers = factor * panel.groupby("damping")[column].agg(["mean", "min", "max"])
            ax.plot(layers.index, layers["mean"], label=label_of("tasks", str(task)), **style.line(number))
            ax.fill_between(layers.index, layers["min"], layers["max"], color="#bbbbbb", alpha=0.25, linewidth=0)
        ax.set_xlabel("damping factor d")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    axes[0].legend()
    record.notes.append("lines: mean over layers; shade: minimum to maximum over layers")
    return figure
