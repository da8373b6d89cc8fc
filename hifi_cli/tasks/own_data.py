"""A data file or hub dataset as a task: its YAML, from columns that are named or have usual names."""

import atexit
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, names_elsewhere, parse
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import parse_override
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.files import file_digest, safe_name, write_text
from hifi_cli.tasks import data_summary
from hifi_cli.tasks.file_formats import (
    CONLLU_COLUMNS,
    READER_OF_SUFFIX,
    SourceRow,
    class_names,
    parquet_class_names,
    read,
    reader_of,
    tsv_has_quotes,
)
from hifi_cli.tasks.kinds import KINDS, Kind
from hifi_cli.tasks.labels import (
    as_number,
    is_decorated_number,
    is_integer,
    is_missing,
    label_name,
    list_in,
    vector_in,
)
from hifi_cli.tasks.sources import hub_records, load_tables
from hifi_cli.tasks.task_spec import Name, Names, TaskSpec, check
from hifi_cli.text import abbreviate, printable

HUB = "hub:"  # before the name of a dataset that is given in the place of a task
INPUT_NAMES = [  # the first of these that the data have
    ["sentence1", "sentence2"],
    ["premise", "hypothesis"],
    ["text1", "text2"],
    ["question", "sentence"],
    ["text"],
    ["sentence"],
    ["tokens"],
    ["words"],
    ["1"],  # of a CoNLL file
]
LABEL_NAMES = [["label"], ["labels"], ["tags"], ["ner_tags"]]
CONLLU_FORM, CONLLU_TAG = "2", "4"  # columns of CoNLL-U: the word, and its universal tag
MANY_LABELS = 10  # more different labels than most classifications have
VALIDATION_NAMES = ("validation", "dev", "valid", "val")  # of the split of a hub dataset


class DataOptions(ConfigModel):
    """How a data file is read, as `key=value` on the command line."""

    inputs: Names = []
    """One or two text columns, or the column of words; a CoNLL file's columns are numbers from 1."""
    label: Names = []
    """Column of the label, of the labels or of the tags; multi-label: or a column of 0 and 1 for each label."""
    separator: str | None = Field(None, min_length=1)
    """The character between the labels of a row (multi-label)."""
    id: Name | None = None
    """Column of the row's unique id."""
    kind: Literal["classification", "multi-label", "regression", "token-classification"] | None = (
        None
    )
    """What is predicted."""
    labels: Names = []
    """Class names, in label order; default: sorted. They name the integers of a file in their order."""
    missing: Names = []
    """Labels that stand for no label: rows that have one are left out."""
    validation: str | float | None = None
    """File (hub: split) of the validation rows, or the fraction of the rows that is cut off."""
    test: str | None = None
    """File (hub: split) of rows to predict."""
    split_seed: Seed = 0
    """Seed of the cut."""
    skip_incomplete: bool = False
    """Skip rows without any text or without a label instead of refusing the file."""
    quotes: bool | None = None
    """TSV: whether cells may stand in quotes; default: as the file shows."""


# Keys whose value is a text as it is typed: YAML's rules for #, @, yes, 01 or null are not for names.
_TEXTS = ("id", "kind", "validation", "test")
_LISTS = ("inputs", "label", "labels", "missing")


def is_data_source(name: str) -> bool:
    """Return whether the name of a task is a data file or a hub dataset."""
    return name.startswith(HUB) or Path(name).suffix.lower() in READER_OF_SUFFIX


def split_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the `key=value` arguments about data from those of the run's configuration.

    Raises:
        UsageError: a key is neither's, and is nearest to one about data.
    """
    about_data, others = [], []
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in DataOptions.model_fields:
            about_data.append(text)
            continue
        others.append(text)
        if suggestion := _nearest_about_data(key):
            raise UsageError(f"command line: unknown key '{key}'{suggestion}")
    return about_data, others


def _nearest_about_data(key: str) -> str:
    """Return a phrase that suggests a key about data, where an unknown key is nearest to one."""
    if key.partition(".")[0] in RunConfig.model_fields or key in names_elsewhere(RunConfig):
        return ""
    suggestion = registry.did_you_mean(key, DataOptions.model_fields)
    of_all = registry.did_you_mean(key, [*RunConfig.model_fields, *DataOptions.model_fields])
    return suggestion if suggestion == of_all else ""


def check_has_data(overrides: Sequence[str]) -> None:
    """Refuse words about data where the task is no data file or hub dataset.

    Raises:
        UsageError: there is such a word.
    """
    for text in overrides:
        key = text.partition("=")[0].strip()
        what = ""
        if key in DataOptions.model_fields:
            what = f"'{text:.60}'"
        elif suggestion := _nearest_about_data(key):
            what = f"unknown key '{key}'{suggestion} It"
        if what:
            raise UsageError(
                f"command line: {what} says how a data file or hub dataset is read, and no --task"
                " names one; a shipped task is changed in a copy: hifi ls tasks/NAME > my-task.yaml"
            )


def register(source: str, overrides: Sequence[str]) -> str:
    """Write the task's YAML to a temporary folder; returns its path, which stands for the task."""
    task = from_data(source, overrides)
    for line in task.summary:
        logger.info(f"{source}: {line}")
    folder = Path(tempfile.mkdtemp(prefix="hifi-task-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_text(folder / f"{task.name}.yaml", task.text)
    return str(folder / f"{task.name}.yaml")


@dataclass(frozen=True)
class TaskFromData:
    """A task that was made from data.

    Attributes:
        name: of the task.
        text: its YAML.
        summary: what was recognized, and what may be wrong, a line each.
    """

    name: str
    text: str
    summary: list[str]

    def with_summary(self) -> str:
        """Return the YAML with the summary as comments below its first line."""
        first, _, rest = self.text.partition("\n")
        comments = [f"# {line}" for line in self.summary]
        return "\n".join([first, *comments, rest])


def from_data(source: str, overrides: Sequence[str]) -> TaskFromData:
    """Return the task that data are for.

    Args:
        source: a CSV, TSV, JSONL, Parquet or CoNLL file, or `hub:owner/name[:config]`.
        overrides: `key=value` with the keys of `DataOptions`.

    Raises:
        MissingError: no such file or dataset.
        UsageError: the columns cannot be recognized, or a row is malformed; the message says what
            to give.
    """
    options = _parse_options(overrides)
    data = _read_hub(source, options) if source.startswith(HUB) else _read_file(source, options)
    if not data.records:
        raise UsageError(f"{source} has no rows")
    columns = _columns(source, data, options)
    found = _labels(source, data, columns, options)
    metrics = found.rules.usual_metrics()
    content = _content(source, data, columns, found, options)
    check(parse(TaskSpec, content, source), source)
    label = columns.label[0] if len(columns.label) == 1 else f"[{','.join(columns.label)}]"
    what = (
        f"{found.kind} ({found.why}), inputs=[{','.join(columns.inputs)}] label={label},"
        f" {len(data.records)} rows; change it with key=value"
    )
    more = data_summary.lines(data.records, columns.all, found, metrics)
    summary = [" ".join(printable(line).split()) for line in (what, *more, *data.notes)]
    made_from = " ".join(["# made from", source, *_digests(data)])
    text = registry.yaml_text(content, allow_unicode=True)
    return TaskFromData(content["label"], f"{made_from}\n{text}", summary)


def _content(
    source: str,
    data: "_Data",
    columns: "_Columns",
    found: data_summary.FoundLabels,
    options: DataOptions,
) -> dict[str, Any]:
    """Return the content of the task's YAML."""
    metrics = found.rules.usual_metrics()
    content: dict[str, Any] = {
        "description": f"{found.kind} of {' and '.join(columns.inputs)} by {', '.join(columns.label)}",
        "label": f"{data.name}-data" if data.name in registry.names("tasks") else data.name,
        "source": source,
        "kind": found.kind,
        "format": found.rules.formats[0],
        "inputs": columns.inputs,
        "id": options.id,
        "labels": found.labels,
        "label_separator": options.separator or "|",
        "metrics": metrics,
        "primary": metrics[0],
        "skip_incomplete": options.skip_incomplete,
        **data.sections,
    }
    section = data.sections["hub" if "hub" in data.sections else "local"]
    if found.is_vector:
        content["label_vectors"] = True
    if len(columns.label) > 1:
        content["label_columns"] = [*columns.label]  # PyYAML writes a list twice as a reference
    else:
        section["columns"] = {"label": columns.label[0]}
    if found.names_in_data:
        section["labels"] = found.names_in_data
    if options.missing:
        content["missing"] = options.missing
    if options.skip_incomplete and len(columns.inputs) == 2:
        content["one_text_suffices"] = True
    if "validation" not in {**section.get("files", {}), **section.get("splits", {})}:
        fraction = 0.1 if options.validation is None else options.validation
        content["cut"] = {"validation": fraction, "seed": options.split_seed}
    return content


def _digests(data: "_Data") -> list[str]:
    """Return the digests of the files that are trained and selected on."""
    local = data.sections["local"]
    files = local.get("files", {})
    return [
        file_digest(Path(local["directory"], files[split]))
        for split in ("train", "validation")
        if split in files
    ]


# The words of the command line


def _parse_options(overrides: Sequence[str]) -> DataOptions:
    """Return the options that `key=value` words give.

    Raises:
        UsageError: an unknown key, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        # As it is, unless it is in quotes: a space or | is a separator too.
        is_plain_separator = key == "separator" and text[:1] not in ("'", '"', "")
        if is_plain_separator:
            values[key] = text
        elif not equals or key not in (*_TEXTS, *_LISTS):
            values |= parse_override(override)
        elif not text.strip():
            raise UsageError(f"'{override}': a value is expected after {key}=")
        else:
            values[key] = names_in(text) if key in _LISTS else _unquoted(text)
    validation = values.get("validation")
    if validation and not isnan(as_number(validation)) and not Path(validation).exists():
        values["validation"] = as_number(validation)
    return parse(DataOptions, values, "command line")


def names_in(text: str) -> list[str]:
    """Return the names that are typed: one, or several as `[a, b]`; quotes keep commas and brackets."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [_unquoted(text)]
    parts = re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]*?)\s*(?:,|$)""", text[1:-1])
    # The pattern also finds the nothing after the last name.
    return [_unquoted(part) for part in parts if part]


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text


# The sources


@dataclass(frozen=True)
class _Data:
    """Data as their source has them.

    Attributes:
        name: of the task.
        sections: the YAML's keys `local` and `hub`.
        records: the training rows.
        names: the class names of columns of class indices.
        reader: the format of the training rows; `hub` for a hub dataset.
        notes: what the reader decided, a line each.
    """

    name: str
    sections: dict[str, Any]
    records: list[SourceRow]
    names: dict[str, list[str]]
    reader: str
    notes: list[str]


@dataclass(frozen=True)
class _Columns:
    """The columns of the data: those of the texts, those of the labels, and all."""

    inputs: list[str]
    label: list[str]
    all: list[str]


def _read_file(source: str, options: DataOptions) -> _Data:
    path = Path(source)
    directory = path.resolve().parent
    given = {"train": source, "validation": options.validation, "test": options.test}
    paths = {split: Path(file) for split, file in given.items() if isinstance(file, str)}
    for split, file in paths.items():
        if not file.is_file() and split != "train":
            raise MissingError(f"there is no file {file}")
    readers = {split: reader_of(file) for split, file in paths.items()}
    reader = readers["train"]
    other_readers = {split: other for split, other in readers.items() if other != reader}
    has_quotes, notes = _quotes(paths, options)
    records = list(read(path, reader, quotes=has_quotes))
    local: dict[str, Any] = {
        "folder": ".",
        "directory": str(directory),
        "reader": reader,
        "files": {
            split: os.path.relpath(file.resolve(), directory) for split, file in paths.items()
        },
    }
    if other_readers:
        local["readers"] = other_readers
    if has_quotes:
        local["quotes"] = True
    names = parquet_class_names(path) if reader == "parquet" else {}
    name = safe_name(directory.name if path.stem == "train" else path.stem)
    if registry.is_yaml_path(name):  # a stored name must not look like that of a file
        name = name.replace(".", "-")
    return _Data(name, {"local": local}, records, names, reader, notes)


def _quotes(paths: dict[str, Path], options: DataOptions) -> tuple[bool, list[str]]:
    """Return whether quotes enclose the cells of the TSV files, and what is said about it."""
    tables = [path for path in paths.values() if path.suffix.lower() == ".tsv" and path.is_file()]
    if not tables or options.quotes is not None:
        return bool(options.quotes), []
    has_quotes, in_quotes = tsv_has_quotes(tables[0])
    if has_quotes:
        return True, ["the quotes around cells are removed; quotes=false keeps them as text"]
    if in_quotes:
        return False, [
            f"{in_quotes} cells stand in quotes, which are text; quotes=true removes them"
        ]
    return False, []


def _read_hub(source: str, options: DataOptions) -> _Data:
    repository, _, config = source.removeprefix(HUB).partition(":")
    tables, _ = load_tables(repository, None, config or None)
    usual = next((name for name in VALIDATION_NAMES if name in tables), None)
    given = {
        "train": "train",
        "validation": options.validation or usual,
        "test": options.test or "test",
    }
    splits = {split: name for split, name in given.items() if isinstance(name, str)}
    if "train" not in tables:
        raise UsageError(f"{source} has no split 'train'; the splits are {', '.join(tables)}")
    names = {name: class_names(feature) for name, feature in tables["train"].features.items()}
    hub = {"id": repository, "config": config or None, "splits": splits}
    sections = {"local": {"folder": ".", "files": {}}, "hub": hub}
    name = repository.rstrip("/").split("/")[-1] + (f"-{config}" if config else "")
    return _Data(
        safe_name(name), sections, list(hub_records(tables["train"])), names, "hub", notes=[]
    )


# What the data show


def _columns(source: str, data: _Data, options: DataOptions) -> _Columns:
    """Return the columns of the texts and the label: those given, or those with usual names.

    Raises:
        UsageError: there are no such columns.
    """
    columns = list(dict.fromkeys(name for row in data.records for name in row.values if name))
    inputs = options.inputs or _usual(INPUT_NAMES, columns)
    last = [str(len(columns))]  # of a CoNLL file
    label = options.label or _usual([*LABEL_NAMES, last], columns)
    if data.reader == "conll" and _is_conllu(data.records[0], columns):
        inputs = options.inputs or [CONLLU_FORM]
        label = options.label or [CONLLU_TAG]
    given = [*options.inputs, *options.label, *([options.id] if options.id else [])]
    wrong = [name for name in given if name not in columns]
    if wrong or not inputs or not label:
        problem = "which columns are the texts and the label?"
        if wrong:
            problem = f"no column '{wrong[0]}'{registry.did_you_mean(wrong[0], columns) or '.'}"
        raise UsageError(
            f"{source}: {problem} Give inputs=COLUMN or inputs=[COLUMN,COLUMN], and label=COLUMN;"
            f" the columns are {', '.join(columns)}{_header_hint(data.reader, columns)}"
        )
    if "label" in {*inputs, options.id} - {*label}:
        raise UsageError(
            f"{source}: rename the column 'label', which is hifi's own name for '{label[0]}'"
        )
    if both := [name for name in label if name in inputs]:
        raise UsageError(
            f"{source}: the column '{both[0]}' would be text and label: give inputs=COLUMN and"
            f" label=COLUMN; the columns are {', '.join(columns)}"
        )
    return _Columns(inputs, label, columns)


def _header_hint(reader: str, columns: list[str]) -> str:
    """Return what to do if the names of the columns look like a row, or like several in one."""
    if reader not in ("csv", "tsv"):
        return ""
    separators = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars"}
    expected = "commas" if reader == "csv" else "tabs"
    for separator, name in separators.items():
        if len(columns) == 1 and separator in columns[0] and name != expected:
            return f". The cells seem to be separated by {name}; a .{reader} file has {expected}"
    if not any(name.count(" ") > 2 or not isnan(as_number(name)) for name in columns):
        return ""
    return ". The first line is read as their names; if it is a row, write a line of names above it"


def _is_conllu(record: SourceRow, columns: list[str]) -> bool:
    return len(columns) == CONLLU_COLUMNS and all(cell.isdecimal() for cell in record.values["1"])


def _usual(names: list[list[str]], columns: list[str]) -> list[str]:
    """Return the columns with usual names, whatever their case; empty if there are none."""
    by_name = {column.lower(): column for column in columns}
    return next(
        ([by_name[name] for name in usual] for usual in names if by_name.keys() >= {*usual}), []
    )


def _labels(
    source: str, data: _Data, columns: _Columns, options: DataOptions
) -> data_summary.FoundLabels:
    """Return the kind of task, its labels and their counts.

    Raises:
        UsageError: there are no labels, only one, or a mixture that fits no kind of task.
    """
    is_several = len(columns.label) > 1
    name = columns.label[0]
    pairs = []  # of a row's place and label
    for record in data.records:
        value = record.values.get(name)
        if is_several:
            value = [record.values.get(column) for column in columns.label]
        is_left_out = not isinstance(value, list) and label_name(value) in options.missing
        if not is_missing(value) and not is_left_out:
            pairs.append((record.where, value))
    if not pairs:
        raise UsageError(f"{source}: every cell of {name} is empty")
    nested = [where for where, value in pairs if _is_nested(value)]
    if nested:
        raise UsageError(
            f"{source}, {abbreviate(nested)}: {name} holds objects or lists in lists; give a text, a"
            " number, or a list of them"
        )
    values = [value for _, value in pairs]
    kind, why = _kind(data, columns, values, options)
    separator = options.separator or "|"
    rules = KINDS[kind](options.labels, separator)
    is_vector = is_several
    if rules.has_any_number_of_labels and not is_several:
        is_vector = _are_vectors([vector_in(value) for value in values])
    if rules.has_one_label:
        _check_single(source, columns, pairs, kind, options)
    if is_vector:
        return _labels_of_vectors(source, columns, values, why, options)
    if rules.labels_are_numbers:
        return data_summary.FoundLabels(kind, why, [name], Counter(), values)
    counts = Counter(label for value in values for label in rules.names_in(value))
    found = data.names.get(name) or sorted(counts, key=_order)
    labels = options.labels or found
    if not labels:
        raise UsageError(f"{source}: every cell of {name} is empty")
    names_in_data = _named_integers(source, [*counts], options.labels)
    if names_in_data:
        names = dict(zip(names_in_data, labels, strict=True))
        counts = Counter({names[label]: count for label, count in counts.items()})
        why = f"{why}; {', '.join(f'{index} is {word}' for index, word in names.items())}"
    if len(labels) == len(found) == 1:
        raise UsageError(
            f"{source}: all {rules.unit} have the label '{labels[0]}'; two classes are needed"
        )
    return data_summary.FoundLabels(kind, why, labels, counts, values, names_in_data=names_in_data)


def _is_nested(value: Any) -> bool:
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(part, dict | list) for part in value)


def _kind(
    data: _Data, columns: _Columns, values: list[Any], options: DataOptions
) -> tuple[Kind, str]:
    """Return the kind of task that the labels show, and why."""
    if options.kind:
        return options.kind, "as kind= says"
    texts = next((row.values[columns.inputs[0]] for row in data.records), None)
    if isinstance(texts, list):
        return "token-classification", f"column {columns.inputs[0]} has the words of a sentence"
    if len(columns.label) > 1:
        return "multi-label", "a column of 0 and 1 for each label"
    vectors = [vector_in(value) for value in values]
    if _are_vectors(vectors):
        return "multi-label", f"each label is {len(vectors[0] or [])} numbers 0 or 1"
    if any(isinstance(value, list) for value in values):
        return "multi-label", "labels are lists"
    if all(list_in(value) is not None for value in values):
        return "multi-label", "labels are lists, written as texts"
    if options.separator:
        return "multi-label", "separator= is given"
    numbers = [as_number(value) for value in values]
    different = len({label_name(value) for value in values})
    if not any(map(isnan, numbers)):
        if any(not number.is_integer() for number in numbers):
            return "regression", "labels are numbers with fractions"
        return "classification", f"{different} different whole numbers"
    return "classification", f"{different} different texts"


def _are_vectors(vectors: list[list[int] | None]) -> bool:
    """Return whether all labels are vectors of 0 and 1 of the same length."""
    lengths = {len(vector) if vector else 0 for vector in vectors}
    return len(lengths) == 1 and lengths != {0}


def _check_single(
    source: str,
    columns: _Columns,
    pairs: list[tuple[str, Any]],
    kind: Kind,
    options: DataOptions,
) -> None:
    """Refuse lists where a row has one label, and numbers among which some cells are no numbers.

    Raises:
        UsageError: there are such cells; the rows are named.
    """
    name = columns.label[0]
    if len(columns.label) > 1 or any(isinstance(value, list) for _, value in pairs):
        raise UsageError(
            f"{source}: {name} has several labels in a row, and kind={kind} takes one; leave kind= out"
        )
    are_numbers = KINDS[kind].labels_are_numbers
    if not are_numbers and (options.kind or options.labels):
        return
    others = [(where, value) for where, value in pairs if isnan(as_number(value))]
    decorated = [value for _, value in others if is_decorated_number(value)]
    numbers = len(pairs) - len(others)
    different = len({label_name(value) for _, value in pairs})
    are_scores = different > MANY_LABELS and 2 * (numbers + len(decorated)) >= len(pairs)
    if not others or not (are_numbers or are_scores or 2 * numbers >= len(pairs)):
        return
    shown = list(dict.fromkeys(label_name(value)[:20] for _, value in others))
    where = abbreviate([place for place, _ in others])
    ways = "kind=classification takes each value as a class"
    if are_numbers:
        ways = "each must be one"
    if len(shown) <= 3 and not decorated:
        ways = f"missing=[{','.join(shown)}] leaves these rows out; {ways}"
    raise UsageError(
        f"{source}, {where}: {name} is {abbreviate([repr(word) for word in shown])}, no number, where"
        f" {numbers} of {len(pairs)} rows have numbers: correct them, such as 0.5 for 0,5 or 50 for"
        f" 50%; {ways}"
    )


def _labels_of_vectors(
    source: str, columns: _Columns, values: list[Any], why: str, options: DataOptions
) -> data_summary.FoundLabels:
    """Return the labels of vectors of 0 and 1, or of columns of them.

    Raises:
        UsageError: their number is not that of the given names.
    """
    are_columns = len(columns.label) > 1
    places = len(columns.label) if are_columns else len(vector_in(values[0]) or [])
    default = columns.label if are_columns else [str(place) for place in range(places)]
    labels = options.labels or default
    if len(labels) != places:
        raise UsageError(
            f"{source}: labels= has {len(labels)} names, and each row has {places} numbers 0 or 1"
        )
    counts: Counter[str] = Counter()
    for value in values:
        vector = vector_in(value)
        if vector:
            counts.update(name for name, is_it in zip(labels, vector, strict=True) if is_it)
    return data_summary.FoundLabels("multi-label", why, labels, counts, values, is_vector=True)


def _named_integers(source: str, found: list[str], names: list[str]) -> list[str]:
    """Return the integers of the data that the given names stand for, in the order of the names.

    The first name is that of 0; where the integers begin elsewhere, that of the lowest. Nothing is
    returned where the data have the names themselves, or other words.

    Raises:
        UsageError: there are not as many names as integers.
    """
    if not names or {*found} & {*names} or not all(map(is_integer, found)):
        return []
    integers = sorted(map(int, found))
    if integers[0] >= 0 and integers[-1] < len(names):
        return [str(integer) for integer in range(len(names))]
    if len(integers) != len(names):
        raise UsageError(
            f"{source}: labels= has {len(names)} names, and the data have the"
            f" {len(integers)} labels {abbreviate(list(map(str, integers)))}"
        )
    return [str(integer) for integer in integers]


def _order(name: str) -> tuple[bool, float, str]:
    """Sort class names: numbers, then words."""
    return isnan(as_number(name)), as_number(name), name
