"""The files that the GLUE and SuperGLUE servers accept, from test predictions, and their zip."""

import itertools
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, write_text
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Row, Split, Submission, TaskSpec


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

    Raises:
        UsageError: the rows are not those of the official test split.
    """
    path = directory / spec_of(task).files[split]
    count, official = task.count(rows), task.rows[split]
    has_ids = rows[0].group or [row.id for row in rows] == [str(number) for number in range(count)]
    if count != official or not has_ids:
        raise UsageError(
            f"{path.name} is refused: {count} rows; the server expects the {official:,} of the official"
            f" {split} split of {task.label}, whose ids count from 0"
        )
    write_text(path, "".join(line + "\n" for line in _lines(task, rows, predictions)))
    return path


def _lines(task: TaskSpec, rows: Sequence[Row], predictions: Values) -> list[str]:
    if task.format == "record":
        chosen = {
            int(row.group): row.candidate
            for row, is_chosen in zip(rows, predictions, strict=True)
            if is_chosen
        }
        return [
            json.dumps({"idx": query, "label": entity}) for query, entity in sorted(chosen.items())
        ]
    labels = [_server_label(task, float(value)) for value in predictions]
    if task.format == "multirc":
        return [json.dumps(passage) for passage in _multirc_passages(rows, labels)]
    if spec_of(task).benchmark == "glue":
        return [
            "index\tprediction",
            *(f"{row.id}\t{label}" for row, label in zip(rows, labels, strict=True)),
        ]
    return [
        json.dumps({"idx": int(row.id), "label": label})
        for row, label in zip(rows, labels, strict=True)
    ]


def _server_label(task: TaskSpec, value: float) -> str | int:
    """Convert a prediction to the label that the server expects."""
    if task.kind == "regression":
        low, high = task.value_range or (value, value)
        return f"{min(max(value, low), high):.3f}"
    label = spec_of(task).labels[int(value)]
    return int(label) if label.isdecimal() and spec_of(task).benchmark == "superglue" else label


def _multirc_passages(rows: Sequence[Row], labels: Sequence[str | int]) -> Iterator[dict[str, Any]]:
    """Nest MultiRC's labels: paragraphs contain questions, questions contain answers."""
    answers_with_ids = [
        ([int(part) for part in row.id.split("-")], label)
        for row, label in zip(rows, labels, strict=True)
    ]
    for paragraph, of_paragraph in itertools.groupby(answers_with_ids, key=lambda item: item[0][0]):
        questions = [
            {
                "idx": question,
                "answers": [{"idx": ids[2], "label": label} for ids, label in answers],
            }
            for question, answers in itertools.groupby(of_paragraph, key=lambda item: item[0][1])
        ]
        yield {"idx": paragraph, "passage": {"questions": questions}}


def tasks_by_file(benchmark: str) -> dict[str, tuple[str, TaskSpec, Split]]:
    """Return for each file of a benchmark's zip the task's name, the task and the split."""
    return {
        file: (name, task, split)
        for name in registry.names("tasks")
        if (task := task_spec.load(name)).submission and task.submission.benchmark == benchmark
        for split, file in task.submission.files.items()
    }


def pack(benchmark: str, directory: Path) -> Path:
    """Write the zip file of a benchmark.

    Raises:
        MissingError: files are missing; the existing files are kept.
    """
    files = sorted(tasks_by_file(benchmark))
    if missing := [file for file in files if not (directory / file).is_file()]:
        raise MissingError(
            f"{benchmark}.zip is not written: {directory} lacks {', '.join(missing)}, and the server requires all files"
        )
    path = directory / f"{benchmark}.zip"
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in files:
            archive.write(directory / file, file)
    return path
