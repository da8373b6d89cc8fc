"""The color, line and marker of each method, the same in every panel.

Ten colors can be told apart, on paper and with a color vision deficiency; a test measures how far
they lie from one another. Line styles distinguish methods where there are more than ten. The
methods that the papers show have a fixed look. HiFi's and EH-FT's variants share the colors of
methods that they are never shown with, as dashed lines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

# The colors of Okabe and Ito, which color-blind readers can tell apart, without yellow, which is
# pale on paper; and three dark ones.
COLORS = (
    "#000000",  # black
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # green
    "#CC79A7",  # pink
    "#E69F00",  # orange
    "#56B4E9",  # sky
    "#332288",  # indigo
    "#93003A",  # wine
    "#01665E",  # teal
)
# One marker for each color, so that a picture can be read in gray.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
# Lines in the words of matplotlib: solid, dashed, dotted, ...
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))

# The places of a method's look: among the colors, and among the lines.
_FIXED = {
    "full-ft": (0, 0),
    "hifi-layerwise": (1, 0),
    "lora": (2, 0),
    "bitfit": (3, 0),
    "adapter": (4, 0),
    "prefix-tuning": (5, 0),
    "linear-probing": (6, 0),
    "lp-ft": (7, 0),
    "eh-ft-lora": (8, 0),
    "eh-ft-bitfit": (9, 0),
    "rocoft-row": (1, 1),
    "eh-ft-prefix": (4, 1),
    "hifi-page-inv": (5, 1),
    "hifi-midtop": (7, 1),
    "hifi-random": (8, 1),
    "hifi-wo-corr": (9, 1),
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn; `line` is a line style of matplotlib."""

    color: str
    line: Any
    marker: str


def looks_of(methods: Iterable[str]) -> dict[str, Look]:
    """Return the look of each method; no two of them look alike.

    A method without a fixed look gets its color from its name, or the next one that no other method
    has. Panels that stand side by side therefore share the looks of all their methods.

    Args:
        methods: of all panels.
    """
    names = [*dict.fromkeys(methods)]
    places = {name: _FIXED[name] for name in names if name in _FIXED}
    for name in sorted(name for name in names if name not in _FIXED):
        places[name] = _free_place(name, {*places.values()})
    return {name: _look(*places[name]) for name in names}


def _free_place(name: str, taken: set[tuple[int, int]]) -> tuple[int, int]:
    """Return a free color with a solid line, or else a free line, from the name's own color on.

    Where there are more methods than looks, the looks repeat.
    """
    used_colors = {color for color, _ in taken}
    start = crc32(name.encode()) % len(COLORS)
    in_turn = [(start + step) % len(COLORS) for step in range(len(COLORS))]
    for color in in_turn:
        if color not in used_colors:
            return color, 0
    for line in range(len(LINES)):
        for color in in_turn:
            if (color, line) not in taken:
                return color, line
    return start, 0


def _look(color: int, line: int) -> Look:
    """Return the look at a place among the colors and among the lines."""
    # Methods that share a color differ in their marker too, not only in their line.
    marker = MARKERS[(color + 3 * line) % len(MARKERS)]
    return Look(COLORS[color], LINES[line], marker)
