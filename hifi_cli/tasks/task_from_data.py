"""A data file or hub dataset as a task: its YAML, from columns that are named or have usual names."""

import atexit
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import parse_override
from hifi_cli.errors import MissingError, UsageError, first_of, logger
from hifi_cli.files import file_digest, safe_name, write_text
from hifi_cli.tasks.data_sources import class_names, hub_records, load_tables
from hifi_cli.tasks.rows import as_number, is_missing, labels_in, read
from hifi_cli.tasks.task_spec import (
    ENTITY_TAG,
    METRICS,
    Kind,
    Name,
    Names,
    Reader,
    TaskSpec,
)

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
LABEL_NAMES = [["label"], ["labels"], ["tags"], ["ner_tags"]]
VALIDATION_NAMES = ("validation", "dev", "valid", "val")  # of the split of a hub dataset


class DataOptions(ConfigModel):
    """How a data file is read, as `key=value` on the command line."""

    inputs: Names = []
    """One or two text columns, or the column of words; a CoNLL file's columns are numbers from 1."""
    label: Name | None = None
    """Column of the label, of the labels or of the tags."""
    separator: str | None = Field(None, min_length=1)
    """The character between the labels of a row (multi-label)."""
    id: Name | None = None
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
        # as it is, unless it is in quotes: | and , alone mean something else in YAML
        separator = re.fullmatch(r"separator=(?!['\"])(.+)", override)
        values |= {"separator": separator[1]} if separator else parse_override(override)
    options = parse(DataOptions, values, "command line")
    name, sections, records, names = (
        _read_hub(source, options) if source.startswith(HUB) else _read_file(source, options)
    )
    if not records:
        raise UsageError(f"{source} has no rows")
    inputs, label = _columns(source, list(filter(None, records[0])), options)
    given = [record[label] for record in records if not is_missing(record.get(label))]
    has_words = isinstance(records[0][inputs[0]], list)
    kind = options.kind or ("token-classification" if has_words else _kind(given, options))
    label_separator = options.separator or "|"
    counts = Counter(name for value in given for name in labels_in(value, kind, label_separator))
    found = [label] if kind == "regression" else names.get(label) or sorted(counts, key=_order)
    labels = options.labels or found
    if kind == "classification" and len(labels) == len(found) == 1:
        raise UsageError(f"{source}: all rows have the label '{labels[0]}'; two classes are needed")
    metrics = _metrics(kind, labels)
    content: dict[str, Any] = {
        "description": f"{kind} of {' and '.join(inputs)} by {label}",
        "label": f"{name}-data" if name in registry.names("tasks") else name,
        "source": source,
        "kind": kind,
        "format": "words" if kind == "token-classification" else "plain",
        "inputs": inputs,
        "id": options.id,
        "labels": labels,
        "label_separator": label_separator,
        "metrics": metrics,
        "primary": metrics[0],
        "skip_incomplete": options.skip_incomplete,
        **sections,
    }
    section = sections["hub" if "hub" in sections else "local"]
    section["columns"] = {"label": label}
    if "validation" not in {**section.get("files", {}), **section.get("splits", {})}:
        fraction = 0.1 if options.validation is None else options.validation
        content["cut"] = {"validation": fraction, "seed": options.split_seed}
    parse(TaskSpec, content, source)
    rare = [name for name in labels if counts[name] < 2]
    if rare and kind == "classification":
        logger.warning(f"note: {source}: labels of fewer than two rows: {first_of(rare)}")
    classes = f", {len(labels)} labels: {', '.join(labels)[:60]}" if kind != "regression" else ""
    logger.info(
        f"{source}: {kind}, inputs=[{','.join(inputs)}] label={label}{classes}, {len(records)} rows;"
        " change it with key=value"
    )
    files = section.get("files", {})
    trained_on = [
        file_digest(Path(section["directory"], files[split]))
        for split in ("train", "validation")
        if split in files
    ]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return content["label"], f"{' '.join(['# made from', source, *trained_on])}\n{text}"


_Source = tuple[str, dict[str, Any], list[dict[str, Any]], dict[str, list[str]]]
"""The task's name, the YAML's keys `local` and `hub`, the training rows, and the class names of hub columns."""


def _read_file(source: str, options: DataOptions) -> _Source:
    path = Path(source)
    directory = path.resolve().parent
    reader = READER_OF_SUFFIX[path.suffix.lower()]
    records = [record.values for record in read(path, reader)]
    given = {"train": source, "validation": options.validation, "test": options.test}
    if missing := [
        file for file in given.values() if isinstance(file, str) and not Path(file).is_file()
    ]:
        raise MissingError(f"there is no file {missing[0]}")
    files = {
        split: os.path.relpath(Path(file).resolve(), directory)
        for split, file in given.items()
        if isinstance(file, str)
    }
    local = {"folder": ".", "directory": str(directory), "reader": reader, "files": files}
    name = directory.name if path.stem == "train" else path.stem
    return safe_name(name), {"local": local}, records, {}


def _read_hub(source: str, options: DataOptions) -> _Source:
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
    return (
        safe_name(name),
        sections,
        [record.values for record in hub_records(tables["train"])],
        names,
    )


def _columns(source: str, columns: list[str], options: DataOptions) -> tuple[list[str], str]:
    """Return the columns of the texts and the label: those given, or those with usual names.

    Raises:
        UsageError: there are no such columns.
    """
    inputs = options.inputs or _usual(INPUT_NAMES, columns)
    last = [str(len(columns))]  # of a CoNLL file
    label = options.label or "".join(_usual([*LABEL_NAMES, last], columns))
    wrong = [
        name
        for name in (*options.inputs, options.label, options.id)
        if name and name not in columns
    ]
    if wrong or not inputs or not label:
        raise UsageError(
            f"{source}: "
            + (
                f"no column '{wrong[0]}'."
                if wrong
                else "which columns are the texts and the label?"
            )
            + " Give inputs=COLUMN or inputs=[COLUMN,COLUMN],"
            f" and label=COLUMN; the columns are {', '.join(columns)}"
        )
    if "label" in {*inputs, options.id} - {label}:
        raise UsageError(
            f"{source}: rename the column 'label', which is hifi's own name for '{label}'"
        )
    return inputs, label


def _usual(names: list[list[str]], columns: list[str]) -> list[str]:
    """Return the columns with usual names, whatever their case; empty if there are none."""
    by_name = {column.lower(): column for column in columns}
    return next(
        ([by_name[name] for name in usual] for usual in names if by_name.keys() >= {*usual}), []
    )


def _kind(labels: list[Any], options: DataOptions) -> Kind:
    """Return the kind of task that the labels show: lists, fractions, or classes."""
    if options.separator or any(isinstance(label, list) for label in labels):
        return "multi-label"
    numbers = np.array([as_number(label) for label in labels])
    has_fraction = (numbers != numbers.round()).any() and not np.isnan(numbers).any()
    return "regression" if has_fraction else "classification"


def _metrics(kind: Kind, labels: list[str]) -> list[str]:
    """Return the metrics of a task, the primary one first."""
    if kind == "classification":
        return ["accuracy", "f1", "matthews"] if len(labels) == 2 else ["accuracy", "f1_macro"]
    if kind == "token-classification" and not all(map(ENTITY_TAG.fullmatch, labels)):
        return ["word_accuracy"]
    return [name for name in METRICS[kind] if name != "accuracy"]


def _order(name: str) -> tuple[bool, float, str]:
    """Sort class names: numbers, then words."""
    return isnan(as_number(name)), as_number(name), name
