"""Charts of the HTML report: inline SVG of matplotlib, in the page's own colors for light and dark mode.

Every function returns the SVG's text; scores are in percent.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

from hifi_cli.reports.claims import ClaimResult
from hifi_cli.reports.figures import claim_effects as claim_effects_figure

# Each color stands for a CSS variable of the page, which differs between light and dark mode.
_VARIABLES = {"#010101": "--ink", "#020202": "--soft", "#030303": "--rule", "#040404": "--accent", "#050505": "--mark"}
_INK, _SOFT, _RULE, _ACCENT, _MARK = _VARIABLES
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _SOFT,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _RULE,
    "lines.markersize": 5,
}
_WIDTH = 3.7  # inches: about the width of a phone
_LONGEST_LABEL = 20


@dataclass(frozen=True)
class MethodScores:
    """The scores of one method on one task, one per seed.

    Attributes:
        trained_percent: trained parameters in percent of the model's.
    """

    label: str
    trained_percent: float
    scores: Sequence[float]

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)


def scores_by_trained_fraction(methods: Sequence[MethodScores], metric: str) -> Markup:
    """Draw scores against the fraction of trained parameters: a dot per seed and a labelled ring per mean."""
    with mpl.rc_context(_STYLE):
        figure, ax = _subplot(max(2.2, 0.5 + 0.16 * len(methods)))
        ax.set_xscale("log")
        label_heights = np.linspace(0.02, 0.98, len(methods))  # fractions of the axis: labels never overlap
        for method, height in zip(sorted(methods, key=lambda method: method.mean), label_heights, strict=True):
            percent = method.trained_percent
            _plot_seeds(ax, [percent] * len(method.scores), method.scores)
            ax.plot(percent, method.mean, "o", markersize=8, markerfacecolor="none", markeredgecolor=_INK, clip_on=False)
            _label_at_right(ax, method.label, (percent, method.mean), height)
        smallest = min(method.trained_percent for method in methods)
        ax.set_xlim(10 ** min(1, math.floor(math.log10(smallest))), 100)  # Full-FT alone has an axis, too
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g} %"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("trained parameters, task head included")
        ax.set_ylabel(metric)
        ax.grid(clip_on=False)
        return _svg(figure, f"score ({metric}) against the fraction of trained parameters")


def scores_by_seed(methods: Sequence[MethodScores], metric: str) -> Markup:
    """Draw a row per method with a dot per seed and a bar at the mean, to show how far the seeds differ."""
    with mpl.rc_context(_STYLE):
        figure, ax = _subplot(0.6 + 0.25 * len(methods))
        for row, method in enumerate(methods):
            _plot_seeds(ax, method.scores, [row] * len(method.scores))
            ax.plot(method.mean, row, "|", markersize=12, markeredgewidth=2, color=_INK, clip_on=False)
        ax.set_yticks(range(len(methods)), [_short(method.label) for method in methods], color=_INK)
        ax.set_ylim(len(methods) - 0.5, -0.5)
        ax.margins(x=0.08)
        ax.set_xlabel(metric)
        ax.grid(axis="x", clip_on=False)
        return _svg(figure, f"{metric} of every seed")


def learning_curves(curves: Mapping[str, Mapping[int, float]], metric: str) -> Markup:
    """Draw the mean score after each epoch, a labelled line per method."""
    with mpl.rc_context(_STYLE):
        figure, ax = _subplot(max(2.2, 0.5 + 0.16 * len(curves)))
        order = sorted(curves, key=lambda label: list(curves[label].values())[-1])
        for label, height in zip(order, np.linspace(0.02, 0.98, len(order)), strict=True):
            epochs, scores = list(curves[label]), list(curves[label].values())
            ax.plot(epochs, scores, "-", color=_ACCENT, alpha=0.65, linewidth=1)
            _label_at_right(ax, label, (epochs[-1], scores[-1]), height)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("epoch")
        ax.set_ylabel(metric)
        ax.grid()
        return _svg(figure, f"{metric} after each epoch")


def head_values(values: Sequence[Sequence[float]], chosen: Sequence[Sequence[int]]) -> Markup:
    """Draw a heatmap of the heads, a row per layer, each layer in its own scale; dots mark the chosen heads."""
    table = np.asarray(values, float)
    low, high = table.min(axis=1, keepdims=True), table.max(axis=1, keepdims=True)
    strength = (table - low) / np.where(high > low, high - low, 1)
    layers, heads = table.shape
    with mpl.rc_context(_STYLE):
        figure, ax = _subplot(0.5 + min(0.28, 3 / heads) * layers)
        shades = LinearSegmentedColormap.from_list("accent", [to_rgba(_ACCENT, 0.08), to_rgba(_ACCENT, 0.95)])
        ax.pcolormesh(strength, cmap=shades, vmin=0, vmax=1, clip_on=False)
        for layer, row in enumerate(chosen):
            ax.plot(np.asarray(row) + 0.5, np.full(len(row), layer + 0.5), "o", color=_MARK, clip_on=False)
        ax.set(xlim=(0, heads), ylim=(layers, 0), xlabel="head", ylabel="layer", aspect="equal")
        ax.set_xticks(np.arange(heads) + 0.5, map(str, range(heads)))
        ax.set_yticks(np.arange(layers) + 0.5, map(str, range(1, layers + 1)))  # as printed everywhere: from 1
        return _svg(figure, "values of the heads by layer; dots mark the chosen heads")


def claim_effects(results: Sequence[ClaimResult]) -> Markup:
    """Draw claims: our effects with intervals, what is required, and the published effects."""
    colors = {"ink": _INK, "soft": _SOFT, "band": _RULE, "ours": _ACCENT, "paper": _MARK}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.3 * _WIDTH, 1), layout="constrained")
        claim_effects_figure.draw(figure, results, colors)
        return _svg(figure, "effects of the claims with intervals")


def _subplot(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _short(label: str) -> str:
    """Return a label, cut to the room it has."""
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def _label_at_right(ax: Axes, label: str, point: tuple[float, float], height: float) -> None:
    """Write a label to the right of a panel at a height (fraction of the axis), with a line to its point."""
    ax.annotate(
        _short(label),
        point,
        (1.04, height),
        textcoords="axes fraction",
        va="center",
        arrowprops={"arrowstyle": "-", "color": _SOFT, "linewidth": 0.5, "relpos": (0, 0.5)},
    )


def _plot_seeds(ax: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    ax.plot(x, y, "o", color=_ACCENT, alpha=0.65, markeredgewidth=0, clip_on=False)


def _svg(figure: Figure, title: str) -> Markup:
    """Return a figure as inline SVG that takes its colors from the page and shares no id with another."""
    stream = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": title}):
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    svg = stream.getvalue()
    view_box = svg.split('viewBox="', 1)[1].split('"', 1)[0]
    content = svg.split("</defs>", 1)[1]  # what comes before is an XML header, and a style for the whole page
    content = re.sub(r' id="(?!m[0-9a-f]{10}")[^"]*"', "", content).replace("xlink:href", "href")  # markers keep theirs
    for color, variable in _VARIABLES.items():
        content = content.replace(color, f"var({variable})")
    return Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(view_box, title) + Markup(content)
