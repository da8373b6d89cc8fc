"""Stored predictions of finished runs: as numbers for metrics, and what one class for every example would score."""

from pathlib import Path
from typing import Any

import numpy as np

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.statistics import Floats
from hifi_cli.tasks.metrics import METRICS

CHANCE_POINTS = 3.0
_chance_scores: dict[tuple[object, ...], tuple[float, float]] = {}  # runs of one task share the examples


def read(run: Path, task: str) -> tuple[list[str], Floats, Floats]:
    """Return ids, labels and predictions of a run: classes as their numbers, numbers as they are, label sets as 0 and 1.

    Raises:
        MissingError: they are not stored.
        UsageError: they are not of classes or numbers.
    """
    directory = RunDirectory(run)
    rows = directory.read_predictions()
    own = directory.user_files / "tasks" / f"{task}.yaml"
    content = registry.read_yaml(own) if own.is_file() else registry.load("tasks", task)
    words = [str(word) for word in content.get("labels", [])]
    try:
        labels = np.array([_number(row.label, words) for row in rows], dtype=np.float64)
        predictions = np.array([_number(row.prediction, words) for row in rows], dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{directory.predictions}: neither classes nor numbers, which a comparison needs ({error})") from None
    return [row.id for row in rows], labels, predictions


def _number(value: object, words: list[str]) -> object:
    if isinstance(value, list):
        return [word in value for word in words]
    return words.index(value) if isinstance(value, str) else value


def at_chance(directory: Path, runs: Any, mean: float) -> str | None:
    """Return why a task decides nothing about the methods of some runs on it; empty: it may decide; None: not known.

    The rule: their mean score is less than 3 points or less than two standard errors over the examples above the best score of
    one class for every example (of accuracy: the majority class).

    Args:
        directory: of the results.
        runs: rows of `Study.runs`, of one task and metric.
        mean: of their scores, in percent.
    """
    stored = [run for run in runs.itertuples() if RunDirectory(directory / run.path).predictions.is_file()]
    if not stored or (metric := stored[0].metric) not in METRICS or metric == "f1_micro":
        return None
    run = stored[0]
    key = (run.task, metric, run.data, run.split, str(run.limit))
    if key not in _chance_scores:
        _, labels, _ = read(directory / run.path, run.task)
        constant = max(METRICS[metric](labels, np.full_like(labels, label)) for label in np.unique(labels))
        error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(labels) ** -0.5  # of a correlation of 0
        _chance_scores[key] = 100 * constant, 200 * error
    constant, two_errors = _chance_scores[key]
    if mean - constant >= max(CHANCE_POINTS, two_errors):
        return ""
    return f"its mean score of {mean:.1f} is not clearly above {constant:.1f}, which one class for every example has"
