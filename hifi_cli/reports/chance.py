"""Tasks at chance: where no method learned more than the majority class, a difference between methods says nothing."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from hifi_cli.config.choices import Score
from hifi_cli.reports.comparison_details import class_labels
from hifi_cli.reports.example_statistics import WEIGHTED_METRICS, as_numbers
from hifi_cli.reports.run_records import RunRecord

POINTS = 3.0
_constant_scores: dict[tuple[str, ...], tuple[float, int]] = {}  # runs of one task share the examples


def at_chance(records: Sequence[RunRecord], score: Score | None) -> str:
    """Return why a task decides nothing about the methods of some runs on it; empty: it may decide, or nothing is known.

    The rule: the mean score of all of these runs, each method's seeds together, is less than 3 points or less than two standard
    errors over the examples above the best score of one class for every example (of accuracy: the majority class).
    """
    stored = next((record for record in records if record.directory.predictions.is_file()), None)
    if stored is None or stored.result.primary_metric not in WEIGHTED_METRICS or stored.result.primary_metric == "f1_micro":
        return ""
    constant, examples = _constant_score(stored)
    scores = [record.score(score, stored.result.primary_metric) for record in records]
    mean = fmean(100 * value for value in scores if value is not None)
    error = 100 * (constant / 100 * (1 - constant / 100) / examples) ** 0.5 or 100 / examples**0.5  # of a correlation of 0
    if mean - constant >= max(POINTS, 2 * error):
        return ""
    return f"its mean score of {mean:.1f} is not clearly above {constant:.1f}, which one class for every example has"


def _constant_score(record: RunRecord) -> tuple[float, int]:
    """Return the best score of one prediction for all examples of the reported split, in percent, and their number."""
    result = record.result
    key = (result.task, result.split, result.primary_metric, str(result.limit), *result.data.values())
    if key not in _constant_scores:
        labels = as_numbers([row.label for row in record.directory.read_predictions()], class_labels(record))
        metric, weights = WEIGHTED_METRICS[result.primary_metric], np.ones((1, len(labels)))
        scores = [float(metric(labels, np.full_like(labels, label), weights)[0]) for label in np.unique(labels)]
        _constant_scores[key] = (100 * max(scores), len(labels))
    return _constant_scores[key]
