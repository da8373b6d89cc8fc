"""PageRank's iterations and time against the damping factor d (HiFi, figure 6, right)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw iterations and milliseconds against d: a line per task for the mean over layers, a shade from minimum to maximum."""
    figure, axes = style.grid(2, columns=2, height=2.1, sharex=True)
    columns = {"iterations": ("iterations", 1.0), "seconds": ("time of one layer [ms]", 1e3)}
    for ax, (column, (label, factor)) in zip(axes, columns.items(), strict=True):
        for number, (task, panel) in enumerate(frame.groupby("task", sort=False)):
            layers = factor * panel.groupby("damping")[column].agg(["mean", "min", "max"])
            ax.plot(layers.index, layers["mean"], label=metadata.tasks[str(task)], **style.line(number))
            ax.fill_between(layers.index, layers["min"], layers["max"], color="#bbbbbb", alpha=0.25, linewidth=0)
        ax.set_xlabel("damping factor d")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    axes[0].legend()
    metadata.notes.append("lines: mean over layers; shade: minimum to maximum over layers")
    return figure
