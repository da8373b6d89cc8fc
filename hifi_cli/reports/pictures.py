"""The pictures of a report: forest plots and curves, one for each task, so that narrow screens show them too."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.drawing.curves import draw_curves
from hifi_cli.drawing.forest import draw_forest
from hifi_cli.drawing.looks import Look, looks_of
from hifi_cli.drawing.style import as_png, with_own_tasks
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.curves import COLUMNS, curves
from hifi_cli.reports.pairs import difference_rows, pair
from hifi_cli.reports.tables import labels_of_methods


@dataclass(frozen=True)
class Picture:
    """A picture of the page; `png` is the content of its file."""

    title: str
    png: bytes

    @property
    def source(self) -> str:
        """The picture as the address of an image, which loads nothing."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


def looks_of_page(all_runs: Iterable[ComparableRuns]) -> dict[str, Look]:
    """Return the look of every method, which it has in each picture of the page."""
    methods: set[str] = set()
    for runs in all_runs:
        methods |= set(runs.frame["method"])
    return looks_of(sorted(methods))


def forest_pictures(
    title: str, runs: ComparableRuns, reference: str, looks: Mapping[str, Look]
) -> list[Picture]:
    """Draw the differences of all methods from the reference: their mean over tasks, then each task.

    Args:
        title: protocol, backbone and shots of the runs.
        runs: their rows are methods.
        reference: the method that the others are compared with.
        looks: of all methods of the page.
    """
    rows: list[dict[str, Any]] = []
    for method in sorted(set(runs.usable["method"]) - {reference}):
        rows += difference_rows(pair(runs, method, reference))
    if not rows:
        return []
    data = pd.DataFrame(rows).astype({"low": float, "high": float})
    data = with_own_tasks(data, runs.frame["task"])
    pictures = []
    # The mean over tasks, which has no name of a task, comes first.
    tasks = sorted({row["task"] or "" for row in rows})
    for task in tasks:
        of_task = data[[(row["task"] or "") == task for row in rows]]
        name = label_of("tasks", task) if task else "Mean over tasks"
        drawn = as_png(partial(draw_forest, of_task, looks))
        pictures.append(Picture(f"{name} ({title})", drawn))
    return pictures


def curves_of(runs: ComparableRuns) -> pd.DataFrame:
    """Return the scores by epoch and the training losses by step, means over seeds.

    A packed study has no losses. The columns are those of `curves`.
    """
    usable = runs.usable
    usable = usable.assign(label=labels_of_methods([*usable["method"]]))
    found = curves(runs.study, usable, with_losses=not runs.study.is_packed)
    return pd.DataFrame(found, columns=COLUMNS)


def curve_pictures(
    title: str, runs: ComparableRuns, data: pd.DataFrame, curve: str, looks: Mapping[str, Look]
) -> list[Picture]:
    """Draw one curve of each task, a line per method.

    Args:
        title: protocol, backbone and shots of the runs.
        runs: those that the curves are of.
        data: what `curves_of` returns.
        curve: `score` or `loss`.
        looks: of all methods of the page.
    """
    pictures = []
    data = with_own_tasks(data, runs.frame["task"])
    for task, of_task in data[data["curve"] == curve].groupby("task"):
        drawn = as_png(partial(draw_curves, of_task, looks))
        name = runs.study.label_of("tasks", str(task))
        pictures.append(Picture(f"{name} ({title})", drawn))
    return pictures
