"""Make a task's YAML from a data file or a hub dataset: which columns are texts, which is the label, what kind it is."""

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
LABEL_NAMES = ("label", "labels", "target", "class", "stars", "rating", "sentiment")
WORD_NAMES, TAG_NAMES = ("tokens", "words"), ("tags", "ner_tags", "labels")
ID_NAMES = ("id", "idx", "guid", "uid", "index")
METRICS: dict[Kind, list[str]] = {
    "regression": ["spearman", "pearson"],
    "multi-label": ["f1_micro", "f1_macro"],
    "token-classification": ["ner_f1", "ner_precision", "ner_recall", "word_accuracy"],
}
SEPARATORS = "|;,"  # between the labels of a row, the likeliest first
MAX_CLASSES = 1000
REGRESSION_VALUES = 20  # whole numbers with more different values than this are a quantity, not classes
LISTED = 6  # labels in the message
_MADE_FROM = "# made from "  # the first words of such a YAML


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
    return name, f"{_MADE_FROM}{source}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)}"


def made_from(task: Path) -> str | None:
    """The data file or hub dataset that a task's YAML was made from; None for any other YAML."""
    first = task.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix(_MADE_FROM) if first.startswith(_MADE_FROM) else None


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
    row_id = options.id or next((column for column in table.columns if column.lower() in ID_NAMES), None)
    if row_id and not options.id and len(set(map(str, table.values(row_id)))) < len(table.records):
        row_id = None
    if tagged := _tagged_columns(table, options):
        inputs, label_columns = tagged
        target = _recognize_tags(table, options, label_columns[0])
    else:
        label_columns = options.label or [_label_column(table, options, row_id)]
        inputs = options.inputs or _text_columns(table, [*label_columns, *([row_id] if row_id else [])])
        for column in inputs:
            table.values(column)
        if len(inputs) > 2:
            raise UsageError(f"{table.source}: one or two text columns are read: {_choose('inputs=[COLUMN,COLUMN]', inputs)}")
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


def _tagged_columns(table: DataTable, options: DataOptions) -> tuple[list[str], list[str]] | None:
    """Return the column of words and the column of their tags; None if the rows are no sentences of tagged words."""
    lists = [column for column in table.columns if all(isinstance(value, list) for value in table.values(column))]
    is_conll = table.sections["local"].get("reader") == "conll"
    candidates = lists or table.columns
    named = [column for column in candidates if column.lower() in WORD_NAMES]
    if options.kind not in (None, "token-classification") or not (options.kind or is_conll or (named and len(lists) > 1)):
        return None
    words = options.inputs or [*named, *candidates][:1]
    others = [column for column in candidates if column not in words]
    tags = options.label or [column for column in others if column.lower() in TAG_NAMES][:1]
    tags = tags or (others[-1:] if is_conll else others)
    if len(words) > 1 or len(tags) != 1:
        raise UsageError(
            f"{table.source}: one column of words and one of their tags are required. Give inputs=COLUMN label=COLUMN, of"
            f" {', '.join(table.columns)}"
        )
    return words, tags


def _recognize_tags(table: DataTable, options: DataOptions, column: str) -> dict[str, Any]:
    """Return the keys `kind`, `format` and `labels` of the task's YAML; the tags of a type stand together, `O` comes first."""
    values = table.values(column)
    _check_labels(table, column, values)
    tags = {label_name(tag) for value in values for tag in row_formats.tags_in(value)}
    labels = options.labels or table.class_names.get(column) or sorted(tags, key=lambda tag: tag.partition("-")[::-1])
    return {"kind": "token-classification", "format": "words", "labels": labels}


def _label_column(table: DataTable, options: DataOptions, row_id: str | None) -> str:
    others = [column for column in table.columns if column not in (*options.inputs, row_id)]
    for name in LABEL_NAMES:
        matching = [column for column in others if column.lower() == name]
        if matching:
            return matching[0]
    candidates = [column for column in others if column in table.class_names or not _is_text(table.values(column))]
    if len(candidates) == 1:
        return candidates[0]
    raise UsageError(f"{table.source}: which column is the label? {_choose('label=COLUMN', candidates or others)}")


def _text_columns(table: DataTable, used: Sequence[str]) -> list[str]:
    """Return the one or two columns that hold texts."""
    others = [column for column in table.columns if column not in used]
    strings = [column for column in others if all(isinstance(value, str) for value in table.values(column))]
    texts = [column for column in strings if _is_text(table.values(column))] or strings
    if len(texts) not in (1, 2):
        raise UsageError(f"{table.source}: which columns are the texts? {_choose('inputs=[COLUMN,COLUMN]', texts or others)}")
    return texts


def _choose(option: str, columns: Sequence[str]) -> str:
    return f"Give {option}, of {', '.join(columns)}" if columns else "there is only one column; check the separator"


def _is_text(values: Sequence[Any]) -> bool:
    """Return whether a column's values are texts: not numbers, and not the few words of a category."""
    if not all(isinstance(value, str) for value in values) or all(_number(value) is not None for value in values if value):
        return False
    words = sum(len(value.split()) for value in values) / len(values)
    return words >= 3 or len(set(values)) > len(values) / 2


def _recognize_label(table: DataTable, options: DataOptions, columns: list[str]) -> dict[str, Any]:
    """Return the keys `kind`, `labels`, `label_columns` and `label_separator` of the task's YAML."""
    if len(columns) > 1:
        for column in columns:
            table.values(column)
        ordered = options.labels or columns
        if sorted(ordered) != sorted(columns):
            raise UsageError(
                f"{table.source}: labels=[{','.join(ordered)}] with several label columns is their order:"
                f" name each of {', '.join(columns)} once, or leave it out"
            )
        return {"kind": "multi-label", "labels": ordered, "label_columns": ordered}
    (column,) = columns
    values, names = table.values(column), table.class_names.get(column)
    separator = options.separator or _separator(values)
    is_list = any(isinstance(value, (list, tuple)) for value in values)
    if options.kind == "multi-label" or (options.kind is None and (is_list or separator)):
        separator = separator or SEPARATORS[0]
        present = {label for value in values if not _is_missing(value) for label in row_formats.labels_in(value, separator)}
        labels = options.labels or names or sorted(_one_name_of_each_number(table, column, present))
        return {"kind": "multi-label", "labels": labels, **({} if is_list else {"label_separator": separator})}
    _check_labels(table, column, values)
    kind = options.kind or ("classification" if names else _kind(values))
    return {"kind": kind, "labels": options.labels or _labels(table, column, kind, values[: table.rows])}


def _separator(values: Sequence[Any]) -> str | None:
    """Return the character between the labels of a row if there is one: some label then occurs in several combinations."""
    texts = {value for value in values if isinstance(value, str) and value.strip() and _number(value) is None}
    for separator in SEPARATORS:
        parts = [part.strip() for text in texts for part in text.split(separator)]
        if len(texts) < len(parts) > len(set(parts)):
            return separator
    return None


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
    numbers = [_number(value) for value in values]
    if any(number is None for number in numbers):
        return "classification"
    is_whole = all(number == int(number) for number in numbers if number is not None)
    return "classification" if is_whole and len(set(numbers)) <= REGRESSION_VALUES else "regression"


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
