"""The rows of a task: the texts and label of a record in each task format."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hifi_cli.errors import UsageError, logger
from hifi_cli.tasks.examples import IncompleteRow, Label, Row, UnknownLabel
from hifi_cli.tasks.labels import is_missing, label_name, vector_in
from hifi_cli.tasks.source_rows import MALFORMED, SourceRow
from hifi_cli.tasks.task_spec import Source, TaskSpec
from hifi_cli.text import abbreviate, counted_noun

# The gap in a query of ReCoRD.
PLACEHOLDER = "@placeholder"
# Words that join premise and choice, by COPA's question, as in EH-FT's code.
CONNECTIVES = {"cause": "because", "effect": "so"}


@dataclass
class _Split:
    """The rows of a split, as they are read one after the other, with what is wrong with them.

    Attributes:
        rows: by id.
        skipped: the labels of incomplete rows that are left out.
        excluded: how many rows are left out by each label that stands for none.
        places_of: where each problem is, by its text.
        has_incomplete: whether a problem is a row without a text or label.
        has_unknown_label: whether one is a label that the task does not have.
        has_duplicate_id: whether one is an id of two rows.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    skipped: list[Label | None] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    places_of: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    has_incomplete: bool = False
    has_unknown_label: bool = False
    has_duplicate_id: bool = False


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
    # All problems are collected before any is raised: the user mends the file once.
    split = _Split()
    if spec.skip_incomplete:
        records = _with_missing_keys(spec, list(records), source)
    for index, record in enumerate(records):
        _add_record(split, spec, record, index, source, labelled=labelled)
    if split.places_of:
        problems = []
        for problem, places in split.places_of.items():
            problems.append(f"{abbreviate(places)}: {problem}")
        fix = ""
        if split.has_incomplete:
            fix = "; fill it in or remove the row"
        if split.has_incomplete and labelled:
            fix += ", or set skip_incomplete=true"
        # The labels of a benchmark are as they are; a user's own data may have others besides.
        if split.has_unknown_label and not spec.rows:
            fix += "; correct it, add it to labels=, or leave its rows out by missing="
        if split.has_duplicate_id and not spec.rows:
            fix += "; give each row an id of its own"
            # Rows to predict have the columns of the run's task.
            if labelled:
                fix += ", or leave out id=: rows are then numbered"
        raise UsageError(f"{origin}, {abbreviate(problems, '; ')}{fix}")
    rows = list(split.rows.values())
    _check_no_class_vanished(spec, origin, split.skipped, rows)
    if split.skipped:
        skipped = counted_noun(len(split.skipped), "row")
        logger.warning(f"note: {origin}: skipped {skipped} without a text or label")
    for word, count in split.excluded.items():
        logger.warning(f"note: {origin}: left out {counted_noun(count, 'row')} labelled '{word}'")
    if not rows:
        raise UsageError(f"{origin} has no rows")
    return rows


def _with_missing_keys(
    spec: TaskSpec, records: Sequence[SourceRow], source: Source
) -> Sequence[SourceRow]:
    """Give each record all columns of texts and labels that another one has, with nothing in them.

    An object of JSON may lack a key, as a cell of a table may be empty: its row is incomplete. Where
    no record has a column, none gets it, and the file is refused.

    Args:
        spec: the task.
        records: of a file or a hub dataset; they are changed.
        source: the source's names of columns.
    """
    names = {*spec.inputs, *spec.label_columns, "label"}
    for name, columns in source.columns.items():
        # A row without an id has its number as such.
        if name != spec.id:
            names.update(columns)
    present = {name for name in names if any(name in record.values for record in records)}
    for record in records:
        record.values |= dict.fromkeys(present - record.values.keys())
    return records


def _add_record(
    split: _Split, spec: TaskSpec, record: SourceRow, index: int, source: Source, *, labelled: bool
) -> None:
    """Add the rows of a record to a split, or note what is wrong with it.

    Args:
        split: the rows that were read before.
        spec: the task.
        record: of a file or a hub dataset.
        index: of the record, from 0.
        source: the source's names of columns and labels.
        labelled: see `parse_rows`.
    """
    try:
        if record.is_empty:
            raise IncompleteRow("the row is empty")
        if labelled:
            word = _word_for_no_label(spec, record, source)
            if word is not None:
                split.excluded[word] += 1
                return
        for row in _parse(spec, record, index, source, labelled=labelled):
            if row.id in split.rows:
                split.has_duplicate_id = True
                raise UsageError(f"duplicate id {row.id[:40]}")
            split.rows[row.id] = row
    except IncompleteRow as error:
        if spec.skip_incomplete:
            split.skipped.append(record.label)
        else:
            split.places_of[str(error)].append(record.where)
            split.has_incomplete = True
    except UsageError as error:
        split.places_of[str(error)].append(record.where)
        split.has_unknown_label |= isinstance(error, UnknownLabel)
    except MALFORMED as error:
        split.places_of[_reason_of(spec, error)].append(record.where)


def _word_for_no_label(spec: TaskSpec, record: SourceRow, source: Source) -> str | None:
    """Return the label of a record if it stands for no label, as `missing` of the task says."""
    if not spec.missing:
        return None
    column = _column_in(record, source.columns.get("label", []))
    value = record.values.get(column or "label")
    if isinstance(value, list) or is_missing(value):
        return None
    word = label_name(value)
    if word in spec.missing:
        return word
    return None


def _column_in(record: SourceRow, columns: Sequence[str]) -> str | None:
    """Return the first of some columns that a record has; None: it has none of them."""
    for column in columns:
        if column in record.values:
            return column
    return None


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
    spec: TaskSpec, record: SourceRow, index: int, source: Source, *, labelled: bool
) -> list[Row]:
    """Return the rows that a record becomes; without an id its index is the id.

    Args:
        spec: the task.
        record: of a file or a hub dataset; its label and id are set.
        index: of the record, from 0.
        source: the source's names of columns and labels.
        labelled: see `parse_rows`.

    Raises:
        UsageError: a column is missing, empty or invalid.
    """
    _check_has_no_more_cells(record)
    # The task's names of columns take the place of the source's. All are looked up before any is
    # written: one column's new name may be another one's old name.
    renamed = {}
    for name, columns in source.columns.items():
        column = _column_in(record, columns)
        if column is not None:
            renamed[name] = record.values[column]
    record.values |= renamed
    if labelled and not spec.rules.has_answers:
        if spec.label_columns:
            record.values["label"] = [record.value(column) for column in spec.label_columns]
        if spec.label_vectors:
            record.values["label"] = _names_in_vector(spec, record.value("label"))
        record.label = parse_label(spec, record, source.labels)
    record.id = str(index)
    if spec.id:
        record.id = str(record.values.get(spec.id, index))
    rows = _FORMATS[spec.format](spec, record)
    # A format with answers (SQuAD, ReCoRD) has them in the place of a label.
    if labelled and any(row.label is None and not row.answers for row in rows):
        raise UsageError("no answers")
    return rows


def _check_has_no_more_cells(record: SourceRow) -> None:
    """Refuse a row of a table that has more cells than there are names of columns.

    Raises:
        UsageError: it has; the message says why where that can be seen.
    """
    # Python's csv module keeps the other cells under the key None.
    others = record.values.get(None)  # type: ignore[call-overload]
    if others is None:
        return
    for cell in [*record.values.values(), *others]:
        if isinstance(cell, str) and cell.startswith(' "'):
            raise UsageError("a space stands between a comma and a quote; remove it")
    raise UsageError("more cells than column names; in a CSV file quote texts with commas")


def _names_in_vector(spec: TaskSpec, value: Any) -> list[str]:
    """Return the labels for which a vector of 0 and 1 has a 1."""
    vector = vector_in(value)
    if vector is None or len(vector) != len(spec.labels):
        raise UsageError(
            f"label is {value!r:.40}, not {len(spec.labels)} numbers 0 or 1, one for each label"
        )
    return [name for name, has_it in zip(spec.labels, vector, strict=True) if has_it]


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


# --- the formats: how the columns of a record become the texts of a row


def _plain(spec: TaskSpec, record: SourceRow) -> list[Row]:
    """Return one or two texts, as they stand."""
    if not spec.one_text_suffices:
        texts = tuple(record.text(name) for name in spec.inputs)
        return [Row(record.id, (texts,), record.label)]
    found = []
    for name in spec.inputs:
        text = ""
        if not is_missing(record.present(name)):
            text = record.text(name)
        found.append(text)
    if not any(found):
        raise IncompleteRow(f"{' and '.join(spec.inputs)} are empty")
    return [Row(record.id, (tuple(found),), record.label)]


def _words(spec: TaskSpec, record: SourceRow) -> list[Row]:
    """Return one text, in which a space separates the words, and the character span of each word."""
    words = record.words(spec.inputs[0])
    if isinstance(record.label, tuple) and len(record.label) != len(words):
        raise UsageError(f"{len(words)} words have {len(record.label)} tags")
    spans = []
    start = 0
    for word in words:
        end = start + len(word)
        spans.append((start, end))
        # One space joins two words.
        start = end + 1
    return [Row(record.id, ((" ".join(words),),), record.label, word_spans=tuple(spans))]


def _copa(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return one text per choice: premise without period, `because` or `so`, choice without initial capital."""
    question = record.text("question")
    connective = CONNECTIVES.get(question.strip().lower())
    if connective is None:
        raise UsageError(f"question is '{question[:40]}', not cause or effect")
    premise = record.text("premise").strip().removesuffix(".")
    texts = []
    for name in ("choice1", "choice2"):
        choice = record.text(name).strip()
        texts.append((f"{premise} {connective} {choice[0].lower()}{choice[1:]}",))
    return [Row(record.id, tuple(texts), record.label)]


def _wic(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return the two sentences as a pair, and the character span of the target word in each."""
    sentences = (record.text("sentence1"), record.text("sentence2"))
    spans = []
    for number, sentence in enumerate(sentences, start=1):
        start = record.integer(f"start{number}")
        end = record.integer(f"end{number}")
        if not 0 <= start < end <= len(sentence):
            raise UsageError(
                f"the target word, characters {start} to {end}, is outside of sentence{number},"
                f" which has {len(sentence)} characters"
            )
        spans.append((start, end))
    return [Row(record.id, (sentences,), record.label, word_spans=tuple(spans))]


def _wsc(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return a pair: the text with asterisks around the pronoun, and the noun phrase it may refer to."""
    # The official files nest the spans in `target`; the hub's dataset does not.
    record.values |= record.values.get("target", {})
    words = record.text("text").split()
    pronoun = record.text("span2_text").split()
    named_at = record.integer("span2_index")
    length = len(pronoun)
    # Punctuation may stand around the pronoun.
    pattern = re.compile(rf"\W*{re.escape(' '.join(pronoun))}(?!\w)", re.IGNORECASE)
    places = []
    for at in range(len(words)):
        if pattern.match(" ".join(words[at : at + length])):
            places.append(at)
    if not places:
        raise UsageError(f"the pronoun '{' '.join(pronoun)[:40]}' (span2_text) is not in the text")
    # The place nearest to the stated index is taken, not the index itself: one official validation
    # row states the word before the pronoun.
    first = min(places, key=lambda at: abs(at - named_at))
    marked = [*words[:first], "*", *words[first : first + length], "*", *words[first + length :]]
    return [Row(record.id, ((" ".join(marked), record.text("span1_text")),), record.label)]


def _multirc(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return a pair: the paragraph, and the question with an answer; a question's rows share a group."""
    indices = record.values.get("idx") or {"paragraph": record.id, "question": 0, "answer": 0}
    paragraph = record.text("paragraph")
    # The answer is not asked for as a text: one of the official answers is empty.
    question = f"{record.text('question')} {record.values['answer']}"
    group = f"{indices['paragraph']}-{indices['question']}"
    name = f"{group}-{indices['answer']}"
    return [Row(name, ((paragraph, question),), record.label, group=group)]


def _record(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return one row for each entity of the passage: passage, and query with the entity in its gap.

    The label is 1 if the entity is an accepted answer. The rows of a query share a group.
    """
    group = record.id
    if "idx" in record.values:
        group = str(record.values["idx"]["query"])
    passage = record.text("passage")
    query = record.text("query")
    names = record.values.get("answers") or []
    # An answer comes with its place in the context, as in SQuAD; here no place is needed.
    answers = tuple((answer, -1) for answer in dict.fromkeys(names))
    rows = []
    for entity in dict.fromkeys(record.texts("entities")):
        label = None
        if answers:
            label = int(entity in names)
        texts = (passage, query.replace(PLACEHOLDER, entity))
        row = Row(
            f"{group}-{entity}", (texts,), label, answers=answers, group=group, candidate=entity
        )
        rows.append(row)
    return rows


def _swag(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return one pair per ending: the first sentence, and the second one's beginning with the ending."""
    context = record.text("sent1")
    start = record.text("sent2")
    endings = [record.text(f"ending{number}") for number in range(4)]
    pairs = tuple((context, f"{start} {ending}") for ending in endings)
    return [Row(record.id, pairs, record.label)]


def _squad(_: TaskSpec, record: SourceRow) -> list[Row]:
    """Return a pair: the question and the context; with the accepted answers."""
    context = record.text("context")
    # Rows that are only predicted have no answers.
    answers = record.values.get("answers", {"text": [], "answer_start": []})
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
