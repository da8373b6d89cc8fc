"""Rebuild the model of a finished run from its backbone and its delta, and evaluate it again."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
from torch import no_grad

from hifi_cli.config.base import parse
from hifi_cli.config.run_config import ScoringConfig
from hifi_cli.config.sources import backbone_config
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.methods import base as methods
from hifi_cli.records.head_files import HeadScores
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import ParameterCounts, Prediction, RunResult
from hifi_cli.runs import head_selection
from hifi_cli.runs.finished_model import check_backbone, read_delta
from hifi_cli.runs.prepared_run import (
    ModelInputs,
    PreparedRun,
    count_parameters,
    count_trainable,
    measure_extra_validation,
    prediction_rows,
    prepare,
)
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.run_code import refuse_code
from hifi_cli.runs.splits import load_splits
from hifi_cli.tasks import metrics, submission, task_spec
from hifi_cli.tasks.tokenization import rows_of

logger = logging.getLogger("hifi")

_SCORE_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order


@dataclass(frozen=True)
class Evaluation:
    """A finished run evaluated again.

    Attributes:
        scores: every metric now.
        stored: every metric as the run stored it.
        largest_difference: between the logits.
        differing_predictions: rows with another id, label or prediction than the stored row.
        differing_counts: names of the numbers of parameters that are not the stored ones.
        heads: the attention heads that the delta tunes, a list per layer; None for a method that needs none.
        backbone_weights_id: of the weights that were read.
        primary: the metric that tables show.
        kept_score: that metric at the epoch whose model was kept, as tables read it.
    """

    path: Path
    scores: dict[str, float]
    stored: dict[str, float]
    largest_difference: float
    differing_predictions: int
    differing_counts: list[str]
    heads: list[list[int]] | None
    backbone_weights_id: str
    primary: str
    kept_score: float

    @property
    def compared(self) -> dict[str, tuple[float | None, float | None]]:
        """Each metric now and stored; None where one side does not have it."""
        names = [*self.scores, *(name for name in self.stored if name not in self.scores)]
        return {name: (self.scores.get(name), self.stored.get(name)) for name in names}

    @property
    def differing(self) -> list[str]:
        """What does not agree with what the run stored; the rounding of other hardware does."""
        differing = [name for name, pair in self.compared.items() if not _agree(*pair)]
        if not _agree(self.scores[self.primary], self.kept_score):
            differing.append(f"{self.primary} of the kept epoch ({100 * self.kept_score:.2f} in results.json)")
        if not self.largest_difference <= _LOGIT_TOLERANCE:  # also if it is NaN
            differing.append("logits")
        if self.differing_predictions:
            differing.append(f"predictions ({self.differing_predictions} rows)")
        return [*differing, *(f"params.{name}" for name in self.differing_counts)]


def _agree(now: float | None, then: float | None) -> bool:
    return now is not None and then is not None and abs(now - then) <= _SCORE_TOLERANCE


@contextmanager
def reload(
    path: Path, resources: ResourceCache, before_loading: Callable[[PreparedRun], None] = lambda _: None
) -> Iterator[tuple[PreparedRun, RunResult]]:
    """Rebuild a finished run's model, and give it with its result; inside, the run's own YAMLs stand for their names.

    Args:
        before_loading: called with the model in the last phase of its method, before the delta is loaded.

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
        prepared = prepare(ModelInputs.resolve(config, resources, metadata.heads))
        check_backbone(directory, config, prepared.inputs.pretrained.weights_id, metadata)
        methods.prepare_last_phase(prepared.method, prepared.encoder)
        before_loading(prepared)
        with no_grad():
            prepared.method.load_delta(prepared.encoder.model, tensors)
        yield prepared, result


def stored_data_dir(path: Path) -> Path | None:
    """The `--data-dir` that a finished run was trained with; None if its data were generated or came from the hub.

    Raises:
        MissingError: there is no run, or its data are no longer there.
    """
    directory = RunDirectory(path)
    with directory.opened() as config:
        local = task_spec.load(config.task).local
    if local.generated or local.directory:
        return None
    files = [Path(file) for split, file in directory.read_result().data_origin.items() if split in local.files]
    if not files:
        return None
    # A relative path is that of the directory where the run was started: usually this one, or one above the results.
    for start in (Path(), *path.resolve().parents):
        if (file := start / files[0]).is_file():
            data_dir = next((parent for parent in file.parents if (parent / local.folder).is_dir()), None)
            if data_dir is not None:
                return data_dir
    above = "" if files[0].is_absolute() else " and from the directories above the run"
    raise MissingError(
        f"the run in {path} was trained on the data in {files[0].parent}, which are not there now"
        f" (seen from {Path.cwd()}{above}): give --data-dir"
    )


def evaluate(path: Path, resources: ResourceCache) -> Evaluation:
    """Predict the reported split again and compare with what the run stored.

    Raises:
        UsageError: the data are not those of the run, or its own files name code that is not trusted.
    """
    refuse_code(RunDirectory(path), trust=resources.trust)
    counts: list[tuple[int, int]] = []  # a delta may replace what trained, or decide it: an MLP of prefixes, a mask
    with reload(path, resources, lambda prepared: counts.append(count_trainable(prepared))) as (prepared, result):
        config = prepared.runner.config
        now_read, then_read = (_of_validation(prints) for prints in (resources.rows(config.task).fingerprint, result.data))
        if now_read != then_read:
            raise UsageError(f"the run in {path} was made on other validation data: restore them, or give --data-dir with them")
        splits = load_splits(config, resources)
        examples = splits.reported
        logits = prepared.runner.predict(examples)
        predictions = metrics.predictions_of(prepared.task, examples, logits)
        rows = prediction_rows(prepared.task, examples, logits, predictions)
        stored = RunDirectory(path).read_predictions()
        if [len(row.logits) for row in rows] != [len(row.logits) for row in stored]:
            raise UsageError(f"{RunDirectory(path).predictions} does not hold the predictions of this split")
        scores = metrics.compute(prepared.task, rows_of(examples), predictions) | measure_extra_validation(
            prepared, splits.extra_validation
        )
        now, then = (np.concatenate([row.logits for row in lines]) for lines in (rows, stored))
        return Evaluation(
            path,
            scores,
            result.metrics,
            largest_difference=float(np.abs(now - then).max()),
            differing_predictions=sum(not _equal_rows(*pair) for pair in zip(rows, stored, strict=True)),
            differing_counts=_differing_counts(counts, count_parameters(prepared), result.params),
            heads=prepared.inputs.attention_heads,
            backbone_weights_id=prepared.inputs.pretrained.weights_id,
            primary=prepared.task.primary,
            kept_score=result.score(result.kept_score),
        )


def _differing_counts(before_loading: list[tuple[int, int]], now: ParameterCounts, stored: ParameterCounts) -> list[str]:
    """The names of the stored numbers of parameters that are none of the rebuilt model."""
    names = [name for name in ("stored", "stored_bytes", "total") if getattr(now, name) != getattr(stored, name)]
    trainable = (stored.trainable, stored.trainable_backbone)
    return names if trainable in [*before_loading, (now.trainable, now.trainable_backbone)] else ["trainable", *names]


def _equal_rows(now: Prediction, then: Prediction) -> bool:
    """Whether two rows agree in all but the logits; a predicted number is a logit."""
    is_number = isinstance(now.prediction, float) and isinstance(then.prediction, float)
    return (now.id, now.label) == (then.id, then.label) and (is_number or now.prediction == then.prediction)


def predict_test(path: Path, resources: ResourceCache, submission_dir: Path | None = None) -> list[Path]:
    """Predict a finished run's test splits, and write the benchmark's files too when a directory for them is given.

    Returns:
        The files written.

    Raises:
        MissingError: no run, or no test rows.
        UsageError: the task has no submission, or the rows are not the official ones.
    """
    with reload(path, resources) as (prepared, _):
        config, task = prepared.runner.config, prepared.task
        data = resources.rows(config.task)
        names = submission.spec_of(task).files if submission_dir else filterfalse(task_spec.is_labelled, task.local.files)
        written = []
        splits = [split for split in names if split == "test" or split in data.splits]
        for split in splits or ["test"]:
            rows = data.rows(split)
            examples = resources.examples(config, split, config.max_length)
            logits = prepared.runner.predict(examples)
            predictions = metrics.predictions_of(task, examples, logits)
            lines = prediction_rows(task, examples, logits, predictions)
            written.append(RunDirectory(path).write_predictions(lines, split))
            if submission_dir:
                written.append(submission.write(task, split, rows, np.asarray(predictions), submission_dir))
        return written


def complete_submissions(paths: list[Path], resources: ResourceCache, directory: Path) -> list[Path]:
    """Fill in what may be filled without a model, check all files and zip them, for each benchmark the runs belong to.

    Args:
        paths: the runs that were asked for; nothing is filled in for their tasks.

    Returns:
        The zips.

    Raises:
        MissingError: files are missing that only a run can give.
        UsageError: a file is not what the server takes.
    """
    named, benchmarks = set(), set()
    for path in paths:
        with RunDirectory(path).opened() as config:
            named.add(config.task)
            benchmarks.add(submission.spec_of(resources.task(config.task)).benchmark)
    for benchmark in sorted(benchmarks):
        _fill(benchmark, directory, resources, named)
    return [submission.pack(benchmark, directory) for benchmark in sorted(benchmarks)]


def _fill(benchmark: str, directory: Path, resources: ResourceCache, named: set[str]) -> None:
    for file, (name, task, split) in submission.tasks_by_file(benchmark).items():
        fills = submission.spec_of(task).without_model == "majority" and name not in named
        if fills and not (directory / file).is_file():
            data = resources.rows(name)
            rows, label = data.rows(split), submission.majority(task, data.rows("train"))
            submission.write(task, split, rows, np.full(len(rows), float(label)), directory)
            logger.warning(f"note: {file} was filled with the commonest training label, {task.labels[label]}: no run was named")


def _of_validation(fingerprint: dict[str, str]) -> dict[str, str]:
    return {split: content for split, content in fingerprint.items() if split.startswith("validation")}


def scores_of_run(
    run: Path, resources: ResourceCache, overrides: dict[str, Any], out: Path, *, force: bool = False
) -> HeadScores:
    """Score a finished run's heads on its task's training samples, and store the scores.

    Args:
        overrides: `scoring.*` keys from the command line; None means not given.

    Raises:
        ConflictError: `out` holds other scores.
    """
    with reload(run, resources) as (prepared, _):
        prepared.method.merge(prepared.encoder)
        config = prepared.runner.config
        scoring = {key.removeprefix("scoring."): value for key, value in overrides.items() if value is not None}
        setting = parse(ScoringConfig, {**config.scoring.model_dump(), **scoring, "warm_steps": 0}, "command line")
        scores = head_selection.compute_scores(config.model_copy(update={"scoring": setting}), resources, prepared.encoder)
    scores = scores.model_copy(update={"run": str(run)})
    head_selection.write_scores(scores, out, force=force)
    return scores
