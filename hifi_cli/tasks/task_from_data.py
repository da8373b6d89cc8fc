"""Make a task's YAML from a data file or a hub dataset. Its columns are named on the command line, or have the usual names."""

import atexit
import logging
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.sources import parse_override
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name, write_text
from hifi_cli.tasks import data_table, entities, row_formats
from hifi_cli.tasks.data_table import DataOptions, DataTable
from hifi_cli.tasks.readers import HUB
from hifi_cli.tasks.row_formats import label_name
from hifi_cli.tasks.task_spec import Kind, TaskSpec
from hifi_cli.wording import counted_noun

logger = logging.getLogger("hifi")
LABEL_NAMES = ("label", "labels", "tags", "ner_tags")
INPUT_NAMES = [  # the first of these sets of columns that the data have
    ["sentence1", "sentence2"],
    ["premise", "hypothesis"],
    ["text1", "text2"],
    ["question", "sentence"],
    ["text"],
    ["sentence"],
    ["tokens"],
    ["words"],
]
ID_NAMES = ("id", "idx")
METRICS: dict[Kind, list[str]] = {
    "regression": ["spearman", "pearson"],
    "multi-label": ["f1_micro", "f1_macro"],
    "token-classification": ["ner_f1", "ner_precision", "ner_recall", "word_accuracy"],
}
SEPARATOR = "|"  # between the labels of a row
MAX_CLASSES = 1000
LISTED = 6  # labels in the message


def split_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the `key=value` arguments that are about data from those of the run's configuration."""
    about_data = [text for text in overrides if text.partition("=")[0].strip() in DataOptions.model_fields]
    return about_data, [text for text in overrides if text not in about_data]


def register(source: str, overrides: Sequence[str]) -> str:
    """Write the task's YAML to a temporary folder; returns its path, which stands for the task in this process."""
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
        UsageError: the columns or the kind cannot be recognized, or a row is invalid; the message says what to give.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        values |= parse_override(override).values
    options = parse(DataOptions, values, "command line")
    table = data_table.read(source, options)
    name = _task_name(source)
    content = _recognize(name, table, options)
    parse(TaskSpec, content, source)
    return name, f"# made from {source}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)}"


def _task_name(source: str) -> str:
    """The file's stem (the folder's name for `train.csv`) or the dataset's name, unless a shipped task has that name."""
    if source.startswith(HUB):
        name = safe_name("-".join(part for part in source.removeprefix(HUB).rstrip("/").split("/")[-1].split(":") if part))
    else:
        path = Path(source).resolve()
        name = safe_name(path.parent.name if path.stem == "train" else path.stem)
    return f"{name}-data" if name in registry.names("tasks") else name


def _recognize(name: str, table: DataTable, options: DataOptions) -> dict[str, Any]:
    """Return the content of the task's YAML."""
    inputs = options.inputs or _usual_inputs(table)
    label_columns = options.label or _usual_label(table, inputs)
    for column in (*inputs, *label_columns):
        table.values(column)
    if len(inputs) > 2:
        raise UsageError(f"{table.source}: one or two text columns are read, not {', '.join(inputs)}")
    row_id = options.id or next((column for column in table.columns if column.lower() in ID_NAMES), None)
    if row_id and not options.id and len(set(map(str, table.values(row_id)))) < len(table.records):
        row_id = None
    is_tagged = isinstance(table.values(inputs[0])[0], list) or table.sections["local"].get("reader") == "conll"
    if options.kind == "token-classification" or (options.kind is None and is_tagged):
        if len(inputs) > 1 or len(label_columns) > 1:
            raise UsageError(f"{table.source}: give one column of words and one of their tags: inputs=COLUMN label=COLUMN")
        target = _recognize_tags(table, options, label_columns[0])
    else:
        target = _recognize_label(table, options, label_columns)
    kind, labels = target["kind"], target["labels"]
    metrics = METRICS.get(kind, ["accuracy", "f1", "matthews"] if len(labels) == 2 else ["accuracy", "f1_macro"])
    if kind == "token-classification" and not entities.mark_entities(labels):
        metrics = ["word_accuracy"]
    sections = {key: dict(section) for key, section in table.sections.items()}
    for section in sections.values():
        section["columns"] = {"label": label_columns[0]} if len(label_columns) == 1 else {}
    if "hub" in sections and kind != "regression":
        sections["hub"]["labels"] = labels
    fraction = 0.1 if options.validation is None else options.validation
    cut = {} if table.has_validation else {"cut": {"validation": fraction, "seed": options.split_seed}}
    _log(table, kind, inputs, label_columns, labels, cut)
    if sections["local"].get("reader") == "conll":  # its columns have numbers in the place of names
        names = {inputs[0]: "tokens", label_columns[0]: "tags"}
        sections["local"] |= {"header": [names.get(column, column) for column in table.columns], "columns": {"label": "tags"}}
        inputs = ["tokens"]
    return {
        "description": f"{kind} of {' and '.join(inputs)} by {' and '.join(label_columns)}",
        "label": name,
        "source": table.source,
        "inputs": inputs,
        **({"id": row_id} if row_id else {}),
        **target,
        "metrics": metrics,
        "primary": metrics[0],
        **sections,
        **cut,
        **({"skip_incomplete": True} if options.skip_incomplete else {}),
    }


def _usual_inputs(table: DataTable) -> list[str]:
    """Return the columns of texts, by their usual names; of a CoNLL file the first column."""
    if table.sections["local"].get("reader") == "conll":
        return table.columns[:1]
    by_name = {column.lower(): column for column in table.columns}
    for names in INPUT_NAMES:
        if by_name.keys() >= set(names):
            return [by_name[name] for name in names]
    columns = ", ".join(table.columns)
    raise UsageError(f"{table.source}: which columns are the texts? Give inputs=COLUMN or inputs=[COLUMN,COLUMN], of {columns}")


def _usual_label(table: DataTable, inputs: Sequence[str]) -> list[str]:
    """Return the column of labels, by its usual names; of a CoNLL file the last column."""
    if table.sections["local"].get("reader") == "conll":
        return table.columns[-1:]
    others = [column for column in table.columns if column not in inputs]
    for name in LABEL_NAMES:
        if matching := [column for column in others if column.lower() == name]:
            return matching
    raise UsageError(f"{table.source}: which column is the label? Give label=COLUMN, of {', '.join(others)}")


def _recognize_tags(table: DataTable, options: DataOptions, column: str) -> dict[str, Any]:
    """Return the keys `kind`, `format` and `labels` of the task's YAML; the tags of a type stand together, `O` comes first."""
    values = table.values(column)
    _check_labels(table, column, values)
    tags = {label_name(tag) for value in values for tag in row_formats.tags_in(value)}
    labels = options.labels or table.class_names.get(column) or sorted(tags, key=lambda tag: tag.partition("-")[::-1])
    return {"kind": "token-classification", "format": "words", "labels": labels}


def _recognize_label(table: DataTable, options: DataOptions, columns: list[str]) -> dict[str, Any]:
    """Return the keys `kind`, `labels`, `label_columns` and `label_separator` of the task's YAML."""
    if len(columns) > 1:
        ordered = options.labels or columns
        if sorted(ordered) != sorted(columns):
            raise UsageError(
                f"{table.source}: labels=[{','.join(ordered)}] with several label columns is their order:"
                f" name each of {', '.join(columns)} once, or leave it out"
            )
        return {"kind": "multi-label", "labels": ordered, "label_columns": ordered}
    (column,) = columns
    values, names = table.values(column), table.class_names.get(column)
    is_list = any(isinstance(value, (list, tuple)) for value in values)
    if options.kind == "multi-label" or (options.kind is None and (is_list or options.separator)):
        separator = options.separator or SEPARATOR
        present = {label for value in values if not _is_missing(value) for label in row_formats.labels_in(value, separator)}
        labels = options.labels or names or sorted(_one_name_of_each_number(table, column, present))
        return {"kind": "multi-label", "labels": labels, **({} if is_list else {"label_separator": separator})}
    _check_labels(table, column, values)
    kind = options.kind or ("classification" if names else _kind(values))
    return {"kind": kind, "labels": options.labels or _labels(table, column, kind, values[: table.rows])}


def _check_labels(table: DataTable, column: str, values: Sequence[Any]) -> None:
    """Refuse labels that are empty, a number beyond all floats, or a truth value beside numbers; log spaces around them."""
    is_truth_value, spaced = {}, []
    for record, value in zip(table.records, values, strict=True):
        where = f"{record.where}: the label column '{column}'"
        if _is_missing(value) or (isinstance(value, str) and not value.strip()):
            raise UsageError(f"{where} is empty; fill it in, or remove the row")
        name = label_name(value)
        if name.lower() in ("true", "false") or _is_numeral(name):
            is_truth_value[name.lower() in ("true", "false")] = name
        if len(is_truth_value) > 1:
            raise UsageError(f"{where} has truth values and numbers, {' and '.join(is_truth_value.values())}; write them alike")
        if _is_numeral(name) and _number(name) is None:
            raise UsageError(f"{where} has the number {name[:20]}... of {len(name)} digits; the largest is about 1.8e308")
        spaced += [record.where] if isinstance(value, str) and value != value.strip() else []
    if spaced:
        logger.warning(f"note: {spaced[0]}: spaces around the label are left out, as in {counted_noun(len(spaced), 'row')}")


def _is_numeral(name: str) -> bool:
    """Return whether a label is written as a number, of any size."""
    return re.fullmatch(r"[-+]?\d+\.?\d*(e[-+]?\d+)?", name.lower()) is not None


def _is_missing(value: Any) -> bool:
    """Return whether a value stands for none: null, or NaN, which pandas writes for it."""
    return value is None or (isinstance(value, (float, str)) and str(value).strip().lower() == "nan")


def _kind(values: Sequence[Any]) -> Kind:
    """Return regression where a label is a fraction, else classification."""
    numbers = [_number(value) for value in values]
    if any(number is None for number in numbers):
        return "classification"
    return "classification" if all(number == int(number) for number in numbers if number is not None) else "regression"


def _labels(table: DataTable, column: str, kind: Kind, values: Sequence[Any]) -> list[str]:
    """Return the class names, numbers in their order and words in alphabetical order; for regression the column's name.

    Args:
        values: of the train rows; a validation row with another label is refused when the task is loaded.
    """
    if kind == "regression":
        return [column]
    if column in table.class_names:
        return table.class_names[column]
    names = _one_name_of_each_number(table, column, {label_name(value) for value in values})
    if len(names) < 2:
        raise UsageError(f"{table.source}: the label column '{column}' has one value only, '{names.pop()[:40]}'")
    if len(names) > MAX_CLASSES or (len(names) > 20 and len(names) > len(values) / 2):
        raise UsageError(
            f"{table.source}: the label column '{column}' has {len(names)} different values in {len(values)} rows;"
            " give another label=COLUMN, or kind=regression if they are numbers"
        )
    return sorted(names, key=lambda name: (number, "") if (number := _number(name)) is not None else (float("inf"), name))


def _one_name_of_each_number(table: DataTable, column: str, names: set[str]) -> set[str]:
    """Return label names unchanged, but refuse 1 and 1.0, which are seldom two classes."""
    first: dict[float, str] = {}
    for name in sorted(names):
        if (number := _number(name)) is not None and first.setdefault(number, name) != name:
            raise UsageError(
                f"{table.source}: the label column '{column}' has the labels '{first[number]}' and '{name}', which are one"
                " number; write them alike, or name all classes with labels=[...]"
            )
    return names


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _log(
    table: DataTable, kind: Kind, inputs: Sequence[str], label: Sequence[str], labels: Sequence[str], cut: dict[str, Any]
) -> None:
    listed = ", ".join(labels[:LISTED]) + (", ..." if len(labels) > LISTED else "")
    classes = "" if kind == "regression" else f" ({len(labels)} labels: {listed})"
    pair = " of pairs" if len(inputs) == 2 else ""
    split = f", {cut['cut']['validation']:.0%} of them cut off for validation" if cut else ""
    logger.info(
        f"{table.source}: {kind}{pair}, inputs={_listed(inputs)} label={_listed(label)}{classes}, {table.rows} rows{split};"
        " change it with key=value"
    )


def _listed(columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else f"[{','.join(columns)}]"
