"""The colors and lines of methods: told apart on paper and with a color vision deficiency, and the same everywhere."""

from itertools import combinations

import numpy as np
import pytest

from hifi_cli.config import registry
from hifi_cli.drawing.looks import COLORS, LINES, MARKERS, looks_of

# Machado, Oliveira and Fernandes (2009): what is left of linear RGB without one kind of cone
SIGHT = {
    "usual": np.eye(3),
    "without red cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "without green cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color, sight):
    """CIELAB of a color as somebody sees it."""
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(sight @ linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_ten_colors_can_be_told_apart(sight):
    """A distance of 2.3 in CIELAB is just noticed; thin lines need several times as much."""
    seen = {color: lab(color, SIGHT[sight]) for color in COLORS}
    distances = [np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(COLORS, 2)]
    assert len(COLORS) == 10 and min(distances) > 15


def test_colors_are_dark_enough_for_white_paper():
    assert all(lab(color, SIGHT["usual"])[0] < 75 for color in COLORS)


def test_no_two_methods_of_a_picture_look_alike():
    names = registry.names("methods")
    looks = looks_of([*names[:40], "my-own"])
    assert len({(look.color, look.line) for look in looks.values()}) == 41
    assert len({(look.color, look.marker) for look in looks.values()}) == 41
    assert len(looks_of(names + [f"own-{number}" for number in range(60)])) == len(names) + 60


def test_the_methods_of_the_papers_have_ten_colors():
    methods = "full-ft hifi-layerwise lora bitfit adapter prefix-tuning linear-probing lp-ft eh-ft-lora eh-ft-bitfit".split()
    looks = looks_of(methods)
    assert {look.color for look in looks.values()} == {*COLORS}
    assert {look.line for look in looks.values()} == {LINES[0]}
    assert {look.marker for look in looks.values()} == {*MARKERS}


def test_up_to_ten_methods_have_colors_of_their_own():
    """From eleven on, the eleventh shares one and has another line."""
    names = [f"own-{number}" for number in range(11)]
    looks = looks_of(names[:10])
    assert {look.color for look in looks.values()} == {*COLORS}
    assert {look.line for look in looks.values()} == {LINES[0]}
    looks = looks_of(names)
    assert sorted(look.line == LINES[0] for look in looks.values()) == [False, *10 * [True]]


def test_a_method_of_the_papers_looks_the_same_beside_whatever_others():
    others = [f"own-{number}" for number in range(30)]
    for name in ("full-ft", "hifi-layerwise", "rocoft-row"):
        assert looks_of([name, *others])[name] == looks_of([name])[name]
    assert looks_of(others) == looks_of(reversed(others))
