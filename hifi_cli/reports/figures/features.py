"""How far fine-tuning moves the features that the task head reads (EH-FT, figure 1)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a bar per method with its number: mean over seeds of the mean L2 change; error bars: standard deviation."""
    tasks = list(frame["task"].unique())
    bars = frame["method"].nunique()
    figure, axes = style.grid(len(tasks), columns=2, height=0.6 + 0.24 * bars, width=style.WIDE if len(tasks) > 1 else 4.6)
    for ax, task in zip(axes, tasks, strict=True):
        methods = frame[frame["task"] == task].groupby("label", sort=False)["mean"].agg(["mean", "std"]).fillna(0)
        spread = methods["std"] if methods["std"].any() else None
        ax.barh(methods.index, methods["mean"], xerr=spread, color="#6f9fc8", edgecolor="black", linewidth=0.6, capsize=2)
        for row, (mean, deviation) in enumerate(methods.itertuples(index=False)):
            ax.text(mean + deviation, row, f" {mean:.2f}", va="center", fontsize=7)
        ax.invert_yaxis()
        ax.margins(x=0.15)
        style.set_task_title(ax, metadata, task)
        ax.set_xlabel("$L_2$ change of the features")
    return figure
