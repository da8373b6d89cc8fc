"""Read files in the formats of the official downloads into raw records."""

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
from hifi_cli.tasks.task_spec import LocalFiles, Reader
from hifi_cli.wording import counted_noun

logger = logging.getLogger("hifi")
Object = dict[str, Any]
HUB = "hub:"  # before the name of a dataset that is given in the place of a task
MAX_BYTES = 1 << 30  # of a file's content, which is read into memory; the largest file of the benchmarks has 70 million


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A row as the source stores it.

    Attributes:
        values: value of each column, by the source's column names.
        where: file and line, for error messages.
    """

    values: Object
    where: str


def read(path: Path, local: LocalFiles, *, labelled: bool, skip_incomplete: bool, name: str = "") -> Iterator[RawRecord]:
    """Read the records of a file.

    Args:
        path: the file.
        local: file format and column names.
        labelled: whether the file has labels; only such TSV files may lack a header line.
        skip_incomplete: skip and count TSV rows with missing columns instead of refusing the file.
        name: what messages call the file; default: its path.

    Raises:
        UsageError: the file is malformed; the message names the line.
    """
    name = name or str(path)
    if local.reader == "parquet":
        return _parquet(path, name)
    text = _read_text(path, name, local.reader)
    if not text.strip():
        raise UsageError(f"{name} is empty")
    if local.reader == "csv":
        return _csv(name, text, local.header)
    if local.reader == "conll":
        return _conll(name, text, local.header or [])
    if local.reader == "tsv":
        return _tsv(name, text, local.header if labelled else None, skip_incomplete=skip_incomplete)
    return _READERS[local.reader](name, text)


def _read_text(path: Path, name: str, reader: Reader) -> str:
    content = read_bytes(path, at_most=MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{name}, line {line}: not UTF-8; save the file as UTF-8") from None
    notes = []
    if text.startswith("\ufeff"):
        notes.append("a byte-order mark")
        text = text[1:]
    if "\r\n" in text:
        notes += [] if reader == "csv" else ["CRLF line endings"]  # RFC 4180: CSV has them
        text = text.replace("\r\n", "\n")
    if notes:
        logger.warning(f"note: {name} has {' and '.join(notes)}; read as plain UTF-8 with LF")
    return text


def _lines(text: str) -> list[str]:
    # Not splitlines(): U+2028 and similar characters are part of a sentence, they do not end a row.
    return text.removesuffix("\n").split("\n")


def _tsv(name: str, text: str, header: list[str] | None, *, skip_incomplete: bool) -> Iterator[RawRecord]:
    lines = _lines(text)
    first = 0
    if header is None:
        header, first = lines[0].split("\t"), 1
        if len(header) == 1 and "," in lines[0]:
            raise UsageError(
                f"{name} has commas between its columns, not tabs ({lines[0]:.80}): name the file .csv, or write reader: csv"
                " under local in the task's YAML"
            )
        _refuse_repeated(header, name)
    if first == len(lines):
        raise UsageError(f"{name} has a header and no rows")
    skipped = 0
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if len(cells) == len(header):
            yield RawRecord(dict(zip(header, cells, strict=True)), f"{name}, line {number}")
        elif skip_incomplete:
            skipped += 1
        else:
            expected = f"{len(header)} are expected ({', '.join(header)})"
            raise UsageError(f"{name}, line {number}: {len(cells)} columns, {expected}")
    if skipped:
        logger.warning(f"note: {name}: skipped {counted_noun(skipped, 'row')} with missing columns")


def _refuse_repeated(header: list[str], name: str) -> None:
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise UsageError(f"{name}, line 1: two columns are named '{repeated}'; rename or remove one of them")


_SEPARATORS = {";": "semicolons", "\t": "tabs"}  # of files that are named .csv too


def _csv(name: str, text: str, header: list[str] | None) -> Iterator[RawRecord]:
    csv.field_size_limit(MAX_BYTES)  # Python's own limit is 131,072 characters; `row_formats` limits texts
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    filled = filter(None, rows)  # an empty line has no cells and is no row, as in csv.DictReader and pandas
    is_empty = True
    try:
        header = header or next(filled)
        if len(header) == 1 and (other := next((name for mark, name in _SEPARATORS.items() if mark in header[0]), None)):
            raise UsageError(f"{name} has {other} between its columns, not commas ({header[0]:.80}): save it with commas")
        _refuse_repeated(header, name)
        for cells in filled:
            is_empty = False
            if len(cells) != len(header):
                raise UsageError(f"{name}, line {rows.line_num}: {len(cells)} columns, {len(header)} are expected")
            yield RawRecord(dict(zip(header, cells, strict=True)), f"{name}, line {rows.line_num}")
    except csv.Error as error:
        raise UsageError(f"{name}, line {rows.line_num}: not valid CSV: {error}") from None
    if is_empty:
        raise UsageError(f"{name} has a header and no rows")


def _conll(name: str, text: str, names: list[str]) -> Iterator[RawRecord]:
    """Yield one record per sentence, of each column the list of its cells; a column without a name has its number, from 1.

    One word per line, its columns separated by tabs or else by spaces; a line without text ends a sentence. Lines of
    `-DOCSTART-` and, in files with tabs, comments (# and no tab) are skipped.
    """
    sentence: list[list[str]] = []
    has_tabs, width, first = "\t" in text, 0, 0
    for number, line in enumerate([*_lines(text), ""], start=1):
        cells = line.split("\t") if has_tabs else line.split()
        if not line.strip() or cells[0] == "-DOCSTART-":
            if sentence:
                header = [*names[:width], *(str(at + 1) for at in range(len(names), width))]
                columns = dict(zip(header, map(list, zip(*sentence, strict=True)), strict=True))
                yield RawRecord(columns, f"{name}, line {first}")
            sentence = []
        elif not (has_tabs and line.startswith("#") and "\t" not in line):
            width = width or len(cells)
            if len(cells) != width:
                raise UsageError(f"{name}, line {number}: {len(cells)} columns, {width} are expected, as in the lines before")
            first = first if sentence else number
            sentence.append(cells)
    if not width:
        raise UsageError(f"{name} has no words")


def _parquet(path: Path, name: str) -> Iterator[RawRecord]:
    from pyarrow import ArrowException, parquet

    records: list[Object] = []
    size = 0
    try:
        file = parquet.ParquetFile(path)
        groups = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
        # A row has at most the bytes of its group, where a repeated text counts once: no batch is large beside the bound.
        for batch in file.iter_batches(max(1, min(1024, MAX_BYTES // 8 // max([1, *groups])))):
            size += batch.nbytes
            if size > MAX_BYTES:
                raise UsageError(f"{name} holds more than {MAX_BYTES:,} bytes, the maximum for such a file")
            records += batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise UsageError(f"{name}: not readable as Parquet ({' '.join(str(error).split())[:120]})") from None
    if not records:
        raise UsageError(f"{name} has no rows")
    return (RawRecord(record, f"{name}, row {number}") for number, record in enumerate(records))


def _jsonl(name: str, text: str) -> Iterator[RawRecord]:
    for number, line in enumerate(_lines(text), start=1):
        if not line.strip():
            continue  # as in a CSV file, an empty line is no row
        where = f"{name}, line {number}"
        value = _parse_json(line, where)
        if isinstance(value.get("target"), dict):  # WSC stores its two spans one level deeper
            value = value | value["target"]
        yield RawRecord(value, where)


def _multirc(name: str, text: str) -> Iterator[RawRecord]:
    """Yield one record per answer; its idx holds the indices of paragraph, question and answer."""
    for line in _jsonl(name, text):
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


def _record(name: str, text: str) -> Iterator[RawRecord]:
    """Yield one record per query, with the column names of the hub; an entity's `end` is its last character."""
    for line in _jsonl(name, text):
        passage = _item(line.values, "passage", dict, line.where)
        passage_text = _item(passage, "text", str, line.where)
        spans = [
            (_item(entity, "start", int, line.where), _item(entity, "end", int, line.where))
            for entity in _objects(passage, "entities", line.where)
        ]
        entities = [passage_text[start : end + 1] for start, end in spans]
        for query in _objects(line.values, "qas", line.where):
            where = f"{line.where}, query {query.get('idx')}"
            idx = {"passage": line.values.get("idx"), "query": query.get("idx")}
            columns = {"passage": passage_text, "query": query.get("query"), "entities": entities, "idx": idx}
            answers = [answer.get("text") for answer in _objects(query, "answers", where)] if "answers" in query else []
            yield RawRecord({**columns, "answers": answers}, where)


def _squad(name: str, text: str) -> Iterator[RawRecord]:
    """Yield one record per question, with the column names of the hub."""
    content = _parse_json(text, name)
    for article in _objects(content, "data", name):
        article_where = f"{name}, article '{str(article.get('title', ''))[:40]}'"
        for paragraph in _objects(article, "paragraphs", article_where):
            for question in _objects(paragraph, "qas", article_where):
                where = f"{name}, question {question.get('id')}"
                answers = _objects(question, "answers", where)
                columns = {
                    "id": question.get("id"),
                    "context": paragraph.get("context"),
                    "question": question.get("question"),
                    "answers": {key: [answer.get(key) for answer in answers] for key in ("text", "answer_start")},
                }
                yield RawRecord(columns, where)


_READERS: dict[str, Callable[[str, str], Iterator[RawRecord]]] = {
    "jsonl": _jsonl,
    "multirc": _multirc,
    "record": _record,
    "squad": _squad,
}


READER_OF_SUFFIX: dict[str, Reader] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
}


def is_data_source(name: str) -> bool:
    """Return whether the name of a task is a data file or a hub dataset."""
    return name.startswith(HUB) or Path(name).suffix.lower() in READER_OF_SUFFIX


def _parse_json(text: str, where: str) -> Object:
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise UsageError(f"{where}: {half} is one half of a character; write the character itself, or both halves") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", type(error).__name__)
        raise UsageError(f"{where}: invalid JSON ({reason})") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a JSON object, not {str(value)[:40]!r}")
    return value


def _item(value: Object, key: str, kind: type, where: str) -> Any:
    item = value.get(key)
    if not isinstance(item, kind):
        raise UsageError(f"{where}: '{key}' is missing or is no {kind.__name__}")
    return item


def _objects(value: Object, key: str, where: str) -> list[Object]:
    """Return the list of JSON objects under a key."""
    objects: list[Object] = _item(value, key, list, where)
    if not all(isinstance(item, dict) for item in objects):
        raise UsageError(f"{where}: '{key}' must be a list of objects")
    return objects
