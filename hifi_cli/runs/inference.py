"""Finished models: evaluated again, and predictions for new rows and test files."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hifi_cli.errors import UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import Prediction
from hifi_cli.runs.run import prediction_rows
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import PreparedRun, Workspace, open_run
from hifi_cli.tasks import file_formats, submission, task_spec
from hifi_cli.tasks.examples import EncodedExample, Predictions, Row
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.task_spec import Source, TaskSpec
from hifi_cli.training.loop import measure_reported

_SCORE_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order


def open_model(
    run: Path | str,
    *,
    results_dir: Path | str = "results",
    backbone: str | None = None,
    trust: bool = False,
) -> tuple[nn.Module, Any]:
    """Open the model of a finished run.

    Args:
        results_dir: holds the runs that the run started from.
        backbone: loaded instead of the one that the run names, which may lie elsewhere here.
        trust: whether code may run that the files of the run name.

    Returns:
        The model, in evaluation mode, called as Hugging Face's are (its output has `logits`), and
        its tokenizer.

    Raises:
        MissingError, UsageError, RunFailed: see `open_run`.
    """
    workspace = Workspace(Path(results_dir), backbone=backbone, trust=trust)
    prepared, _ = open_run(Path(run), workspace)
    prepared.method.merge(prepared.encoder)
    return prepared.encoder.model.eval(), prepared.pretrained.tokenizer


# --- evaluate again


@dataclass(frozen=True)
class Evaluation:
    """A finished run evaluated again.

    Attributes:
        compared: each metric now and as the run stored it; None where one side does not have it.
        largest_difference: between the logits.
        differing: what is not as the run stored it; the rounding of other hardware is allowed.
    """

    path: Path
    compared: dict[str, tuple[float | None, float | None]]
    largest_difference: float
    differing: list[str]


def evaluate(path: Path, workspace: Workspace) -> Evaluation:
    """Predict the reported split again and compare with what the run stored.

    Raises:
        UsageError: the data are not those of the run; see also `open_run`.
    """
    prepared, result = open_run(path, workspace)
    config = prepared.config
    data = workspace.rows(config.task).fingerprint
    changed = [
        split
        for split in data
        if split.startswith("validation") and data[split] != result.data.get(split)
    ]
    # digests of schema 1 are of files; there the logits alone show whether the rows are the same
    if changed and result.schema_version > 1:
        raise UsageError(
            f"the run in {path} was made on other validation data: restore them, or give --data-dir with them"
        )
    splits = load_splits(config, workspace)
    scores, logits = measure_reported(prepared, splits)
    predictions = prepared.task.rules.predictions(splits.reported, logits)
    rows = prediction_rows(prepared.task, splits.reported, logits, predictions)
    directory = RunDirectory(path)
    stored = directory.read_predictions()
    if [len(row.logits) for row in rows] != [len(row.logits) for row in stored]:
        raise UsageError(f"{directory.predictions} does not hold the predictions of this split")
    logits_now, logits_then = (
        np.concatenate([row.logits for row in lines]) for lines in (rows, stored)
    )
    difference = float(np.abs(logits_now - logits_then).max())
    primary = prepared.task.primary
    compared = {
        name: (scores.get(name), result.metrics.get(name)) for name in {**scores, **result.metrics}
    }
    kept = {f"{primary} of the kept epoch": (scores[primary], result.score(result.kept_score))}
    differing = [
        name
        for name, (now, then) in (compared | kept).items()
        if now is None or then is None or not abs(now - then) <= _SCORE_TOLERANCE
    ]
    if not difference <= _LOGIT_TOLERANCE:  # also if it is NaN
        differing.append("logits")
    return Evaluation(path, compared, difference, differing)


def _predict(
    prepared: PreparedRun, examples: list[EncodedExample]
) -> tuple[Predictions, list[Prediction]]:
    """What a model predicts of some examples, for metrics and as lines of predictions.jsonl."""
    logits = prepared.predict(examples)
    predictions = prepared.task.rules.predictions(examples, logits)
    return predictions, prediction_rows(prepared.task, examples, logits, predictions)


# --- predict new texts


def predict(run: Path, file: Path, workspace: Workspace) -> list[dict[str, Any]]:
    """A file's rows with what a finished run's model predicts of them.

    Args:
        file: has the task's input columns; other columns are not read. The id column, where the
            task has one and the file too, names the rows; else their numbers do.

    Returns:
        For each row `id`, `prediction` (a label, a list of labels, a number, or an answer's text)
        and, for labels, `probabilities` by label; for token classification `id`, `tokens`, `tags`.

    Raises:
        MissingError, UsageError, RunFailed: there is no usable run, or no usable file.
    """
    prepared, _ = open_run(run, workspace)
    config = prepared.config
    rows = read(prepared.task, file)
    _, predictions = _predict(prepared, workspace.tokenize(config, rows, config.max_length))
    rules = prepared.task.rules
    return [
        rules.predicted_line(row, predicted.prediction, predicted.logits)
        for row, predicted in zip(rows, predictions, strict=True)
    ]


def read(task: TaskSpec, path: Path) -> list[Row]:
    """The rows of a file, none left out; see `predict`.

    Raises:
        UsageError: its name does not say the format, or a column is missing or does not fit; the
            line is named.
    """
    of_file = file_formats.format_of(path)
    task = task.model_copy(update={"skip_incomplete": False})
    header = task.inputs if of_file.numbers_columns else None
    has_quotes = of_file.may_have_quotes and task.local.quotes
    records = file_formats.read(path, of_file.name, header, quotes=has_quotes)
    return parse_rows(task, records, Source(), str(path), labelled=False)


# --- predict test splits


def predict_test(
    paths: Sequence[Path], workspace: Workspace, submission_dir: Path | None = None
) -> list[Path]:
    """Predict the test splits of finished runs.

    Args:
        submission_dir: where the files for the benchmarks' servers are written too, and their zips
            once they are complete.

    Returns:
        The files written.

    Raises:
        MissingError: no run, no test rows, or a file of another task is missing.
        UsageError: the task has no submission, or the rows are not the official ones.
    """
    written, benchmarks = [], set()
    for path in paths:
        prepared, _ = open_run(path, workspace)
        config, task = prepared.config, prepared.task
        data = workspace.rows(config.task)
        unlabelled = filterfalse(task_spec.is_labelled, task.local.files)
        names = submission.spec_of(task).files if submission_dir else unlabelled
        splits = [split for split in names if split == "test" or split in data.splits]
        for split in splits or ["test"]:
            rows = data.rows(split)
            predictions, lines = _predict(
                prepared, workspace.examples(config, split, config.max_length)
            )
            written.append(RunDirectory(path).write_predictions(lines, split))
            if submission_dir:
                written.append(
                    submission.write(task, split, rows, np.asarray(predictions), submission_dir)
                )
                benchmarks.add(submission.spec_of(task).benchmark)
    if submission_dir:
        written += [submission.pack(benchmark, submission_dir) for benchmark in sorted(benchmarks)]
    return written
