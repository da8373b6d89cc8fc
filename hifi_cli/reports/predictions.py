"""Stored predictions of finished runs: as numbers for metrics, and what one class for every example would score."""

from pathlib import Path

import numpy as np
import pandas as pd

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.study import Study
from hifi_cli.statistics import Floats
from hifi_cli.tasks.metrics import METRICS

CHANCE_POINTS = 3.0
_chance_scores: dict[tuple[object, ...], tuple[float, float]] = {}  # runs of one task share the examples


def as_numbers(rows: pd.DataFrame, run: Path, task: str) -> tuple[Floats, Floats]:
    """Return labels and predictions: classes as their numbers, numbers as they are, label sets as 0 and 1.

    Args:
        run: the run's directory, which keeps a copy of a user's own task.

    Raises:
        UsageError: they are not of classes or numbers.
    """
    own = RunDirectory(run).user_files / "tasks" / f"{task}.yaml"
    content = registry.read_yaml(own) if own.is_file() else registry.load("tasks", task)
    words = [str(word) for word in content.get("labels", [])]
    try:
        labels, predictions = ([_number(value, words) for value in rows[key]] for key in ("label", "prediction"))
        return np.array(labels, dtype=np.float64), np.array(predictions, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{run}: predictions that are neither classes nor numbers cannot be compared ({error})") from None


def _number(value: object, words: list[str]) -> object:
    if isinstance(value, list):
        return [word in value for word in words]
    return words.index(value) if isinstance(value, str) else value


def at_chance(study: Study, runs: pd.DataFrame, mean: float) -> str | None:
    """Return why a task decides nothing about the methods of some runs on it; empty: it may decide; None: not known.

    The rule: their mean score is less than 3 points or less than two standard errors over the examples above the best score of
    one class for every example (of accuracy: the majority class).

    Args:
        runs: rows of `Study.runs`, of one task and metric.
        mean: of their scores, in percent.
    """
    run = next(runs.itertuples())
    key = (run.task, run.metric, run.data, run.split, str(run.limit))
    if run.metric not in METRICS or run.metric == "f1_micro":
        return None
    if key not in _chance_scores:
        stored = ((path, rows) for path in runs["path"] if (rows := study.predictions(path)) is not None)
        path, rows = next(stored, ("", None))
        if rows is None:
            return None
        labels, _ = as_numbers(rows, study.directory / path, str(run.task))
        constant = max(METRICS[str(run.metric)](labels, np.full_like(labels, label)) for label in np.unique(labels))
        error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(labels) ** -0.5  # of a correlation of 0
        _chance_scores[key] = 100 * constant, 200 * error
    constant, two_errors = _chance_scores[key]
    if mean - constant >= max(CHANCE_POINTS, two_errors):
        return ""
    return f"its mean score of {mean:.1f} is not clearly above {constant:.1f}, which one class for every example has"
