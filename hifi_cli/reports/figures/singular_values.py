"""How fast the singular values of a head's output add up (HiFi, figure 5)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a panel per task and a line per layer; a horizontal line marks xi = 0.9."""
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks), columns=2, height=2.0, sharex=True, sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        panel = frame[frame["task"] == task]
        for number, ((layer, head), points) in enumerate(panel.groupby(["layer", "head"], sort=False)):
            line = style.line(number, marker=False)
            ax.plot(points["t"], points["mean"], label=f"layer {layer + 1}, head {head}", **line)
            low, high = points["mean"] - points["std"], (points["mean"] + points["std"]).clip(upper=1)
            ax.fill_between(points["t"], low, high, color=line["color"], alpha=0.12, linewidth=0)
        ax.axhline(0.9, color="#666666", linewidth=0.7)
        ax.annotate(r"$\xi$ = 0.9", (panel["t"].max(), 0.9), ha="right", va="top", fontsize=6, color="#404040")
        ax.set_title(metadata.tasks[task])
        ax.legend(loc="lower right")
    style.label_outer(axes, "first t singular values", "fraction of their sum")
    return figure
