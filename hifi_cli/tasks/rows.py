"""The rows of a task: a file's records, and the texts and label of a record in each task format."""

import csv
import io
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby, zip_longest
from pathlib import Path
from typing import Any

from hifi_cli.errors import MissingError, UsageError, counted_noun, printable
from hifi_cli.tasks.task_spec import Label, LocalFiles, Row, Source, TaskSpec

logger = logging.getLogger("hifi")
PLACEHOLDER = "@placeholder"  # the gap in a query of ReCoRD
CONNECTIVES = {"cause": "because", "effect": "so"}  # of COPA's questions, as in EH-FT's code
_SKIP = " (skip_incomplete skips such rows)"
# Raised by code that reads a record with missing keys, or with values of another type.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


class IncompleteRow(UsageError):
    """A row has no text or no label."""


@dataclass(slots=True)
class RawRecord:
    """A row as its source stores it, whose columns are read by the task's names.

    Attributes:
        values: value of each column, by the source's column names; None: the row ends before it.
        where: file and line, for error messages.
        columns: the source's names of a column, where they differ; the first one that is present.
        id: of the row that it becomes.
        label: of the row that it becomes; None if it is unknown.
    """

    values: dict[str, Any]
    where: str
    columns: Mapping[str, list[str]] = field(default_factory=dict)
    id: str = ""
    label: Label | None = None

    def column(self, name: str) -> str:
        """Return the source's name of a column."""
        names = self.columns.get(name, [name])
        return next((column for column in names if column in self.values), names[0])

    def value(self, name: str) -> Any:
        """Return a column's value, unchecked."""
        column = self.column(name)
        if column not in self.values:
            present = ", ".join(map(str, self.values))
            raise self.error(f"no column '{column}'; the columns are {present[:200]}")
        return self.values[column]

    def text(self, name: str) -> str:
        """Return the value of a text column."""
        value = self.value(name)
        if not isinstance(value, str | None):
            raise self.error(f"{name} is {value!r:.40}, not text")
        if not (value and value.strip()):
            raise IncompleteRow(
                f"{self.where}: {name} is empty; fill it in or remove the row{_SKIP}"
            )
        return value

    def texts(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of texts, or one text that is split at spaces."""
        value = self.value(name)
        texts = value.split() if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(
            isinstance(text, str) and text.strip() for text in texts
        ):
            raise self.error(f"{name} is {value!r:.40}, not a list of texts")
        if not texts:
            raise IncompleteRow(
                f"{self.where}: {name} is empty; fill it in or remove the row{_SKIP}"
            )
        return texts

    def error(self, problem: str) -> UsageError:
        """Return an error that names the record's file and line."""
        return UsageError(f"{self.where}: {problem}")


# Files


def read(path: Path, local: LocalFiles, *, labelled: bool = True) -> Iterator[RawRecord]:
    """Read the records of a file.

    Args:
        path: the file.
        local: file format and column names.
        labelled: whether the file has labels; only such TSV files may lack a header line.

    Raises:
        MissingError: no such file.
        UsageError: the file is malformed; the message names the line.
    """
    if not path.exists():
        raise MissingError(f"no file {path}")
    if local.reader == "parquet":
        return _parquet(path)
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
    if local.reader == "conll":
        return _conll(path, text, local.header or [])
    if local.reader in ("csv", "tsv"):
        return _table(path, text, local.reader, local.header if labelled else None)
    return _json(path, text, local.reader)


def _parquet(path: Path) -> Iterator[RawRecord]:
    """Yield the rows of a Parquet file."""
    from pyarrow import ArrowException, parquet  # a tenth of a second, which other files do without

    try:
        table = parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise UsageError(
            f"{path}: not readable as Parquet ({' '.join(str(error).split())[:120]})"
        ) from None
    yield from (RawRecord(values, f"{path}, row {number}") for number, values in enumerate(table))


def _table(path: Path, text: str, form: str, header: list[str] | None) -> Iterator[RawRecord]:
    """Yield the rows of a TSV file, which has no quotes, or a CSV file; empty lines are no rows."""
    csv.field_size_limit(1 << 30)  # Python's own limit is 131,072 characters
    dialect: Any = (
        {"strict": True} if form == "csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    )
    table = csv.DictReader(io.StringIO(text.lstrip("\n"), newline="\n"), header, **dialect)
    try:
        for values in table:
            where, names = f"{path}, line {table.line_num}", table.fieldnames or []
            if None in values or len({*names}) < len(names):
                raise UsageError(
                    f"{where}: more columns than names, or a name stands twice ({', '.join(names)[:200]})"
                )
            yield RawRecord(values, where)
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {table.reader.line_num}: not valid {form.upper()}: {error}"
        ) from None


def _conll(path: Path, text: str, names: list[str]) -> Iterator[RawRecord]:
    """Yield one record per sentence, of each column the list of its cells.

    One word per line, its columns separated by tabs or else by spaces; a line without text ends a
    sentence. A column without a name has its number, from 1. Lines of `-DOCSTART-` and, in files
    with tabs, comments (# and no tab) are skipped.
    """
    separator = "\t" if "\t" in text else None
    is_comment = re.compile("#[^\t]*" if separator else "(?!)").fullmatch
    lines = [
        (number, line)
        for number, line in enumerate(text.split("\n"), start=1)
        if not is_comment(line)
    ]
    for is_sentence, words in groupby(
        lines, lambda line: line[1].strip() and not line[1].startswith("-DOCSTART-")
    ):
        if is_sentence:
            numbers, rows = zip(
                *((number, line.split(separator)) for number, line in words), strict=True
            )
            columns = [list(column) for column in zip_longest(*rows)]
            header = [*names, *map(str, range(len(names) + 1, len(columns) + 1))]
            if len({*map(len, rows)}) > 1:
                raise UsageError(
                    f"{path}, line {numbers[0]}: the words of this sentence have unlike numbers of columns"
                )
            yield RawRecord(dict(zip(header, columns, strict=False)), f"{path}, line {numbers[0]}")


def _json(path: Path, text: str, reader: str) -> Iterator[RawRecord]:
    """Yield the records of a JSON document (SQuAD) or of each line that is not empty."""
    lines = [
        (f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), start=1)
    ]
    for where, line in [(str(path), text)] if reader == "squad" else lines:
        try:
            records = list(_RECORDS_OF[reader](json.loads(line))) if line.strip() else []
        except _MALFORMED as error:
            raise UsageError(
                f"{where}: invalid JSON, or not that of '{reader}' files: {error!r:.120}"
            ) from None
        yield from (RawRecord(values, where) for values in records)


def _line(value: Any) -> Iterator[dict[str, Any]]:
    yield value | value.get("target", {})  # WSC stores its two spans one level deeper


def _multirc_answers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield one record per answer; its idx holds the indices of paragraph, question and answer."""
    for question in value["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "paragraph": value["passage"]["text"],
                "question": question["question"],
                "answer": answer["text"],
                "idx": {
                    "paragraph": value["idx"],
                    "question": question["idx"],
                    "answer": answer["idx"],
                },
                "label": answer.get("label"),
            }


def _record_queries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield one record per query, with the hub's column names; `end` is an entity's last character."""
    passage = value["passage"]["text"]
    for query in value["qas"]:
        yield {
            "passage": passage,
            "query": query["query"],
            "entities": [
                passage[entity["start"] : entity["end"] + 1]
                for entity in value["passage"]["entities"]
            ],
            "answers": [
                answer["text"] for answer in query.get("answers", [])
            ],  # the test split has none
            "idx": {"passage": value["idx"], "query": query["idx"]},
        }


def _squad_questions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield one record per question, with the column names of the hub."""
    for paragraph in chain.from_iterable(article["paragraphs"] for article in value["data"]):
        for question in paragraph["qas"]:
            yield {
                "id": question["id"],
                "question": question["question"],
                "answers": {
                    key: [answer[key] for answer in question["answers"]]
                    for key in ("text", "answer_start")
                },
                "context": paragraph["context"],
            }


_RECORDS_OF: dict[str, Callable[[Any], Iterator[dict[str, Any]]]] = {
    "jsonl": _line,
    "multirc": _multirc_answers,
    "record": _record_queries,
    "squad": _squad_questions,
}


# Rows


def parse_rows(
    spec: TaskSpec, records: Iterable[RawRecord], source: Source, origin: str, *, labelled: bool
) -> list[Row]:
    """Convert the records of a split to rows.

    Args:
        spec: the task.
        records: of a file or a hub dataset.
        source: the source's names of columns and labels.
        origin: the file or repository, for error messages.
        labelled: whether each row must have a label, or for span tasks answers; otherwise labels
            are not read.

    Raises:
        UsageError: a column is missing, empty or invalid, or an id is not unique; the message names
            file and line.
    """
    rows: dict[str, Row] = {}
    skipped = 0
    for record in records:
        record.columns = source.columns
        try:
            if labelled and spec.has_label_column:
                record.label = parse_label(spec, record, source.labels)
            number = len(rows)
            record.id = str(
                record.values.get(record.column(spec.id), number) if spec.id else number
            )
            parsed = _FORMATS[spec.format](spec, record)
        except IncompleteRow:
            if not spec.skip_incomplete:
                raise
            skipped += 1
            continue
        except _MALFORMED as error:
            raise record.error(f"not a row of format '{spec.format}': {error!r:.120}") from error
        for row in parsed:
            if row.id in rows:
                raise record.error(f"duplicate id {row.id[:40]}")
            if labelled and row.label is None and not row.answers:
                raise record.error("no answers")
            rows[row.id] = row
    if skipped:
        logger.warning(
            f"note: {origin}: skipped {counted_noun(skipped, 'row')} without a text or label"
        )
    if not rows:
        raise UsageError(f"{origin} has no rows")
    return list(rows.values())


def label_name(value: Any) -> str:
    """Return a label as printable text without spaces around it; True is `true`."""
    return printable((str(value).lower() if isinstance(value, bool) else str(value)).strip())


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: null, an empty text, or NaN, as pandas writes it."""
    return not isinstance(value, list) and (
        value is None or label_name(value).lower() in ("", "nan")
    )


def as_number(value: Any) -> float | None:
    """Return the number that a label is, or None."""
    try:
        return float(label_name(value))
    except ValueError:
        return None


def labels_in(value: Any, separator: str | None) -> list[str]:
    """Return the labels of a row with several: a list, or a text with separators (None: spaces)."""
    parts = (
        value.split(separator)
        if isinstance(value, str)
        else value
        if isinstance(value, list)
        else [value]
    )
    return [label for part in parts if (label := label_name(part))]


def parse_label(spec: TaskSpec, record: RawRecord, names: list[str] | None = None) -> Label:
    """Return a record's class index, 0 or 1 of each class, each word's tag index, or number.

    Args:
        spec: the task.
        record: has a column `label`.
        names: the source's label names; default: those of the task.

    Raises:
        UsageError: there is no label, or it is not one of the task's labels or not a number in its
            range.
    """
    names = names or spec.labels
    value = record.value("label")
    if value is None or (spec.kind != "multi-label" and is_missing(value)):
        column = record.column("label")
        raise IncompleteRow(
            f"{record.where}: the label column '{column}' is empty; fill it in or remove the row{_SKIP}"
        )
    if spec.kind == "multi-label":
        present = {
            _class_index(name, names, record) for name in labels_in(value, spec.label_separator)
        }
        return tuple(int(index in present) for index in range(len(names)))
    if spec.kind == "token-classification":
        return tuple(_class_index(tag, names, record) for tag in labels_in(value, None))
    if spec.kind != "regression":
        return _class_index(label_name(value), names, record)
    number, (low, high) = as_number(value), spec.value_range or (-math.inf, math.inf)
    if number is None or not math.isfinite(number) or not low <= number <= high:
        raise record.error(
            f"the label '{label_name(value)[:40]}' is not a number in [{low:g}, {high:g}]"
        )
    return number


def label_word(spec: TaskSpec, label: Any) -> str | float | list[str] | None:
    """Return a label, or what is predicted in its place, as people read it: the inverse of `parse_label`."""
    if label is None or spec.kind == "regression":
        return None if label is None else float(label)
    if spec.kind == "multi-label":
        return [name for name, is_it in zip(spec.labels, label, strict=True) if is_it]
    if spec.kind == "token-classification":
        return [spec.labels[tag] for tag in label]
    return spec.labels[int(label)]


def _class_index(name: str, names: list[str], record: RawRecord) -> int:
    if name not in names:
        raise record.error(f"unknown label '{name[:40]}'; the labels are {', '.join(names)}")
    return names.index(name)


def _plain(spec: TaskSpec, record: RawRecord) -> list[Row]:
    return [Row(record.id, (tuple(record.text(name) for name in spec.inputs),), record.label)]


def _words(spec: TaskSpec, record: RawRecord) -> list[Row]:
    """One text, in which a space separates the words, and the character span of each word."""
    words = record.texts(spec.inputs[0])
    if isinstance(record.label, tuple) and len(record.label) != len(words):
        raise record.error(f"{len(words)} words have {len(record.label)} tags")
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    spans = tuple((end - len(word), end) for word, end in zip(words, ends, strict=True))
    return [Row(record.id, ((" ".join(words),),), record.label, word_spans=spans)]


def _copa(_: TaskSpec, record: RawRecord) -> list[Row]:
    """One text per choice: premise without period, `because` or `so`, choice without initial capital."""
    connective = CONNECTIVES[record.text("question")]
    premise = record.text("premise").strip().removesuffix(".")
    choices = (record.text(name).strip() for name in ("choice1", "choice2"))
    texts = tuple(
        (f"{premise} {connective} {choice[0].lower()}{choice[1:]}",) for choice in choices
    )
    return [Row(record.id, texts, record.label)]


def _wic(_: TaskSpec, record: RawRecord) -> list[Row]:
    """The two sentences as a pair, and the character span of the target word in each."""
    sentences = (record.text("sentence1"), record.text("sentence2"))
    spans = tuple((int(record.value(f"start{at}")), int(record.value(f"end{at}"))) for at in (1, 2))
    for sentence, (start, end) in zip(sentences, spans, strict=True):
        if not 0 <= start < end <= len(sentence):
            raise record.error(f"the sentence '{sentence[:40]}' has no characters {start} to {end}")
    return [Row(record.id, (sentences,), record.label, word_spans=spans)]


def _wsc(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair: the text with asterisks around the pronoun, and the noun phrase it may refer to."""
    words, pronoun = record.text("text").split(), record.text("span2_text").split()
    is_pronoun = re.compile(rf"\W*{re.escape(' '.join(pronoun))}(?!\w)", re.IGNORECASE)
    length, index = len(pronoun), record.value("span2_index")
    places = [at for at in range(len(words)) if is_pronoun.match(" ".join(words[at : at + length]))]
    if not places:
        raise record.error(
            f"the text has no word '{' '.join(pronoun)[:40]}', which span2_text names"
        )
    # One official validation row names the word before the pronoun.
    first = min(places, key=lambda at: abs(at - index))
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return [Row(record.id, ((" ".join(marked), record.text("span1_text")),), record.label)]


def _multirc(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair: the paragraph, and the question with an answer; a question's rows share a group."""
    idx = record.values.get("idx") or {"paragraph": record.id, "question": 0, "answer": 0}
    texts = (
        record.text("paragraph"),
        f"{record.text('question')} {record.value('answer')}",
    )  # an official answer is empty
    group = f"{idx['paragraph']}-{idx['question']}"
    return [Row(f"{group}-{idx['answer']}", (texts,), record.label, group=group)]


def _record(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair for each candidate, which are the passage's entities: passage, and query without gap."""
    group = str(record.values["idx"]["query"]) if "idx" in record.values else record.id
    passage, query = record.text("passage"), record.text("query")
    answers = record.values.get("answers") or []
    return [
        Row(
            f"{group}-{entity}",
            ((passage, query.replace(PLACEHOLDER, entity)),),
            int(entity in answers) if answers else None,
            answers=tuple((answer, -1) for answer in dict.fromkeys(answers)),
            group=group,
            candidate=entity,
        )
        for entity in dict.fromkeys(record.texts("entities"))
    ]


def _swag(_: TaskSpec, record: RawRecord) -> list[Row]:
    """One pair per ending: the first sentence, and the second one's beginning with the ending."""
    context, start = record.text("sent1"), record.text("sent2")
    endings = [record.text(f"ending{at}") for at in range(4)]
    return [
        Row(record.id, tuple((context, f"{start} {ending}") for ending in endings), record.label)
    ]


def _squad(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair: the question and the context; with the accepted answers."""
    context = record.text("context")
    answers = record.values.get("answers", {"text": [], "answer_start": []})  # new texts have none
    accepted = tuple(zip(answers["text"], answers["answer_start"], strict=True))
    for text, start in accepted:
        if start < 0 or context[start : start + len(text)] != text:
            raise record.error(
                f"question {record.id[:40]}: the answer {text[:40]!r} is not at character {start}"
            )
    return [Row(record.id, ((record.text("question"), context),), None, answers=accepted)]


_FORMATS: dict[str, Callable[[TaskSpec, RawRecord], list[Row]]] = {
    "plain": _plain,
    "words": _words,
    "copa": _copa,
    "wic": _wic,
    "wsc": _wsc,
    "multirc": _multirc,
    "record": _record,
    "swag": _swag,
    "squad": _squad,
}
