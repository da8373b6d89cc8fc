"""Agreement of head scores and chosen heads between settings, in numbers (HiFi, section 5.1)."""

from matplotlib.figure import Figure

from hifi_cli.reports.figures import style
from hifi_cli.reports.figures.figure_spec import FigureMetadata
from hifi_cli.reports.figures.style import Frame

_TITLES = {
    "richness": "rank correlation of $I_h$",
    "correlation": "rank correlation of $r_{h,h'}$",
    "chosen": "fraction of chosen heads shared",
}


def draw(frame: Frame, metadata: FigureMetadata) -> Figure:
    """Draw the agreement with ST per layer and, to the right, its mean over layers; a panel per measure."""
    tasks = list(frame["task"].unique())
    figure, axes = style.grid(len(tasks) * len(_TITLES), columns=len(_TITLES), height=2.2, sharey=True)
    layers = list(range(1, int(frame["layer"].max()) + 2))
    mean_position = layers[-1] + 1.2
    for row, task in enumerate(tasks):
        for column, (measure, title) in enumerate(_TITLES.items()):
            ax = axes[row * len(_TITLES) + column]
            panel = frame[(frame["task"] == task) & (frame["measure"] == measure)]
            for number, (setting, points) in enumerate(panel.groupby("setting", sort=False)):
                ax.plot(points["layer"] + 1, points["value"], label=setting, **style.line(number))
                ax.plot(mean_position, points["value"].mean(), **style.line(number))
            if measure == "chosen":
                style.mark_chance(ax, panel["chance"].iloc[0])
            ax.set_title(f"{title}{f', {metadata.tasks[task]}' if len(tasks) > 1 else ''}")
            labelled = layers[:: 1 + len(layers) // 13]
            ax.set_xticks([*labelled, mean_position], [*map(str, labelled), "mean"])
            ax.set_ylim(min(-0.05, frame["value"].min() - 0.05), 1.05)
    style.label_outer(axes, "layer", "agreement with ST")
    style.shared_legend(figure, axes)
    return figure
