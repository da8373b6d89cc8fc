"""The style of all figures: readable in print, in gray, and with a color vision deficiency."""

import io
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from hifi_cli.config.registry import label_of, own_file
from hifi_cli.drawing.looks import LINES, Look, looks_of
from hifi_cli.tasks.metrics import range_of

# A pandas DataFrame, whose cells have a union type that no annotation narrows.
Frame = Any

# The text width of a page in inches, and that of a column of two.
WIDE = 6.9
NARROW = 3.3
# A page shows a picture smaller than it is, so that its lines are sharp on dense screens too.
_DOTS_PER_INCH = 160
# The looks of lines that are no methods: Okabe and Ito's colors from dark to light. Dashes and
# markers distinguish those that look alike.
_LINES = cycler(
    color=["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"],
    linestyle=[
        "-",
        "--",
        "-.",
        ":",
        (0, (5, 1, 1, 1, 1, 1)),
        (0, (1, 2)),
        (0, (8, 2)),
        (0, (3, 3)),
    ],
    marker=["o", "s", "^", "D", "v", "P", "X", "*"],
)
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": _LINES,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    # Its luminance falls evenly from low to high values.
    "image.cmap": "cividis_r",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def with_own_tasks(data: Frame, tasks: Iterable[str]) -> Frame:
    """Return numbers in which the user's own tasks carry their files, from which labels are read.

    A CSV has plain names.

    Args:
        data: has a column `task`.
        tasks: names, of which some carry the user's own file.
    """
    by_name = {str(task): task for task in tasks if own_file(task)}
    names = [by_name.get(name, name) for name in data["task"]]
    # A column of texts would keep the plain names alone.
    return data.assign(task=pd.Series(names, data.index, dtype=object))


def panels(data: Frame, words: Any = "") -> Frame:
    """Give the title of each row's panel: its words, and the task where there are several.

    Args:
        data: has a column `task`.
        words: of each row, or of all rows.
    """
    tasks = data["task"].map(lambda task: label_of("tasks", task))
    if tasks.nunique() == 1:
        return pd.Series(words, index=data.index)
    if len(words) == 0:
        return tasks
    return tasks + ", " + words


def facets(
    data: Frame,
    titles: Frame,
    *,
    columns: int = 2,
    height: float = 2.2,
    rows_are_full: bool = True,
    **share: Any,
) -> tuple[Figure, list[tuple[Axes, Frame]]]:
    """Create a figure with a panel for the rows of each title, in the data's order.

    Args:
        data: one row per point.
        titles: the panel's title of each row.
        columns: at most.
        height: of a row, in inches.
        rows_are_full: whether there are fewer columns where the last row is then full.
        share: `sharex` and `sharey`, as in matplotlib.

    Returns:
        The figure, and each panel with its rows.
    """
    groups = list(data.groupby(titles, sort=False))
    # No more columns than panels, and such that the rows are full if that is asked for.
    columns = min(columns, len(groups))
    if rows_are_full:
        columns = max(number for number in range(1, columns + 1) if len(groups) % number == 0)
    elif len(groups) == 4 and columns == 3:
        # Two rows of two, rather than a panel alone in its row.
        columns = 2
    rows = math.ceil(len(groups) / columns)
    width = WIDE if len(groups) > 1 else NARROW
    figure = Figure(figsize=(width, height * rows + 0.9), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
    for empty in axes[len(groups) :]:
        empty.remove()
    axes = axes[: len(groups)]
    for ax, (title, _) in zip(axes, groups, strict=True):
        ax.set_title(title)
    return figure, [(ax, group) for ax, (_, group) in zip(axes, groups, strict=True)]


def line_panels(
    data: Frame,
    x: str,
    y: str,
    *,
    by: str,
    band: tuple[str, str] | None = None,
    spread: str = "",
    limits: tuple[Any, Any] = (-math.inf, math.inf),
    labels: tuple[str, str],
    looks: Mapping[str, Look] | None = None,
    **of_facets: Any,
) -> Figure:
    """Draw a panel for each value of `panel`, with a line for each of `by`, in the data's order.

    Args:
        data: one row per point; has a column `panel`. With a column `method`, its lines have their
            methods' colors.
        x: the column of the horizontal axis.
        y: the column of the vertical axis.
        by: the column that distinguishes lines.
        band: two columns between which the area is shaded.
        spread: instead, a column to subtract from y and to add to it, as a standard deviation.
        limits: the lowest and the highest value that y can have, of all rows or of each row; the
            shade of a spread ends there.
        labels: of the axes.
        looks: of the methods; None: those of a picture that has no other panels.
        of_facets: arguments of `facets`.
    """
    if spread:
        lowest, highest = limits
        low = (data[y] - data[spread]).clip(lower=lowest)
        high = (data[y] + data[spread]).clip(upper=highest)
        data = data.assign(low=low, high=high)
        band = ("low", "high")
    figure, groups = facets(data, data["panel"], **of_facets)
    line_styles: dict[str, dict[str, Any]] = {}
    if "method" in data:
        line_styles = line_looks(data, by, looks or looks_of(data["method"]))
    for ax, rows in groups:
        for label, points in rows.groupby(by, sort=False):
            # About a dozen markers a line, however many points it has.
            every = max(1, len(points) // 12)
            drawn_as = line_styles.get(label, {})
            (line,) = ax.plot(points[x], points[y], label=label, markevery=every, **drawn_as)
            if band:
                low = points[band[0]]
                high = points[band[1]]
                color = line.get_color()
                ax.fill_between(points[x], low, high, color=color, alpha=0.12, linewidth=0)
        ax.locator_params(axis="x", integer=data[x].dtype.kind == "i")
        label_outer(ax, *labels)
    shared_legend(figure)
    return figure


def score_limits(metrics: Frame) -> tuple[Frame, Frame]:
    """Return the lowest and the highest value of each row's score in percent, as `line_panels` takes them.

    Args:
        metrics: the name of each row's score.
    """
    lowest = metrics.map(lambda metric: range_of(metric)[0])
    highest = metrics.map(lambda metric: range_of(metric)[1])
    return lowest, highest


def line_looks(data: Frame, by: str, methods: Mapping[str, Look]) -> dict[str, dict[str, Any]]:
    """Return how the line of each label is drawn, as arguments of `plot`: in its method's color.

    Where a method has several lines, the first one looks as in every other picture.

    Args:
        data: columns `method` and `by`.
        by: the column of the lines' labels.
        methods: the look of each method.
    """
    lines_of = Counter[str]()
    looks: dict[str, dict[str, Any]] = {}
    for row in data.drop_duplicates(by).to_dict("records"):
        look = methods[row["method"]]
        place = LINES.index(look.line) + lines_of[row["method"]]
        lines_of[row["method"]] += 1
        line = LINES[place % len(LINES)]
        looks[row[by]] = {"color": look.color, "linestyle": line, "marker": look.marker}
    return looks


def shared_legend(figure: Figure) -> None:
    """Add one legend for all panels, with each label once, in the order they were drawn."""
    handles: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    # A label takes a little more than an inch.
    columns = min(len(handles), int(0.9 * figure.get_figwidth()))
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=columns)


def over_seeds(counts: Frame, deviation: str = "") -> str:
    """Say over how many seeds means are, without a period.

    Args:
        counts: the number of seeds of each mean.
        deviation: what shows the standard deviation in the picture; empty: nothing does.
    """
    fewest = min(counts)
    most = max(counts)
    # A single seed has no deviation.
    if most == 1:
        return "One seed"
    number = f"{most}"
    if fewest < most:
        number = f"{fewest} to {most}"
    text = f"Mean over {number} seeds"
    if deviation:
        text += f"; {deviation}: standard deviation"
    return text


def colorbar(figure: Figure, image: Any, label: str, **settings: Any) -> None:
    """Add one color scale for all panels, at the right.

    Args:
        figure: has the panels.
        image: what is drawn in the colors.
        label: of the scale.
        settings: other arguments of matplotlib's `colorbar`.
    """
    figure.colorbar(
        image, ax=figure.axes, label=label, fraction=0.03, pad=0.02, aspect=35, **settings
    )


def label_rows(ax: Axes, labels: Any, x: str) -> None:
    """Label the rows of a panel that has a method per row; vertical lines help to compare them.

    Args:
        ax: the panel.
        labels: of the rows, from the top.
        x: label of the axis below.
    """
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.grid(axis="x", linewidth=0.3, color="#d0d0d0")
    ax.set_axisbelow(True)
    ax.set_xlabel(x)


def label_outer(ax: Axes, x: str, y: str) -> None:
    """Label the axes of a panel if it is in the last row or in the first column.

    Args:
        ax: the panel.
        x: label below the last row.
        y: label beside the first column.
    """
    place = ax.get_subplotspec()
    ax.set_xlabel(x if place is None or place.is_last_row() else "")
    ax.set_ylabel(y if place is None or place.is_first_col() else "")


def add_caption(figure: Figure, title: str, note: str) -> None:
    """Add the title at the top, over the legend where there is one, and the note at the bottom.

    Args:
        figure: it grows by the lines of the note.
        title: one line or several.
        note: how to read the picture.
    """
    # So many letters of each size stand on an inch.
    width = figure.get_figwidth()
    title = textwrap.fill(title, round(14.5 * width), break_on_hyphens=False)
    if figure.legends:
        figure.legends[0].set_title(title)
        figure.legends[0].get_title().set(fontsize=9, multialignment="center")
    else:
        figure.suptitle(title, fontsize=9)
    lines = textwrap.wrap(note, round(20 * width))
    # A line of the note takes 0.11 inches: the panels keep their height.
    figure.set_figheight(figure.get_figheight() + 0.11 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=6, x=0.01, ha="left", color="#404040")


def as_png(draw: Callable[[], Figure]) -> bytes:
    """Return a figure as a PNG file; `draw` makes it, in the style of all figures."""
    image = io.BytesIO()
    with mpl.rc_context(SETTINGS):
        draw().savefig(image, format="png", dpi=_DOTS_PER_INCH)
    return image.getvalue()
