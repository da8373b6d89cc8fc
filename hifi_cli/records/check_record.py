"""Checks of a record alone: contradictions between its configuration, its counts and its epochs.

Each function yields one sentence for each problem.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hifi_cli.config.run_config import config_hash_of
from hifi_cli.records.record import EpochMetrics, RunResult, RunScores
from hifi_cli.text import abbreviate, counted_noun

# Scores are fractions from 0 to 1. A single row of the largest task weighs more than this, so
# rounding is forgiven and a changed prediction is not.
TOLERANCE = 1e-6
# A sparse method stores the trained entries of a weight with a mask of one byte for each of its
# entries. No method trains fewer than one entry in so many.
_MOST_MASKED = 4096
# A run that is done has these; one that diverged has none of them, and none of the others.
_OF_DONE = ("time_s", "delta_sha256", "delta_bytes")
_NOT_OF_DIVERGED = (
    "scores",
    "epochs",
    "metrics",
    "extra_validation",
    "classes",
    "losses",
    *_OF_DONE,
)
# No run trains nothing, or in no time or memory.
_NEVER_ZERO = ("params.trainable", "time_s", "peak_memory_bytes")
# The record repeats these keys of its configuration.
_REPEATED = (
    "task",
    "method",
    "protocol",
    "seed",
    "shots",
    "limit",
    "variant",
    "report",
    "gradient_accumulation_steps",
)


def find_in_configuration(result: RunResult) -> Iterator[str]:
    """Find keys of the record that contradict the run's configuration."""
    config = result.config
    if config_hash_of(config) != result.config_hash:
        yield "config_hash is not that of its configuration"
    without_seed = {key: value for key, value in config.items() if key != "seed"}
    if config_hash_of(without_seed) != result.setting_hash:
        yield "setting_hash is not that of its configuration"
    for key, expected in _expected(result).items():
        value = getattr(result, key)
        if value != expected:
            yield f"{key} is {value}, and in its configuration {expected}"


def _expected(result: RunResult) -> dict[str, Any]:
    """Return the values of a record's keys that follow from its configuration."""
    config = result.config
    # A key that another version of the configuration lacks contradicts nothing.
    expected = {key: config.get(key, getattr(result, key)) for key in _REPEATED}
    expected["backbone"] = config["backbone"]["name"]
    expected["selection"] = "few-shot" if config.get("shots") else config["selection"]
    # `auto` became what the hardware has, which the configuration cannot tell.
    if config["precision"] != "auto":
        expected["precision"] = config["precision"]
    if config.get("primary_metric") is not None:
        expected["primary_metric"] = config["primary_metric"]
    # Every run reports this split.
    expected["split"] = "validation"
    return expected


def find_in_numbers(result: RunResult) -> Iterator[str]:
    """Find counts that cannot be: below zero, above the whole, or in contradiction to one another."""
    params = result.params
    for name, size in _sizes(result).items():
        if size < 0 or (size == 0 and name in _NEVER_ZERO):
            yield f"{name} is {size:,}"
    for split, cut in (result.truncated or {}).items():
        rows = result.n_examples[split]
        if not 0 <= cut <= rows:
            yield f"truncated.{split} is {cut:,} of {counted_noun(rows, 'row')}"
    if params.trainable_backbone > params.trainable:
        yield f"params: {params.trainable_backbone:,} trained in the backbone, and {params.trainable:,} in all"
    # A stored number has 4 bytes, or 2 in half precision; the rest of a delta's bytes are masks.
    bytes_of_masks = params.stored_bytes - 4 * params.stored
    is_too_small = params.stored_bytes < 2 * params.stored
    is_too_large = bytes_of_masks > _MOST_MASKED * params.stored
    if is_too_small or is_too_large:
        yield f"params: {params.stored:,} stored numbers do not have {params.stored_bytes:,} bytes"
    if result.delta_bytes is not None and result.delta_bytes < params.stored_bytes:
        yield f"delta_bytes is {result.delta_bytes:,}, and stored_bytes {params.stored_bytes:,}"


def _sizes(result: RunResult) -> dict[str, float]:
    """Return everything in a record that cannot be below zero, by its key."""
    sizes: dict[str, float] = {}
    for key, value in result.params.model_dump().items():
        sizes[f"params.{key}"] = value
    for key, value in result.n_examples.items():
        sizes[f"n_examples.{key}"] = value
    sizes["wall_s"] = result.wall_s
    sizes["peak_memory_bytes"] = result.peak_memory_bytes
    if result.time_s is not None:
        sizes["time_s"] = result.time_s
    if result.delta_bytes is not None:
        sizes["delta_bytes"] = result.delta_bytes
    return sizes


def find_in_epochs(result: RunResult) -> Iterator[str]:
    """Find scores that the metrics of the epochs contradict."""
    yield from _find_in_selecting_scores(result)
    if not result.is_done:
        yield from _find_in_divergence(result)
        return
    lacking = [key for key in _OF_DONE if getattr(result, key) is None]
    if lacking:
        yield f"is {result.status}, and lacks {' and '.join(lacking)}"
    if result.reason:
        yield f"is {result.status}, and has a reason why it diverged"
    yield from _find_in_number_of_epochs(result)
    yield from _find_infinite_metrics(result)
    yield from _find_in_maximum(result)
    assert result.scores
    yield from _find_in_scores(result, result.primary_metric, result.scores)
    yield from _find_in_best_epoch(result)
    yield from _find_in_kept_metrics(result)


def _find_in_selecting_scores(result: RunResult) -> Iterator[str]:
    """Find epochs without the score that selects the best one, or with one where the reported rows select it."""
    selects_apart = result.epoch_rule.selects_apart
    epochs = []
    for line in result.epoch_metrics:
        if (line.selection is not None) != selects_apart:
            epochs.append(str(line.epoch))
    if epochs:
        word = "without" if selects_apart else "with"
        count = counted_noun(len(epochs), "epoch")
        yield (
            f"{count} {word} a score of selecting rows, and selection is {result.selection}"
            f" (epoch {abbreviate(epochs)})"
        )


def _find_in_divergence(result: RunResult) -> Iterator[str]:
    """Find what a run that diverged cannot have, and what it must have."""
    held = [key for key in _NOT_OF_DIVERGED if getattr(result, key)]
    if held:
        yield f"is {result.status}, and has {' and '.join(held)}"
    # The loss or the logits stop a run before it has measured its last epoch.
    trained = len(result.epoch_metrics)
    if result.epoch_rule.measures_every_epoch and trained == result.config["epochs"]:
        yield f"is {result.status}, and has metrics of all {counted_noun(trained, 'epoch')}"
    if not result.collapsed:
        yield f"is {result.status}, and collapsed is False"
    if not result.reason:
        yield f"is {result.status}, and has no reason"


def _find_in_number_of_epochs(result: RunResult) -> Iterator[str]:
    """Find another number of epochs than the configuration asks for."""
    assert result.epochs
    epochs = result.epochs
    total = result.config["epochs"]
    patience = result.config.get("patience")
    # Early stopping ends the run `patience` epochs after the best one.
    if patience:
        total = min(total, epochs.best + patience)
    trained = [line.epoch for line in result.epoch_metrics]
    if trained != list(range(1, total + 1)):
        yield f"has metrics of {len(trained)} epochs, and its configuration {total} epochs"
    if not epochs.total == epochs.last == total:
        yield f"epochs: {epochs.total} in all and {epochs.last} as the last, and by its configuration {total}"


def _find_infinite_metrics(result: RunResult) -> Iterator[str]:
    """Find epochs with metrics that are no numbers.

    NaN is as far from one score as from any other, so it would contradict none.
    """
    for line in result.epoch_metrics:
        values = dict(line.metrics)
        if line.selection is not None:
            values["selection"] = line.selection
        for name, value in values.items():
            if not math.isfinite(value):
                yield f"epoch {line.epoch} has {name} {value}, which is no score"


def _find_in_maximum(result: RunResult) -> Iterator[str]:
    """Find a maximum that the run cannot know, or that is missing: it takes the scores of all epochs."""
    assert result.epochs
    assert result.scores
    is_known = result.epoch_rule.measures_every_epoch
    word = "known" if is_known else "not known"
    named = {"scores.max": result.scores.max, "epochs.max": result.epochs.max}
    for extra, scores in result.extra_validation.items():
        named[f"extra_validation.{extra}.max"] = scores.max
    for name, value in named.items():
        if (value is not None) != is_known:
            yield f"{name} is {value}, and by its configuration the maximum is {word}"


def find_in_extra_scores(result: RunResult, metrics: Mapping[str, str]) -> Iterator[str]:
    """Find scores of extra validation splits that are not those of their epochs.

    Args:
        result: the record of a run that is done.
        metrics: the name of each split's primary metric in the record, by the split's suffix.
    """
    for extra, scores in result.extra_validation.items():
        for problem in _find_in_scores(result, metrics[extra], scores):
            yield f"extra_validation.{extra}: {problem}"


def _find_in_scores(result: RunResult, metric: str, scores: RunScores) -> Iterator[str]:
    """Find scores by one metric that are not those of their epochs, and a maximum that another epoch exceeds.

    Args:
        result: the record of a run that is done.
        metric: its name in the metrics of the epochs.
        scores: by that metric.
    """
    assert result.epochs
    by_epoch = {line.epoch: line.metrics.get(metric) for line in result.epoch_metrics}
    # The kept epoch may have been measured after the training only: its line then lacks the metric.
    by_epoch[result.epoch(result.kept)] = result.metrics[metric]
    highest = max(score for score in by_epoch.values() if score is not None)
    computed = {
        "last": by_epoch.get(result.epochs.last),
        "best": by_epoch.get(result.epochs.best),
        "max": highest,
    }
    for name, expected in computed.items():
        stored = getattr(scores, name)
        if stored is None or expected is None:
            continue
        if abs(stored - expected) > TOLERANCE:
            yield f"{name} is {stored:.4f}, and by its epoch metrics {expected:.4f}"
    if metric != result.primary_metric or result.epochs.max is None:
        return
    at_maximum = by_epoch.get(result.epochs.max)
    if at_maximum is not None and highest - at_maximum > TOLERANCE:
        yield f"epochs.max is {result.epochs.max}, and another epoch has {highest:.4f}"


def _find_in_best_epoch(result: RunResult) -> Iterator[str]:
    """Find a later epoch whose selecting score beats that of the best one.

    An earlier epoch may beat it, because epochs of a stage before the last are not selected;
    `find_in_earlier_epochs` looks at methods with a single stage.
    """
    assert result.epochs
    yield from _find_better_epoch(result, range(result.epochs.best + 1, result.epochs.total + 1))


def find_in_earlier_epochs(result: RunResult) -> Iterator[str]:
    """Find an earlier epoch whose selecting score beats that of the best one.

    Args:
        result: the record of a run that is done, by a method with a single stage.
    """
    assert result.epochs
    first = 1
    # The first step of a warm-up trains nothing, and an epoch of that step alone is not selected.
    if result.processes and result.processes[-1].last_step == result.epochs.total:
        first = 2
    yield from _find_better_epoch(result, range(first, result.epochs.best))


def _find_better_epoch(result: RunResult, epochs: range) -> Iterator[str]:
    """Find the first of some epochs whose selecting score beats that of the best one."""
    assert result.epochs
    best = result.epochs.best
    by_epoch = _selecting_scores(result.epoch_metrics, result.primary_metric)
    if best not in by_epoch:
        return
    for epoch in epochs:
        score = by_epoch.get(epoch)
        if score is not None and score - by_epoch[best] > TOLERANCE:
            yield f"epoch {best} is the best, and epoch {epoch} has {score:.4f} where it has {by_epoch[best]:.4f}"
            return


def _selecting_scores(lines: Sequence[EpochMetrics], primary: str) -> dict[int, float]:
    """Return the score that selects the best epoch, of the epochs that have one."""
    scores: dict[int, float] = {}
    for line in lines:
        if line.selection is not None or primary in line.metrics:
            scores[line.epoch] = line.selecting_score(primary)
    return scores


def _find_in_kept_metrics(result: RunResult) -> Iterator[str]:
    """Find metrics of the record that differ from those in the kept epoch's line."""
    kept = result.epoch(result.kept)
    for line in result.epoch_metrics:
        if line.epoch != kept:
            continue
        for name, value in line.metrics.items():
            if abs(value - result.metrics.get(name, value)) > TOLERANCE:
                yield f"{name} is {result.metrics[name]:.4f}, and {value:.4f} in the metrics of its epoch"
