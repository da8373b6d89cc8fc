"""What is said about a data file before training: its labels with counts, its empty cells, and doubts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from hifi_cli.tasks.file_formats import SourceRow
from hifi_cli.tasks.kinds import KINDS, Kind, TaskKind
from hifi_cli.tasks.labels import as_number, is_missing, label_name, vector_in
from hifi_cli.tasks.metrics import ENTITY_TAG
from hifi_cli.text import abbreviate, counted_noun

_SHOWN = 10  # labels with their counts
# What programs write where there is no label, in lower case.
_WORDS_FOR_NONE = {
    *("nan", "null", "none", "na", "n/a", "#n/a", "<na>", "-", "--", "?", "missing", "undefined"),
    *("-1", "-100"),
}


@dataclass(frozen=True)
class FoundLabels:
    """The labels that data have.

    Attributes:
        kind: of the task.
        why: this kind, in a few words.
        labels: the task's labels, in label order.
        counts: rows of each label; of tags, words.
        values: the cells of the labels, without empty ones.
        is_vector: whether each is a vector of 0 and 1.
        names_in_data: what the data have in the place of the labels, in label order.
    """

    kind: Kind
    why: str
    labels: list[str]
    counts: Counter[str]
    values: list[Any]
    is_vector: bool = False
    names_in_data: list[str] = field(default_factory=list)

    @property
    def rules(self) -> TaskKind:
        """What follows from the kind."""
        return KINDS[self.kind](self.labels)


def lines(
    records: list[SourceRow], columns: list[str], found: FoundLabels, metrics: list[str]
) -> list[str]:
    """Return the lines of the summary.

    Args:
        records: the training rows.
        columns: the names of all columns.
        found: the labels.
        metrics: the names of the task's metrics.
    """
    return [
        _labels_line(found),
        *_empty_cells(records, columns),
        *_doubts_about_classes(found),
        *_doubts_about_names(found),
        *_doubts_about_tags(found),
        *_positive_class(found, metrics),
    ]


def _labels_line(found: FoundLabels) -> str:
    if found.rules.labels_are_numbers:
        numbers = [number for number in map(as_number, found.values) if not isnan(number)]
        if not numbers:
            return "no label is a number"
        return f"numbers from {min(numbers):g} to {max(numbers):g}, {len({*numbers})} different"
    shown = [f"{name} {found.counts[name]:,}" for name in found.labels]
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return f"{counted_noun(len(shown), 'label')} ({found.rules.unit}): {', '.join(shown[:_SHOWN])}{more}"


def _empty_cells(records: list[SourceRow], columns: list[str]) -> Iterator[str]:
    counts = {
        column: sum(_is_empty(record.values.get(column)) for record in records)
        for column in columns
    }
    empty = [f"{column} {count:,}" for column, count in counts.items() if count]
    if empty:
        yield f"empty cells: {abbreviate(empty)}"


def _is_empty(value: Any) -> bool:
    return value == [] or is_missing(value)


def _doubts_about_classes(found: FoundLabels) -> Iterator[str]:
    """Say what makes it doubtful that the labels are classes of this kind."""
    rows = len(found.values)
    if found.rules.classes:
        rare = [name for name in found.labels if found.counts[name] == 1]
        unused = [name for name in found.labels if not found.counts[name]]
        if len(found.labels) >= _SHOWN and 2 * len(found.labels) > rows:
            what = "numbers? Give kind=regression"
            if any(isnan(as_number(name)) for name in found.labels):
                what = "classes? Give label=COLUMN"
            yield f"{len(found.labels)} labels in {rows} rows: are these {what}"
        elif len(found.labels) > _SHOWN and not any(isnan(as_number(x)) for x in found.labels):
            yield f"{len(found.labels)} labels, all numbers: are these scores? Give kind=regression"
        if rare:
            yield f"labels of only one row: {abbreviate(rare)}"
        if unused:
            yield f"labels of no row: {abbreviate(unused)}"
        separator = _separator_in(found)
        if separator:
            yield (
                f"labels have parts that are labels too, as '{separator[1]}' has: do rows have"
                f" several? Give separator={separator[0]}"
            )
    vectors = [vector_in(value) for value in found.values] if found.is_vector else []
    if vectors and all(vector and sum(vector) == 1 for vector in vectors):
        yield "each row has exactly one label: classification needs a column of their names"


def _separator_in(found: FoundLabels) -> tuple[str, str] | None:
    """Return a character between labels that are labels by themselves, and a label that has it."""
    for separator in ("|", ";", ","):
        for name in found.labels:
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and all(part in found.counts for part in parts):
                return separator, name
    return None


def _doubts_about_names(found: FoundLabels) -> Iterator[str]:
    """Say which labels may stand for none, or may be the same."""
    if found.rules.has_class_names and not found.is_vector:
        doubtful = [name for name in found.counts if name.lower() in _WORDS_FOR_NONE]
        if {*found.counts} == {"-1", "1"}:
            doubtful = []  # of two classes, as they are often called
        for name in doubtful:
            yield (
                f"'{name}' ({counted_noun(found.counts[name], 'row')}) is a label here;"
                f" if it stands for none, missing={name} leaves its rows out"
            )
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in found.counts:
        alike[re.sub(r"[\s_-]+", " ", name).casefold()].append(name)
    for names in alike.values():
        if len(names) > 1:
            shown = " and ".join(f"'{name}' ({found.counts[name]})" for name in sorted(names))
            yield f"labels that differ in case, spaces or hyphens only: {shown}"
    texts = [value for value in found.values if isinstance(value, str)]
    with_spaces = sum(label_name(value) != value for value in texts)
    if with_spaces and found.rules.classes:
        yield f"{counted_noun(with_spaces, 'label')} without the spaces around them"


def _doubts_about_tags(found: FoundLabels) -> Iterator[str]:
    """Say why the words' tags are not measured as entities."""
    if found.rules.unit != "words" or all(map(ENTITY_TAG.fullmatch, found.labels)):
        return
    hint = "entities need tags such as O, B-PER, I-PER"
    if all(not isnan(as_number(name)) for name in found.labels):
        hint = f"{hint}, and labels=[O,B-PER,I-PER] names numbers in their order"
    elif any(re.fullmatch(r"[BIMESLU]_.+", name) for name in found.labels):
        hint = f"{hint}, with a hyphen"
    others = abbreviate([name for name in found.labels if not ENTITY_TAG.fullmatch(name)])
    yield f"only word_accuracy is measured, as for parts of speech: {others} are no entities; {hint}"


def _positive_class(found: FoundLabels, metrics: list[str]) -> Iterator[str]:
    if "f1" in metrics:
        first, second = found.labels
        # Names of integers stand in the integers' order: the other order would rename the classes.
        in_data = found.names_in_data or found.labels
        yield (
            f"f1 is of the class '{second}', the second; labels=[{in_data[1]},{in_data[0]}] makes it"
            f" '{first}'"
        )
