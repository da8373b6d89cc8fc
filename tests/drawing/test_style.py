"""How panels and legends share a figure."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from hifi_cli.drawing.curves import draw_curves
from hifi_cli.drawing.style import SETTINGS, facets
from hifi_cli.figures.heads import SingularValues
from hifi_cli.figures.sweep import Sweep


@pytest.mark.parametrize(("panels", "rows"), [(3, [3]), (4, [2, 2]), (5, [3, 2]), (6, [3, 3])])
def test_no_panel_of_four_is_alone_in_its_row(panels, rows):
    titles = pd.Series([f"panel {number}" for number in range(panels)])
    figure, found = facets(titles.to_frame("x"), titles, columns=3, rows_are_full=False)
    assert len(found) == panels
    places = [ax.get_subplotspec().rowspan.start for ax in figure.axes]
    assert [places.count(row) for row in range(max(places) + 1)] == rows


def height_of_panel(methods):
    """Of the one panel of curves with so many methods, in inches."""
    names = [f"own-{number}" for number in range(methods)]
    data = pd.DataFrame({"method": names, "label": names})
    data = data.assign(task="rte", metric="accuracy", curve="score", x=1, mean=50.0, std=1.0)
    with mpl.rc_context(SETTINGS):
        figure = draw_curves(data)
        figure.draw_without_rendering()
    return figure.axes[0].get_position().height * figure.get_figheight()


def test_a_long_legend_leaves_the_panel_its_height():
    assert height_of_panel(12) > 0.9 * height_of_panel(4)


def ends_of_shades(figure):
    """The lowest and the highest point of all shades, by the title of their panel."""
    ends = {}
    for ax in figure.axes:
        points = [path.vertices[:, 1] for shade in ax.collections for path in shade.get_paths()]
        heights = np.concatenate(points)
        ends[ax.get_title()] = (heights.min(), heights.max())
    return ends


def test_the_shade_of_a_curve_ends_where_its_score_ends():
    columns = ["task", "metric", "curve", "x", "mean", "std"]
    rows = [
        ("rte", "accuracy", "score", 1, 97.0, 5.0),
        ("rte", "accuracy", "score", 2, 2.0, 3.0),
        ("cola", "matthews", "score", 1, -98.0, 5.0),
        ("cola", "matthews", "score", 2, 50.0, 1.0),
        # A loss and a metric of the user's own may be above 100.
        ("rte", "accuracy", "loss", 1, 150.0, 1.0),
        ("own", "words-per-page", "score", 1, 120.0, 130.0),
    ]
    data = pd.DataFrame(rows, columns=columns).assign(method="lora", label="LoRA")
    with mpl.rc_context(SETTINGS):
        figure = draw_curves(data)
        ends = ends_of_shades(figure)
    for ax in figure.axes:
        word = "optimizer step" if "loss" in ax.get_title() else "epoch"
        assert ax.get_xlabel().startswith(word)
    assert ends == {
        "RTE, accuracy [%]": (0, 100),
        "CoLA, matthews [%]": (-100, 51),
        "RTE, training loss": (149, 151),
        "own, words-per-page [%]": (-10, 250),
    }


def test_the_shades_of_a_sweep_and_of_fractions_end_where_their_values_end():
    sweep = pd.DataFrame({"task": "rte", "method": "lora", "x": 1, "score": [0.8, 1.0, 1.0]})
    fractions = pd.DataFrame({"task": "rte", "layer": 0, "t": [1], "mean": [0.95], "std": [0.1]})
    with mpl.rc_context(SETTINGS):
        of_sweep = Sweep(key="rank", values=[1]).draw(sweep.assign(metric="accuracy"))
        of_fractions = SingularValues().draw(fractions)
    assert of_sweep.axes[0].get_ylabel() == "accuracy [%]"
    mean = 280 / 3
    assert ends_of_shades(of_sweep)[""] == pytest.approx((mean - sweep["score"].std() * 100, 100))
    assert ends_of_shades(of_fractions)[""] == pytest.approx((0.85, 1))
