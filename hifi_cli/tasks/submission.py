"""The files that the GLUE and SuperGLUE servers accept: written from test predictions, checked, and zipped when complete."""

import itertools
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, write_text
from hifi_cli.tasks import task_spec as specs
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Row, Split, Submission, TaskSpec

FILES = {  # every file that a benchmark's zip must contain
    "glue": [
        "AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv", "RTE.tsv", "SST-2.tsv",
        "STS-B.tsv", "WNLI.tsv",
    ],
    "superglue": [
        "AX-b.jsonl", "AX-g.jsonl", "BoolQ.jsonl", "CB.jsonl", "COPA.jsonl", "MultiRC.jsonl", "ReCoRD.jsonl", "RTE.jsonl",
        "WSC.jsonl", "WiC.jsonl",
    ],
}  # fmt: skip
HEADER = "index\tprediction"


def spec_of(task: TaskSpec) -> Submission:
    """Return the submission format of a task.

    Raises:
        UsageError: the task belongs to no benchmark.
    """
    if task.submission is None:
        raise UsageError(f"task {task.label} has no submission: it is in neither GLUE nor SuperGLUE")
    return task.submission


def write(task: TaskSpec, split: Split, rows: Sequence[Row], predictions: Values, directory: Path) -> Path:
    """Write the submission file of one split.

    Raises:
        UsageError: the rows are not those of the official test split.
    """
    path = directory / spec_of(task).files[split]
    count, official = task.count(rows), task.rows[split]
    if count != official:
        raise UsageError(f"{path.name} is refused: {count} rows, the official {split} split of {task.label} has {official}")
    out_of_order = [] if rows[0].group else [index for index, row in enumerate(rows) if row.id != str(index)]
    if out_of_order:
        first = out_of_order[0]
        problem = f"row {first} of the {split} split has the id {rows[first].id[:40]}"
        raise UsageError(f"{path.name} is refused: {problem}; the server expects ids that count from 0")
    write_text(path, "".join(line + "\n" for line in _lines(task, rows, predictions)))
    check(task, split, path)
    return path


def _lines(task: TaskSpec, rows: Sequence[Row], predictions: Values) -> list[str]:
    if task.format == "record":
        return [json.dumps(answer) for answer in _record_answers(rows, predictions)]
    labels = [_server_label(task, float(value)) for value in predictions]
    if task.format == "multirc":
        return [json.dumps(passage) for passage in _multirc_passages(rows, labels)]
    if spec_of(task).benchmark == "glue":
        return [HEADER, *(f"{row.id}\t{label}" for row, label in zip(rows, labels, strict=True))]
    return [json.dumps({"idx": int(row.id), "label": label}) for row, label in zip(rows, labels, strict=True)]


def _server_label(task: TaskSpec, value: float) -> str | int:
    """Convert a prediction to the label that the server expects."""
    if task.kind == "regression":
        low, high = task.value_range or (value, value)
        return f"{min(max(value, low), high):.3f}"
    label = spec_of(task).labels[int(value)]
    return int(label) if label.isdecimal() and spec_of(task).benchmark == "superglue" else label


def _record_answers(rows: Sequence[Row], predictions: Values) -> list[dict[str, Any]]:
    """The chosen entity of each of ReCoRD's queries, by the queries' numbers."""
    chosen = {int(row.group): row.candidate for row, is_chosen in zip(rows, predictions, strict=True) if is_chosen}
    return [{"idx": idx, "label": entity} for idx, entity in sorted(chosen.items())]


def _multirc_passages(rows: Sequence[Row], labels: Sequence[str | int]) -> Iterator[dict[str, Any]]:
    """Nest MultiRC's labels: paragraphs contain questions, questions contain answers."""
    answers_with_ids = [([int(part) for part in row.id.split("-")], label) for row, label in zip(rows, labels, strict=True)]
    for paragraph, of_paragraph in itertools.groupby(answers_with_ids, key=lambda item: item[0][0]):
        questions = [
            {"idx": question, "answers": [{"idx": ids[2], "label": label} for ids, label in answers]}
            for question, answers in itertools.groupby(of_paragraph, key=lambda item: item[0][1])
        ]
        yield {"idx": paragraph, "passage": {"questions": questions}}


def check(task: TaskSpec, split: Split, path: Path) -> None:
    """Check that the server would accept a file.

    Raises:
        UsageError: header, row count, ids or labels are not as expected; the message names file and line.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    is_glue = spec_of(task).benchmark == "glue"
    if is_glue and lines[0] != HEADER:
        raise UsageError(f"{path}, line 1: the header is not index, prediction")
    labels = list(_read_tsv_labels(path, lines[1:]) if is_glue else _read_jsonl_labels(path, lines))
    if len(labels) != task.rows[split]:
        raise UsageError(f"{path}: {len(labels)} predictions, the official {split} split has {task.rows[split]} rows")
    for index, (where, label) in enumerate(labels):
        if not _is_allowed(task, label):
            expected = ", ".join(spec_of(task).labels) or f"a number in {task.value_range}"
            raise UsageError(f"{where}: '{label}' is not a label that the server accepts ({expected}), at prediction {index}")


def _is_allowed(task: TaskSpec, label: str | int) -> bool:
    if task.format == "record":
        return isinstance(label, str) and bool(label.strip())
    if task.kind != "regression":
        return label in [_server_label(task, index) for index in range(len(task.labels))]
    low, high = task.value_range or (float("-inf"), float("inf"))
    try:
        return low <= float(label) <= high
    except ValueError:
        return False


def _read_tsv_labels(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(lines):
        where = f"{path}, line {index + 2}"
        index_cell, tab, label = line.partition("\t")
        if not tab or index_cell != str(index):
            raise UsageError(f"{where}: index {index}, a tab and a prediction are expected")
        yield where, label


def _read_jsonl_labels(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str | int]]:
    for index, line in enumerate(lines):
        where = f"{path}, line {index + 1}"
        try:
            value = json.loads(line)
            if value["idx"] != index:
                raise UsageError(f"{where}: idx {index} is expected")
            answers = [a for q in value["passage"]["questions"] for a in q["answers"]] if "passage" in value else [value]
            labels = [answer["label"] for answer in answers]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f"{where}: not a JSON object with idx and label") from None
        yield from ((where, label) for label in labels)


def tasks_by_file(benchmark: str) -> dict[str, tuple[str, TaskSpec, Split]]:
    """Return for every file of a benchmark that has a task in this project: the task's name, the task and the split."""
    tasks = {name: specs.load(name) for name in registry.names("tasks")}
    return {
        file: (name, task, split)
        for name, task in tasks.items()
        if task.submission and task.submission.benchmark == benchmark
        for split, file in task.submission.files.items()
    }


def pack(benchmark: str, directory: Path) -> Path:
    """Check every file of a benchmark and write the zip file.

    Raises:
        MissingError: files are missing; the existing files are kept.
        UsageError: the server would not accept a file; the message names every such file.
    """
    missing = [file for file in FILES[benchmark] if not (directory / file).is_file()]
    problems = [f"{directory} lacks {', '.join(missing)}, and the server requires all files"] if missing else []
    tasks = tasks_by_file(benchmark)
    for file in FILES[benchmark]:
        if file in tasks and file not in missing:
            _, task, split = tasks[file]
            try:
                check(task, split, directory / file)
            except UsageError as error:
                problems.append(str(error))
    if problems:
        error_type = MissingError if missing else UsageError
        raise error_type(f"{benchmark}.zip is not written: {'; '.join(problems)}")
    path = directory / f"{benchmark}.zip"
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in FILES[benchmark]:
            archive.write(directory / file, file)
    return path
