"""The look of all figures: readable in print and in grey, and by eyes that see no red or green."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

Frame = Any  # a pandas DataFrame; to a type checker every cell of one may be a dozen things

Floats = NDArray[np.float64]

WIDE, NARROW = 6.9, 3.4  # inches: a page's text, and one of its two columns
MAP = "cividis_r"  # luminance falls evenly from low to high values, in colour and in grey alike
# Okabe and Ito's colours from dark to light; the dashes and marks tell the lines apart where the colours do not.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)), (0, (3, 3)))
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
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
    "image.cmap": MAP,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "hifi",
}


@dataclass(frozen=True)
class Meta:
    """What the companion of a figure's CSV says that a picture needs.

    Attributes:
        tasks: labels by name.
        notes: printed below the picture.
    """

    description: str
    source: str
    tasks: dict[str, str]
    backbone: str
    protocol: str
    notes: list[str]


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's settings for all figures, for as long as the block lasts."""
    with mpl.rc_context(_SETTINGS):
        yield


def line(number: int, *, mark: bool = True) -> dict[str, Any]:
    """Colour, dashes and mark of the line of that number."""
    found = {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}
    open_mark = {"marker": _MARKS[number % len(_MARKS)], "markerfacecolor": "none"}  # what lies below stays visible
    return found | (open_mark if mark else {})


def mark(number: int) -> dict[str, Any]:
    """Colour and mark of the points of that number."""
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKS[number % len(_MARKS)]}


def grid(panels: int, *, columns: int, height: float = 1.6, width: float = WIDE, **share: Any) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, row by row.

    Args:
        columns: at most; fewer where the last row is then full.
        height: of a row, in inches.
        share: `sharex` and `sharey`, as matplotlib has them.
    """
    full = [number for number in range(2, columns + 1) if panels % number == 0]
    columns = full[-1] if full else min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width, height * rows + 0.9), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
    for spare in axes[panels:]:
        spare.remove()
    for lowest in axes[panels - columns : panels]:  # of its column, although perhaps not of the last row
        lowest.xaxis.set_tick_params(labelbottom=True)
    return figure, axes[:panels]


def caption(figure: Figure, meta: Meta) -> None:
    """Title above, over the legend where there is one, and notes below."""
    width = figure.get_size_inches()[0]
    title = f"{meta.description}: {', '.join(meta.tasks.values())}; {meta.backbone}"
    wrapped = "\n".join(textwrap.wrap(title, round(14.5 * width)))
    if figure.legends:
        figure.legends[0].set_title(wrapped, prop=FontProperties(size=9))
    else:
        figure.suptitle(wrapped, fontsize=9)
    text = ". ".join(note[:1].upper() + note[1:] for note in meta.notes)
    if text:
        wrapped = "\n".join(textwrap.wrap(f"{text}.", round(20.5 * width)))
        figure.supxlabel(wrapped, fontsize=6, x=0.01, ha="left", color="#404040")


def legend_above(figure: Figure, axes: Axes, **more: Any) -> None:
    """One legend for all panels, in the order they were drawn, outside of them."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), **more)


def name_task(axes: Axes, meta: Meta, task: str) -> None:
    """The task over its panel, where there are several."""
    if len(meta.tasks) > 1:
        axes.set_title(meta.tasks[task])


def heads_axis(axes: Axes, heads: int) -> None:
    """Heads along x."""
    axes.set_xticks(range(0, heads, 1 if heads <= 8 else 2 if heads <= 12 else 4))


def mean_and_std(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 of a single value."""
    found = np.asarray(list(values), float)
    return float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0


def smoothed(values: Sequence[float], window: int) -> Floats:
    """The running mean over the last `window` values."""
    total = np.cumsum(np.concatenate([[0.0], np.asarray(values, float)]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: Floats = (total[ends] - total[starts]) / (ends - starts)
    return means
