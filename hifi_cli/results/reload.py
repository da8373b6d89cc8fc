"""Rebuild the model of a finished run from its backbone and its delta, and evaluate it again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.methods import code_file
from hifi_cli.config.run_config import ScoringConfig
from hifi_cli.config.sources import backbone_config
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.select import HeadScores
from hifi_cli.methods import base as methods
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import Prediction, RunResult
from hifi_cli.tasks import metrics, task_spec
from hifi_cli.training.data import ResourceCache, check_backbone, load_splits, read_delta
from hifi_cli.training.loop import measure_reported
from hifi_cli.training.run import PreparedRun, count_parameters, prediction_rows, prepare

_SCORE_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order


@contextmanager
def reload(path: Path, resources: ResourceCache) -> Iterator[tuple[PreparedRun, RunResult]]:
    """Rebuild a finished run's model, and give it with its result; inside, the run's own YAMLs stand for their names.

    Raises:
        MissingError: no finished run is there, or its backbone is not available.
        UsageError: its delta is damaged or belongs to other backbone weights.
        RunFailed: the run diverged and has no model.
    """
    directory = RunDirectory(path)
    with directory.opened(trust=resources.trust) as config:
        config = config.model_copy(update={"device": "auto"})  # the run's own may not be on this machine
        result, tensors, metadata = read_delta(directory)
        if resources.backbone:
            elsewhere = backbone_config(resources.backbone).model_copy(update={"name": config.backbone.name})
            config = config.model_copy(update={"backbone": elsewhere})
        prepared = prepare(config, resources, metadata.heads)
        check_backbone(directory, config, prepared.pretrained.weights_id, metadata)
        methods.load_final_delta(prepared.method, prepared.encoder, tensors)
        yield prepared, result


def refuse_code(directory: RunDirectory, *, trust: bool) -> None:
    """Refuse a run whose own files name code, a method's or a metric's, unless the user trusts it.

    Raises:
        UsageError: it does.
    """
    with directory.opened(trust=trust) as config:
        own, metric = registry.user_file("tasks", config.task), task_spec.load(config.task).evaluate
        for stage in config.stages:
            file = registry.user_file("methods", stage.method)
            if file and (code := code_file(file)):
                registry.check_trusted(file, str(code))
        if own and metric and metrics.is_code(metric):
            registry.check_trusted(own, metric)


@dataclass(frozen=True)
class Evaluation:
    """A finished run evaluated again.

    Attributes:
        scores: every metric now.
        stored: every metric as the run stored it.
        largest_difference: between the logits.
        differing: what does not agree with what the run stored; the rounding of other hardware does.
    """

    path: Path
    scores: dict[str, float]
    stored: dict[str, float]
    largest_difference: float
    differing: list[str]

    @property
    def compared(self) -> dict[str, tuple[float | None, float | None]]:
        """Each metric now and stored; None where one side does not have it."""
        return {name: (self.scores.get(name), self.stored.get(name)) for name in {**self.scores, **self.stored}}


def evaluate(path: Path, resources: ResourceCache) -> Evaluation:
    """Predict the reported split again and compare with what the run stored.

    Raises:
        UsageError: the data are not those of the run, or its own files name code that is not trusted.
    """
    directory = RunDirectory(path)
    refuse_code(directory, trust=resources.trust)
    with reload(path, resources) as (prepared, result):
        config = prepared.runner.config
        if _validation(resources.rows(config.task).fingerprint) != _validation(result.data):
            raise UsageError(f"the run in {path} was made on other validation data: restore them, or give --data-dir with them")
        splits = load_splits(config, resources)
        scores, logits = measure_reported(prepared.runner, splits)
        predictions = metrics.predictions_of(prepared.task, splits.reported, logits)
        rows = prediction_rows(prepared.task, splits.reported, logits, predictions)
        counts = count_parameters(prepared)
    stored = directory.read_predictions()
    if [len(row.logits) for row in rows] != [len(row.logits) for row in stored]:
        raise UsageError(f"{directory.predictions} does not hold the predictions of this split")
    now, then = (np.concatenate([row.logits for row in lines]) for lines in (rows, stored))
    evaluation = Evaluation(path, scores, result.metrics, float(np.abs(now - then).max()), [])
    differing = evaluation.differing
    differing += [name for name, pair in evaluation.compared.items() if not _agree(*pair)]
    if not _agree(scores[prepared.task.primary], kept := result.score(result.kept_score)):
        differing.append(f"{prepared.task.primary} of the kept epoch ({100 * kept:.2f} in results.json)")
    if not evaluation.largest_difference <= _LOGIT_TOLERANCE:  # also if it is NaN
        differing.append("logits")
    if wrong := sum(not _equal_rows(*pair) for pair in zip(rows, stored, strict=True)):
        differing.append(f"predictions ({wrong} rows)")
    parameters = ("stored", "stored_bytes", "total")  # the others are not known where the delta decides what trains
    differing += [f"params.{name}" for name in parameters if getattr(counts, name) != getattr(result.params, name)]
    return evaluation


def _validation(fingerprint: dict[str, str]) -> dict[str, str]:
    return {split: content for split, content in fingerprint.items() if split.startswith("validation")}


def _agree(now: float | None, then: float | None) -> bool:
    return now is not None and then is not None and abs(now - then) <= _SCORE_TOLERANCE


def _equal_rows(now: Prediction, then: Prediction) -> bool:
    """Whether two rows agree in all but the logits; a predicted number is a logit."""
    is_number = isinstance(now.prediction, float) and isinstance(then.prediction, float)
    return (now.id, now.label) == (then.id, then.label) and (is_number or now.prediction == then.prediction)


def stored_data_dir(path: Path) -> Path | None:
    """The `--data-dir` that a finished run was trained with; None if its data were generated or came from the hub.

    Raises:
        MissingError: there is no run, or its data are no longer there.
    """
    directory = RunDirectory(path)
    with directory.opened() as config:
        local = task_spec.load(config.task).local
    origin = directory.read_result().data_origin
    files = [Path(file) for split, file in origin.items() if split in local.files]
    if local.generated or local.directory or not files:
        return None
    # A relative path is that of the directory where the run was started: usually this one, or one above the results.
    for file in (start / files[0] for start in (Path(), *path.resolve().parents)):
        for data_dir in file.parents if file.is_file() else ():
            if (data_dir / local.folder).is_dir():
                return data_dir
    raise MissingError(
        f"the run in {path} was trained on the data in {files[0].parent}, which are not there now: give --data-dir"
    )


def scores_of_run(run: Path, resources: ResourceCache, overrides: dict[str, Any], out: Path) -> HeadScores:
    """Score a finished run's heads on its task's training samples, and store the scores.

    Args:
        overrides: `scoring.*` keys from the command line; None means not given.
    """
    with reload(run, resources) as (prepared, _):
        prepared.method.merge(prepared.encoder)
        config = prepared.runner.config
        scoring = {key.removeprefix("scoring."): value for key, value in overrides.items() if value is not None}
        setting = parse(ScoringConfig, {**config.scoring.model_dump(), **scoring, "warm_steps": 0}, "command line")
        scores = head_selection.compute_scores(config.model_copy(update={"scoring": setting}), resources, prepared.encoder)
    scores = scores.model_copy(update={"run": str(run)})
    scores.write(out)
    return scores
