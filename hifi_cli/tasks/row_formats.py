"""Convert records to rows: which texts of a record the encoder reads, for each task format."""

import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import Label, Row, TaskSpec
from hifi_cli.wording import counted_noun, printable

Columns = Mapping[str, str | list[str]]
logger = logging.getLogger("hifi")
_MAX_CHARACTERS = 1_000_000  # of a text; tokenization takes several hundred bytes of memory per character
PLACEHOLDER = "@placeholder"  # the gap in a query of ReCoRD
CONNECTIVES = {"cause": "because", "effect": "so"}  # of COPA's questions, as in EH-FT's code


class EmptyText(UsageError):
    """A text column is empty."""


class CheckedRecord:
    """A raw record whose columns are read by the task's names; each value is checked when it is read."""

    def __init__(self, spec: TaskSpec, raw: RawRecord, columns: Columns) -> None:
        self.spec, self.raw, self.columns = spec, raw, columns

    def value(self, name: str) -> Any:
        """Return a column's value, unchecked."""
        column = column_name(self.columns, name, self.raw.values)
        if column not in self.raw.values:
            raise self.error(f"no column '{column}'; the columns are {', '.join(map(str, self.raw.values))[:120]}")
        return self.raw.values[column]

    def text(self, name: str, *, may_be_empty: bool = False) -> str:
        """Return the value of a text column."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.error(f"{name} is {_short(value)}, not text")
        if not may_be_empty and not value.strip():
            raise EmptyText(
                f"{self.raw.where}: {name} is empty; fill it in or remove the row (skip_incomplete skips such rows)"
            )
        if len(value) > _MAX_CHARACTERS:
            raise self.error(f"{name} has {len(value):,} characters; the limit is {_MAX_CHARACTERS:,}")
        return value

    def words(self, name: str) -> list[str]:
        """Return the value of a column of words: a list, or a text whose words are separated by spaces."""
        value = self.value(name)
        words = value.split() if isinstance(value, str) else self.texts(name)
        if not words:
            raise EmptyText(f"{self.raw.where}: {name} is empty (skip_incomplete skips such rows)")
        return words

    def integer(self, name: str) -> int:
        """Return the value of an integer column."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{name} is {_short(value)}, not an integer")
        return value

    def texts(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of texts."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
            raise self.error(f"{name} is {_short(value)}, not a list of texts")
        return value

    def error(self, what: str) -> UsageError:
        """Return an error that names the record's file and line."""
        return UsageError(f"{self.raw.where}: {what}")


def column_name(columns: Columns, name: str, present: Collection[str]) -> str:
    """Return the source's name of a column; of several names the first one that is present."""
    names = columns.get(name, name)
    return names if isinstance(names, str) else next((column for column in names if column in present), names[0])


def parse_rows(
    spec: TaskSpec,
    records: Iterable[tuple[RawRecord, Label | None]],
    columns: Columns,
    origin: str,
    *,
    labelled: bool = False,
) -> list[Row]:
    """Convert the records and labels of a split to rows.

    Args:
        spec: the task.
        records: each record with its label.
        columns: the source's name of a column, where it differs from the task's name.
        origin: the file or repository, for error messages.
        labelled: whether each of ReCoRD's queries must have answers.

    Raises:
        UsageError: a column is missing, empty or invalid, or an id is not unique; the message names file and line.
    """
    rows: list[Row] = []
    where_of_id: dict[str, str] = {}
    skipped = 0
    for record, label in records:
        try:
            parsed = _parse_record(spec, record, columns, number=len(rows), label=label)
        except EmptyText:
            if not spec.skip_incomplete:
                raise
            skipped += 1
            continue
        for row in parsed:
            if row.id in where_of_id:
                first = where_of_id[row.id].rpartition(", ")[2]
                raise UsageError(f"{record.where}: duplicate id {row.id[:40]}, first used in {first}")
            if labelled and row.candidate and not row.answers:
                raise UsageError(f"{record.where}: the query has no answers")
            where_of_id[row.id] = record.where
            rows.append(row)
    if skipped:
        logger.warning(f"note: {origin}: skipped {counted_noun(skipped, 'row')} with an empty text")
    if not rows:
        raise UsageError(f"{origin} has no rows")
    return rows


def _parse_record(spec: TaskSpec, raw: RawRecord, columns: Columns, *, number: int, label: Label | None) -> list[Row]:
    record = CheckedRecord(spec, raw, columns)
    if spec.format == "record":
        return _record(record)
    id_column = column_name(columns, spec.id, raw.values) if spec.id else None
    row_id = str(raw.values[id_column]) if id_column in raw.values else str(number)
    return [_FORMATS[spec.format](record, row_id, label)]


def label_name(value: Any) -> str:
    """Return a label as printable text without spaces around it; JSON's true and 1 are `true` and `1`."""
    return printable((str(value).lower() if isinstance(value, bool) else str(value)).strip())


def label_value(record: CheckedRecord) -> Any:
    """Return a record's label as the source stores it; with `label_columns` the names of the labels whose column is 1.

    Raises:
        UsageError: a column is missing, or is neither 0 nor 1.
    """
    spec = record.spec
    if not spec.label_columns:
        return record.value("label")
    labels = []
    for label, column in zip(spec.labels, spec.label_columns, strict=True):
        value = label_name(record.value(column))
        if value not in ("0", "1", "false", "true"):
            raise record.error(f"column '{column}' is '{value[:40]}'; 0 or 1 is expected")
        labels += [label] if value in ("1", "true") else []
    return labels


def labels_in(value: Any, separator: str) -> list[str]:
    """Return the labels of a multi-label row, which is a list or a text with separators."""
    parts = value.split(separator) if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    return [label for part in parts if (label := label_name(part))]


def tags_in(value: Any) -> list[Any]:
    """Return the tags of a sentence, which are a list or a text with spaces between them."""
    return list(value) if isinstance(value, (list, tuple)) else label_name(value).split()


def parse_label(spec: TaskSpec, value: Any, names: list[str], where: str) -> Label:
    """Convert a source's label to the class index, to 0 or 1 of each class, to the index of each word's tag, or to the number.

    Args:
        spec: the task.
        value: the label in the source.
        names: the source's label names, in label order; see `label_name`.
        where: file and line, for error messages.

    Raises:
        UsageError: not one of the task's labels, or not a number in its range.
    """
    if spec.kind == "multi-label":
        present = {_class_index(name, names, where) for name in labels_in(value, spec.label_separator)}
        return tuple(int(index in present) for index in range(len(names)))
    if spec.kind == "token-classification":
        return tuple(_class_index(label_name(tag), names, where) for tag in tags_in(value))
    name = label_name(value)
    if spec.kind != "regression":
        return _class_index(name, names, where)
    low, high = spec.value_range or (float("-inf"), float("inf"))
    try:
        number = float(name)
    except ValueError:
        raise UsageError(f"{where}: the label '{name[:40]}' is not a number") from None
    if not math.isfinite(number) or not low <= number <= high:
        raise UsageError(f"{where}: the label {name[:40]} is not a number in [{low:g}, {high:g}]")
    return number


def _class_index(name: str, names: list[str], where: str) -> int:
    if name not in names:
        raise UsageError(f"{where}: unknown label '{name[:40]}'; the labels are {', '.join(names)}")
    return names.index(name)


def _plain(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    return Row(row_id, (tuple(record.text(name) for name in record.spec.inputs),), label)


def _words(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    """One text, in which a space separates the words, and the character span of each word."""
    words = record.words(record.spec.inputs[0])
    if isinstance(label, tuple) and len(label) != len(words):
        raise record.error(f"{len(words)} words have {len(label)} tags")
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    spans = tuple((end - len(word), end) for word, end in zip(words, ends, strict=True))
    return Row(row_id, ((" ".join(words),),), label, word_spans=spans)


def _copa(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    """One text per choice: the premise without final period, `because` or `so`, and the choice without its initial capital."""
    question = record.text("question")
    if question not in CONNECTIVES:
        raise record.error(f"question '{question[:40]}' is neither cause nor effect")
    premise = record.text("premise").strip().removesuffix(".")
    choices = [record.text(name).strip() for name in ("choice1", "choice2")]
    texts = [f"{premise} {CONNECTIVES[question]} {choice[0].lower()}{choice[1:]}" for choice in choices]
    return Row(row_id, tuple((text,) for text in texts), label)


def _wic(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    """The two sentences as a pair, and the character span of the target word in each."""
    sentences = (record.text("sentence1"), record.text("sentence2"))
    spans = tuple((record.integer(f"start{at}"), record.integer(f"end{at}")) for at in (1, 2))
    for at, (sentence, (start, end)) in enumerate(zip(sentences, spans, strict=True), start=1):
        if not _is_word(sentence, start, end):
            text = sentence[max(start, 0) : max(end, 0)]
            word = record.text("word")
            raise record.error(f"start{at}, end{at} = {start}, {end} do not mark the word '{word[:40]}' but '{text[:40]}'")
    return Row(row_id, (sentences,), label, word_spans=spans)


def _is_word(text: str, start: int, end: int) -> bool:
    """Return whether [start, end) is a complete word; `n't` may follow, and the lemma may differ (went, go; 've, have)."""
    if not 0 <= start < end <= len(text):
        return False
    word = text[start:end]
    follows_letter = text[start - 1 : start].isalnum()
    begins = follows_letter if word[0] == "'" else word[0].isalnum() and not follows_letter
    ends = end == len(text) or not text[end].isalnum() or text[end:].startswith("n't")
    return begins and ends and word == word.strip()


def _wsc(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    """A pair: the text with asterisks around the pronoun, and the noun phrase that the pronoun may refer to."""
    words, pronoun = record.text("text").split(), record.text("span2_text").split()
    first, length = record.integer("span2_index"), len(pronoun)
    if not 0 <= first <= first + length <= len(words):
        raise record.error(f"span2_index {first} is outside the text's {len(words)} words")
    is_pronoun = re.compile(rf"\W*{re.escape(' '.join(pronoun))}(?!\w)", re.IGNORECASE)
    places = [at for at in range(len(words)) if is_pronoun.match(" ".join(words[at : at + length]))]
    if not places:
        raise record.error(f"the text has no word '{' '.join(pronoun)[:40]}', which span2_text names")
    first = min(places, key=lambda at: abs(at - first))  # one official validation row names the word before the pronoun
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return Row(row_id, ((" ".join(marked), record.text("span1_text")),), label)


def _multirc(record: CheckedRecord, _: str, label: Label | None) -> Row:
    """A pair: the paragraph, and the question with one of its answers; the rows of a question share a group."""
    idx = record.value("idx")
    if not isinstance(idx, dict) or not all(isinstance(idx.get(key), int) for key in ("paragraph", "question", "answer")):
        raise record.error(f"idx is {_short(idx)}; integers for paragraph, question and answer are required")
    answer = record.text("answer", may_be_empty=True)  # one of the official test split is
    texts = (record.text("paragraph"), f"{record.text('question')} {answer}")
    group = f"{idx['paragraph']}-{idx['question']}"
    return Row(f"{group}-{idx['answer']}", (texts,), label, group=group)


def _record(record: CheckedRecord) -> list[Row]:
    """A pair for each of the query's candidates, which are the passage's different entities: passage, and query without gap."""
    idx = record.value("idx")
    if not isinstance(idx, dict) or not isinstance(idx.get("query"), int):
        raise record.error(f"idx is {_short(idx)}; an integer for query is required")
    passage, query = record.text("passage"), record.text("query")
    if PLACEHOLDER not in query:
        raise record.error(f"the query {query[:40]!r} has no {PLACEHOLDER}")
    entities = dict.fromkeys(record.texts("entities"))
    if not entities:
        raise record.error("entities: at least one is required")
    answers = record.texts("answers") if record.raw.values.get("answers") else []  # the test split has none
    group = str(idx["query"])
    return [
        Row(
            f"{group}-{entity}",
            ((passage, query.replace(PLACEHOLDER, entity)),),
            int(entity in answers) if answers else None,
            answers=tuple((answer, -1) for answer in dict.fromkeys(answers)),
            group=group,
            candidate=entity,
        )
        for entity in entities
    ]


def _swag(record: CheckedRecord, row_id: str, label: Label | None) -> Row:
    """One pair per ending: the first sentence, and the beginning of the second sentence with the ending."""
    context, start = record.text("sent1"), record.text("sent2")
    endings = [record.text(f"ending{at}") for at in range(4)]
    return Row(row_id, tuple((context, f"{start} {ending}") for ending in endings), label)


def _squad(record: CheckedRecord, row_id: str, _: Label | None) -> Row:
    """A pair: the question and the context; with the accepted answers."""
    context, answers = record.text("context"), record.value("answers")
    texts = answers.get("text") if isinstance(answers, dict) else None
    starts = answers.get("answer_start") if isinstance(answers, dict) else None
    if not isinstance(texts, list) or not isinstance(starts, list) or not texts or len(texts) != len(starts):
        raise record.error("answers: at least one text with its answer_start is required")
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not text or not isinstance(start, int):
            raise record.error(f"answers: {_short(text)} at {_short(start)} is not a text with an integer answer_start")
        if start < 0 or context[start : start + len(text)] != text:
            raise record.error(f"the answer {text[:40]!r} is not at character {start} of its context")
    return Row(row_id, ((record.text("question"), context),), None, answers=tuple(zip(texts, starts, strict=True)))


_FORMATS: dict[str, Callable[[CheckedRecord, str, Label | None], Row]] = {
    "plain": _plain,
    "words": _words,
    "copa": _copa,
    "wic": _wic,
    "wsc": _wsc,
    "multirc": _multirc,
    "swag": _swag,
    "squad": _squad,
}


def _short(value: Any) -> str:
    return repr(value)[:40]
