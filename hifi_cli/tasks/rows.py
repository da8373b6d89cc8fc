"""The rows of a task: the texts and label of a record in each task format."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from hifi_cli.errors import UsageError, logger
from hifi_cli.tasks.examples import IncompleteRow, Label, Row
from hifi_cli.tasks.file_formats import SourceRow
from hifi_cli.tasks.labels import is_missing, label_name, vector_in
from hifi_cli.tasks.task_spec import Source, TaskSpec
from hifi_cli.text import abbreviate, counted_noun

PLACEHOLDER = "@placeholder"  # the gap in a query of ReCoRD
CONNECTIVES = {"cause": "because", "effect": "so"}  # of COPA's questions, as in EH-FT's code
# Raised by code that reads a record with missing keys, or with values of another type.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


def parse_rows(
    spec: TaskSpec, records: Iterable[SourceRow], source: Source, origin: str, *, labelled: bool
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
        UsageError: columns are missing, empty or invalid, an id is not unique, or all rows of a
            class are incomplete; the message names the lines.
    """
    rows: dict[str, Row] = {}
    fix = ""
    skipped: list[Label | None] = []  # the labels of incomplete rows
    excluded_because: Counter[str] = Counter()  # by the label that stands for none
    lines: defaultdict[str, list[str]] = defaultdict(list)  # by what is wrong with them
    for index, record in enumerate(records):
        try:
            if labelled and (word := _missing_word(spec, record, source)):
                excluded_because[word] += 1
                continue
            for row in _parse(spec, record, index, source, labelled=labelled):
                if row.id in rows:
                    raise UsageError(f"duplicate id {row.id[:40]}")
                rows[row.id] = row
        except IncompleteRow as error:
            if spec.skip_incomplete:
                skipped.append(record.label)
            else:
                lines[str(error)].append(record.where)
                fix = f"; fill it in or remove the row{', or set skip_incomplete' * labelled}"
        except UsageError as error:
            lines[str(error)].append(record.where)
        except _MALFORMED as error:
            lines[_reason_of(spec, error)].append(record.where)
    if lines:
        problems = [f"{abbreviate(where)}: {problem}" for problem, where in lines.items()]
        raise UsageError(f"{origin}, {abbreviate(problems, '; ')}{fix}")
    _check_no_class_vanished(spec, origin, skipped, list(rows.values()))
    if skipped:
        logger.warning(
            f"note: {origin}: skipped {counted_noun(len(skipped), 'row')} without a text or label"
        )
    for word, count in excluded_because.items():
        logger.warning(f"note: {origin}: left out {counted_noun(count, 'row')} labelled '{word}'")
    if not rows:
        raise UsageError(f"{origin} has no rows")
    return list(rows.values())


def _missing_word(spec: TaskSpec, record: SourceRow, source: Source) -> str | None:
    """Return the record's label if it stands for no label, as `missing` of the task says."""
    if not spec.missing:
        return None
    column = next((name for name in source.columns.get("label", []) if name in record.values), None)
    value = record.values.get(column or "label")
    if isinstance(value, list) or is_missing(value):
        return None
    name = label_name(value)
    return name if name in spec.missing else None


def _check_no_class_vanished(
    spec: TaskSpec, origin: str, skipped: list[Label | None], rows: list[Row]
) -> None:
    """Refuse to leave out every row of a class."""
    present = {row.label for row in rows}
    for label in dict.fromkeys(skipped):
        if spec.classes and isinstance(label, int) and label not in present:
            raise UsageError(
                f"{origin}: all {counted_noun(skipped.count(label), 'row')} of the class"
                f" '{spec.labels[label]}' have no text, and skip_incomplete would leave out the"
                " class; fill the texts in, or remove the rows and the class"
            )


def _reason_of(spec: TaskSpec, error: Exception) -> str:
    """Return why a record cannot become a row, where a format's own code failed."""
    why = "a value is missing or of another type than in the official files"
    if isinstance(error, KeyError):
        why = f"'{error.args[0]}' is missing"
    return f"not a row of format '{spec.format}': {why}"


def _parse(
    spec: TaskSpec, record: SourceRow, number: int, source: Source, *, labelled: bool
) -> list[Row]:
    """Return the rows that a record becomes; without an id it is its number."""
    if None in record.values:
        cells = [*record.values.values(), *record.values[None]]  # type: ignore[index]
        if any(isinstance(cell, str) and cell.startswith(' "') for cell in cells):
            raise UsageError("a space stands between a comma and a quote; remove it")
        raise UsageError("more cells than column names; in a CSV file quote texts with commas")
    record.values |= {
        name: record.values[column]
        for name, columns in source.columns.items()
        for column in columns
        if column in record.values
    }
    if labelled and not spec.rules.has_answers:
        if spec.label_columns:
            record.values["label"] = [record.value(column) for column in spec.label_columns]
        if spec.label_vectors:
            record.values["label"] = _names_in_vector(spec, record.value("label"))
        record.label = parse_label(spec, record, source.labels)
    record.id = str(record.values.get(spec.id, number) if spec.id else number)
    rows = _FORMATS[spec.format](spec, record)
    if labelled and any(row.label is None and not row.answers for row in rows):
        raise UsageError("no answers")
    return rows


def _names_in_vector(spec: TaskSpec, value: Any) -> list[str]:
    """Return the labels for which a vector of 0 and 1 has a 1."""
    vector = vector_in(value)
    if vector is None or len(vector) != len(spec.labels):
        raise UsageError(
            f"label is {value!r:.40}, not {len(spec.labels)} numbers 0 or 1, one for each label"
        )
    return [name for name, is_it in zip(spec.labels, vector, strict=True) if is_it]


def parse_label(spec: TaskSpec, record: SourceRow, names: list[str] | None = None) -> Label:
    """Return a record's class index, 0 or 1 of each class, each word's tag index, or number.

    Args:
        spec: the task.
        record: has a column `label`.
        names: the source's label names; default: those of the task.

    Raises:
        UsageError: there is no label, or it is not one of the task's labels or not a number in its
            range.
    """
    rules = spec.rules
    value = record.values.get("label")
    if not rules.has_any_number_of_labels:
        value = record.value("label")
    return rules.parse_label(value, names or spec.labels)


def _plain(spec: TaskSpec, record: SourceRow) -> list[Row]:
    if not spec.one_text_suffices:
        texts = [record.text(name) for name in spec.inputs]
        return [Row(record.id, (tuple(texts),), record.label)]
    is_empty = [is_missing(record.present(name)) for name in spec.inputs]
    if all(is_empty):
        raise IncompleteRow(f"{' and '.join(spec.inputs)} are empty")
    texts = [
        "" if without else record.text(name)
        for name, without in zip(spec.inputs, is_empty, strict=True)
    ]
    return [Row(record.id, (tuple(texts),), record.label)]


def _words(spec: TaskSpec, record: SourceRow) -> list[Row]:
    """One text, in which a space separates the words, and the character span of each word."""
    words = record.words(spec.inputs[0])
    if isinstance(record.label, tuple) and len(record.label) != len(words):
        raise UsageError(f"{len(words)} words have {len(record.label)} tags")
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    spans = tuple((end - len(word), end) for word, end in zip(words, ends, strict=True))
    return [Row(record.id, ((" ".join(words),),), record.label, word_spans=spans)]


def _copa(_: TaskSpec, record: SourceRow) -> list[Row]:
    """One text per choice: premise without period, `because` or `so`, choice without initial capital."""
    question = record.text("question")
    connective = CONNECTIVES.get(question.strip().lower())
    if connective is None:
        raise UsageError(f"question is '{question[:40]}', not cause or effect")
    premise = record.text("premise").strip().removesuffix(".")
    choices = (record.text(name).strip() for name in ("choice1", "choice2"))
    texts = tuple(
        (f"{premise} {connective} {choice[0].lower()}{choice[1:]}",) for choice in choices
    )
    return [Row(record.id, texts, record.label)]


def _wic(_: TaskSpec, record: SourceRow) -> list[Row]:
    """The two sentences as a pair, and the character span of the target word in each."""
    sentences = (record.text("sentence1"), record.text("sentence2"))
    spans = []
    for index, sentence in enumerate(sentences, start=1):
        start, end = record.integer(f"start{index}"), record.integer(f"end{index}")
        if not 0 <= start < end <= len(sentence):
            raise UsageError(
                f"the target word, characters {start} to {end}, is outside of sentence{index},"
                f" which has {len(sentence)} characters"
            )
        spans.append((start, end))
    return [Row(record.id, (sentences,), record.label, word_spans=tuple(spans))]


def _wsc(_: TaskSpec, record: SourceRow) -> list[Row]:
    """A pair: the text with asterisks around the pronoun, and the noun phrase it may refer to."""
    record.values |= record.values.get("target", {})  # the official files' spans are in it
    words = record.text("text").split()
    pronoun = record.text("span2_text").split()
    is_pronoun = re.compile(rf"\W*{re.escape(' '.join(pronoun))}(?!\w)", re.IGNORECASE)
    length, index = len(pronoun), record.integer("span2_index")
    places = [at for at in range(len(words)) if is_pronoun.match(" ".join(words[at : at + length]))]
    if not places:
        raise UsageError(f"the pronoun '{' '.join(pronoun)[:40]}' (span2_text) is not in the text")
    # One official validation row names the word before the pronoun.
    first = min(places, key=lambda at: abs(at - index))
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return [Row(record.id, ((" ".join(marked), record.text("span1_text")),), record.label)]


def _multirc(_: TaskSpec, record: SourceRow) -> list[Row]:
    """A pair: the paragraph, and the question with an answer; a question's rows share a group."""
    idx = record.values.get("idx") or {"paragraph": record.id, "question": 0, "answer": 0}
    # an official answer is empty
    texts = (record.text("paragraph"), f"{record.text('question')} {record.values['answer']}")
    group = f"{idx['paragraph']}-{idx['question']}"
    return [Row(f"{group}-{idx['answer']}", (texts,), record.label, group=group)]


def _record(_: TaskSpec, record: SourceRow) -> list[Row]:
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


def _swag(_: TaskSpec, record: SourceRow) -> list[Row]:
    """One pair per ending: the first sentence, and the second one's beginning with the ending."""
    context, start = record.text("sent1"), record.text("sent2")
    endings = [record.text(f"ending{at}") for at in range(4)]
    return [
        Row(record.id, tuple((context, f"{start} {ending}") for ending in endings), record.label)
    ]


def _squad(_: TaskSpec, record: SourceRow) -> list[Row]:
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


_FORMATS: dict[str, Callable[[TaskSpec, SourceRow], list[Row]]] = {
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
