"""What a finished run's model predicts: of new texts, and of the test splits, for a benchmark's server."""

import csv
import io
import json
import logging
from collections.abc import Iterator, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import expit, softmax

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import json_text, suffix_of_output
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import Prediction
from hifi_cli.results.reload import reload
from hifi_cli.tasks import metrics, readers, row_formats, submission, task_spec
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import LocalFiles, Reader, Row, TaskSpec
from hifi_cli.training.data import ResourceCache
from hifi_cli.training.run import prediction_rows

logger = logging.getLogger("hifi")

Form = Literal["tsv", "csv", "jsonl", "json", "conll"]
_FORMS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "json", ".conll": "conll"}


def reader_of(path: Path) -> Reader:
    """The format that a file's name says.

    Raises:
        UsageError: it says none.
    """
    if path.suffix.lower() not in readers.READER_OF_SUFFIX:
        raise UsageError(f"{path}: its name does not say the format: give --input-format")
    return readers.READER_OF_SUFFIX[path.suffix.lower()]


def form_of(reader: Reader, out: Path | None = None) -> Form:
    """How predictions are laid out: as the name of the output file says, else as the input, Parquet as JSON lines.

    Raises:
        UsageError: the output file's name ends in another format.
    """
    suffix = suffix_of_output(out, _FORMS, "or give --format")
    return _FORMS[suffix or f".{'jsonl' if reader == 'parquet' else reader}"]  # type: ignore[return-value]


def predict(run: Path, file: Path, resources: ResourceCache, reader: Reader, name: str = "") -> list[dict[str, Any]]:
    """A file's rows with what a finished run's model predicts of them.

    Args:
        reader: the format of the file, which has the task's input columns; other columns are not read. The id column,
            where the task has one and the file too, names the rows; else their numbers do.
        name: what messages call the file; default: its path.

    Returns:
        For each row `id`, `prediction` (a label, a list of labels, a number, or an answer's text) and, for labels,
        `probabilities` by label; for token classification `id`, `tokens` and `tags`.

    Raises:
        MissingError, UsageError, RunFailed: there is no usable run, or no usable file.
    """
    with RunDirectory(run).opened() as config:
        task = resources.task(config.task)
    rows = read(task, file, reader, name or str(file))  # before the model: a wrong file is refused at once
    with reload(run, resources) as (prepared, _):
        config = prepared.runner.config
        examples = resources.tokenize(config, rows, config.max_length)
        logits = prepared.runner.predict(examples)
    predictions = prediction_rows(task, examples, logits, metrics.predictions_of(task, examples, logits))
    return [_row(task, row, prediction) for row, prediction in zip(rows, predictions, strict=True)]


def read(task: TaskSpec, path: Path, reader: Reader, name: str) -> list[Row]:
    """The rows of a file, none left out; see `predict`.

    Raises:
        MissingError: no such file.
        UsageError: a column is missing or does not fit; the line is named.
    """
    if not path.exists():
        raise MissingError(f"no file {name}")
    if not path.is_file():
        raise UsageError(f"{name} is not a regular file: give the path of a file")
    header = (task.local.header if task.local.reader == "conll" else task.inputs) if reader == "conll" else None
    layout = LocalFiles(folder="", files={}, reader=reader, header=header)
    records = readers.read(path, layout, labelled=True, skip_incomplete=False, name=name)
    complete = ((_complete(task, record, at), None) for at, record in enumerate(records))
    return row_formats.parse_rows(task.model_copy(update={"skip_incomplete": False}), complete, {}, name)


def _complete(task: TaskSpec, record: RawRecord, number: int) -> RawRecord:
    """Add to a record of a new text the columns that a row requires, with values that change nothing."""
    unknown: dict[str, Any] = {}
    if task.format == "squad":
        unknown = {"answers": {"text": [str(record.values.get("context", ""))[:1]], "answer_start": [0]}}
    elif task.format == "multirc":
        unknown = {"idx": {"paragraph": number, "question": 0, "answer": 0}}
    elif task.format == "record":
        unknown = {"idx": {"passage": number, "query": number}}
    return RawRecord(unknown | record.values, record.where)


def _row(task: TaskSpec, row: Row, prediction: Prediction) -> dict[str, Any]:
    if task.kind == "token-classification":
        return {"id": row.id, "tokens": row.words, "tags": prediction.prediction}
    content = {"id": row.id, "prediction": prediction.prediction}
    if task.kind in ("regression", "span"):
        return content
    # one logit is that of the second of two classes
    logits = np.array(prediction.logits if len(prediction.logits) > 1 else [0.0, prediction.logits[0]])
    values = expit(prediction.logits) if task.kind == "multi-label" else softmax(logits)
    return {**content, "probabilities": dict(zip(task.labels, map(float, values), strict=True))}


def as_text(predictions: Sequence[dict[str, Any]], form: Form) -> str:
    """Predictions as JSON lines, a JSON list, columns with a header (id, prediction, each label), or CoNLL columns.

    Raises:
        UsageError: CoNLL columns are asked for, and the predictions are no tags.
    """
    if form == "conll" and "tags" not in predictions[0]:
        raise UsageError("--format conll is for tags of words; choose tsv, csv or jsonl")
    if form == "conll":
        pairs = (zip(row["tokens"], row["tags"], strict=True) for row in predictions)
        return "".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) + "\n" for sentence in pairs)
    if form == "json":
        return json_text(predictions)
    if form == "jsonl":
        return "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
    keys = [key for key in predictions[0] if key != "probabilities"]
    table = [[*keys, *predictions[0].get("probabilities", {})]]
    for prediction in predictions:
        probabilities = [f"{value:.6f}" for value in prediction.get("probabilities", {}).values()]
        table.append([*(_cell(key, prediction[key]) for key in keys), *probabilities])
    if form == "tsv":
        return "".join("\t".join(cells) + "\n" for cells in table)
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(table)
    return output.getvalue()


def _cell(key: str, value: Any) -> str:
    separator = "|" if key == "prediction" else " "  # between labels, and between words or their tags
    return " ".join((separator.join(value) if isinstance(value, list) else str(value)).split())


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
        data, written = resources.rows(config.task), []
        unlabelled = filterfalse(task_spec.is_labelled, task.local.files)
        names = submission.spec_of(task).files if submission_dir else unlabelled
        for split in [split for split in names if split == "test" or split in data.splits] or ["test"]:
            rows = data.rows(split)
            examples = resources.examples(config, split, config.max_length)
            logits = prepared.runner.predict(examples)
            predictions = metrics.predictions_of(task, examples, logits)
            lines = prediction_rows(task, examples, logits, predictions)
            written.append(RunDirectory(path).write_predictions(lines, split))
            if submission_dir:
                written.append(submission.write(task, split, rows, np.asarray(predictions), submission_dir))
        return written


def complete_submissions(paths: list[Path], resources: ResourceCache, directory: Path) -> Iterator[Path]:
    """Fill in what may be filled without a model, check all files and zip them, for each benchmark the runs belong to.

    Args:
        paths: the runs that were asked for; nothing is filled in for their tasks.

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
        for file, (name, task, split) in submission.tasks_by_file(benchmark).items():
            fills = submission.spec_of(task).without_model == "majority" and name not in named
            if fills and not (directory / file).is_file():
                data = resources.rows(name)
                rows, label = data.rows(split), submission.majority(task, data.rows("train"))
                submission.write(task, split, rows, np.full(len(rows), float(label)), directory)
                logger.warning(
                    f"note: {file} was filled with the commonest training label, {task.labels[label]}: no run was named"
                )
        yield submission.pack(benchmark, directory)
