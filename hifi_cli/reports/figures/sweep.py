"""Score against one configuration key (HiFi, figure 6, left; EH-FT, figure 6)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hifi_cli.config.registry import label_of
from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame

_X_LABELS = {"heads.k": "selected heads k per layer", "settings.stage1_fraction": "epochs of stage 1 / all epochs"}
_KEPT_STAGE2 = "epochs of stage 1 / epochs of stage 2"


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw mean score and standard deviation over seeds against the varied key, a panel per task, a line per method."""
    tasks = list(frame["task"].unique())
    width = style.WIDE if len(tasks) > 1 else style.NARROW
    figure, axes = style.grid(len(tasks), columns=2, height=2.2, width=width)
    for ax, task in zip(axes, tasks, strict=True):
        panel = frame[frame["task"] == task]
        methods = panel.groupby("method", sort=False)
        for number, (method, runs) in enumerate(methods):
            scores = 100 * runs.groupby("x")["score"].agg(["mean", "std"]).fillna(0)
            spread = scores["std"] if scores["std"].any() else None
            ax.errorbar(
                scores.index,
                scores["mean"],
                yerr=spread,
                capsize=2,
                label=label_of("methods", str(method)),
                **style.line(number),
            )
        style.set_task_title(ax, metadata, task)
        ax.set_ylabel(f"{panel['metric'].iloc[0]} [%]")
        key = str(panel["key"].iloc[0])
        ax.set_xlabel(_KEPT_STAGE2 if metadata.inputs.settings["keep_stage2"] else _X_LABELS.get(key, key))
        if key == "heads.k":
            ax.set_xticks(sorted(panel["x"].unique()))
            if len(methods) == 1:
                _add_fraction_axis(ax, panel)
    if frame["method"].nunique() > 1:
        style.shared_legend(figure, axes)
    return figure


def _add_fraction_axis(ax: Axes, panel: Frame) -> None:
    """Add a second x axis: the fraction of the model's parameters that k heads are, in percent."""
    percent = 100 * panel.groupby("x")["trained_share"].first()
    top = ax.secondary_xaxis("top")
    ticks = percent.index[:: max(1, len(percent) // 4)]
    top.set_xticks(list(ticks), [f"{percent[k]:.1f} %" for k in ticks])
    top.tick_params(labelsize=6, length=2)
    top.set_xlabel("of the model's parameters trained, without the task head", fontsize=6)
