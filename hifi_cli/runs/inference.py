"""Finished models: evaluated again, and predictions for new rows and test files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hifi_cli.errors import RunFailed, UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import Prediction, RunResult
from hifi_cli.runs.prepare import PreparedRun
from hifi_cli.runs.result import prediction_rows
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import file_formats, submission, task_spec
from hifi_cli.tasks.examples import EncodedExample, Predictions, Row
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.source_rows import SourceRow
from hifi_cli.tasks.task_spec import Source, Split, TaskData, TaskSpec
from hifi_cli.text import counted_noun
from hifi_cli.training.loop import measure_reported_rows
from hifi_cli.training.runner import count_rows_without_finite_logits

# Scores are from 0 to 1, and one row of any task has more weight than this.
_SCORE_TOLERANCE = 1e-6
# Other hardware sums in another order.
_LOGIT_TOLERANCE = 1e-3


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
        MissingError, UsageError, RunFailed: see `Workspace.open`.
    """
    workspace = Workspace(Path(results_dir), backbone=backbone, trust=trust)
    prepared, _ = workspace.open(Path(run))
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
        UsageError: the data are not those of the run; see also `Workspace.open`.
    """
    prepared, result = workspace.open(path)
    inputs = workspace.inputs(prepared.config, prepared.task)
    _check_validation_data(path, result, inputs.data.fingerprint)
    splits = load_splits(inputs)
    scores, logits = measure_reported_rows(prepared, splits)
    predictions = prepared.task.rules.predictions(splits.reported, logits)
    rows = prediction_rows(prepared.task, splits.reported, logits, predictions)
    difference = _largest_difference(rows, RunDirectory(path))
    compared = {
        name: (scores.get(name), result.metrics.get(name)) for name in {**scores, **result.metrics}
    }
    primary = prepared.task.primary
    kept = {f"{primary} of the kept epoch": (scores[primary], result.score(result.kept))}
    differing = [name for name, pair in (compared | kept).items() if not _is_reproduced(*pair)]
    # Written so that it holds of NaN too.
    if not difference <= _LOGIT_TOLERANCE:
        differing.append("logits")
    return Evaluation(path, compared, difference, differing)


def _check_validation_data(path: Path, result: RunResult, fingerprint: Mapping[str, str]) -> None:
    """Refuse to evaluate a run on other validation rows than its own.

    Raises:
        UsageError: they are others.
    """
    # Digests of schema 1 are of files; there the logits alone show whether the rows are the same.
    if result.schema_version == 1:
        return
    for split, digest in fingerprint.items():
        if split.startswith("validation") and digest != result.data.get(split):
            raise UsageError(
                f"the run in {path} was made on other validation data: restore them, or give"
                " --data-dir with them"
            )


def _largest_difference(rows: Sequence[Prediction], directory: RunDirectory) -> float:
    """Return the largest difference between logits now and as a run stored them.

    Raises:
        UsageError: the stored predictions are of other rows.
    """
    stored = directory.read_predictions()
    if [len(row.logits) for row in rows] != [len(row.logits) for row in stored]:
        raise UsageError(f"{directory.predictions} does not hold the predictions of this split")
    logits_now = np.concatenate([row.logits for row in rows])
    logits_then = np.concatenate([row.logits for row in stored])
    return float(np.abs(logits_now - logits_then).max())


def _is_reproduced(now: float | None, stored: float | None) -> bool:
    """Return whether a score is as the run stored it; a score that is not finite is not."""
    if now is None or stored is None:
        return False
    return abs(now - stored) <= _SCORE_TOLERANCE


def _predict(
    prepared: PreparedRun, examples: list[EncodedExample]
) -> tuple[Predictions, list[Prediction]]:
    """Predict some examples: for metrics, and as lines of predictions.jsonl.

    Raises:
        RunFailed: a logit is not finite. Each class would be a prediction of nothing.
    """
    logits = prepared.predict(examples)
    count = count_rows_without_finite_logits(logits)
    if count:
        texts = counted_noun(count, "text")
        raise RunFailed(f"the logits of {texts} are not finite: the model predicts nothing there")
    predictions = prepared.task.rules.predictions(examples, logits)
    return predictions, prediction_rows(prepared.task, examples, logits, predictions)


# --- predict new texts


def predict(run: Path, file: Path, workspace: Workspace) -> list[dict[str, Any]]:
    """Predict each row of a file with a finished run's model.

    Args:
        file: has the task's input columns; other columns are not read. The id column, where the
            task has one and the file too, names the rows; else their numbers do.

    Returns:
        For each row `id`, `prediction` (a label, a list of labels, a number, or an answer's text)
        and, for labels, `probabilities` by label; for token classification `id`, `tokens`, `tags`.

    Raises:
        MissingError, UsageError, RunFailed: there is no usable run, or no usable file.
    """
    prepared, _ = workspace.open(run)
    task = prepared.task
    rows = read(task, file)
    examples = workspace.tokenizer(prepared.config, task).tokenize(rows)
    _, predictions = _predict(prepared, examples)
    return [
        task.rules.predicted_line(row, predicted.prediction, predicted.logits)
        for row, predicted in zip(rows, predictions, strict=True)
    ]


def users_columns(run: Path, file: Path, workspace: Workspace) -> list[dict[str, Any]]:
    """Return each row of a file as the user wrote it, by column, in the order of `predict`.

    Args:
        run: the directory of the run whose task the file has rows of.
        file: of any format that `predict` takes.
        workspace: says whether code of the run is trusted.

    Raises:
        MissingError: there is no such run or file.
        UsageError: the file is malformed.
    """
    directory = RunDirectory(run)
    config = directory.with_user_yamls(directory.read_config(), trust=workspace.trust)
    task = task_spec.load(config.task)
    return [record.values for record in _records(task, file)]


def read(task: TaskSpec, path: Path) -> list[Row]:
    """Read the rows of a file, none left out; see `predict`.

    Raises:
        UsageError: its name does not say the format, or a column is missing or does not fit; the
            line is named.
    """
    task = task.model_copy(update={"skip_incomplete": False})
    return parse_rows(task, _records(task, path), Source(), str(path), labelled=False)


def _records(task: TaskSpec, path: Path) -> Iterator[SourceRow]:
    """Read the records of a file with a task's columns."""
    of_file = file_formats.format_of(path)
    header = None
    if of_file.numbers_columns:
        # Such a file has no line of column names.
        header = task.inputs
    has_quotes = task.local.quotes
    if has_quotes is None:
        # No cell of the training files begins with a quote: the new file shows what its own mean.
        quotes = file_formats.quotes_of(path)
        has_quotes = quotes is not None and quotes.enclose_cells
    return file_formats.read(path, of_file.name, header, quotes=has_quotes)


# --- predict test splits


@dataclass(frozen=True)
class PredictedSplits:
    """The predictions of a run for its test splits.

    Attributes:
        files: those that were written.
        benchmark: whose server takes some of them; None: none of them is for a server.
    """

    files: list[Path]
    benchmark: str | None


def predict_test(path: Path, workspace: Workspace, submission_dir: Path | None) -> PredictedSplits:
    """Predict the test splits of a finished run.

    Args:
        submission_dir: where the files for the benchmark's server are written too.

    Raises:
        MissingError: there is no run, or there are no test rows.
        UsageError: the task has no submission, or the rows are not the official ones.
    """
    prepared, _ = workspace.open(path)
    task = prepared.task
    inputs = workspace.inputs(prepared.config, task)
    written: list[Path] = []
    for split in _splits_to_predict(task, inputs.data, submits=submission_dir is not None):
        rows = inputs.data.rows(split)
        predictions, lines = _predict(prepared, inputs.examples(split))
        written.append(RunDirectory(path).write_predictions(lines, split))
        if submission_dir:
            values = np.asarray(predictions)
            written.append(submission.write(task, split, rows, values, submission_dir))
    benchmark = None
    if submission_dir:
        benchmark = submission.spec_of(task).benchmark
    return PredictedSplits(written, benchmark)


def _splits_to_predict(task: TaskSpec, data: TaskData, *, submits: bool) -> list[Split]:
    """Return the splits of a task to predict: `test`, and others that are here.

    Args:
        submits: whether they are those of the benchmark's submission, or all without labels.

    Raises:
        UsageError: the task has no submission.
    """
    names: Iterable[Split] = filterfalse(task_spec.is_labelled, task.local.files)
    if submits:
        names = submission.spec_of(task).files
    splits = [split for split in names if split == "test" or split in data.splits]
    return splits or ["test"]
