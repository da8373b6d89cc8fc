"""Pictures for the HTML report: inline SVG in the page's own colours, light and dark, without any script.

Every function returns the SVG's text; numbers are scores in percent. A mark's `<title>` is what a pointer over it shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH = 360  # of every picture, in the units of its viewBox: the width of a phone, so that its letters stay readable there
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 40
_ROW = 24
_LABEL = 15  # a label's height with the room above it
_NAMES = 112  # room for the methods' names


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
    """Score against the share of parameters trained, on a logarithmic axis; seeds as dots, the mean as a named ring."""
    bottom = _TOP + max(200, _LABEL * len(series))
    low, high = _padded([score for one in series for score in one.scores])
    left = 10.0 ** math.floor(math.log10(min(one.share for one in series)))
    decades = max(1.0, math.log10(100 / left))
    edge = WIDTH - _NAMES

    def x(share: float) -> float:
        return _LEFT + (edge - _LEFT) * math.log10(share / left) / decades

    def y(score: float) -> float:
        return _TOP + (bottom - _TOP) * (high - score) / (high - low)

    parts = []
    for tick in ticks(low, high):
        label = _text(_LEFT - 6, y(tick) + 4, f"{tick:g}", "end", "axis")
        parts.append(_line("grid", _LEFT, y(tick), edge, y(tick)) + label)
    for exponent in range(round(math.log10(left)), 3):
        at = x(10.0**exponent)
        parts.append(_line("grid", at, _TOP, at, bottom) + _text(at, bottom + 15, f"{10.0**exponent:g} %", "middle", "axis"))
    parts.append(_text((_LEFT + edge) / 2, bottom + 34, "parameters trained, with the task head", "middle", "axis"))
    heights = _apart([y(one.mean) for one in series], _TOP + 4, bottom - 2)
    for one, at in zip(series, heights, strict=True):
        name = _text(edge + 13, at + 4, _short(one.label, 18), "start", "label")
        parts.append(_line("lead", x(one.share), y(one.mean), edge + 10, at) + name)
    for one in series:
        for seed, score in zip(one.seeds, one.scores, strict=True):
            parts.append(_dot(x(one.share), y(score), one, seed, score, metric))
        ring = Markup('<circle class="mean" cx="{:.1f}" cy="{:.1f}" r="6"><title>{}</title></circle>')
        said = f"{one.label}: mean {one.mean:.1f} {metric}, {one.share:.3g} % trained"
        parts.append(ring.format(x(one.share), y(one.mean), said))
    return _svg(bottom + _BOTTOM, parts, f"score ({metric}) against share of parameters trained")


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
        parts.append(_line("grid", x(tick), top, x(tick), bottom) + _text(x(tick), bottom + 15, f"{tick:g}", "middle", "axis"))
    parts.append(_text((left + WIDTH - _RIGHT) / 2, height - 6, metric, "middle", "axis"))
    for row, one in enumerate(series):
        y = top + _ROW * (row + 0.5)
        parts.append(_text(left - 10, y + 4, _short(one.label, 20), "end", "label"))
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


def _apart(wanted: list[float], top: float, bottom: float) -> list[float]:
    """Heights of labels near the wanted ones, in their order, none nearer to the next than a label is high."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = list(wanted)
    floor = top
    for index in order:
        placed[index] = floor = max(wanted[index], floor)
        floor += _LABEL
    ceiling = bottom
    for index in reversed(order):
        placed[index] = ceiling = min(placed[index], ceiling)
        ceiling -= _LABEL
    return placed


def _short(label: str, most: int) -> str:
    """A label that fits; its dots and ring carry the whole of it."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _dot(x: float, y: float, one: Series, seed: int, score: float, metric: str) -> Markup:
    said = f"{one.label}, seed {seed}: {score:.1f} {metric}"
    return Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(x, y, said)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    form = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return form.format(style, x1, y1, x2, y2)


def _text(x: float, y: float, text: str, anchor: str, style: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(style, x, y, anchor, text)


def _svg(height: int, parts: Sequence[Markup], title: str) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title)
    return head + Markup("").join(parts) + Markup("</svg>")
