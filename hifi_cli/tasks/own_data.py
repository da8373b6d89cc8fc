"""A data file or hub dataset as a task: its YAML, from columns that are named or have usual names."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.digests import file_digest
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.files import safe_name, write_text
from hifi_cli.hub import HUB
from hifi_cli.tasks import data_summary
from hifi_cli.tasks.data_options import HELD_OUT, DataOptions, parse_options
from hifi_cli.tasks.file_formats import (
    FileFormat,
    format_of,
    is_data_file,
    quotes_of,
    read,
    suffixes_in_words,
)
from hifi_cli.tasks.readers.parquet import class_names_of
from hifi_cli.tasks.recognition import (
    Columns,
    FoundLabels,
    find_columns,
    find_labels,
    left_out_rows,
)
from hifi_cli.tasks.source_rows import SourceRow
from hifi_cli.tasks.sources import hub_records, load_tables
from hifi_cli.tasks.task_spec import TaskSpec, check
from hifi_cli.text import printable

# The usual names of the validation split of a hub dataset.
VALIDATION_NAMES = ("validation", "dev", "valid", "val")
_DEFAULT_FRACTION = 0.1


def is_data_source(name: str) -> bool:
    """Return whether the name of a task is a data file or a hub dataset."""
    return name.startswith(HUB) or is_data_file(name)


def task_named(word: str, overrides: Sequence[str]) -> str:
    """Return what stands for a task in a configuration: a name, or the path of a YAML.

    Args:
        word: what `--task` is given: a name, a YAML's path, a data file, or a hub dataset.
        overrides: `key=value` about data.

    Raises:
        UsageError: it is none of these.
    """
    if is_data_source(word):
        return register(word, overrides)
    if not registry.is_yaml_path(word) and word not in registry.names("tasks"):
        hint = f"; data files are {suffixes_in_words()}"
        raise registry.unknown_name_error("tasks", word, hint=hint)
    return word


def register(source: str, overrides: Sequence[str]) -> str:
    """Write the YAML of a task to a temporary folder; return its path, which stands for the task.

    Args:
        source: the data, as for `from_data`.
        overrides: `key=value` with the keys of `DataOptions`.
    """
    task = from_data(source, overrides)
    for line in task.summary:
        logger.info(f"{source}: {line}")
    # A task is always a YAML: from here on, own data take the path of every other task. The run
    # keeps a copy, so the temporary one may go with the process.
    folder = Path(tempfile.mkdtemp(prefix="hifi-task-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{task.name}.yaml"
    write_text(path, task.text)
    return str(path)


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
        source: a data file of a format in `file_formats.py`, or `hub:owner/name[:config]`.
        overrides: `key=value` with the keys of `DataOptions`.

    Raises:
        MissingError: no such file or dataset.
        UsageError: the columns cannot be recognized, or a row is malformed; the message says what
            to give.
    """
    options = parse_options(overrides)
    data = _read(source, options)
    if not data.records:
        raise UsageError(f"{source} has no rows")
    columns = find_columns(source, data.records, data.format, options)
    found = find_labels(source, data.records, columns, data.names, options)
    content = _content(source, data, columns, found, options)
    check(parse(TaskSpec, content, source), source)
    made_from = " ".join(["# made from", source, *_digests(data)])
    text = registry.yaml_text(content, allow_unicode=True)
    left_out = left_out_rows(data.records, columns, options)
    summary = _summary(data, columns, found, left_out)
    return TaskFromData(content["label"], f"{made_from}\n{text}", summary)


def _summary(
    data: "_Data", columns: Columns, found: FoundLabels, left_out: dict[str, int]
) -> list[str]:
    """Return what was recognized, and what may be wrong, a line each.

    Args:
        data: as they were read.
        columns: of the texts and the labels.
        found: the labels.
        left_out: rows by the label that stands for none.
    """
    label = columns.label[0]
    if len(columns.label) > 1:
        label = f"[{','.join(columns.label)}]"
    what = (
        f"{found.kind} ({found.why}), inputs=[{','.join(columns.inputs)}] label={label},"
        f" {len(data.records)} rows; change it with key=value"
    )
    metrics = found.rules.usual_metrics()
    doubts = data_summary.lines(data.records, columns.all, found, metrics)
    lines = [what]
    if left_out:
        counts = ", ".join(f"{name} {count:,}" for name, count in left_out.items())
        lines.append(f"rows that missing= leaves out: {counts}")
    lines += [*doubts, *data.notes]
    # Names in the data may have line ends and control characters.
    return [" ".join(printable(line).split()) for line in lines]


def _content(
    source: str, data: "_Data", columns: Columns, found: FoundLabels, options: DataOptions
) -> dict[str, Any]:
    """Return the content of the task's YAML.

    Args:
        source: the data, as the user named them.
        data: as they were read.
        columns: of the texts and the labels.
        found: the kind of task and the labels.
        options: what the user said about the data.
    """
    # A table must not show the user's `rte.csv` as GLUE's RTE.
    label = data.name
    if data.name in registry.names("tasks"):
        label = f"{data.name}-data"
    metrics = found.rules.usual_metrics()
    content: dict[str, Any] = {
        "description": f"{found.kind} of {' and '.join(columns.inputs)} by {', '.join(columns.label)}",
        "label": label,
        "source": source,
        "kind": found.kind,
        "format": found.rules.formats[0],
        "inputs": columns.inputs,
        "id": options.id,
        "labels": found.labels,
        "label_separator": options.separator_or_default,
        "metrics": metrics,
        "primary": metrics[0],
        "skip_incomplete": options.skip_incomplete,
        "local": data.local,
    }
    # The splits that the data have, by file, or of a hub dataset by its own names.
    splits = data.local["files"]
    if data.hub:
        content["hub"] = data.hub
        splits = data.hub["splits"]
    _add_labels(content, columns, found)
    if options.missing:
        content["missing"] = options.missing
    if options.skip_incomplete and len(columns.inputs) == 2:
        content["one_text_suffices"] = True
    if "validation" not in splits:
        fraction = options.validation
        if fraction is None:
            fraction = _DEFAULT_FRACTION
        content["cut"] = {"validation": fraction, "seed": options.split_seed}
    return content


def _add_labels(content: dict[str, Any], columns: Columns, found: FoundLabels) -> None:
    """Add to the content of a YAML where labels stand in the data, and how they are written there."""
    # Column and label names belong to the source, so they go to its section: `hub` or `local`.
    section = content.get("hub", content["local"])
    if found.is_vector:
        content["label_vectors"] = True
    if len(columns.label) > 1:
        # PyYAML would write the same list twice as a reference.
        content["label_columns"] = list(columns.label)
    else:
        section["columns"] = {"label": columns.label[0]}
    if found.names_in_data:
        section["labels"] = found.names_in_data


def _digests(data: "_Data") -> list[str]:
    """Return the digests of the files that are trained and selected on."""
    files = data.local["files"]
    digests = []
    for split in ("train", "validation"):
        if split in files:
            digests.append(file_digest(Path(data.local["directory"], files[split])))
    return digests


# --- the sources


@dataclass(frozen=True)
class _Data:
    """Data as their source has them.

    Attributes:
        name: of the task.
        local: the section of the YAML about files.
        records: the training rows.
        names: the class names of columns of class indices.
        format: of the file of the training rows; None for a hub dataset.
        hub: the section of the YAML about a hub dataset; empty for files.
        notes: what the reader decided, a line each.
    """

    name: str
    local: dict[str, Any]
    records: list[SourceRow]
    names: dict[str, list[str]]
    format: FileFormat | None = None
    hub: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _read(source: str, options: DataOptions) -> _Data:
    """Read a data file or a dataset of the hub."""
    if source.startswith(HUB):
        return _read_hub(source, options)
    return _read_file(source, options)


def _read_file(source: str, options: DataOptions) -> _Data:
    """Read a data file, and find those of other splits.

    Raises:
        MissingError: there is no such file.
    """
    path = Path(source)
    paths = _paths_of_splits(path, options)
    formats = {split: format_of(file) for split, file in paths.items()}
    of_train = formats["train"]
    has_quotes, notes = _quotes(paths, options)
    records = list(read(path, of_train.name, quotes=bool(has_quotes)))

    directory = path.resolve().parent
    files = {}
    for split, file in paths.items():
        files[split] = os.path.relpath(file.resolve(), directory)
    local: dict[str, Any] = {
        "folder": ".",
        "directory": str(directory),
        "reader": of_train.name,
        "files": files,
    }
    other_readers = {}
    for split, format_ in formats.items():
        if format_ != of_train:
            other_readers[split] = format_.name
    if other_readers:
        local["readers"] = other_readers
    if has_quotes is not None:
        local["quotes"] = has_quotes
    names = {}
    if of_train.class_names is not None:
        names = of_train.class_names(path)
    return _Data(_name_of(path), local, records, names, of_train, notes=notes)


def _paths_of_splits(train: Path, options: DataOptions) -> dict[str, Path]:
    """Return the file of each split, as the user names them.

    Raises:
        MissingError: one of them is not there.
    """
    given = {
        "validation": options.validation,
        "test": options.test,
        HELD_OUT: options.held_out,
    }
    paths = {"train": train}
    for split, file in given.items():
        # `validation` may also be a fraction of the rows, which is a number.
        if isinstance(file, str):
            if not Path(file).is_file():
                raise MissingError(f"there is no file {file}")
            paths[split] = Path(file)
    return paths


def _name_of(path: Path) -> str:
    """Return the name of the task of a file: the folder's, if the file's is only `train`."""
    name = path.stem
    if name == "train":
        name = path.resolve().parent.name
    name = safe_name(name)
    if registry.is_yaml_path(name):
        # A name such as `reviews.yaml` (of `reviews.yaml.csv`) would be taken for the path of a
        # YAML.
        name = name.replace(".", "-")
    return name


def _quotes(paths: dict[str, Path], options: DataOptions) -> tuple[bool | None, list[str]]:
    """Return whether quotes enclose the cells of the files, and what is said about it.

    The first file with a cell that begins with a quote decides. None: there is no such cell.
    """
    if options.quotes is not None:
        return options.quotes, []
    for path in paths.values():
        quotes = quotes_of(path)
        if quotes is None:
            continue
        if quotes.enclose_cells:
            return True, ["the quotes around cells are removed; quotes=false keeps them as text"]
        notes = []
        if quotes.cells:
            notes.append(
                f"{quotes.cells} cells stand in quotes, which are text; quotes=true removes them"
            )
        return False, notes
    return None, []


def _read_hub(source: str, options: DataOptions) -> _Data:
    """Read a dataset of the hub.

    Raises:
        MissingError: neither the hub nor the local cache has it.
        UsageError: it has no split `train`, or none that the user names for `test`.
    """
    repository, _, config = source.removeprefix(HUB).partition(":")
    tables, _ = load_tables(repository, None, config or None)
    needed = ["train"]
    # Unless the user names its test split, a dataset without one is read without it.
    if options.test:
        needed.append(options.test)
    for name in needed:
        if name not in tables:
            raise UsageError(f"{source} has no split '{name}'; the splits are {', '.join(tables)}")
    validation = options.validation
    if not validation:
        validation = next((name for name in VALIDATION_NAMES if name in tables), None)
    splits = {"train": "train"}
    # `validation` may also be a fraction of the rows.
    if isinstance(validation, str):
        splits["validation"] = validation
    splits["test"] = options.test or "test"
    if options.held_out:
        splits[HELD_OUT] = options.held_out
    name = repository.rstrip("/").split("/")[-1]
    if config:
        name += f"-{config}"
    train = tables["train"]
    return _Data(
        safe_name(name),
        local={"folder": ".", "files": {}},
        records=list(hub_records(train)),
        names=class_names_of(train.features),
        hub={"id": repository, "config": config or None, "splits": splits},
    )
