"""Rows from a data set on the Hugging Face hub, or from a local copy of such a repository."""

from pathlib import Path
from typing import Any

from hifi_cli import hub as hubs
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import digest
from hifi_cli.tasks import row_formats
from hifi_cli.tasks.local_files import warn_of_count
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import Dataset, HubDataset, Row, Split, TaskSpec, is_labelled

CONVERTED = "refs/convert/parquet"  # where the hub keeps its own conversion of repositories that need a script


def load(spec: TaskSpec, hub: HubDataset) -> Dataset:
    """Read every split of a repository in a form that needs no script (parquet, CSV, JSON).

    Raises:
        MissingError: neither the hub nor a cached copy answers.
        UsageError: columns or label names are not those of the task.
    """
    splits: dict[Split, list[Row]] = {}
    tables: dict[str | None, Any] = {}
    commits: dict[str, None] = {}  # as a set that keeps its order
    for split, name in hub.splits.items():
        elsewhere, _, own = name.rpartition("/")
        config = elsewhere or hub.config
        if config not in tables:
            tables[config], commit = _tables(hub, config)
            commits[commit or ""] = None
        if own in tables[config]:
            splits[split] = _rows(spec, hub, tables[config][own], own, labelled=is_labelled(split))
            warn_of_count(spec, split, len(splits[split]), f"{hub.id}, {own}")
        elif is_labelled(split):
            raise UsageError(f"{hub.id} has no split '{own}'; there are {', '.join(tables[config])}")
    fingerprint = {split: digest([_content(row) for row in rows], 64) for split, rows in splits.items()}
    return Dataset(splits, fingerprint, {"hub": hub.id, "config": hub.config or "", "commit": " ".join(commits)})


def _tables(hub: HubDataset, config: str | None) -> tuple[Any, str | None]:
    """The splits of a configuration, or where it cannot be read (a script), of the hub's own conversion; and the commit."""
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    commit = hubs.commit("dataset", hub.id, hub.revision)
    try:
        return load_dataset(hub.id, config, revision=commit or hub.revision), commit
    except (OSError, ValueError, RuntimeError) as error:
        problem = hubs.not_to_be_had("dataset", hub.id, error)
        if hub.revision or Path(hub.id).is_dir():
            raise problem from None
    try:
        commit = hubs.commit("dataset", hub.id, CONVERTED)
        return load_dataset(hub.id, data_dir=config, revision=commit or CONVERTED), commit
    except (OSError, ValueError, RuntimeError, MissingError):
        raise problem from None  # what was asked for is the error to tell


def _rows(spec: TaskSpec, hub: HubDataset, table: Any, split: str, *, labelled: bool) -> list[Row]:
    column = hub.columns.get("label", "label")
    if spec.kind == "span":
        values = [None] * len(table)
    elif column in table.column_names:
        values = table[column]
    elif labelled:
        raise UsageError(f"{hub.id}, {split}: no column '{column}'; there are {', '.join(table.column_names)}")
    else:
        values = [None] * len(table)
    known = hub.labels or spec.labels
    names = getattr(table.features.get(column), "names", None)
    if names and list(names) != known:
        raise UsageError(f"{hub.id}, {split}: labels {names}, the task has {known}")
    origin = f"{hub.id}, {split}"
    records = (
        (RawRecord(record, f"{origin}, row {number}"), _label(spec, value, f"{origin}, row {number}", labelled=labelled))
        for number, (value, record) in enumerate(zip(values, table, strict=True))
    )
    return row_formats.rows(spec, records, hub.columns, origin)


def _label(spec: TaskSpec, value: Any, where: str, *, labelled: bool) -> int | float | None:
    hidden = value is None or value == -1  # the hub's mark for a hidden test label
    if hidden and labelled and spec.kind != "span":
        raise UsageError(f"{where}: no label")
    numbers = [str(index) for index in range(len(spec.labels))]
    return None if hidden else row_formats.parse_label(spec, value, numbers, where)


def _content(row: Row) -> list[Any]:
    return [row.id, row.sequences, row.label, row.words, row.answers]
