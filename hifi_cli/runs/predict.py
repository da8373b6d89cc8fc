"""What a finished run's model says of new texts."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import json_text, make_directory, read_bytes, suffix_of_output
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import Prediction
from hifi_cli.runs.evaluate import reload
from hifi_cli.runs.prepared_run import prediction_rows
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.tasks import metrics, readers, row_formats
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import LocalFiles, Reader, Row, TaskSpec

Form = Literal["tsv", "csv", "jsonl", "json", "conll"]


def form_of(reader: Reader, out: Path | None = None) -> Form:
    """How predictions are laid out: as the name of the output file says, else as the input, Parquet as JSON lines.

    Raises:
        UsageError: the output file's name ends in another format.
    """
    known = [f".{form}" for form in get_args(Form)]
    if suffix := suffix_of_output(out, known, "or give --format"):
        return cast(Form, suffix.removeprefix("."))
    return "jsonl" if reader == "parquet" else cast(Form, reader)


def reader_of(path: Path, name: str = "") -> Reader:
    """The format of new texts: that of the file's suffix; without a known one JSON lines if they begin with `{`, else TSV.

    Args:
        name: what messages call the file; default: its path.

    Raises:
        MissingError: no such file.
        UsageError: it is no UTF-8 text.
    """
    if path.suffix.lower() in readers.READER_OF_SUFFIX:
        return readers.READER_OF_SUFFIX[path.suffix.lower()]
    return "jsonl" if _text(path, name or str(path)).lstrip().startswith("{") else "tsv"


def read(task: TaskSpec, path: Path, *, has_header: bool = True, reader: Reader | None = None, name: str = "") -> list[Row]:
    """The rows of a file that has the task's input columns, by the task's names; other columns are not read.

    The file is TSV, CSV, JSONL, Parquet or CoNLL columns. The id column, where the task has one and the file too, names the
    rows; else their numbers do.

    Args:
        has_header: whether the first line of a TSV or CSV file holds the columns' names; without them the file has the input
            columns alone, in the task's order.
        reader: its format; default: what `reader_of` says.
        name: what messages call the file; default: its path.

    Raises:
        MissingError: no such file.
        UsageError: a column is missing or does not fit; the line is named. Or the file may be CSV, and nothing says so.
    """
    name = name or str(path)
    if reader is None:
        reader = reader_of(path, name)
        if reader == "tsv" and path.suffix.lower() != ".tsv":
            _refuse_possible_csv(_text(path, name), name, one_column=len(task.inputs) == 1 and not has_header)
    if not path.exists() or (reader == "parquet" and not path.is_file()):
        raise MissingError(f"no file {name}")
    if reader in ("tsv", "csv") and has_header:
        _check_header(task, reader, _text(path, name), name)
    if reader == "conll" and task.local.reader == "conll":
        header = task.local.header
    else:
        header = None if has_header and reader != "conll" else task.inputs
    layout = LocalFiles(folder="", files={}, reader=reader, header=header)
    records = readers.read(path, layout, labelled=True, skip_incomplete=False, name=name)
    return row_formats.parse_rows(
        task.model_copy(update={"skip_incomplete": False}),  # every row gets a prediction
        ((_complete(task, record, at), None) for at, record in enumerate(records)),
        {},
        name,
    )


def predict(
    run: Path,
    file: Path,
    resources: ResourceCache,
    *,
    has_header: bool = True,
    reader: Reader | None = None,
    name: str = "",
) -> list[dict[str, Any]]:
    """A file's rows with what a finished run's model predicts of them.

    Args:
        has_header, reader, name: as of `read`.

    Returns:
        For each row `id`, `prediction` (a label, a list of labels, a number, or an answer's text) and, for labels,
        `probabilities` by label; for token classification `id`, `tokens` and `tags`.

    Raises:
        MissingError, UsageError, RunFailed: there is no usable run, or no usable file.
    """
    with RunDirectory(run).opened() as config:
        task = resources.task(config.task)
    # before the model: a wrong file is refused at once
    rows = read(task, file, has_header=has_header, reader=reader, name=name)
    with reload(run, resources) as (prepared, _):
        config = prepared.runner.config
        examples = resources.tokenize(config, rows, config.max_length)
        logits = prepared.runner.predict(examples)
    predictions = prediction_rows(task, examples, logits, metrics.predictions_of(task, examples, logits))
    return [_prediction_row(task, row, prediction) for row, prediction in zip(rows, predictions, strict=True)]


def as_text(predictions: Sequence[dict[str, Any]], form: Form) -> str:
    """Predictions as JSON lines, a JSON list, columns with a header (id, prediction, each label), or CoNLL columns.

    Raises:
        UsageError: CoNLL columns are asked for, and the predictions are no tags.
    """
    if form == "conll":
        if "tags" not in predictions[0]:
            raise UsageError("--format conll is for tags of words; choose tsv, csv or jsonl")
        sentences = ([f"{word}\t{tag}\n" for word, tag in zip(row["tokens"], row["tags"], strict=True)] for row in predictions)
        return "".join("".join(lines) + "\n" for lines in sentences)
    if form == "json":
        return json_text(predictions)
    if form == "jsonl":
        return "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)
    keys = [key for key in predictions[0] if key != "probabilities"]
    rows = [[*keys, *predictions[0].get("probabilities", {})]]
    for prediction in predictions:
        probabilities = [f"{probability:.6f}" for probability in prediction.get("probabilities", {}).values()]
        rows.append([*(_cell(key, prediction[key]) for key in keys), *probabilities])
    if form == "csv":
        output = io.StringIO()
        csv.writer(output, lineterminator="\n").writerows(rows)
        return output.getvalue()
    return "".join("\t".join(cells) + "\n" for cells in rows)


def _cell(key: str, value: Any) -> str:
    separator = "|" if key == "prediction" else " "  # between labels, and between words or their tags
    return " ".join((separator.join(value) if isinstance(value, list) else str(value)).split())


def stdin_to_file(stream: BinaryIO, folder: Path) -> Path:
    """Standard input as a file, so that it is read and checked like any other.

    Raises:
        UsageError: it has more bytes than are read of a file.
    """
    content = stream.read(readers.MAX_BYTES + 1)
    if len(content) > readers.MAX_BYTES:
        raise UsageError(f"standard input is larger than {readers.MAX_BYTES:,} bytes: give it in parts")
    path = make_directory(folder) / "standard-input"
    path.write_bytes(content)
    return path


def _text(path: Path, name: str) -> str:
    try:
        return read_bytes(path, at_most=readers.MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise MissingError(f"no file {name}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{name}: not readable ({error})") from None


def _refuse_possible_csv(text: str, name: str, *, one_column: bool) -> None:
    """Refuse a text that TSV would read otherwise than CSV: no tab, but quotes, or commas between columns or their names.

    Args:
        one_column: whether each line is a text, in which a comma is nothing but a comma.
    """
    first = text.partition("\n")[0]
    is_quoted = text.startswith('"') or '\n"' in text
    if "\t" not in first and (is_quoted or ("," in first and not one_column)):
        raise UsageError(
            f"{name} has no tabs, and {'quotes' if is_quoted else 'commas'} as CSV has; say which it is: --input-format csv or"
            " --input-format tsv"
        )


def _check_header(task: TaskSpec, reader: Reader, text: str, name: str) -> None:
    """Refuse a file whose first line does not hold the names of the task's input columns."""
    if not text.strip():
        raise UsageError(f"{name} is empty")
    lines = io.StringIO(text, newline="")
    try:
        header = next(filter(None, csv.reader(lines)), []) if reader == "csv" else lines.readline().rstrip("\r\n").split("\t")
    except csv.Error as error:
        raise UsageError(f"{name}, line 1: not valid CSV: {error}") from None
    missing = [column for column in task.inputs if column not in header]
    if missing:
        first = f"{', '.join(header):.80}"
        raise UsageError(
            f"{name}: no column {' and no column '.join(map(repr, missing))} in its first line ({first}); expected"
            f" {', '.join(task.inputs)}: rename the columns, or add --no-header if the file holds these columns alone, in"
            " this order, without their names"
        )


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


def _prediction_row(task: TaskSpec, row: Row, prediction: Prediction) -> dict[str, Any]:
    if task.kind == "token-classification":
        return {"id": row.id, "tokens": row.words, "tags": prediction.prediction}
    content = {"id": row.id, "prediction": prediction.prediction}
    if task.kind in ("regression", "span"):
        return content
    logits = np.array(prediction.logits)
    values = expit(logits) if task.kind == "multi-label" else probabilities(logits)
    return {**content, "probabilities": dict(zip(task.labels, map(float, values), strict=True))}


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the classes or choices; one logit is that of the second of two classes."""
    values: NDArray[np.float64] = softmax(logits if len(logits) > 1 else np.array([0.0, logits[0]]))
    return values
