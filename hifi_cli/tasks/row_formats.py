"""From a record's columns to a row: how each task puts its question to the encoder, with its checks."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import Row, TaskSpec

Columns = dict[str, str]
Label = int | float | None
logger = logging.getLogger("hifi")
_MOST_LETTERS = 1_000_000  # of a text; tokenising takes some hundred bytes of memory for each
CONNECTIVES = {"cause": "because", "effect": "so"}  # COPA's question, as EH-FT puts it


class EmptyText(UsageError):
    """A text column holds nothing."""


class Reader:
    """A record seen through a task: its texts and other columns by the task's names, each checked as it is read."""

    def __init__(self, spec: TaskSpec, record: RawRecord, columns: Columns) -> None:
        self.spec, self.record, self.columns = spec, record, columns

    def value(self, name: str) -> Any:
        """A column as it stands."""
        column = self.columns.get(name, name)
        if column not in self.record.values:
            raise self.wrong(f"no column '{column}'; there are {', '.join(map(str, self.record.values))[:120]}")
        return self.record.values[column]

    def text(self, name: str) -> str:
        """A column that must hold text."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.wrong(f"{name} is {_short(value)}, not text")
        if not value.strip():
            raise EmptyText(f"{self.record.where}: {name} is empty")
        if len(value) > _MOST_LETTERS:
            raise self.wrong(f"{name} has {len(value):,} letters; at most {_MOST_LETTERS:,} are read of a text")
        return value

    def number(self, name: str) -> int:
        """A column that must hold a whole number."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(f"{name} is {_short(value)}, not a whole number")
        return value

    def wrong(self, what: str) -> UsageError:
        """The error for this record."""
        return UsageError(f"{self.record.where}: {what}")


def rows(spec: TaskSpec, records: Iterable[tuple[RawRecord, Label]], columns: Columns, origin: str) -> list[Row]:
    """A split's records and labels as the task's rows.

    Args:
        columns: the source's name for a column, where it differs from the task's.
        origin: the file or repository, for messages.

    Raises:
        UsageError: a column is missing, empty or does not fit, or an id comes twice; file and line are named.
    """
    found: list[Row] = []
    places: dict[str, str] = {}
    empty = 0
    for record, label in records:
        try:
            row = _row(spec, record, columns, number=len(found), label=label)
        except EmptyText:
            if not spec.skip_incomplete:
                raise
            empty += 1
            continue
        if row.id in places:
            raise UsageError(f"{record.where}: the id {row.id[:40]} is also that of {places[row.id].rpartition(', ')[2]}")
        places[row.id] = record.where
        found.append(row)
    if empty:
        logger.warning(f"note: {origin}: {empty} rows with an empty text are left out")
    if not found:
        raise UsageError(f"{origin} has no rows")
    return found


def _row(spec: TaskSpec, record: RawRecord, columns: Columns, *, number: int, label: Label) -> Row:
    reader = Reader(spec, record, columns)
    for name in spec.inputs:
        reader.text(name)
    id_column = columns.get(spec.id, spec.id) if spec.id else None
    row_id = str(record.values[id_column]) if id_column in record.values else str(number)
    return _FORMATS[spec.format](reader, row_id, label)


def parse_label(spec: TaskSpec, value: Any, words: list[str], where: str) -> int | float:
    """A label as it is written in a source, as class index or number.

    Args:
        words: the source's words for the labels, in label order; JSON's true and 1 are the words `true` and `1`.

    Raises:
        UsageError: not one of the task's labels, or no number in its range.
    """
    word = str(value).lower() if isinstance(value, bool) else str(value)
    if spec.kind != "regression":
        if word not in words:
            raise UsageError(f"{where}: unknown label '{word[:40]}'; known are {', '.join(words)}")
        return words.index(word)
    low, high = spec.value_range or (float("-inf"), float("inf"))
    try:
        number = float(word)
    except ValueError:
        raise UsageError(f"{where}: the label '{word[:40]}' is not a number") from None
    if math.isnan(number) or not low <= number <= high:
        raise UsageError(f"{where}: the label {word} is not in [{low:g}, {high:g}]")
    return number


def _plain(reader: Reader, row_id: str, label: Label) -> Row:
    return Row(row_id, (tuple(reader.text(name) for name in reader.spec.inputs),), label)


def _copa(reader: Reader, row_id: str, label: Label) -> Row:
    """The premise without its final stop, `because` or `so`, and a choice with a small first letter, as one text."""
    question = reader.text("question")
    if question not in CONNECTIVES:
        raise reader.wrong(f"question '{question[:40]}' is neither cause nor effect")
    premise = reader.text("premise").strip().removesuffix(".")
    choices = [reader.text(name).strip() for name in ("choice1", "choice2")]
    texts = [f"{premise} {CONNECTIVES[question]} {choice[0].lower()}{choice[1:]}" for choice in choices]
    return Row(row_id, tuple((text,) for text in texts), label)


def _wic(reader: Reader, row_id: str, label: Label) -> Row:
    """The two sentences as a pair, and where the target word stands in each."""
    sentences = (reader.text("sentence1"), reader.text("sentence2"))
    spans = tuple((reader.number(f"start{at}"), reader.number(f"end{at}")) for at in (1, 2))
    for at, (sentence, (start, end)) in enumerate(zip(sentences, spans, strict=True), start=1):
        if not _is_word(sentence, start, end):
            found = sentence[max(start, 0) : max(end, 0)]
            word = reader.text("word")
            raise reader.wrong(f"start{at}, end{at} = {start}, {end} miss the word '{word[:40]}': '{found[:40]}' stands there")
    return Row(row_id, (sentences,), label, words=spans)


def _is_word(text: str, start: int, end: int) -> bool:
    """Whether [start, end) is a whole word; `n't` may follow, and the word need not look like its lemma (went, go)."""
    if not 0 <= start < end <= len(text):
        return False
    word = text[start:end]
    begins = start == 0 or not text[start - 1].isalnum()
    ends = end == len(text) or not text[end].isalnum() or text[end:].startswith("n't")
    return begins and ends and word[0].isalnum() and word == word.strip()


def _wsc(reader: Reader, row_id: str, label: Label) -> Row:
    """The text with its pronoun between asterisks, and the noun phrase it may stand for, as a pair."""
    words = reader.text("text").split()
    first, length = reader.number("span2_index"), len(reader.text("span2_text").split())
    if not 0 <= first <= first + length <= len(words):
        raise reader.wrong(f"span2_index {first} lies outside the text's {len(words)} words")
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return Row(row_id, ((" ".join(marked), reader.text("span1_text")),), label)


def _multirc(reader: Reader, _: str, label: Label) -> Row:
    """The paragraph, and the question with one of its answers; rows of one question share a group."""
    idx = reader.value("idx")
    if not isinstance(idx, dict) or not all(isinstance(idx.get(key), int) for key in ("paragraph", "question", "answer")):
        raise reader.wrong(f"idx is {_short(idx)}; numbers of paragraph, question and answer are wanted")
    texts = (reader.text("paragraph"), f"{reader.text('question')} {reader.text('answer')}")
    group = f"{idx['paragraph']}-{idx['question']}"
    return Row(f"{group}-{idx['answer']}", (texts,), label, group=group)


def _swag(reader: Reader, row_id: str, label: Label) -> Row:
    """The first sentence, and the beginning of the second with one of its endings, as a pair per ending."""
    context, start = reader.text("sent1"), reader.text("sent2")
    endings = [reader.text(f"ending{at}") for at in range(4)]
    return Row(row_id, tuple((context, f"{start} {ending}") for ending in endings), label)


def _squad(reader: Reader, row_id: str, _: Label) -> Row:
    """The question and the context, with the accepted answers."""
    context, answers = reader.text("context"), reader.value("answers")
    texts = answers.get("text") if isinstance(answers, dict) else None
    starts = answers.get("answer_start") if isinstance(answers, dict) else None
    if not isinstance(texts, list) or not isinstance(starts, list) or not texts or len(texts) != len(starts):
        raise reader.wrong("answers: at least one text with its answer_start is wanted")
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not text or not isinstance(start, int):
            raise reader.wrong(f"answers: {_short(text)} at {_short(start)} is not a text at a character")
        if start < 0 or context[start : start + len(text)] != text:
            raise reader.wrong(f"the answer '{text[:40]}' is not at character {start} of its context")
    return Row(row_id, ((reader.text("question"), context),), None, answers=tuple(zip(texts, starts, strict=True)))


_FORMATS: dict[str, Callable[[Reader, str, Label], Row]] = {
    "plain": _plain,
    "copa": _copa,
    "wic": _wic,
    "wsc": _wsc,
    "multirc": _multirc,
    "swag": _swag,
    "squad": _squad,
}


def _short(value: Any) -> str:
    return repr(value)[:40]
