"""Charts of the HTML report: matplotlib's SVG as an image inside the page; scores are in percent. And claims as a picture."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

from hifi_cli.files import atomic_path
from hifi_cli.reports import claim_effects as claim_effects_figure
from hifi_cli.reports.claims import ClaimResult

_INK, _SOFT, _RULE, _ACCENT, _MARK = "#1b1b19", "#5d5c57", "#dcdbd5", "#2a66c8", "#b4530a"  # the page's colors
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hifi",  # the same numbers give the same file
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
_CLAIM_COLORS = {"ink": _INK, "soft": _SOFT, "band": _RULE, "ours": _ACCENT, "paper": _MARK}
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
        return _image(figure, f"score ({metric}) against the fraction of trained parameters")


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
        return _image(figure, f"{metric} of every seed")


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
        return _image(figure, f"{metric} after each epoch")


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
        return _image(figure, "values of the heads by layer; dots mark the chosen heads")


def claim_effects(results: Sequence[ClaimResult]) -> Markup:
    """Draw claims: our effects with intervals, what is required, and the published effects."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.3 * _WIDTH, 1), layout="constrained")
        claim_effects_figure.draw(figure, results, _CLAIM_COLORS)
        return _image(figure, "effects of the claims with intervals")


def save_claim_effects(path: Path, claims: Mapping[str, Sequence[ClaimResult]]) -> None:
    """Draw the claims of several files, by their description, into one picture."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.9 * _WIDTH, 1), layout="constrained")
        results = [result for group in claims.values() for result in group]
        claim_effects_figure.draw(figure, results, _CLAIM_COLORS)
        figure.suptitle("\n".join(claims), fontsize=9)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix.lower()[1:], dpi=200)


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


def _image(figure: Figure, title: str) -> Markup:
    """Return a figure as an image of the page."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    encoded = base64.b64encode(stream.getvalue()).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(encoded, title)
