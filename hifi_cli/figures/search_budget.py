"""Expected best validation score against the number of tried settings (Dodge et al., EMNLP 2019, "Show Your Work")."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.errors import MissingError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.results import search
from hifi_cli.wording import counted_noun


class Settings(ConfigModel):
    """There are none: every setting that was tried on the figure's tasks is shown."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the expected best score and its quartiles, a row per task, method and number of settings.

    Raises:
        MissingError: a task and method have no runs of a search.
    """
    spec, rows = request.spec, []
    backbone = request.config(spec.tasks[0]).backbone.name
    tried = search.tried_settings(request.study)
    tried = tried[(tried["protocol"] == name_of(spec.protocol)) & (tried["backbone"] == backbone)]
    request.notes.append("settings drawn with replacement from those that were tried; bands: first to third quartile")
    for task in spec.tasks:
        for method in spec.methods:
            of_method = tried[(tried["task"] == task) & (tried["method"] == method)]
            if of_method.empty:
                raise MissingError(f"no runs of a search for {method} on {task}; hifi grid makes them (hifi ls grids/tuning)")
            scores, label = of_method["score"].dropna(), label_of("methods", method)
            budget = expected_maximum(scores)
            budget.insert(0, "settings", range(1, len(scores) + 1))
            rows.append(pd.DataFrame({"task": task, "method": method, "label": label}, budget.index).join(budget))
            if diverged := len(of_method) - len(scores):
                lost = counted_noun(diverged, "setting")
                request.notes.append(f"{method} on {task}: {lost} diverged, left out without a score")
    return pd.concat(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a panel per task and a line per method, with a band from the first to the third quartile."""
    tasks = list(data["task"].unique())
    figure, axes = style.task_grid(tasks, height=2.3)
    for ax, task in zip(axes, tasks, strict=True):
        for number, (label, budget) in enumerate(data[data["task"] == task].groupby("label", sort=False)):
            look, settings = style.line(number), budget["settings"]
            ax.plot(settings, 100 * budget["mean"], label=label, **look)
            quartiles = 100 * budget["quartile1"], 100 * budget["quartile3"]
            ax.fill_between(settings, *quartiles, color=look["color"], alpha=0.12, linewidth=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(style.panel_title(record, task))
    style.label_outer(axes, "tried settings", "expected best score")
    style.shared_legend(figure, axes)
    return figure


def expected_maximum(scores: Iterable[float]) -> pd.DataFrame:
    """Return mean, first and third quartile of the highest score of n settings, for n = 1 to the number of scores.

    The n settings are drawn from the given ones with replacement (Dodge et al. 2019, equation 2): of N scores in ascending
    order, the k-th is the highest of n draws with probability (k/N)^n - ((k-1)/N)^n. A quartile is the lowest score that the
    highest of n draws does not exceed with a probability of at least 1/4 or 3/4.
    """
    values = np.sort(np.asarray(list(scores), dtype=np.float64))
    ranks = np.arange(len(values) + 1) / max(len(values), 1)
    rows = []
    for draws in range(1, len(values) + 1):
        below = ranks**draws
        quartiles = (values[np.searchsorted(below[1:], share)] for share in (0.25, 0.75))
        rows.append((np.diff(below) @ values, *quartiles))
    return pd.DataFrame(rows, columns=["mean", "quartile1", "quartile3"])
