"""Files in the layouts of the official downloads as records: a mapping of columns and where it was written."""

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import read_bytes
from hifi_cli.tasks.task_spec import LocalFiles

logger = logging.getLogger("hifi")
Object = dict[str, Any]
MOST_BYTES = 1 << 31  # of a file, which is read as a whole; the largest of the benchmarks has 70 million


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A row as a source holds it.

    Attributes:
        values: its columns, under the source's names.
        where: file and line, for messages.
    """

    values: Object
    where: str


def read(path: Path, local: LocalFiles, *, labelled: bool, skip_incomplete: bool) -> Iterator[RawRecord]:
    """The records of a file.

    Args:
        labelled: whether the file is one of those that may lack a header line.
        skip_incomplete: TSV rows with missing columns are left out and counted, not refused.

    Raises:
        UsageError: the file does not hold together; the line is named.
    """
    text = _text(path)
    if not text.strip():
        raise UsageError(f"{path} is empty")
    if local.reader == "tsv":
        return _tsv(path, text, local.header if labelled else None, skip_incomplete=skip_incomplete)
    return _READERS[local.reader](path, text)


def _text(path: Path) -> str:
    content = read_bytes(path, at_most=MOST_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: not UTF-8") from None
    notes = []
    if text.startswith("\ufeff"):
        notes.append("a byte-order mark")
        text = text[1:]
    if "\r\n" in text:
        notes.append("CRLF line ends")
        text = text.replace("\r\n", "\n")
    if notes:
        logger.warning(f"note: {path} has {' and '.join(notes)}; read as plain UTF-8 with LF")
    return text


def _lines(text: str) -> list[str]:
    # Not splitlines(): U+2028 and the like are part of a sentence, not the end of a row.
    return text.removesuffix("\n").split("\n")


def _tsv(path: Path, text: str, header: list[str] | None, *, skip_incomplete: bool) -> Iterator[RawRecord]:
    lines = _lines(text)
    first = 0
    if header is None:
        header, first = lines[0].split("\t"), 1
    if first == len(lines):
        raise UsageError(f"{path} has a header and no rows")
    skipped = 0
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if len(cells) == len(header):
            yield RawRecord(dict(zip(header, cells, strict=True)), f"{path}, line {number}")
        elif skip_incomplete:
            skipped += 1
        else:
            wanted = f"{len(header)} are wanted ({', '.join(header)})"
            raise UsageError(f"{path}, line {number}: {len(cells)} columns, {wanted}")
    if skipped:
        logger.warning(f"note: {path}: {skipped} rows with missing columns are left out")


def _csv(path: Path, text: str) -> Iterator[RawRecord]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows)
        for cells in rows:
            if len(cells) != len(header):
                raise UsageError(f"{path}, line {rows.line_num}: {len(cells)} columns, {len(header)} are wanted")
            yield RawRecord(dict(zip(header, cells, strict=True)), f"{path}, line {rows.line_num}")
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num}: not valid CSV: {error}") from None
    if rows.line_num < 2:
        raise UsageError(f"{path} has a header and no rows")


def _jsonl(path: Path, text: str) -> Iterator[RawRecord]:
    for number, line in enumerate(_lines(text), start=1):
        where = f"{path}, line {number}"
        value = _json(line, where)
        if isinstance(value.get("target"), dict):  # WSC keeps its two spans one level down
            value = value | value["target"]
        yield RawRecord(value, where)


def _multirc(path: Path, text: str) -> Iterator[RawRecord]:
    """One record per answer; its idx says which of which question of which paragraph."""
    for line in _jsonl(path, text):
        passage = _item(line.values, "passage", dict, line.where)
        for question in _objects(passage, "questions", line.where):
            for answer in _objects(question, "answers", line.where):
                idx = {
                    "paragraph": line.values.get("idx"),
                    "question": question.get("idx"),
                    "answer": answer.get("idx"),
                }
                texts = {"paragraph": passage.get("text"), "question": question.get("question"), "answer": answer.get("text")}
                label = {"label": answer["label"]} if "label" in answer else {}
                yield RawRecord({**texts, "idx": idx, **label}, f"{line.where}, question {question.get('idx')}")


def _squad(path: Path, text: str) -> Iterator[RawRecord]:
    """One record per question, in the hub's columns."""
    content = _json(text, str(path))
    for article in _objects(content, "data", str(path)):
        at = f"{path}, article '{str(article.get('title', ''))[:40]}'"
        for paragraph in _objects(article, "paragraphs", at):
            for question in _objects(paragraph, "qas", at):
                where = f"{path}, question {question.get('id')}"
                answers = _objects(question, "answers", where)
                columns = {
                    "id": question.get("id"),
                    "context": paragraph.get("context"),
                    "question": question.get("question"),
                    "answers": {key: [answer.get(key) for answer in answers] for key in ("text", "answer_start")},
                }
                yield RawRecord(columns, where)


_READERS: dict[str, Callable[[Path, str], Iterator[RawRecord]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "multirc": _multirc,
    "squad": _squad,
}


def _json(text: str, where: str) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", type(error).__name__)
        raise UsageError(f"{where}: broken JSON ({reason})") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a JSON object is wanted, not {str(value)[:40]!r}")
    return value


def _item(value: Object, key: str, kind: type, where: str) -> Any:
    found = value.get(key)
    if not isinstance(found, kind):
        raise UsageError(f"{where}: no '{key}', or not what belongs there")
    return found


def _objects(value: Object, key: str, where: str) -> list[Object]:
    """A list of JSON objects below a key."""
    found: list[Object] = _item(value, key, list, where)
    if not all(isinstance(one, dict) for one in found):
        raise UsageError(f"{where}: '{key}' must be a list of objects")
    return found
