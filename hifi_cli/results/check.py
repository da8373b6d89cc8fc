"""Check stored runs without their models: recompute scores, and find what no training can have left."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import config_hash_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import digest
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import RunResult, RunScores
from hifi_cli.results.study import Study
from hifi_cli.tasks import metrics, task_spec
from hifi_cli.tasks.metrics import Output, Predictions
from hifi_cli.tasks.task_spec import Label, Row, TaskSpec

_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_SIGNED = ("matthews", "pearson", "spearman")  # from -1 to 1
_NEED_TEXTS = ("entity_em", "entity_f1")  # of ReCoRD, which predictions do not hold
_IN_RECORD_TOO = ("task", "method", "protocol", "seed", "shots", "limit", "variant", "report")
# Runs that differ in these alone may have the same weights: two ways to select the same heads, or a search's default
_MAY_CHANGE_NOTHING = ("heads.", "scoring.", "variant", "protocol", "device", "log_every")


@dataclass(frozen=True)
class RunFinding:
    """What is wrong with a run."""

    path: str
    problem: str


@dataclass(frozen=True)
class CheckedStudy:
    """The number of runs, that of runs whose scores were recomputed, and what was found."""

    runs: int
    recomputed: int
    findings: list[RunFinding]


def check(directory: Path) -> CheckedStudy:
    """Check all finished runs of a results directory or a packed study.

    Raises:
        MissingError: there is no run.
    """
    study, findings, recomputed = Study(directory), [], 0
    if not study.records:
        raise MissingError(f"no finished runs in {directory}")
    results, examples = {}, {}
    for path in study.records:
        try:
            result, table = study.result(path), study.predictions(path)
            spec = _task(study, path, result)
            problems = [*_of_record(path, result, spec)]
            if table is not None:
                problems += _of_predictions(result, spec, table)
                recomputed += spec.primary in spec.metrics and spec.primary not in _NEED_TEXTS
                examples[path] = digest([[*table["id"]], [*table["label"]]])
            results[path] = result
        except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
            problems = [f"is damaged ({error})"]
        findings += [RunFinding(path, problem) for problem in problems]
    findings += [*_copies(results), *_parts(results), *_other_examples(results, examples)]
    return CheckedStudy(len(study.records), recomputed, findings)


def _task(study: Study, path: str, result: RunResult) -> TaskSpec:
    """The task of a run, from the user's own YAML where the run keeps one."""
    own = RunDirectory(study.directory / path).user_files / "tasks" / f"{result.task}.yaml"
    with registry.only_user_files({("tasks", result.task): own} if own.is_file() else {}):
        return task_spec.load(result.task).with_primary(result.primary_metric)


def _of_record(path: str, result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """What contradicts itself, or what cannot be, in the record of a run."""
    config, counts = result.config, result.n_examples
    if result.run_path.as_posix() != path:
        yield f"is the run that belongs at {result.run_path}"
    without_seed = {key: config[key] for key in config if key != "seed"}
    if (config_hash_of(config), config_hash_of(without_seed)) != (result.config_hash, result.setting_hash):
        yield "config_hash or setting_hash is not that of its configuration"
    differing = [key for key in _IN_RECORD_TOO if config[key] != getattr(result, key)]
    if differing or config["backbone"]["name"] != result.backbone:
        yield f"its configuration has another {', '.join(differing) or 'backbone'}"
    measured = [result.metrics, *(line.metrics for line in result.epoch_metrics)]
    for name, value in (item for scores in measured for item in scores.items()):
        if not (-1 if name.startswith(_SIGNED) else 0) <= value <= 1 and not spec.evaluate and result.is_done:
            yield f"{name} {value:g} is outside its range"
    train = counts.train + (counts.selection if result.selection == "holdout" else 0)
    read = {"validation": counts.reported} | ({} if result.shots else {"train": train})
    for split, rows in read.items():
        if result.limit is None and rows < spec.rows.get(split, 0):
            yield f"{rows:,} of {spec.rows[split]:,} rows of {split}, and limit is not set"
    if result.is_done:
        yield from _of_epochs(result, spec.primary)


def _of_epochs(result: RunResult, primary: str) -> Iterator[str]:
    """What does not follow from the metrics after each epoch."""
    assert result.epochs
    assert result.scores
    lines, total, best = result.epoch_metrics, result.config["epochs"], result.epochs.best
    if result.epochs.total != total or [line.epoch for line in lines] != list(range(1, total + 1)):
        yield f"has metrics of {len(lines)} epochs, and its configuration {total} epochs"
        return
    # The epochs of a first stage do not count
    is_staged = result.config["stage1"] is not None or result.method.startswith("diff-pruning")
    selecting = [line.selecting_score(primary) for line in lines]
    if selecting[best - 1] < max(selecting[best - 1 if is_staged else 0 :]):
        yield f"best is epoch {best}, which is not the best by its epoch metrics"
    kept = result.metrics[primary]
    by_epoch = {line.epoch: line.metrics[primary] for line in lines if primary in line.metrics}
    by_epoch.setdefault(result.epoch(result.kept_score), kept)
    follow = RunScores.from_epochs(by_epoch, best=best, total=total, has_max=result.scores.max is not None)
    for name in ("last", "best", "max"):
        stored, computed = getattr(result.scores, name), getattr(follow, name)
        if stored is not None and abs(stored - computed) > _TOLERANCE:
            yield f"{name} is {stored:.4f}, and by its epoch metrics {computed:.4f}"
    if abs(result.score(result.kept_score) - kept) > _TOLERANCE:
        yield f"{result.kept_score} is not its {primary} of {kept:.4f}"


def _of_predictions(result: RunResult, spec: TaskSpec, table: pd.DataFrame) -> Iterator[str]:
    """What does not follow from the stored predictions."""
    rows = [_row(spec, row.id, row.label) for row in table.itertuples()]
    predictions = _predictions(spec, table)
    if len(rows) != result.n_examples.reported:
        yield f"has predictions of {len(rows)} rows, and n_examples says {result.n_examples.reported}"
    if metrics.is_collapsed(predictions) != result.collapsed:
        yield f"collapsed is {result.collapsed}, and its predictions say {not result.collapsed}"
    if isinstance(predictions, np.ndarray) and spec.format != "record":
        by_logits = metrics.predictions_of(spec, [], np.array([*table["logits"]]))
        if not np.allclose(predictions, np.asarray(by_logits), atol=_TOLERANCE):
            yield "its predictions are not those of its logits"
    names = [name for name in spec.metrics if name not in _NEED_TEXTS]
    if names:
        computable = spec.model_copy(update={"metrics": names, "primary": names[0], "evaluate": None})
        for name, score in metrics.compute(computable, rows, predictions).items():
            if abs(score - result.metrics[name]) > _TOLERANCE:
                yield f"{name} is {result.metrics[name]:.4f}, and by its predictions {score:.4f}"


def _row(spec: TaskSpec, name: str, label: Any) -> Row:
    """What metrics read of an example; the rows of one of MultiRC's questions share the first two parts of their ids."""
    if spec.kind == "span":
        return Row(name, (), None, answers=tuple((answer, -1) for answer in label))
    return Row(name, (), _number(spec, label), group=name.rpartition("-")[0])


def _predictions(spec: TaskSpec, table: pd.DataFrame) -> Predictions:
    if spec.kind in ("span", "token-classification"):
        return [Output(prediction, []) for prediction in table["prediction"]]
    return np.array([_number(spec, value) for value in table["prediction"]], dtype=np.float64)


def _number(spec: TaskSpec, value: Any) -> Label:
    """A label or prediction as the rows of the task have it.

    Raises:
        ValueError: it is no label of the task.
    """
    if spec.kind == "regression":
        return float(value)
    if spec.kind == "multi-label":
        return tuple(int(label in value) for label in spec.labels)
    if spec.kind == "token-classification":
        return tuple(spec.labels.index(tag) for tag in value)
    return spec.labels.index(value)


def _copies(results: dict[str, RunResult]) -> Iterator[RunFinding]:
    """Runs with the weights of another run that was trained otherwise."""
    by_delta: dict[str, tuple[str, str]] = {}
    for path, result in results.items():
        if result.delta_sha256:
            settings = flatten(result.config)
            deciding = digest({key: settings[key] for key in settings if not key.startswith(_MAY_CHANGE_NOTHING)})
            first, of_first = by_delta.setdefault(result.delta_sha256, (path, deciding))
            if deciding != of_first:
                yield RunFinding(path, f"has the weights of {first} (delta_sha256)")


def _parts(results: dict[str, RunResult]) -> Iterator[RunFinding]:
    """Runs without a limit on fewer rows than others of the same task and data."""
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for path, result in results.items():
        if result.limit is None:
            key = digest([result.task, result.data, result.shots, result.selection, result.config["holdout"]])
            counts = result.n_examples
            groups[key].append((counts.train + counts.selection + counts.reported, path))
    for runs in groups.values():
        for rows, path in runs:
            if rows < max(runs)[0]:
                yield RunFinding(path, f"has fewer rows than {max(runs)[1]} on the same data, and limit is not set")


def _other_examples(results: dict[str, RunResult], examples: dict[str, str]) -> Iterator[RunFinding]:
    """Runs whose predictions are of other rows or labels than those of another run on the same data."""
    first: dict[str, str] = {}
    for path, result in results.items():
        if path in examples:
            other = first.setdefault(digest([result.task, result.data, result.n_examples.reported]), path)
            if examples[path] != examples[other]:
                yield RunFinding(path, f"has other ids or labels than {other}, which has the same data")
