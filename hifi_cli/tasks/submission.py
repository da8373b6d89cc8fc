"""The files that the GLUE and SuperGLUE servers take: written from test predictions, checked, and zipped when complete."""

import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, write_text
from hifi_cli.tasks import task_spec as specs
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Row, Split, Submission, TaskSpec

FILES = {  # every file a server's zip must hold
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


def of(task: TaskSpec) -> Submission:
    """How a task is submitted.

    Raises:
        UsageError: it is in no benchmark.
    """
    if task.submission is None:
        raise UsageError(f"task {task.label} has no submission: it is in neither GLUE nor SuperGLUE")
    return task.submission


def write(task: TaskSpec, split: Split, rows: Sequence[Row], predictions: Values, directory: Path) -> Path:
    """Write one task's file.

    Raises:
        UsageError: the rows are not those of the official test split.
    """
    how = of(task)
    path = directory / how.files[split]
    official = task.rows[split]
    if len(rows) != official:
        raise UsageError(f"{path.name} is refused: {len(rows)} rows, the official {split} split of {task.label} has {official}")
    strange = [] if rows[0].group else [place for place, row in enumerate(rows) if row.id != str(place)]
    if strange:
        found = f"row {strange[0]} of the {split} split has the id {rows[strange[0]].id[:40]}"
        raise UsageError(f"{path.name} is refused: {found}; the server counts them from 0")
    words = [_word(task, float(value)) for value in predictions]
    if how.benchmark == "glue":
        lines = [HEADER, *(f"{row.id}\t{word}" for row, word in zip(rows, words, strict=True))]
    elif rows[0].group:
        lines = [json.dumps(passage) for passage in _passages(rows, words)]
    else:
        lines = [json.dumps({"idx": int(row.id), "label": word}) for row, word in zip(rows, words, strict=True)]
    write_text(path, "".join(line + "\n" for line in lines))
    check(task, split, path)
    return path


def _word(task: TaskSpec, value: float) -> str | int:
    """A prediction as the server wants it."""
    if task.kind == "regression":
        low, high = task.value_range or (value, value)
        return f"{min(max(value, low), high):.3f}"
    word = of(task).labels[int(value)]
    return int(word) if word.isdecimal() and of(task).benchmark == "superglue" else word


def _passages(rows: Sequence[Row], words: Sequence[str | int]) -> Iterator[dict[str, Any]]:
    """MultiRC's nesting: paragraphs hold questions, questions hold answers."""
    split = [([int(part) for part in row.id.split("-")], word) for row, word in zip(rows, words, strict=True)]
    for paragraph, inside in itertools.groupby(split, key=lambda one: one[0][0]):
        questions = [
            {"idx": question, "answers": [{"idx": ids[2], "label": word} for ids, word in answers]}
            for question, answers in itertools.groupby(inside, key=lambda one: one[0][1])
        ]
        yield {"idx": paragraph, "passage": {"questions": questions}}


def check(task: TaskSpec, split: Split, path: Path) -> None:
    """Refuse a file the server would not take.

    Raises:
        UsageError: header, row count, ids or label words are not what it wants; file and line are named.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    is_glue = of(task).benchmark == "glue"
    if is_glue and lines[0] != HEADER:
        raise UsageError(f"{path}, line 1: the header is not index, prediction")
    found = list(_labels_of_tsv(path, lines[1:]) if is_glue else _labels_of_jsonl(path, lines))
    if len(found) != task.rows[split]:
        raise UsageError(f"{path}: {len(found)} predictions, the official {split} split has {task.rows[split]} rows")
    for place, (where, label) in enumerate(found):
        if not _is_allowed(task, label):
            wanted = ", ".join(of(task).labels) or f"a number in {task.value_range}"
            raise UsageError(f"{where}: '{label}' is not what the server wants ({wanted}) at prediction {place}")


def _is_allowed(task: TaskSpec, label: str | int) -> bool:
    if task.kind != "regression":
        return label in [_word(task, index) for index in range(len(task.labels))]
    low, high = task.value_range or (float("-inf"), float("inf"))
    try:
        return low <= float(label) <= high
    except ValueError:
        return False


def _labels_of_tsv(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, line in enumerate(lines):
        index, tab, label = line.partition("\t")
        if not tab or index != str(place):
            raise UsageError(f"{path}, line {place + 2}: index {place}, a tab and a prediction are wanted")
        yield f"{path}, line {place + 2}", label


def _labels_of_jsonl(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str | int]]:
    for place, line in enumerate(lines):
        where = f"{path}, line {place + 1}"
        try:
            value = json.loads(line)
            if value["idx"] != place:
                raise UsageError(f"{where}: idx {place} is wanted")
            answers = [a for q in value["passage"]["questions"] for a in q["answers"]] if "passage" in value else [value]
            labels = [answer["label"] for answer in answers]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f"{where}: not a JSON object with idx and label") from None
        yield from ((where, label) for label in labels)


def tasks_by_file(benchmark: str) -> dict[str, tuple[str, TaskSpec, Split]]:
    """For every file that a task here can fill: the task's name, the task and the split."""
    tasks = {name: specs.load(name) for name in registry.names("tasks")}
    return {
        file: (name, task, split)
        for name, task in tasks.items()
        if task.submission and task.submission.benchmark == benchmark
        for split, file in task.submission.files.items()
    }


def majority(task: TaskSpec, train: Iterable[Row]) -> int:
    """The commonest label of a task's training rows; the lowest on a tie."""
    found = Counter(int(row.label) for row in train if row.label is not None)
    return max(range(len(task.labels)), key=lambda label: (found[label], -label))


def pack(benchmark: str, directory: Path) -> Path:
    """Check every file and zip them all.

    Raises:
        MissingError: a file is missing; those that are there stay.
        UsageError: a file is not what the server takes.
    """
    missing = [file for file in FILES[benchmark] if not (directory / file).is_file()]
    if missing:
        raise MissingError(f"no {benchmark}.zip yet: {directory} lacks {', '.join(missing)}; the server takes no fewer files")
    known = tasks_by_file(benchmark)
    for file in FILES[benchmark]:
        if file in known:
            check(known[file][1], known[file][2], directory / file)
    path = directory / f"{benchmark}.zip"
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in FILES[benchmark]:
            archive.write(directory / file, file)
    return path
