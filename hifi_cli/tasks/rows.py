"""The rows of a task: a file's records, and the texts and label of a record in each task format."""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from hifi_cli.errors import MissingError, UsageError, counted_noun, first_of, logger, printable
from hifi_cli.tasks.task_spec import Kind, Label, Reader, Row, Source, TaskSpec

PLACEHOLDER = "@placeholder"  # the gap in a query of ReCoRD
CONNECTIVES = {"cause": "because", "effect": "so"}  # of COPA's questions, as in EH-FT's code
# Raised by code that reads a record with missing keys, or with values of another type.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


class IncompleteRow(UsageError):
    """A row has no text or no label."""


@dataclass(slots=True)
class RawRecord:
    """A row as its source stores it.

    Attributes:
        values: value of each column, by the task's column names; None: the row ends before it.
        where: its line, for error messages.
        id: of the row that it becomes.
        label: of the row that it becomes; None if it is unknown.
    """

    values: dict[str, Any]
    where: str
    id: str = ""
    label: Label | None = None

    def value(self, name: str) -> Any:
        """Return the value of a column that must be there and not be empty."""
        if name not in self.values:
            present = ", ".join(map(str, self.values))
            raise UsageError(f"no column '{name}'; the columns are {present[:200]}")
        value = self.values[name]
        if value in (None, []) or not str(value).strip():
            raise IncompleteRow(f"{name} is empty")
        return value

    def text(self, name: str) -> str:
        """Return the value of a text column."""
        value = self.value(name)
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r:.40}, not text")
        return value

    def texts(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of texts, or one text that is split at spaces."""
        value = self.value(name)
        texts: list[str] = value.split() if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(
            isinstance(text, str) and text.strip() for text in texts
        ):
            raise UsageError(f"{name} is {value!r:.40}, not a list of texts")
        return texts


# Files


def read(path: Path, reader: Reader, header: list[str] | None = None) -> Iterator[RawRecord]:
    """Read the records of a file.

    Args:
        path: the file.
        reader: its format.
        header: column names of a TSV or CSV file without a header line, or of a CoNLL file.

    Raises:
        MissingError: no such file.
        UsageError: the file is malformed; the message names the line before.
    """
    if not path.exists():
        raise MissingError(f"no file {path}")
    after = ""
    try:
        for record in _records(path, reader, header):
            yield record
            after = f", after {record.where}"
    except (csv.Error, OSError, *_MALFORMED) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{path}{after}: not readable as {reader} ({reason[:160]})") from None


def _records(path: Path, reader: Reader, header: list[str] | None) -> Iterator[RawRecord]:
    """Return the records of a file, each with its place in it."""
    if reader == "parquet":
        from pyarrow import parquet  # a tenth of a second, which other files do without

        rows = enumerate(parquet.read_table(path).to_pylist())
        return (RawRecord(values, f"row {number}") for number, values in rows)
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    if reader in ("csv", "tsv"):
        return _table(text, reader, header)
    return _conll(text, header or []) if reader == "conll" else _json(text, reader)


def _table(text: str, form: str, header: list[str] | None) -> Iterator[RawRecord]:
    """Yield the rows of a TSV file, which has no quotes, or a CSV file; empty lines are no rows."""
    csv.field_size_limit(1 << 30)  # Python's own limit is 131,072 characters
    dialect: Any = (
        {"strict": True} if form == "csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    )
    table = csv.DictReader(io.StringIO(text.lstrip("\n"), newline="\n"), header, **dialect)
    for values in table:
        yield RawRecord(values, f"line {table.line_num}")


def _conll(text: str, names: list[str]) -> Iterator[RawRecord]:
    """Yield one record per sentence, of each column the list of its cells.

    One word per line, its columns separated by tabs or else by spaces; a line without text ends a
    sentence. A column without a name has its number, from 1. Lines of `-DOCSTART-` and, in files
    with tabs, comments (# and no tab) are skipped.
    """
    separator = "\t" if "\t" in text else None
    is_skipped = re.compile("-DOCSTART-.*|#[^\t]*" if separator else "-DOCSTART-.*").fullmatch
    for number, sentence in enumerate(re.split(r"\n\s*\n", text), start=1):
        lines = [line for line in sentence.split("\n") if line.strip() and not is_skipped(line)]
        words = [line.split(separator) for line in lines]
        columns = [list(column) for column in zip_longest(*words)]
        if len({*map(len, words)}) > 1:
            raise ValueError(f"the words of sentence {number} have unlike numbers of columns")
        header = [*names, *map(str, range(len(names) + 1, len(columns) + 1))]
        if words:
            yield RawRecord(dict(zip(header, columns, strict=False)), f"sentence {number}")


def _json(text: str, reader: str) -> Iterator[RawRecord]:
    """Yield the records of a JSON document (SQuAD) or of each line that is not empty."""
    for number, line in enumerate([text] if reader == "squad" else text.split("\n"), start=1):
        for values in _RECORDS_OF[reader](from_json(line)) if line.strip() else ():
            yield RawRecord({**values}, f"line {number}")


def _multirc_answers(value: Any) -> list[dict[str, Any]]:
    """Return a record per answer; its idx holds the indices of paragraph, question and answer."""
    return [
        {
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
        for question in value["passage"]["questions"]
        for answer in question["answers"]
    ]


def _record_queries(value: Any) -> list[dict[str, Any]]:
    """Return a record per query, with the hub's column names; `end` is an entity's last character."""
    passage = value["passage"]["text"]
    return [
        {
            "passage": passage,
            "query": query["query"],
            "entities": [
                passage[place["start"] : place["end"] + 1] for place in value["passage"]["entities"]
            ],
            # the test split has none
            "answers": [answer["text"] for answer in query.get("answers", [])],
            "idx": {"passage": value["idx"], "query": query["idx"]},
        }
        for query in value["qas"]
    ]


def _squad_questions(value: Any) -> list[dict[str, Any]]:
    """Return a record per question, with the column names of the hub."""
    return [
        {
            "id": question["id"],
            "question": question["question"],
            "answers": {
                key: [answer[key] for answer in question["answers"]]
                for key in ("text", "answer_start")
            },
            "context": paragraph["context"],
        }
        for article in value["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


_RECORDS_OF: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "jsonl": lambda value: [value],
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
        UsageError: columns are missing, empty or invalid, or an id is not unique; the message names
            the lines.
    """
    rows: dict[str, Row] = {}
    skipped, fix = 0, ""
    lines: defaultdict[str, list[str]] = defaultdict(list)  # by what is wrong with them
    for number, record in enumerate(records):
        try:
            for row in _parse(spec, record, number, source, labelled=labelled):
                if row.id in rows:
                    raise UsageError(f"duplicate id {row.id[:40]}")
                rows[row.id] = row
        except IncompleteRow as error:
            if spec.skip_incomplete:
                skipped += 1
            else:
                lines[str(error)].append(record.where)
                fix = f"; fill it in or remove the row{', or set skip_incomplete' * labelled}"
        except UsageError as error:
            lines[str(error)].append(record.where)
        except _MALFORMED as error:
            lines[f"not a row of format '{spec.format}': {error!r:.120}"].append(record.where)
    if lines:
        problems = [f"{first_of(where)}: {problem}" for problem, where in lines.items()]
        raise UsageError(f"{origin}, {first_of(problems, '; ')}{fix}")
    if skipped:
        logger.warning(
            f"note: {origin}: skipped {counted_noun(skipped, 'row')} without a text or label"
        )
    if not rows:
        raise UsageError(f"{origin} has no rows")
    return list(rows.values())


def _parse(
    spec: TaskSpec, record: RawRecord, number: int, source: Source, *, labelled: bool
) -> list[Row]:
    """Return the rows that a record becomes; without an id it is its number."""
    if None in record.values:
        raise UsageError("more cells than column names; in a CSV file quote texts with commas")
    record.values |= {
        name: record.values[column]
        for name, columns in source.columns.items()
        for column in columns
        if column in record.values
    }
    if labelled and spec.kind != "span" and spec.format != "record":  # which have answers instead
        record.label = parse_label(spec, record, source.labels)
    record.id = str(record.values.get(spec.id, number) if spec.id else number)
    rows = _FORMATS[spec.format](spec, record)
    if labelled and any(row.label is None and not row.answers for row in rows):
        raise UsageError("no answers")
    return rows


def label_name(value: Any) -> str:
    """Return a label as printable text without spaces around it; True is `true`."""
    return printable((str(value).lower() if isinstance(value, bool) else str(value)).strip())


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: null, an empty text, or NaN, as pandas writes it."""
    return value is None or label_name(value).lower() in ("", "nan")


def as_number(value: Any) -> float:
    """Return the number that a label is, or NaN."""
    try:
        return float(label_name(value))
    except ValueError:
        return math.nan


def labels_in(value: Any, kind: Kind, separator: str) -> list[str]:
    """Return the label names of a row: of several a list or a text, with separators or spaces."""
    if kind not in ("multi-label", "token-classification"):
        return [label_name(value)]
    if isinstance(value, str):
        value = value.split(separator if kind == "multi-label" else None)
    parts = value if isinstance(value, list) else [value]
    return [name for part in parts if (name := label_name(part))]


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
    is_several = spec.kind == "multi-label"  # or none of the labels
    value = record.values.get("label") if is_several else record.value("label")
    if value is None or (not is_several and is_missing(value)):
        raise IncompleteRow("label is empty")
    if spec.kind == "regression":
        number, (low, high) = as_number(value), spec.value_range or (-math.inf, math.inf)
        if not (math.isfinite(number) and low <= number <= high):
            raise UsageError(
                f"the label '{label_name(value)[:40]}' is not a number in [{low:g}, {high:g}]"
            )
        return number
    present = labels_in(value, spec.kind, spec.label_separator)
    if unknown := [name for name in present if name not in names]:
        raise UsageError(f"unknown label '{unknown[0][:40]}'; the labels are {', '.join(names)}")
    indices = tuple(map(names.index, present))
    if is_several:
        return tuple(int(index in indices) for index in range(len(names)))
    return indices if spec.kind == "token-classification" else indices[0]


def label_word(spec: TaskSpec, label: Any) -> str | float | list[str] | None:
    """Return a label, or what is predicted in its place, as people read it: the inverse of `parse_label`."""
    if label is None or spec.kind == "regression":
        return None if label is None else float(label)
    if spec.kind == "multi-label":
        return [name for name, is_it in zip(spec.labels, label, strict=True) if is_it]
    if spec.kind == "token-classification":
        return [spec.labels[tag] for tag in label]
    return spec.labels[int(label)]


def _plain(spec: TaskSpec, record: RawRecord) -> list[Row]:
    return [Row(record.id, (tuple(record.text(name) for name in spec.inputs),), record.label)]


def _words(spec: TaskSpec, record: RawRecord) -> list[Row]:
    """One text, in which a space separates the words, and the character span of each word."""
    words = record.texts(spec.inputs[0])
    if isinstance(record.label, tuple) and len(record.label) != len(words):
        raise UsageError(f"{len(words)} words have {len(record.label)} tags")
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
    return [Row(record.id, (sentences,), record.label, word_spans=spans)]


def _wsc(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair: the text with asterisks around the pronoun, and the noun phrase it may refer to."""
    record.values |= record.values.get("target", {})  # the official files' spans are in it
    words, pronoun = record.text("text").split(), record.text("span2_text").split()
    is_pronoun = re.compile(rf"\W*{re.escape(' '.join(pronoun))}(?!\w)", re.IGNORECASE)
    length, index = len(pronoun), record.value("span2_index")
    places = [at for at in range(len(words)) if is_pronoun.match(" ".join(words[at : at + length]))]
    # One official validation row names the word before the pronoun.
    first = min(places, key=lambda at: abs(at - index))
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return [Row(record.id, ((" ".join(marked), record.text("span1_text")),), record.label)]


def _multirc(_: TaskSpec, record: RawRecord) -> list[Row]:
    """A pair: the paragraph, and the question with an answer; a question's rows share a group."""
    idx = record.values.get("idx") or {"paragraph": record.id, "question": 0, "answer": 0}
    # an official answer is empty
    texts = (record.text("paragraph"), f"{record.text('question')} {record.values['answer']}")
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
            raise UsageError(
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
