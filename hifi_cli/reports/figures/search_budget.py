"""Expected best validation score against the number of tried settings (Dodge et al., EMNLP 2019)."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a panel per task and a line per method, with a band from the first to the third quartile."""
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks), columns=2, height=2.3, width=style.WIDE if len(tasks) > 1 else 4.6)
    for ax, task in zip(axes, tasks, strict=True):
        for number, (label, budget) in enumerate(frame[frame["task"] == task].groupby("label", sort=False)):
            line_style, settings = style.line(number), budget["settings"]
            ax.plot(settings, 100 * budget["mean"], label=label, **line_style)
            quartiles = 100 * budget["quartile1"], 100 * budget["quartile3"]
            ax.fill_between(settings, *quartiles, color=line_style["color"], alpha=0.12, linewidth=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.set_task_title(ax, metadata, task)
    style.label_outer(axes, "tried settings", "expected best score")
    style.shared_legend(figure, axes)
    return figure
