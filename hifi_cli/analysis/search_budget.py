"""Expected best validation score against the number of tried settings (Dodge et al., EMNLP 2019, "Show Your Work")."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import argument_of, label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import command_line
from hifi_cli.records.search_result import SearchResult
from hifi_cli.wording import counted_noun

READS_RESULTS_ONLY = True  # needs neither data nor weights


class Settings(ConfigModel):
    """Which search is shown."""

    grid: str = "tuning"
    """Name of the grid; the file that it wrote into the results directory holds every tried setting and its score."""


def input_files(request: FigureRequest) -> list[Path]:
    """Return the files besides runs that the figure is computed from."""
    spec = request.spec
    return [SearchResult.path(request.resources.results_dir, request.settings.grid, spec.protocol, spec.backbone)]


def compute(request: FigureRequest) -> FigureTable:
    """Compute the expected best score and its quartiles, a row per task, method and number of settings.

    Raises:
        MissingError: the search is not finished.
        UsageError: it lacks a task or method.
    """
    result, spec = _read(request), request.spec
    searches = {(search.task, search.method): search for search in result.searches}
    rows: list[Row] = []
    notes = ["settings drawn with replacement from those that were tried; bands: first to third quartile"]
    for task in spec.tasks:
        for method in spec.methods:
            if (task, method) not in searches:
                raise UsageError(f"search {result.grid} has no {method} on {task}: {_command(request)}")
            search = searches[task, method]
            scores = [tried.score for tried in search.tried if tried.score is not None]
            rows += [
                {
                    "task": task,
                    "method": method,
                    "label": label_of("methods", method),
                    "settings": count,
                    "mean": mean,
                    "quartile1": quartile1,
                    "quartile3": quartile3,
                }
                for count, (mean, quartile1, quartile3) in enumerate(expected_maximum(scores), 1)
            ]
            notes += [f"{label_of('methods', method)}: {result.budget(search)}"] if task == spec.tasks[0] else []
            if diverged := len(search.tried) - len(scores):
                notes.append(f"{method} on {task}: {counted_noun(diverged, 'setting')} diverged, left out without a score")
    return FigureTable(rows, notes)


def _read(request: FigureRequest) -> SearchResult:
    [path] = input_files(request)
    if not path.is_file():
        raise MissingError(f"{path} does not exist; this search makes it: {_command(request)}")
    return SearchResult.read(path)


def _command(request: FigureRequest) -> str:
    spec, where = request.spec, request.resources.results_dir
    tasks, methods = (",".join(argument_of(kind, name) for name in getattr(spec, kind)) for kind in ("tasks", "methods"))
    words = ["--tasks", tasks, "--methods", methods]
    words += ["--protocol", argument_of("protocols", spec.protocol), "--backbone", spec.backbone]
    words += ["--results-dir", str(where)] if where != Path("results") else []
    return command_line(["hifi", "grid", request.settings.grid, *words])


def expected_maximum(scores: Iterable[float]) -> list[tuple[float, float, float]]:
    """Return the mean, the first and the third quartile of the highest score of n settings, for n = 1 to the number of scores.

    The n settings are drawn from the given ones with replacement (Dodge et al. 2019, equation 2): of N scores in ascending
    order, the k-th is the highest of n draws with probability (k/N)^n - ((k-1)/N)^n. A quartile is the lowest score that the
    highest of n draws does not exceed with a probability of at least 1/4 or 3/4.
    """
    values = np.sort(np.asarray(list(scores), dtype=np.float64))
    ranks = np.arange(len(values) + 1) / max(len(values), 1)
    result = []
    for draws in range(1, len(values) + 1):
        below = ranks**draws
        quartile1, quartile3 = (float(values[np.searchsorted(below[1:], share)]) for share in (0.25, 0.75))
        result.append((float(np.diff(below) @ values), quartile1, quartile3))
    return result
