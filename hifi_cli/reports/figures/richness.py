"""Information richness of every head under several settings (HiFi, figure 3)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw a panel per layer and a line per setting; shade the first setting's standard deviation over samples."""
    panels = list(frame.groupby(["task", "layer"], sort=False))
    figure, axes = style.grid(len(panels), columns=4, sharex=True)
    for ax, ((task, layer), heads) in zip(axes, panels, strict=True):
        for number, (setting, points) in enumerate(heads.groupby("setting", sort=False)):
            ax.plot(points["head"], points["mean"], label=setting, **style.line(number))
            if not number:
                low, high = points["mean"] - points["std"], points["mean"] + points["std"]
                ax.fill_between(points["head"], low, high, color="#bbbbbb", alpha=0.5, linewidth=0)
        ax.set_title(style.layer_title(metadata, task, layer))
        style.set_head_ticks(ax, heads["head"].nunique())
    style.label_outer(axes, "head", "richness $I_h$")
    style.shared_legend(figure, axes)
    metadata.notes.append(f"shade: standard deviation over samples under {frame['setting'].iloc[0]}")
    return figure
