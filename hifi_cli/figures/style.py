"""The style and helpers that all figures share: readable in print, in gray, and with a red-green color deficiency."""

import logging
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties

from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of

Frame = Any  # a pandas DataFrame, whose cells have a union type that no annotation narrows
LegendPlace = Literal["outside upper center", "outside lower center"]

WIDE, NARROW, MIDDLE = 6.9, 3.4, 4.6  # inches: the text width of a page, one of two columns, and between
MINUS = "\N{MINUS SIGN}"  # as matplotlib writes it at the ticks
COLOR_MAP = "cividis_r"  # luminance falls evenly from low to high values, in color and in gray alike
_NOTE_LINE = 0.11  # inches: height of a line of the notes
# Okabe and Ito's colors from dark to light; dashes and markers distinguish lines whose colors look alike.
_COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)), (0, (3, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "image.cmap": COLOR_MAP,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "hifi",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the settings of all figures to matplotlib inside the block."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns of the dates in matplotlib's own fonts
    with mpl.rc_context(_SETTINGS):
        yield


def line(number: int, *, marker: bool = True) -> dict[str, Any]:
    """Return color, dashes and marker of the line with that number."""
    line_style = {"color": _COLORS[number % len(_COLORS)], "linestyle": _DASHES[number % len(_DASHES)]}
    open_marker = {"marker": _MARKERS[number % len(_MARKERS)], "markerfacecolor": "none"}  # lines below stay visible
    return line_style | (open_marker if marker else {})


def marker(number: int) -> dict[str, Any]:
    """Return color and marker of the points with that number."""
    return {"color": _COLORS[number % len(_COLORS)], "marker": _MARKERS[number % len(_MARKERS)]}


def grid(panels: int, *, columns: int, height: float = 1.6, width: float = WIDE, **share: Any) -> tuple[Figure, list[Axes]]:
    """Create a figure with a number of panels, row by row.

    Args:
        columns: at most; fewer where the last row is then full.
        height: of a row, in inches.
        share: `sharex` and `sharey`, as in matplotlib.
    """
    full = [number for number in range(2, columns + 1) if panels % number == 0]
    columns = full[-1] if full else min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width, height * rows + 0.9), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
    for unused in axes[panels:]:
        unused.remove()
    for lowest in axes[panels - columns : panels]:  # of its column, although perhaps not of the last row
        lowest.xaxis.set_tick_params(labelbottom=True)
    return figure, axes[:panels]


def task_grid(tasks: Sequence[str], *, height: float, one: float = MIDDLE) -> tuple[Figure, list[Axes]]:
    """Create a figure with a panel per task, which is `one` inches wide for a single task."""
    return grid(len(tasks), columns=2, height=height, width=WIDE if len(tasks) > 1 else one)


def add_caption(figure: Figure, record: FigureRecord) -> None:
    """Add the title at the top, over the legend where there is one, and the notes at the bottom."""
    width = figure.get_size_inches()[0]
    columns, separator = round(14.5 * width), ": "
    setting = f"{', '.join(label_of('tasks', task) for task in record.tasks)}; {record.backbone}"
    if len(record.description) <= columns < len(f"{record.description}: {setting}"):
        separator = "\n"
    lines = f"{record.description}{separator}{setting}".split("\n")
    wrapped = "\n".join(part for line in lines for part in textwrap.wrap(line, columns))
    if figure.legends:
        figure.legends[0].set_title(wrapped, prop=FontProperties(size=9))
    else:
        figure.suptitle(wrapped, fontsize=9)
    text = ". ".join(note[:1].upper() + note[1:] for note in (record.note, *record.notes) if note)
    if text:
        lines = textwrap.wrap(f"{text}.", round(20.5 * width))
        # the panels keep their height
        figure.set_figheight(figure.get_figheight() + _NOTE_LINE * max(0, len(lines) - 2))
        figure.supxlabel("\n".join(lines), fontsize=6, x=0.01, ha="left", color="#404040")


def shared_legend(figure: Figure | SubFigure, axes: Sequence[Axes], *, loc: LegendPlace = "outside upper center") -> None:
    """Add one legend for all panels, with each label once, in the order they were drawn."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if entries:
        figure.legend(entries.values(), entries.keys(), loc=loc, ncols=min(len(entries), 6))


def mark_chance(ax: Axes, value: float) -> None:
    """Draw the value that a random choice would have; the legend says what the line is."""
    ax.axhline(value, color="#999999", linewidth=0.8, linestyle=(0, (6, 3)), label="chance", zorder=1)


def label_outer(axes: list[Axes], x: str, y: str) -> None:
    """Label the axes that all panels share, on the outermost panels only."""
    for ax in axes:
        place = ax.get_subplotspec()
        if place is not None:
            if ax.xaxis.get_tick_params().get("labelbottom", True):
                ax.set_xlabel(x)
            if place.is_first_col():
                ax.set_ylabel(y)
    if figure := axes[0].get_figure(root=True):
        figure.align_ylabels(axes)


def panel_title(record: FigureRecord, task: str, *words: str) -> str:
    """Return the title of a panel, which names the task where there are several."""
    return ", ".join([*words, *([label_of("tasks", task)] if len(record.tasks) > 1 else [])])


def set_head_ticks(ax: Axes, heads: int) -> None:
    """Set x ticks for a number of attention heads."""
    ax.set_xticks(range(0, heads, 1 if heads <= 8 else 2 if heads <= 12 else 4))


def bars(ax: Axes, places: Any, values: Frame, **look: Any) -> None:
    """Draw horizontal bars of a number's mean over seeds, which they name; error bars: standard deviation."""
    table = values.agg(["mean", "std"]).fillna(0)
    spread = table["std"] if table["std"].any() else None
    places = table.index if places is None else places
    ax.barh(places, table["mean"], xerr=spread, edgecolor="black", linewidth=0.6, capsize=2, **look)
    for place, mean, deviation in zip(places, table["mean"], table["std"], strict=True):
        ax.text(mean + deviation, place, f" {mean:.2f}", va="center", fontsize=7)
