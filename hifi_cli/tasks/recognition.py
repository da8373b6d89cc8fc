"""Recognition of a task by its data: columns of texts and labels, the kind, the labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.tasks.data_options import DataOptions
from hifi_cli.tasks.file_formats import FORMATS, FileFormat
from hifi_cli.tasks.kinds import KINDS, Kind, TaskKind
from hifi_cli.tasks.labels import (
    as_number,
    is_decorated_number,
    is_integer,
    is_missing,
    label_name,
    list_in,
    vector_in,
)
from hifi_cli.tasks.readers.conll import CONLLU_COLUMNS
from hifi_cli.tasks.source_rows import SourceRow
from hifi_cli.text import abbreviate

# The usual names of the columns of texts; the first of these that the data have.
INPUT_NAMES = [
    ["sentence1", "sentence2"],
    ["premise", "hypothesis"],
    ["text1", "text2"],
    ["question", "sentence"],
    ["text"],
    ["sentence"],
    ["tokens"],
    ["words"],
    # The first column of a CoNLL file.
    ["1"],
]
LABEL_NAMES = [["label"], ["labels"], ["tags"], ["ner_tags"]]
# The columns of CoNLL-U with the word and with its universal tag.
CONLLU_FORM = "2"
CONLLU_TAG = "4"
# More different labels than most classifications have.
MANY_LABELS = 10
# How the characters are called that may stand between the cells of a table.
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}


@dataclass(frozen=True)
class Columns:
    """The names of the columns of the data.

    Attributes:
        inputs: those of the texts.
        label: that of the labels; several for a column of 0 and 1 for each label.
        all: in the order of the data.
    """

    inputs: list[str]
    label: list[str]
    all: list[str]


@dataclass(frozen=True)
class FoundLabels:
    """The labels that data have.

    Attributes:
        kind: of the task.
        why: what shows that it is of this kind, in a few words.
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
        """The rules of the kind."""
        return KINDS[self.kind](self.labels)


# --- columns


def find_columns(
    source: str, records: Sequence[SourceRow], format_: FileFormat | None, options: DataOptions
) -> Columns:
    """Return the columns of the texts and the label: those given, or those with usual names.

    Args:
        source: the data, for messages.
        records: the training rows.
        format_: of their file; None for a hub dataset.
        options: what the user said about the data.

    Raises:
        UsageError: there are no such columns.
    """
    columns = _names_of_columns(records)
    # A column that the user names is taken; usual names are a guess, which the summary says.
    usual_inputs = _usual(INPUT_NAMES, columns)
    last = str(len(columns))
    # The last column of a CoNLL file has the tags.
    usual_label = _usual([*LABEL_NAMES, [last]], columns)
    numbers_columns = format_ is not None and format_.numbers_columns
    if numbers_columns and _is_conllu(records[0], columns):
        usual_inputs = [CONLLU_FORM]
        usual_label = [CONLLU_TAG]
    found = Columns(options.inputs or usual_inputs, options.label or usual_label, columns)
    _check_columns(source, found, format_, options)
    return found


def _check_columns(
    source: str, found: Columns, format_: FileFormat | None, options: DataOptions
) -> None:
    """Refuse columns that are not there, or that have two meanings; see `find_columns`.

    Raises:
        UsageError: there are such columns, or none; the message says what to give.
    """
    inputs = found.inputs
    label = found.label
    columns = found.all
    given = [*options.inputs, *options.label]
    if options.id:
        given.append(options.id)
    unknown = [name for name in given if name not in columns]
    if unknown or not inputs or not label:
        problem = "which columns are the texts and the label?"
        if unknown:
            suggestion = registry.did_you_mean(unknown[0], columns) or "."
            problem = f"no column '{unknown[0]}'{suggestion}"
        raise UsageError(
            f"{source}: {problem} Give inputs=COLUMN or inputs=[COLUMN,COLUMN], and label=COLUMN;"
            f" the columns are {', '.join(columns)}{_header_hint(format_, columns)}"
        )
    if "label" in {*inputs, options.id} - {*label}:
        raise UsageError(
            f"{source}: rename the column 'label', which is hifi's own name for '{label[0]}'"
        )
    both = [name for name in label if name in inputs]
    if both:
        raise UsageError(
            f"{source}: the column '{both[0]}' would be text and label: give inputs=COLUMN and"
            f" label=COLUMN; the columns are {', '.join(columns)}"
        )


def _names_of_columns(records: Sequence[SourceRow]) -> list[str]:
    """Return the names of all columns, in the order in which the rows have them."""
    names: dict[str, None] = {}
    for record in records:
        for name in record.values:
            if name:
                names[name] = None
    return list(names)


def _usual(usual_names: list[list[str]], columns: list[str]) -> list[str]:
    """Return the columns with usual names, whatever their case; empty if there are none."""
    by_name = {column.lower(): column for column in columns}
    for names in usual_names:
        if all(name in by_name for name in names):
            return [by_name[name] for name in names]
    return []


def _is_conllu(record: SourceRow, columns: list[str]) -> bool:
    """Return whether a sentence is in CoNLL-U: ten columns, of which the first numbers the words."""
    if len(columns) != CONLLU_COLUMNS:
        return False
    return all(cell.isdecimal() for cell in record.values["1"])


def _header_hint(format_: FileFormat | None, columns: list[str]) -> str:
    """Return what to do if the names of the columns look like a row, or like several in one."""
    if format_ is None or not format_.separator:
        return ""
    if len(columns) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in columns[0] and name != format_.separator:
                return (
                    f". The cells seem to be separated by {name}; a .{format_.name} file has"
                    f" {format_.separator}: {_remedy_for(name, format_)}"
                )
    looks_like_a_row = any(name.count(" ") > 2 or not isnan(as_number(name)) for name in columns)
    if not looks_like_a_row:
        return ""
    return ". The first line is read as their names; if it is a row, write a line of names above it"


def _remedy_for(separator: str, format_: FileFormat) -> str:
    """Return what to do with a file whose cells are separated as those of another format.

    Args:
        separator: what stands between its cells, as people call it.
        format_: the one that the file's name says.
    """
    for other in FORMATS.values():
        if other.separator == separator:
            return f"rename it so that it ends in {other.suffixes[0]}"
    # Programs in countries with a decimal comma write semicolons and commas together.
    return (
        f"write it with {format_.separator}, and numbers as 0.5 instead of 0,5 (docs/data.md has"
        " the lines for it)"
    )


# --- labels


def find_labels(
    source: str,
    records: Sequence[SourceRow],
    columns: Columns,
    names_of: dict[str, list[str]],
    options: DataOptions,
) -> FoundLabels:
    """Return the kind of task, its labels and their counts.

    Args:
        source: the data, for messages.
        records: the training rows.
        columns: of the texts and the labels.
        names_of: the class names of columns of class indices.
        options: what the user said about the data.

    Raises:
        UsageError: there are no labels, only one, or a mixture that fits no kind of task.
    """
    cells = _label_cells(source, records, columns, options)
    values = [value for _, value in cells]
    kind, why = _kind(records, columns, values, options)
    rules = KINDS[kind](options.labels, options.separator_or_default)
    has_columns = len(columns.label) > 1
    has_vectors = rules.has_any_number_of_labels and _are_vectors(values)
    if rules.has_one_label:
        _check_single(source, columns, cells, kind, options)
    # The names of such labels are those of the columns or numbers, if the user gives none.
    if has_columns or has_vectors:
        return _labels_of_vectors(source, columns, values, why, options)
    name = columns.label[0]
    # A task of numbers has one label, which names the number.
    if rules.labels_are_numbers:
        return FoundLabels(kind, why, [name], Counter(), values)
    found = _named_labels(source, kind, why, values, names_of.get(name, []), options)
    # Lists may be there, and all of them empty.
    if not found.counts:
        raise UsageError(f"{source}: every cell of {name} is empty")
    return found


def _named_labels(
    source: str,
    kind: Kind,
    why: str,
    values: list[Any],
    names: list[str],
    options: DataOptions,
) -> FoundLabels:
    """Return labels that are names, or integers that stand for names.

    Args:
        source: the data, for messages.
        kind: of the task.
        why: what shows this, in a few words.
        values: the cells of the labels.
        names: the class names that the data have for indices; mostly none.
        options: what the user said about the data.

    Raises:
        UsageError: there is only one.
    """
    rules = KINDS[kind](options.labels, options.separator_or_default)
    counts: Counter[str] = Counter()
    for value in values:
        counts.update(rules.names_in(value))
    found = names or sorted(counts, key=_order)
    labels = options.labels or found
    names_in_data = _named_integers(source, list(counts), options.labels)
    # The counts are of the task's labels from here on, not of the data's integers.
    if names_in_data:
        name_of = dict(zip(names_in_data, labels, strict=True))
        counts = Counter({name_of[index]: count for index, count in counts.items()})
        explained = [f"{index} is {word}" for index, word in name_of.items()]
        why = f"{why}; {', '.join(explained)}"
    if len(labels) == len(found) == 1:
        raise UsageError(
            f"{source}: all {rules.unit} have the label '{labels[0]}'; two classes are needed"
        )
    return FoundLabels(kind, why, labels, counts, values, names_in_data=names_in_data)


def _label_cells(
    source: str, records: Sequence[SourceRow], columns: Columns, options: DataOptions
) -> list[tuple[str, Any]]:
    """Return where each label stands, and the label, without empty ones and those that are left out.

    Raises:
        UsageError: all are empty, or some hold values in values.
    """
    name = columns.label[0]
    cells = []
    for record in records:
        value = record.values.get(name)
        if len(columns.label) > 1:
            value = [record.values.get(column) for column in columns.label]
        if not is_missing(value) and not _stands_for_none(value, options):
            cells.append((record.where, value))
    if not cells:
        raise UsageError(f"{source}: every cell of {name} is empty")
    nested = [where for where, value in cells if _is_nested(value)]
    if nested:
        raise UsageError(
            f"{source}, {abbreviate(nested)}: {name} holds objects or lists in lists; give a text, a"
            " number, or a list of them"
        )
    return cells


def _stands_for_none(value: Any, options: DataOptions) -> bool:
    """Return whether a cell has a label that leaves its row out, as the user says."""
    return not isinstance(value, list) and label_name(value) in options.missing


def left_out_rows(
    records: Sequence[SourceRow], columns: Columns, options: DataOptions
) -> dict[str, int]:
    """Return how many rows each label leaves out that stands for none, as the user says."""
    counts = dict.fromkeys(options.missing, 0)
    for record in records:
        value = record.values.get(columns.label[0])
        if _stands_for_none(value, options):
            counts[label_name(value)] += 1
    return counts


def _is_nested(value: Any) -> bool:
    """Return whether a cell is an object, or a list of objects or lists."""
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(part, dict | list) for part in value)


def _kind(
    records: Sequence[SourceRow], columns: Columns, values: list[Any], options: DataOptions
) -> tuple[Kind, str]:
    """Return the kind of task that the user says or the data show, and what shows it, in a few words."""
    # The user's word decides, then the texts, then the labels: from the most special to the most
    # general.
    if options.kind:
        return options.kind, "as kind= says"
    first_input = columns.inputs[0]
    texts = [record.values.get(first_input) for record in records]
    # An object of JSON may lack the column, and a sentence may be a text of words among lists of them.
    # A table has lists as texts.
    if any(isinstance(text, list) for text in texts) or all(list_in(text) for text in texts):
        return "token-classification", f"column {first_input} has the words of a sentence"
    if len(columns.label) > 1:
        return "multi-label", "a column of 0 and 1 for each label"
    if _are_vectors(values):
        places = len(vector_in(values[0]) or [])
        return "multi-label", f"each label is {places} numbers 0 or 1"
    if any(isinstance(value, list) for value in values):
        return "multi-label", "labels are lists"
    if all(list_in(value) is not None for value in values):
        return "multi-label", "labels are lists, written as texts"
    if options.separator:
        return "multi-label", "separator= is given"
    numbers = [as_number(value) for value in values]
    different = len({label_name(value) for value in values})
    if any(isnan(number) for number in numbers):
        return "classification", f"{different} different texts"
    # Whole numbers are more often the numbers of classes than scores; the summary says so.
    if all(number.is_integer() for number in numbers):
        return "classification", f"{different} different whole numbers"
    return "regression", "labels are numbers with fractions"


def _are_vectors(values: list[Any]) -> bool:
    """Return whether all labels are vectors of 0 and 1, one of which may have a wrong length."""
    return all(vector_in(value) is not None for value in values)


def _check_single(
    source: str,
    columns: Columns,
    cells: list[tuple[str, Any]],
    kind: Kind,
    options: DataOptions,
) -> None:
    """Refuse lists where a row has one label, and words among numbers.

    Args:
        source: the data, for messages.
        columns: of the texts and the labels.
        cells: where each label stands, and the label.
        kind: of the task.
        options: what the user said about the data.

    Raises:
        UsageError: there are such cells; the rows are named.
    """
    name = columns.label[0]
    if len(columns.label) > 1 or any(isinstance(value, list) for _, value in cells):
        raise UsageError(
            f"{source}: {name} has several labels in a row, and kind={kind} takes one; leave kind= out"
        )
    must_be_numbers = KINDS[kind].labels_are_numbers
    # A user who gives the kind or the names says that the labels are names.
    are_names = not must_be_numbers and bool(options.kind or options.labels)
    if not are_names:
        _check_numbers(source, name, cells, must_be_numbers=must_be_numbers)


def _check_numbers(
    source: str, name: str, cells: list[tuple[str, Any]], *, must_be_numbers: bool
) -> None:
    """Refuse labels that are no numbers where all must be, and where most others are.

    Args:
        source: the data, for messages.
        name: of the label's column.
        cells: where each label stands, and the label.
        must_be_numbers: whether the task is one of numbers.

    Raises:
        UsageError: there are such labels; the rows are named.
    """
    others = [(where, value) for where, value in cells if isnan(as_number(value))]
    if not others:
        return
    decorated = [value for _, value in others if is_decorated_number(value)]
    numbers = len(cells) - len(others)
    different = len({label_name(value) for _, value in cells})
    # A class of words among classes of numbers is seldom meant, nor are many classes that are numbers
    # but for a sign.
    are_mostly_numbers = 2 * numbers >= len(cells)
    are_scores = different > MANY_LABELS and 2 * (numbers + len(decorated)) >= len(cells)
    if not (must_be_numbers or are_mostly_numbers or are_scores):
        return
    where = abbreviate([place for place, _ in others])
    shown = list(dict.fromkeys(label_name(value)[:20] for _, value in others))
    words = abbreviate([repr(word) for word in shown])
    ways = "kind=classification takes each value as a class"
    if must_be_numbers:
        ways = "kind=regression takes numbers alone"
    # A few words among numbers may stand for none; 85% or <0.1 are numbers that must be corrected.
    if numbers and len(shown) <= 3 and not decorated:
        ways = f"missing=[{','.join(shown)}] leaves these rows out; {ways}"
    raise UsageError(
        f"{source}, {where}: {name} is {words}, no number, where {numbers} of {len(cells)} rows have"
        f" numbers: correct them, such as 0.5 for 0,5 or 50 for 50%; {ways}"
    )


def _labels_of_vectors(
    source: str, columns: Columns, values: list[Any], why: str, options: DataOptions
) -> FoundLabels:
    """Return the labels of vectors of 0 and 1, or of columns of them.

    Args:
        source: the data, for messages.
        columns: of the texts and the labels.
        values: the labels of the rows.
        why: what shows that the task is multi-label, in a few words.
        options: what the user said about the data.

    Raises:
        UsageError: their number is not that of the given names.
    """
    default = columns.label
    if len(columns.label) == 1:
        places = len(vector_in(values[0]) or [])
        default = [str(place) for place in range(places)]
    labels = options.labels or default
    if len(labels) != len(default):
        raise UsageError(
            f"{source}: labels= has {len(labels)} names, and each row has {len(default)} numbers"
            " 0 or 1"
        )
    counts: Counter[str] = Counter()
    for value in values:
        vector = vector_in(value)
        if vector is None or len(vector) != len(labels):
            # Such a row is refused where the rows are read, with its line.
            continue
        for name, has_it in zip(labels, vector, strict=True):
            if has_it:
                counts[name] += 1
    return FoundLabels("multi-label", why, labels, counts, values, is_vector=True)


def _named_integers(source: str, found: list[str], names: list[str]) -> list[str]:
    """Return the integers of the data that the given names stand for, in the order of the names.

    The first name is that of 0; where the integers begin elsewhere, that of the lowest. Nothing is
    returned where the data have the names themselves, or other words.

    Args:
        source: the data, for messages.
        found: the labels of the data.
        names: those that the user gives.

    Raises:
        UsageError: there are not as many names as integers.
    """
    has_names = not {*found}.isdisjoint(names)
    are_integers = bool(found) and all(is_integer(label) for label in found)
    if not names or has_names or not are_integers:
        return []
    integers = sorted(int(label) for label in found)
    if integers[0] >= 0 and integers[-1] < len(names):
        return [str(integer) for integer in range(len(names))]
    in_data = [str(integer) for integer in integers]
    if len(in_data) != len(names):
        raise UsageError(
            f"{source}: labels= has {len(names)} names, and the data have the"
            f" {len(in_data)} labels {abbreviate(in_data)}"
        )
    return in_data


def _order(name: str) -> tuple[bool, float, str]:
    """Return the key by which class names are sorted: numbers by their value, then words."""
    number = as_number(name)
    return isnan(number), number, name
