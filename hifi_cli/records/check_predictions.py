"""Checks of a run against its task and its stored predictions.

Each function yields one sentence for each problem.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from hifi_cli.records.check_record import TOLERANCE, find_in_extra_scores
from hifi_cli.records.record import RunResult
from hifi_cli.tasks import scores
from hifi_cli.tasks.examples import Predictions
from hifi_cli.tasks.metrics import METRICS, lowest_score
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate, counted_noun


def why_not_recomputed(spec: TaskSpec) -> str:
    """Return why the score of a run does not follow from its predictions alone; empty if it does.

    Args:
        spec: the task, with the primary metric of the run.
    """
    if _needs_texts(spec.primary):
        return f"{spec.primary} needs texts, which predictions do not hold"
    if spec.primary not in spec.metrics:
        return f"{spec.primary} is a metric of the evaluate library"
    return ""


def _needs_texts(metric: str) -> bool:
    """Return whether a metric needs texts of the data, which predictions do not hold."""
    return metric in METRICS and METRICS[metric].needs == "texts"


def find_in_task(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Find rows that are missing, and scores outside of their range."""
    for split, count in _counted_rows(result).items():
        official = spec.rows.get(split, 0)
        if result.limit is None and count < official:
            yield f"{count:,} of {official:,} rows of {split}, and limit is not set"
        elif result.limit is not None and count < min(official, result.limit):
            yield f"{count:,} of {official:,} rows of {split}, and limit is {result.limit:,}"
    if result.classes is not None:
        for counts in (result.classes.labels, result.classes.predicted):
            if [*counts] != spec.classes:
                yield f"classes are {abbreviate([*counts])}, and those of the task {abbreviate(spec.classes)}"
    # Names and range of a metric of the evaluate library are not known.
    if spec.evaluate:
        return
    yield from _find_in_names(result, spec)
    yield from _find_outside_of_range(result, spec)


def _find_outside_of_range(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Find scores below the lowest one that their metric can have, or above 1."""
    for name, value in result.metrics.items():
        if value < lowest_score(name) or value > 1:
            yield f"{name} {value:g} is outside its range"
    for line in result.epoch_metrics:
        for name, value in line.metrics.items():
            if value < lowest_score(name) or value > 1:
                yield f"epoch {line.epoch}: {name} {value:g} is outside its range"
        selecting = line.selection
        # The primary metric of the selecting rows.
        if selecting is not None and (selecting < lowest_score(spec.primary) or selecting > 1):
            yield f"epoch {line.epoch}: selection {selecting:g} is outside its range"


def _find_in_names(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Find metrics and extra validation splits that the task does not have, and a primary metric that is another."""
    unknown = sorted(result.extra_validation.keys() - spec.extra_validation.keys())
    if unknown:
        yield f"extra_validation: the task has no {abbreviate(unknown)}"
        return
    # Some copies of a task lack its extra splits; those of the run's data were measured.
    for extra, split in spec.extra_validation.items():
        if split in result.data and extra not in result.extra_validation:
            yield f"data has {split}, and extra_validation lacks {extra}"
    names = [*spec.metrics]
    primary = {}
    for extra in result.extra_validation:
        of_split = spec.on_split(spec.extra_validation[extra])
        names += [f"{name}_{extra}" for name in of_split.metrics]
        primary[extra] = f"{of_split.primary}_{extra}"
    stored = {"metrics": [*result.metrics]}
    for line in result.epoch_metrics:
        stored[f"epoch {line.epoch}"] = [*line.metrics]
    for where, found in stored.items():
        if others := sorted({*found}.difference(names)):
            yield f"{where} has {abbreviate(others)}, which the task does not have"
    yield from _find_unmeasured_epochs(result, names)
    if missing := sorted({*names}.difference(result.metrics)):
        yield f"metrics lacks {abbreviate(missing)}, which the task has"
        return
    yield from find_in_extra_scores(result, primary)


def _find_unmeasured_epochs(result: RunResult, names: Sequence[str]) -> Iterator[str]:
    """Find epochs that lack metrics though the run measures each of them.

    Args:
        result: the record.
        names: of all metrics.
    """
    for line in result.epoch_metrics:
        is_last = line.epoch == len(result.epoch_metrics)
        missing = sorted({*names}.difference(line.metrics))
        if missing and (is_last or result.epoch_rule.measures_every_epoch):
            yield f"epoch {line.epoch} lacks {abbreviate(missing)}, which is measured after it"


def _counted_rows(result: RunResult) -> dict[str, int]:
    """Return the rows of the splits of which all must have been used."""
    rows = result.n_examples
    counts = {"validation": rows["reported"]}
    if result.shots is None:
        counts["train"] = rows["train"]
        # A part of the train split selected the epoch.
        if result.selection == "holdout":
            counts["train"] += rows["selection"]
    return counts


def find_in_predictions(result: RunResult, spec: TaskSpec, table: pd.DataFrame) -> Iterator[str]:
    """Find what does not follow from the stored predictions.

    Args:
        result: the record.
        spec: its task.
        table: the predictions, as `Study.predictions` has them.
    """
    reported = result.n_examples["reported"]
    if len(table) != reported:
        yield f"has predictions of {len(table)} of {reported} rows (n_examples)"
    repeated = table["id"][table["id"].duplicated()]
    if len(repeated):
        yield f"has {counted_noun(len(repeated), 'row')} twice (id {abbreviate([*repeated])})"
    rules = spec.rules
    predictions = rules.predictions_of_stored(table["prediction"].tolist())
    if rules.is_collapsed(predictions) != result.collapsed:
        yield f"collapsed is {result.collapsed}, and its predictions say {not result.collapsed}"
    yield from _find_in_classes(result, table)
    yield from _find_in_metrics(result, spec, table, predictions)
    if spec.rules.predicts_numbers and (wrong := _other_numbers_of_logits(result, spec, table)):
        yield wrong
        return
    contradicts = rules.contradicts_logits(predictions, table["logits"].tolist())
    if contradicts.any():
        ids = table["id"][contradicts]
        count = counted_noun(len(ids), "prediction")
        yield f"{count} not those of the logits (id {abbreviate([*ids])})"
    yield from _find_infinite_logits(table)


def _other_numbers_of_logits(result: RunResult, spec: TaskSpec, table: pd.DataFrame) -> str:
    """Return which rows have another number of logits than the task head gives; empty: none has."""
    has_one = bool(result.config.get("task_head", {}).get("one_logit"))
    expected = spec.rules.count_stored_logits(one_logit=has_one)
    ids = [row.id for row in table.itertuples() if len(row.logits) != expected]
    if not ids:
        return ""
    count = counted_noun(len(ids), "row")
    return f"{count} without {counted_noun(expected, 'logit')} (id {abbreviate(ids)})"


def _find_infinite_logits(table: pd.DataFrame) -> Iterator[str]:
    """Find logits with which a run diverges and has no score: NaN or infinity.

    A comparison with NaN is never true, so it would contradict no prediction. Minus infinity is
    padding, as in `ModelRunner.measure`.
    """
    ids = []
    for row in table.itertuples():
        logits = np.asarray(row.logits, dtype=np.float64)
        if np.isnan(logits).any() or np.isposinf(logits).any():
            ids.append(row.id)
    if ids:
        count = counted_noun(len(ids), "row")
        yield f"{count} with logits that are not finite, and a score (id {abbreviate(ids)})"


def _find_in_classes(result: RunResult, table: pd.DataFrame) -> Iterator[str]:
    """Find counts of classes that are not those of the predictions."""
    if result.classes is None:
        return
    columns: dict[str, Mapping[str, int]] = {
        "label": result.classes.labels,
        "prediction": result.classes.predicted,
    }
    for column, counts in columns.items():
        stated = {word: count for word, count in counts.items() if count}
        if stated != Counter(table[column]):
            yield f"classes has other numbers of rows than its predictions (by {column})"


def _find_in_metrics(
    result: RunResult, spec: TaskSpec, table: pd.DataFrame, predictions: Predictions
) -> Iterator[str]:
    """Find metrics that the predictions do not give."""
    names = [name for name in spec.metrics if not _needs_texts(name)]
    if not names:
        return
    rows = [spec.rules.row_of_stored(row.id, row.label) for row in table.itertuples()]
    # Without texts of rows and code of others, only these metrics can be computed.
    update = {"metrics": names, "primary": names[0], "evaluate": None}
    computable = spec.model_copy(update=update)
    for name, score in scores.compute(computable, rows, predictions).items():
        stored = result.metrics[name]
        if abs(score - stored) > TOLERANCE:
            yield f"{name} is {stored:.4f}, and by its predictions {score:.4f}"
