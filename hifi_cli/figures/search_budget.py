"""Expected best validation score against the number of tried settings (Dodge et al., EMNLP 2019, "Show Your Work")."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import argument_of, label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.files import command_line
from hifi_cli.results.search_result import SearchResult
from hifi_cli.wording import counted_noun


class Settings(ConfigModel):
    """Which search is shown."""

    grid: str = "tuning"
    """Name of the grid; the file that it wrote into the results directory holds every tried setting and its score."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the expected best score and its quartiles, a row per task, method and number of settings.

    Raises:
        MissingError: the search is not finished.
        UsageError: it lacks a task or method.
    """
    spec, grid = request.spec, request.settings.grid
    path = SearchResult.path(request.resources.results_dir, grid, spec.protocol, spec.backbone)
    if not path.is_file():
        raise MissingError(f"{path} does not exist; this search makes it: {_command(request)}")
    result, rows = SearchResult.read(path), []
    searches = {(search.task, search.method): search for search in result.searches}
    request.notes.append("settings drawn with replacement from those that were tried; bands: first to third quartile")
    for task in spec.tasks:
        for method in spec.methods:
            if (task, method) not in searches:
                raise UsageError(f"search {grid} has no {method} on {task}: {_command(request)}")
            search, label = searches[task, method], label_of("methods", method)
            scores = [tried.score for tried in search.tried if tried.score is not None]
            budget = expected_maximum(scores)
            budget.insert(0, "settings", range(1, len(scores) + 1))
            rows.append(pd.DataFrame({"task": task, "method": method, "label": label}, budget.index).join(budget))
            if task == spec.tasks[0]:
                request.notes.append(f"{label}: {result.budget(search)}")
            if diverged := len(search.tried) - len(scores):
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


def _command(request: FigureRequest) -> str:
    spec, where = request.spec, request.resources.results_dir
    tasks, methods = (",".join(argument_of(kind, name) for name in getattr(spec, kind)) for kind in ("tasks", "methods"))
    words = ["--tasks", tasks, "--methods", methods]
    words += ["--protocol", argument_of("protocols", spec.protocol), "--backbone", spec.backbone]
    words += ["--results-dir", str(where)] if where != Path("results") else []
    return command_line(["hifi", "grid", request.settings.grid, *words])
