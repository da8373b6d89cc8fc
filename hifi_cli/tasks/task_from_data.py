"""A data file or hub dataset as a task: its YAML, from columns that are named or have usual names."""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import parse_override
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name, write_text
from hifi_cli.tasks import data_sources, rows
from hifi_cli.tasks.rows import as_number, is_missing, label_name, labels_in
from hifi_cli.tasks.task_spec import (
    ENTITY_TAG,
    METRICS,
    HubDataset,
    Kind,
    LocalFiles,
    Name,
    Names,
    Reader,
    TaskSpec,
)

logger = logging.getLogger("hifi")
HUB = "hub:"  # before the name of a dataset that is given in the place of a task
READER_OF_SUFFIX: dict[str, Reader] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
}
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
SEPARATOR = "|"  # between the labels of a row
LABEL_NAMES = ("label", "labels", "tags", "ner_tags")
SPLIT_NAMES = {
    "validation": ("validation", "dev", "valid", "val"),
    "test": ("test",),
}  # of hub datasets


class DataOptions(ConfigModel):
    """How a data file is read, as `key=value` on the command line."""

    inputs: Names = []
    """One or two text columns, or the column of words; a CoNLL file's columns are numbers from 1."""
    label: Name | None = None
    """Column of the label, of the labels or of the tags."""
    separator: str | None = Field(None, min_length=1)
    """The character between the labels of a row (multi-label)."""
    id: str | None = None
    """Column of the row's unique id."""
    kind: Literal["classification", "multi-label", "regression", "token-classification"] | None = (
        None
    )
    """What is predicted."""
    labels: Names = []
    """Class names, in label order; default: sorted."""
    validation: str | float | None = None
    """File (hub: split) of the validation rows, or the fraction of the rows that is cut off."""
    test: str | None = None
    """File (hub: split) of rows to predict."""
    split_seed: Seed = 0
    """Seed of the cut."""
    skip_incomplete: bool = False
    """Skip rows without a text or label instead of refusing the file."""


def is_data_source(name: str) -> bool:
    """Return whether the name of a task is a data file or a hub dataset."""
    return name.startswith(HUB) or Path(name).suffix.lower() in READER_OF_SUFFIX


def split_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the `key=value` arguments about data from those of the run's configuration."""
    about_data = [
        text for text in overrides if text.partition("=")[0].strip() in DataOptions.model_fields
    ]
    return about_data, [text for text in overrides if text not in about_data]


def register(source: str, overrides: Sequence[str]) -> str:
    """Write the task's YAML to a temporary folder; returns its path, which stands for the task."""
    name, text = task_yaml(source, overrides)
    folder = Path(tempfile.mkdtemp(prefix="hifi-task-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_text(folder / f"{name}.yaml", text)
    return str(folder / f"{name}.yaml")


def task_yaml(source: str, overrides: Sequence[str]) -> tuple[str, str]:
    """Return the task's name and the text of its YAML, and log what was recognized.

    Args:
        source: a CSV, TSV, JSONL, Parquet or CoNLL file, or `hub:owner/name[:config]`.
        overrides: `key=value` with the keys of `DataOptions`.

    Raises:
        MissingError: no such file or dataset.
        UsageError: the columns cannot be recognized, or a row is malformed; the message says what
            to give.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        values |= parse_override(override)
    options = parse(DataOptions, values, "command line")
    data = (_read_hub if source.startswith(HUB) else _read_file)(source, options)
    content = _task(source, data, options)
    parse(TaskSpec, content, source)
    return content[
        "label"
    ], f"# made from {source}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}"


class _Data(NamedTuple):
    """A file or dataset, and where the task's YAML says that it is.

    Attributes:
        name: of the task, unless a shipped one has it.
        sections: the YAML's keys `local` and `hub`.
        splits: the file, or the dataset's split, of each split.
        records: the training rows.
        class_names: of hub columns that store class indices.
    """

    name: str
    sections: dict[str, dict[str, Any]]
    splits: dict[str, str]
    records: list[dict[str, Any]]
    class_names: dict[str, list[str]]


def _read_file(source: str, options: DataOptions) -> _Data:
    path = Path(source)
    directory = path.resolve().parent
    reader = READER_OF_SUFFIX[path.suffix.lower()]
    records = [
        record.values for record in rows.read(path, LocalFiles(folder=".", files={}, reader=reader))
    ]
    if not records:
        raise UsageError(f"{path} has no rows")
    validation = options.validation if isinstance(options.validation, str) else None
    given = {"train": source, "validation": validation, "test": options.test}
    files = {
        split: os.path.relpath(Path(file).resolve(), directory)
        for split, file in given.items()
        if file
    }
    local = {"folder": ".", "directory": str(directory), "reader": reader, "files": files}
    name = directory.name if path.stem == "train" else path.stem
    return _Data(name, {"local": local}, files, records, {})


def _read_hub(source: str, options: DataOptions) -> _Data:
    repository, _, config = source.removeprefix(HUB).partition(":")
    tables, _ = data_sources.load_tables(HubDataset(id=repository), config or None)
    usual = {
        split: next((name for name in names if name in tables), None)
        for split, names in SPLIT_NAMES.items()
    }
    given = {
        "train": "train",
        "validation": options.validation or usual["validation"],
        "test": options.test or usual["test"],
    }
    splits = {split: name for split, name in given.items() if isinstance(name, str)}
    for name in splits.values():
        if name not in tables:
            raise UsageError(f"{source} has no split '{name}'; the splits are {', '.join(tables)}")
    table = tables["train"]
    records = [record.values for record in data_sources.hub_records(table, source)]
    class_names = {
        column: data_sources.class_names(feature) for column, feature in table.features.items()
    }
    hub = {"id": repository, "config": config or None, "splits": splits}
    name = repository.rstrip("/").split("/")[-1] + (f"-{config}" if config else "")
    return _Data(
        name, {"local": {"folder": ".", "files": {}}, "hub": hub}, splits, records, class_names
    )


def _task(source: str, data: _Data, options: DataOptions) -> dict[str, Any]:
    """Return the content of a task's YAML, and log what was recognized."""
    columns = list(data.records[0])
    inputs = options.inputs or _usual(INPUT_NAMES, columns)
    last = str(len(columns))  # of a CoNLL file's
    label = options.label or next(
        iter(_usual([[name] for name in (*LABEL_NAMES, last)], columns)), None
    )
    if not inputs or not label:
        raise UsageError(
            f"{source}: which columns are the texts and the label? Give inputs=COLUMN or inputs=[COLUMN,COLUMN],"
            f" and label=COLUMN; the columns are {', '.join(columns)}"
        )
    if unknown := next((column for column in (*inputs, label) if column not in columns), None):
        suggestion = registry.nearest(unknown, columns)
        raise UsageError(
            f"{source}: no column '{unknown}'{suggestion}; the columns are {', '.join(columns)}"
        )
    has_words = isinstance(data.records[0][inputs[0]], list)
    values = [record.get(label) for record in data.records]
    kind = options.kind or ("token-classification" if has_words else _kind(values, options))
    labels = options.labels or data.class_names.get(label) or _labels(label, values, kind, options)
    metrics = _metrics(kind, labels)
    data.sections.get("hub", data.sections["local"])["columns"] = {"label": label}
    name = safe_name(data.name)
    content = {
        "description": f"{kind} of {' and '.join(inputs)} by {label}",
        "label": f"{name}-data" if name in registry.names("tasks") else name,
        "source": source,
        "kind": kind,
        "format": "words" if kind == "token-classification" else "plain",
        "inputs": inputs,
        "id": options.id,
        "labels": labels,
        "label_separator": options.separator or SEPARATOR,
        "metrics": metrics,
        "primary": metrics[0],
        "skip_incomplete": options.skip_incomplete,
        **data.sections,
    }
    if "validation" not in data.splits:
        fraction = 0.1 if options.validation is None else options.validation
        content["cut"] = {"validation": fraction, "seed": options.split_seed}
    what = f"{kind}, inputs=[{','.join(inputs)}] label={label}"
    classes = f", {len(labels)} labels: {', '.join(labels)[:60]}" if kind != "regression" else ""
    logger.info(f"{source}: {what}{classes}, {len(values)} rows; change it with key=value")
    return content


def _usual(names: list[list[str]], columns: list[str]) -> list[str]:
    """Return the columns with usual names, whatever their case; empty if there are none."""
    by_name = {column.lower(): column for column in columns}
    return next(
        ([by_name[name] for name in usual] for usual in names if by_name.keys() >= {*usual}), []
    )


def _kind(values: list[Any], options: DataOptions) -> Kind:
    """Return the kind of task that the labels show: lists, fractions, or classes."""
    if options.separator or any(isinstance(value, list) for value in values):
        return "multi-label"
    numbers = [as_number(value) for value in values if not is_missing(value)]
    has_fraction = any(number is not None and not number.is_integer() for number in numbers)
    return "regression" if has_fraction and None not in numbers else "classification"


def _metrics(kind: Kind, labels: list[str]) -> list[str]:
    """Return the metrics of a task, the primary one first."""
    if kind == "classification":
        return ["accuracy", "f1", "matthews"] if len(labels) == 2 else ["accuracy", "f1_macro"]
    if kind == "token-classification" and not all(map(ENTITY_TAG.fullmatch, labels)):
        return ["word_accuracy"]
    return [name for name in METRICS[kind] if name != "accuracy"]


def _labels(column: str, values: list[Any], kind: Kind, options: DataOptions) -> list[str]:
    """Return the class names: numbers, then words, sorted; for regression the column's name."""
    if kind == "regression":
        return [column]
    separators = {"multi-label": options.separator or SEPARATOR, "token-classification": None}
    present = [value for value in values if not is_missing(value)]
    if kind == "classification":
        names = {label_name(value) for value in present}
        return sorted(
            names, key=lambda name: (as_number(name) is None, as_number(name) or 0.0, name)
        )
    names = {name for value in present for name in labels_in(value, separators[kind])}
    # the tags of a type stand together, `O` first
    return sorted(
        names,
        key=lambda name: name.partition("-")[::-1] if kind == "token-classification" else name,
    )
