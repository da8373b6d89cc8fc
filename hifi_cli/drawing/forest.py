"""A forest plot: the differences of methods from one method, with their intervals."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.registry import label_of
from hifi_cli.drawing import style
from hifi_cli.drawing.looks import Look, looks_of


def draw_forest(data: style.Frame, looks: Mapping[str, Look] | None = None) -> Figure:
    """Draw a row per method, the highest difference at the top, and a panel per task.

    Args:
        data: columns `task` (missing: the mean over tasks), `method`, `label`, `reference`,
            `difference`, `low` and `high`, as `reports.pairs.difference_rows` yields them.
        looks: of the methods; None: those of a picture that has no other panels.
    """
    is_mean = data["task"].isna()
    main = data
    if is_mean.any():
        main = data[is_mean]
    order = main.sort_values("difference", ascending=False, kind="stable")["method"]
    # A method without a mean over tasks comes after the others.
    methods = list(dict.fromkeys([*order, *data["method"]]))
    places = {method: place for place, method in enumerate(methods)}
    labels = data.drop_duplicates("method").set_index("method")["label"]
    if looks is None:
        looks = looks_of(methods)
    data = pd.concat([data[is_mean], data[~is_mean]])
    figure, panels = style.facets(
        data,
        data["task"].map(_title),
        height=0.6 + 0.17 * len(methods),
        sharey=True,
        columns=3,
        rows_are_full=False,
    )
    for ax, rows in panels:
        ax.axvline(0, color="#606060", linewidth=0.6)
        for row in rows.itertuples():
            look = looks[row.method]
            place = places[row.method]
            ax.plot([row.low, row.high], [place, place], "-", color=look.color)
            ax.plot(row.difference, place, look.marker, color=look.color, markersize=4.5)
        style.label_rows(ax, labels[methods], f"minus {data['reference'].iloc[0]} [points]")
    return figure


def _title(task: Any) -> str:
    """Return the title of a task's panel; the mean over tasks has no name of a task."""
    if isinstance(task, str):
        return label_of("tasks", task)
    return "mean over tasks"
