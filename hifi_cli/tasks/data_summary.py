"""Summary of a data file before training: its labels with counts, its empty cells, and doubts."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

from hifi_cli.tasks.labels import (
    as_number,
    is_decorated_number,
    is_missing,
    label_name,
    vector_in,
)
from hifi_cli.tasks.metrics import ENTITY_TAG
from hifi_cli.tasks.recognition import FoundLabels
from hifi_cli.tasks.source_rows import SourceRow
from hifi_cli.text import abbreviate, counted_noun

# So many labels are shown with their counts.
_SHOWN = 10
# Words that programs write where there is no label, in lower case.
_WORDS_FOR_NONE = frozenset(
    [
        "nan",
        "null",
        "none",
        "na",
        "n/a",
        "#n/a",
        "<na>",
        "-",
        "--",
        "?",
        "missing",
        "undefined",
        "-1",
        "-100",
    ]
)


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
        *_doubts_about_vectors(found),
        *_doubts_about_names(found),
        *_doubts_about_tags(found),
        *_positive_class(found, metrics),
    ]


def _labels_line(found: FoundLabels) -> str:
    """Return the labels with their counts, or the range of numbers."""
    if found.rules.labels_are_numbers:
        numbers = [as_number(value) for value in found.values]
        numbers = [number for number in numbers if not isnan(number)]
        if not numbers:
            return "no label is a number"
        different = len(set(numbers))
        return f"numbers from {min(numbers):g} to {max(numbers):g}, {different} different"
    names = found.labels
    shown = [f"{name} {found.counts[name]:,}" for name in names[:_SHOWN]]
    more = ""
    if len(names) > _SHOWN:
        more = f" and {len(names) - _SHOWN:,} more"
    return f"{counted_noun(len(names), 'label')} ({found.rules.unit}): {', '.join(shown)}{more}"


def _empty_cells(records: list[SourceRow], columns: list[str]) -> Iterator[str]:
    """Yield how many cells of each column are empty."""
    empty = []
    for column in columns:
        count = sum(_is_empty(record.values.get(column)) for record in records)
        if count:
            empty.append(f"{column} {count:,}")
    if empty:
        yield f"empty cells: {abbreviate(empty)}"


def _is_empty(value: Any) -> bool:
    return value == [] or is_missing(value)


def _doubts_about_classes(found: FoundLabels) -> Iterator[str]:
    """Yield what makes it doubtful that the labels are classes, of which each row has one."""
    if not found.rules.classes:
        return
    rows = len(found.values)
    are_numbers = all(not isnan(as_number(name)) for name in found.labels)
    # A class has fewer than two rows on average.
    if len(found.labels) >= _SHOWN and 2 * len(found.labels) > rows:
        what = "classes? Give label=COLUMN"
        if are_numbers:
            what = "numbers? Give kind=regression"
        yield f"{len(found.labels)} labels in {rows} rows: are these {what}"
    elif len(found.labels) > _SHOWN and are_numbers:
        yield f"{len(found.labels)} labels, all numbers: are these scores? Give kind=regression"
    sign = _number_with_a_sign(found.labels)
    if sign:
        yield (
            f"labels are numbers with signs, such as '{sign}', and each is a class: if these are scores,"
            " write 0.5 for 0,5 or 50 for 50%"
        )
    rare = [name for name in found.labels if found.counts[name] == 1]
    if rare:
        yield f"labels of only one row: {abbreviate(rare)}"
    unused = [name for name in found.labels if not found.counts[name]]
    if unused:
        yield f"labels of no row: {abbreviate(unused)}"
    separator = _separator_in(found)
    if separator:
        yield (
            f"labels have parts that are labels too, as '{separator[1]}' has: do rows have"
            f" several? Give separator={separator[0]}"
        )


def _number_with_a_sign(labels: Sequence[str]) -> str:
    """Return the first label with a decimal comma or a unit, where all are numbers but for these.

    Empty: there is none, or other labels are words.
    """
    others = [name for name in labels if isnan(as_number(name))]
    if others and all(is_decorated_number(name) for name in others):
        return others[0]
    return ""


def _separator_in(found: FoundLabels) -> tuple[str, str] | None:
    """Return a character between labels that are labels by themselves, and a label that has it."""
    for separator in ("|", ";", ","):
        for name in found.labels:
            parts = [part.strip() for part in name.split(separator)]
            if len(parts) > 1 and all(part in found.counts for part in parts):
                return separator, name
    return None


def _doubts_about_vectors(found: FoundLabels) -> Iterator[str]:
    """Yield a sentence if the vectors of 0 and 1 may be numbers, or if they name one class each."""
    if not found.is_vector or not found.values:
        return
    first = found.values[0]
    if all(isinstance(value, str) and re.fullmatch("[01],[01]", value) for value in found.values):
        yield f"labels such as '{first}' are two numbers: if they are one, write 1.0 for 1,0"
    for value in found.values:
        vector = vector_in(value)
        if not vector or sum(vector) != 1:
            return
    yield "each row has exactly one label: classification needs a column of their names"


def _doubts_about_names(found: FoundLabels) -> Iterator[str]:
    """Yield which labels may stand for none, or may be the same."""
    # Two classes are often called -1 and 1.
    are_signs = {*found.counts} == {"-1", "1"}
    if found.rules.has_class_names and not found.is_vector and not are_signs:
        for name, count in found.counts.items():
            if name.lower() in _WORDS_FOR_NONE:
                yield (
                    f"'{name}' ({counted_noun(count, 'row')}) is a label here;"
                    f" if it stands for none, missing={name} leaves its rows out"
                )
    alike: defaultdict[str, list[str]] = defaultdict(list)
    of_number: defaultdict[float, list[str]] = defaultdict(list)
    for name in found.counts:
        alike[re.sub(r"[\s_-]+", " ", name).casefold()].append(name)
        number = as_number(name)
        if not isnan(number):
            of_number[number].append(name)
    groups_by_word = {
        "differ in case, spaces or hyphens only": [*alike.values()],
        "are one number": [*of_number.values()],
    }
    for how, groups in groups_by_word.items():
        for names in groups:
            if len(names) > 1:
                shown = [f"'{name}' ({found.counts[name]})" for name in sorted(names)]
                yield f"labels that {how}: {' and '.join(shown)}"
    texts = [value for value in found.values if isinstance(value, str)]
    with_spaces = sum(label_name(value) != value for value in texts)
    if with_spaces and found.rules.classes:
        yield f"{counted_noun(with_spaces, 'label')} without the spaces around them"


def _doubts_about_tags(found: FoundLabels) -> Iterator[str]:
    """Yield why the words' tags are not measured as entities."""
    others = [name for name in found.labels if not ENTITY_TAG.fullmatch(name)]
    if found.rules.unit != "words" or not others:
        return
    hint = "entities need tags such as O, B-PER, I-PER"
    if all(not isnan(as_number(name)) for name in found.labels):
        hint = f"{hint}, and labels=[O,B-PER,I-PER] names numbers in their order"
    elif any(re.fullmatch(r"[BIMESLU]_.+", name) for name in found.labels):
        hint = f"{hint}, with a hyphen"
    yield (
        "only word_accuracy is measured, as for parts of speech:"
        f" {abbreviate(others)} are no entities; {hint}"
    )


def _positive_class(found: FoundLabels, metrics: list[str]) -> Iterator[str]:
    """Yield of which class F1 is, and how to make it the other one."""
    if "f1" not in metrics:
        return
    first, second = found.labels
    # Names of integers stand in the integers' order: the other order would rename the classes.
    in_data = found.names_in_data or found.labels
    yield (
        f"f1 is of the class '{second}', the second; labels=[{in_data[1]},{in_data[0]}] makes it"
        f" '{first}'"
    )
