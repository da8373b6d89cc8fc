"""What `hifi results check` finds: runs that cannot be what their record says."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.run_config import config_hash_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.results.record import RunDirectory, RunResult
from hifi_cli.results.study import Study
from hifi_cli.tasks import metrics, task_spec
from hifi_cli.tasks.file_formats import RawRecord
from hifi_cli.tasks.metrics import Output, Predictions
from hifi_cli.tasks.rows import parse_label
from hifi_cli.tasks.task_spec import Label, Row, TaskSpec

_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_NEED_TEXTS = ("entity_em", "entity_f1")  # of ReCoRD, which predictions do not hold


@dataclass(frozen=True)
class CheckedStudy:
    """How many runs there are and had their scores recomputed, and what is wrong with which."""

    runs: int
    recomputed: int
    findings: dict[str, list[str]]


def check(directory: Path) -> CheckedStudy:
    """Check all finished runs of a results directory or a packed study.

    Raises:
        MissingError: there is no run.
    """
    study, recomputed = Study(directory), 0
    if not study.records:
        raise MissingError(f"no finished runs in {directory}")
    findings: dict[str, list[str]] = {}
    with_weights: dict[str, tuple[str, RunResult]] = {}  # the first run with each delta
    for path in study.records:
        try:
            result, table = study.result(path), study.predictions(path)
            # from the user's own YAML where the run keeps one; no code is executed here
            task = RunDirectory(study.directory / path).user_name("tasks", result.task, trust=True)
            spec = task_spec.load(task).with_primary(result.primary_metric)
            problems = [*_of_record(result, spec)]
            if table is not None:
                problems += _of_predictions(result, spec, table)
                recomputed += spec.primary in spec.metrics and spec.primary not in _NEED_TEXTS
            first, other = with_weights.setdefault(result.delta_sha256 or path, (path, result))
            # Variants of one method and seed may train the same, as when they select the same heads
            if any(
                getattr(result, key) != getattr(other, key)
                for key in ("task", "backbone", "method", "seed")
            ):
                problems.append(f"has the weights of {first} (delta_sha256)")
        except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
            problems = [f"is damaged ({error})"]
        if problems:
            findings[path] = problems
    return CheckedStudy(len(study.records), recomputed, findings)


def _of_record(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """What contradicts itself, or what cannot be, in the record of a run."""
    if config_hash_of(result.config) != result.config_hash:
        yield "config_hash is not that of its configuration"
    reported, official = result.n_examples["reported"], spec.rows.get("validation", 0)
    if result.limit is None and reported < official:
        yield f"{reported:,} of {official:,} rows of validation, and limit is not set"
    if not result.epochs:
        return
    for name, value in result.metrics.items():
        if not metrics.lowest_score(name) <= value <= 1 and not spec.evaluate:
            yield f"{name} {value:g} is outside its range"
    lines, total, patience = (
        result.epoch_metrics,
        result.config["epochs"],
        result.config.get("patience"),
    )
    if patience:
        total = min(total, result.epochs.best + patience)
    if [line.epoch for line in lines] != list(range(1, total + 1)):
        yield f"has metrics of {len(lines)} epochs, and its configuration {total} epochs"
    by_epoch = {line.epoch: line.metrics.get(spec.primary) for line in lines}
    by_epoch[result.epoch(result.kept_score)] = result.metrics[spec.primary]
    for name in ("last", "best", "max"):
        stored, computed = getattr(result.scores, name), by_epoch.get(getattr(result.epochs, name))
        if stored is not None and computed is not None and abs(stored - computed) > _TOLERANCE:
            yield f"{name} is {stored:.4f}, and by its epoch metrics {computed:.4f}"


def _of_predictions(result: RunResult, spec: TaskSpec, table: pd.DataFrame) -> Iterator[str]:
    """What does not follow from the stored predictions."""
    rows = [_row(spec, row.id, row.label) for row in table.itertuples()]
    predictions = _predictions(spec, table)
    if len(rows) != result.n_examples["reported"]:
        yield f"has predictions of {len(rows)} of {result.n_examples['reported']} rows (n_examples)"
    if metrics.is_collapsed(predictions) != result.collapsed:
        yield f"collapsed is {result.collapsed}, and its predictions say {not result.collapsed}"
    names = [name for name in spec.metrics if name not in _NEED_TEXTS]
    if names:
        computable = spec.model_copy(
            update={"metrics": names, "primary": names[0], "evaluate": None}
        )
        for name, score in metrics.compute(computable, rows, predictions).items():
            if abs(score - result.metrics[name]) > _TOLERANCE:
                yield f"{name} is {result.metrics[name]:.4f}, and by its predictions {score:.4f}"


def _row(spec: TaskSpec, name: str, label: Any) -> Row:
    """What metrics read of an example. The ids of a MultiRC question's rows begin alike."""
    if spec.kind == "span":
        return Row(name, (), None, answers=tuple((answer, -1) for answer in label))
    return Row(name, (), _label(spec, label), group=name.rpartition("-")[0])


def _predictions(spec: TaskSpec, table: pd.DataFrame) -> Predictions:
    if spec.kind in ("span", "token-classification"):
        return [Output(prediction, []) for prediction in table["prediction"]]
    predictions = (
        table["prediction"]
        if spec.kind == "regression"
        else [_label(spec, value) for value in table["prediction"]]
    )
    return np.array(predictions, dtype=np.float64)


def _label(spec: TaskSpec, value: Any) -> Label:
    """A label, or a prediction of a class, as the rows of the task have it."""
    return parse_label(spec, RawRecord({"label": value}, "predictions"))
