"""How panels and legends share a figure."""

import matplotlib as mpl
import pandas as pd
import pytest

from hifi_cli.drawing.curves import draw_curves
from hifi_cli.drawing.style import SETTINGS, facets


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
