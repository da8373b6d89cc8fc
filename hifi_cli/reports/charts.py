"""Pictures for the HTML report: inline SVG in the page's own colours, light and dark, without any script.

Every function returns the SVG's text; numbers are scores in percent. A mark's `<title>` is what a pointer over it shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH = 360  # of every picture, in the units of its viewBox: the width of a phone, so that its letters stay readable there
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 40
_ROW = 24


@dataclass(frozen=True)
class Series:
    """One method on one task.

    Attributes:
        share: trained parameters in percent of the model's.
        scores: one per seed.
        seeds: in the same order.
    """

    label: str
    share: float
    scores: Sequence[float]
    seeds: Sequence[int]

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` of them."""
    span = max(high - low, 1e-9)
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def score_by_share(series: Sequence[Series], metric: str) -> Markup:
    """Score against the share of parameters trained, on a logarithmic axis; seeds as dots, the mean as a labelled ring."""
    height = 250
    low, high = _padded([score for one in series for score in one.scores])
    left = 10.0 ** math.floor(math.log10(min(one.share for one in series)))
    right = 100.0
    decades = max(1.0, math.log10(right / left))

    def x(share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.log10(share / left) / decades

    def y(score: float) -> float:
        return _TOP + (height - _TOP - _BOTTOM) * (high - score) / (high - low)

    parts = []
    for tick in ticks(low, high):
        label = _text(_LEFT - 6, y(tick) + 4, f"{tick:g}", "end", "axis")
        parts.append(_grid_line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick)) + label)
    for exponent in range(round(math.log10(left)), 3):
        at, bottom = x(10.0**exponent), height - _BOTTOM
        label = _text(at, bottom + 15, f"{10.0**exponent:g} %", "end" if exponent == 2 else "middle", "axis")
        parts.append(_grid_line(at, _TOP, at, bottom) + label)
    parts.append(_text(WIDTH / 2, height - 6, "share of parameters trained, with the task head", "middle", "axis"))
    for one in series:
        for seed, score in zip(one.seeds, one.scores, strict=True):
            parts.append(_dot(x(one.share), y(score), one, seed, score, metric))
    for one, at in zip(series, _apart([y(one.mean) for one in series], [x(one.share) for one in series]), strict=True):
        side = -1 if x(one.share) > WIDTH / 2 else 1
        parts.append(
            Markup('<circle class="mean" cx="{:.1f}" cy="{:.1f}" r="6"><title>{}</title></circle>').format(
                x(one.share), y(one.mean), f"{one.label}: mean {one.mean:.1f} {metric}, {one.share:.3g} % trained"
            )
        )
        parts.append(_text(x(one.share) + 11 * side, at + 4, one.label, "end" if side < 0 else "start", "label"))
    return _svg(height, parts, f"score ({metric}) against share of parameters trained")


def seeds(series: Sequence[Series], metric: str) -> Markup:
    """A row per method, a dot per seed, a bar at the mean: how far the seeds lie apart."""
    left, top = 128, 6
    height = top + _ROW * len(series) + _BOTTOM
    low, high = _padded([score for one in series for score in one.scores])

    def x(score: float) -> float:
        return left + (WIDTH - left - _RIGHT) * (score - low) / (high - low)

    bottom = top + _ROW * len(series)
    parts = []
    for tick in ticks(low, high, 4):
        parts.append(_grid_line(x(tick), top, x(tick), bottom) + _text(x(tick), bottom + 15, f"{tick:g}", "middle", "axis"))
    parts.append(_text((left + WIDTH - _RIGHT) / 2, height - 6, metric, "middle", "axis"))
    for row, one in enumerate(series):
        y = top + _ROW * (row + 0.5)
        parts.append(_text(left - 10, y + 4, one.label, "end", "label"))
        bar = Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="3" height="16" rx="1"/>')
        parts.append(bar.format(x(one.mean) - 1.5, y - 8))
        parts += [_dot(x(score), y, one, seed, score, metric) for seed, score in zip(one.seeds, one.scores, strict=True)]
    return _svg(height, parts, f"{metric} of every seed")


def heads(values: Sequence[Sequence[float]], chosen: Sequence[Sequence[int]]) -> Markup:
    """A square per head, the deeper the colour the higher its value within its layer; chosen heads are framed."""
    left, top = 44, 22
    columns = max(map(len, values))
    size = min(26.0, (WIDTH - left - _RIGHT) / columns)
    height = round(top + size * len(values) + 8)
    parts = [_text(left + size * (head + 0.5), top - 7, str(head), "middle", "axis") for head in range(columns)]
    parts.append(_text(left - 8, top - 7, "head", "end", "axis"))
    for layer, row in enumerate(values):
        parts.append(_text(left - 8, top + size * (layer + 0.5) + 4, f"{layer}", "end", "axis"))
        low, high = min(row), max(row)
        for head, value in enumerate(row):
            strength = (value - low) / (high - low) if high > low else 0.0
            mark = " chosen" if head in chosen[layer] else ""
            parts.append(
                Markup('<rect class="head{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"'
                       ' style="--strength:{:.3f}"><title>{}</title></rect>').format(
                    mark, left + size * head + 1.5, top + size * layer + 1.5, size - 3, size - 3, strength,
                    f"layer {layer}, head {head}: {value:.4g}{', chosen' if mark else ''}",
                )
            )  # fmt: skip
    return _svg(height, parts, "values of the heads by layer; chosen heads are framed")


def _padded(scores: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: a little wider than its data, and never empty."""
    low, high = min(scores), max(scores)
    margin = max(0.08 * (high - low), 0.5)
    return low - margin, high + margin


def _apart(wanted: list[float], columns: list[float], distance: float = 14) -> list[float]:
    """Heights of labels near the wanted ones that do not cover one another on the same side of the picture."""
    placed: list[float] = list(wanted)
    for side in (True, False):
        order = sorted((index for index, x in enumerate(columns) if (x > WIDTH / 2) is side), key=lambda index: wanted[index])
        for before, after in pairwise(order):
            placed[after] = max(placed[after], placed[before] + distance)
    return placed


def _dot(x: float, y: float, one: Series, seed: int, score: float, metric: str) -> Markup:
    said = f"{one.label}, seed {seed}: {score:.1f} {metric}"
    return Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(x, y, said)


def _grid_line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(x1, y1, x2, y2)


def _text(x: float, y: float, text: str, anchor: str, style: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(style, x, y, anchor, text)


def _svg(height: int, parts: Sequence[Markup], title: str) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title)
    return head + Markup("").join(parts) + Markup("</svg>")
