"""A finished run made again from its backbone and its delta."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from hifi_cli.config import ScoringConfig, parse
from hifi_cli.errors import RunFailed, UsageError
from hifi_cli.files import file_digest, sealed, write_json
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.runs import memory, selection
from hifi_cli.runs.directory import RunDirectory
from hifi_cli.runs.run import Prepared, measure_further, prediction_rows, prepare, split_examples
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import metrics, submission
from hifi_cli.tasks.inputs import rows_of

logger = logging.getLogger("hifi")


def reload(path: Path, workspace: Workspace) -> tuple[Prepared, dict[str, Any]]:
    """Rebuild a finished run's model.

    Returns:
        The model, and results.json.

    Raises:
        MissingError: no finished run is there, or its backbone cannot be had.
        UsageError: its delta is damaged or belongs to other backbone weights.
        RunFailed: the run diverged and has no model.
    """
    directory = RunDirectory(path)
    config, results = directory.config(), directory.read_results()
    if results["status"] != "done":
        raise RunFailed(f"the run in {path} {results['status']} and left no model")
    if not directory.delta.is_file() or file_digest(directory.delta) != results["delta_sha256"]:
        raise UsageError(f"{directory.delta} is missing or is not the file the run wrote; train the run again with --force")
    tensors, belongs_to = deltas.load(directory.delta)
    prepared = prepare(config, workspace, belongs_to["heads"])
    if prepared.identity != belongs_to["backbone_identity"]:
        raise UsageError(
            f"the run in {path} was trained on other weights of backbone '{config.backbone.name}' than those found now"
        )
    methods.finish(prepared.method, prepared.encoder, tensors)
    return prepared, results


def evaluate(path: Path, workspace: Workspace) -> dict[str, Any]:
    """Predict the reported split again and compare with what the run stored.

    Returns:
        `scores` (metrics now), `stored` (metrics of the run) and `largest_difference` between the logits.

    Raises:
        UsageError: the data are not those of the run.
    """
    prepared, results = reload(path, workspace)
    config = prepared.engine.config
    now_read, then_read = (_of_validation(prints) for prints in (workspace.rows(config.task).fingerprint, results["data"]))
    if now_read != then_read:
        raise UsageError(f"the run in {path} was made on other validation data; give the same --data-dir")
    splits = split_examples(config, workspace)
    examples = splits.reported
    logits = memory.predict(prepared.engine, examples)
    predictions = metrics.predictions_of(prepared.task, examples, logits)
    rows = prediction_rows(prepared.task, examples, logits, predictions)
    stored = RunDirectory(path).read_predictions()
    now, then = np.array([row["logits"] for row in rows]), np.array([row["logits"] for row in stored])
    if now.shape != then.shape:
        raise UsageError(f"{RunDirectory(path).predictions} does not hold the predictions of this split")
    return {
        "run": str(path),
        "scores": metrics.compute(prepared.task, rows_of(examples), predictions) | measure_further(prepared, splits),
        "stored": results["metrics"],
        "largest_difference": float(np.abs(now - then).max()),
    }


def predict_test(path: Path, workspace: Workspace, submission_dir: Path | None = None) -> list[Path]:
    """Predict a finished run's test splits, and write the benchmark's files too when a directory for them is given.

    Returns:
        The files written.

    Raises:
        MissingError: no run, or no test rows.
        UsageError: the task has no submission, or the rows are not the official ones.
    """
    prepared, _ = reload(path, workspace)
    config, task = prepared.engine.config, prepared.task
    data = workspace.rows(config.task)
    wanted = submission.of(task).files if submission_dir else task.local.files
    written = []
    there = [split for split in wanted if split == "test" or (split.startswith("test_") and split in data.splits)]
    for split in there or ["test"]:
        rows = data.rows(split)
        examples = workspace.examples(config, split, config.max_length)
        logits = memory.predict(prepared.engine, examples)
        predictions = metrics.predictions_of(task, examples, logits)
        lines = prediction_rows(task, examples, logits, predictions)
        written.append(RunDirectory(path).write_predictions(lines, split))
        if submission_dir:
            written.append(submission.write(task, split, rows, np.asarray(predictions), submission_dir))
    return written


def complete_submissions(paths: list[Path], workspace: Workspace, directory: Path) -> list[Path]:
    """Fill in what may be filled without a model, check all files and zip them, for each benchmark the runs belong to.

    Args:
        paths: the runs that were asked for; nothing is filled in for their tasks.

    Returns:
        The zips.

    Raises:
        MissingError: files are missing that only a run can give.
        UsageError: a file is not what the server takes.
    """
    named = {RunDirectory(path).config().task for path in paths}
    benchmarks = sorted({submission.of(workspace.task(name)).benchmark for name in named})
    for benchmark in benchmarks:
        _fill(benchmark, directory, workspace, named)
    return [submission.pack(benchmark, directory) for benchmark in benchmarks]


def _fill(benchmark: str, directory: Path, workspace: Workspace, named: set[str]) -> None:
    for file, (name, task, split) in submission.tasks_by_file(benchmark).items():
        fills = submission.of(task).without_model == "majority" and name not in named
        if fills and not (directory / file).is_file():
            data = workspace.rows(name)
            rows, label = data.rows(split), submission.majority(task, data.rows("train"))
            submission.write(task, split, rows, np.full(len(rows), float(label)), directory)
            logger.warning(f"note: {file} was filled with the commonest training label, {task.labels[label]}: no run was named")



def _of_validation(fingerprint: dict[str, str]) -> dict[str, str]:
    return {split: content for split, content in fingerprint.items() if split.startswith("validation")}


def scores_of_run(run: Path, workspace: Workspace, overrides: dict[str, Any], out: Path) -> dict[str, Any]:
    """Score a finished run's heads on its task's training samples, and store the scores.

    Args:
        overrides: `scoring.*` keys from the command line; None means not given.
    """
    prepared, _ = reload(run, workspace)
    prepared.method.merge(prepared.encoder)
    config = prepared.engine.config
    scoring = {key.removeprefix("scoring."): value for key, value in overrides.items() if value is not None}
    setting = parse(ScoringConfig, {**config.scoring.model_dump(), **scoring, "warm_steps": 0}, "command line")
    found = selection.compute_scores(config.model_copy(update={"scoring": setting}), workspace, prepared.encoder)
    write_json(out, sealed({**found, "run": str(run)}))
    return found
