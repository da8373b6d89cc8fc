"""The files that the GLUE and SuperGLUE servers accept, from test predictions, and their zip."""

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, write_text
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.examples import Row, Values
from hifi_cli.tasks.task_spec import Split, Submission, TaskSpec


def spec_of(task: TaskSpec) -> Submission:
    """Return the submission format of a task.

    Raises:
        UsageError: the task belongs to no benchmark.
    """
    if task.submission is None:
        raise UsageError(
            f"task {task.label} has no submission: it is in neither GLUE nor SuperGLUE"
        )
    return task.submission


def write(
    task: TaskSpec, split: Split, rows: Sequence[Row], predictions: Values, directory: Path
) -> Path:
    """Write the submission file of one split.

    Args:
        task: the task, which belongs to a benchmark.
        split: one of the splits that the server scores.
        rows: the rows of the official split, in their order.
        predictions: one per row.
        directory: where the file is written, under the name that the server expects.

    Raises:
        UsageError: the rows are not those of the official test split.
    """
    path = directory / spec_of(task).files[split]
    count = task.count(rows)
    official = task.rows[split]
    # Rows that belong together have the official ids of their group in their own.
    counted_ids = [str(number) for number in range(count)]
    has_official_ids = bool(rows[0].group) or [row.id for row in rows] == counted_ids
    if count != official or not has_official_ids:
        raise UsageError(
            f"{path.name} is refused: {count} rows; the server expects the {official:,} of the"
            f" official {split} split of {task.label}, whose ids count from 0"
        )
    lines = _lines(task, rows, predictions)
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path


def _lines(task: TaskSpec, rows: Sequence[Row], predictions: Values) -> list[str]:
    """Return the lines of a submission file, in the layout of the task or of its benchmark."""
    if task.format in _LINES_OF_FORMAT:
        return _LINES_OF_FORMAT[task.format](task, rows, predictions)
    labels = _server_labels(task, predictions)
    lines = []
    if spec_of(task).benchmark == "glue":
        lines.append("index\tprediction")
        for row, label in zip(rows, labels, strict=True):
            lines.append(f"{row.id}\t{label}")
        return lines
    for row, label in zip(rows, labels, strict=True):
        lines.append(json.dumps({"idx": int(row.id), "label": label}))
    return lines


def _server_labels(task: TaskSpec, predictions: Values) -> list[str | int]:
    """Return the predictions as the server expects them; SuperGLUE takes numbers as numbers."""
    submission = spec_of(task)
    labels: list[str | int] = []
    for value in predictions:
        label = task.rules.server_label(float(value), submission.labels)
        if submission.benchmark == "superglue" and label.isdecimal():
            labels.append(int(label))
        else:
            labels.append(label)
    return labels


def _record_lines(task: TaskSpec, rows: Sequence[Row], predictions: Values) -> list[str]:
    """Return a line per query of ReCoRD, with the chosen entity."""
    del task
    chosen: dict[int, str] = {}
    for row, is_chosen in zip(rows, predictions, strict=True):
        if is_chosen:
            chosen[int(row.group)] = row.candidate
    return [json.dumps({"idx": query, "label": chosen[query]}) for query in sorted(chosen)]


def _multirc_lines(task: TaskSpec, rows: Sequence[Row], predictions: Values) -> list[str]:
    """Return a line per paragraph of MultiRC, which holds its questions, and these their answers."""
    labels = _server_labels(task, predictions)
    questions_of: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for row, label in zip(rows, labels, strict=True):
        paragraph, question, answer = (int(part) for part in row.id.split("-"))
        questions = questions_of.setdefault(paragraph, {})
        answers = questions.setdefault(question, [])
        answers.append({"idx": answer, "label": label})
    lines = []
    for paragraph, questions in questions_of.items():
        nested = [{"idx": question, "answers": answers} for question, answers in questions.items()]
        lines.append(json.dumps({"idx": paragraph, "passage": {"questions": nested}}))
    return lines


# The formats whose submission file has a layout of its own.
_LINES_OF_FORMAT: dict[str, Callable[[TaskSpec, Sequence[Row], Values], list[str]]] = {
    "record": _record_lines,
    "multirc": _multirc_lines,
}


def tasks_by_file(benchmark: str) -> dict[str, tuple[str, TaskSpec, Split]]:
    """Return for each file of a benchmark's zip the task's name, the task and the split."""
    found: dict[str, tuple[str, TaskSpec, Split]] = {}
    for name in registry.names("tasks"):
        task = task_spec.load(name)
        if task.submission is None or task.submission.benchmark != benchmark:
            continue
        for split, file in task.submission.files.items():
            found[file] = (name, task, split)
    return found


def pack(benchmark: str, directory: Path) -> Path:
    """Write the zip file of a benchmark.

    Raises:
        MissingError: files are missing; the existing files are kept.
    """
    files = sorted(tasks_by_file(benchmark))
    missing = [file for file in files if not (directory / file).is_file()]
    if missing:
        raise MissingError(
            f"{benchmark}.zip is not written: {directory} lacks {', '.join(missing)}, and the server"
            " requires all files"
        )
    path = directory / f"{benchmark}.zip"
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in files:
            archive.write(directory / file, file)
    return path
