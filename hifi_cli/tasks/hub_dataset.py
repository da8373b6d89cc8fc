"""Load a task's rows from a dataset on the Hugging Face hub, or from a local copy of the repository."""

from pathlib import Path
from typing import Any

from hifi_cli import hub as hubs
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import row_formats
from hifi_cli.tasks.local_files import warn_about_row_count
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import HubDataset, Label, Row, Split, TaskData, TaskSpec, is_labelled, rows_digest

PARQUET_REVISION = "refs/convert/parquet"  # the hub's own conversion of repositories that need a script


def load(spec: TaskSpec, hub: HubDataset) -> TaskData:
    """Load every split of a repository in a format that needs no script (parquet, CSV, JSON).

    Raises:
        MissingError: neither the hub nor the local cache has the repository.
        UsageError: columns or label names differ from those of the task.
    """
    splits: dict[Split, list[Row]] = {}
    tables: dict[str | None, Any] = {}
    commits: dict[str, None] = {}  # an ordered set
    for split, name in hub.splits.items():
        other_config, _, hub_split = name.rpartition("/")
        config = other_config or hub.config
        if config not in tables:
            tables[config], commit = load_tables(hub, config)
            commits[commit or ""] = None
        if hub_split in tables[config]:
            splits[split] = _rows(spec, hub, tables[config][hub_split], hub_split, labelled=is_labelled(split))
            warn_about_row_count(spec, split, spec.count(splits[split]), f"{hub.id}, {hub_split}")
        elif is_labelled(split):
            raise UsageError(f"{hub.id} has no split '{hub_split}'; the splits are {', '.join(tables[config])}")
    fingerprint = {split: rows_digest(rows) for split, rows in splits.items()}
    return TaskData(splits, fingerprint, {"hub": hub.id, "config": hub.config or "", "commit": " ".join(commits)})


def load_tables(hub: HubDataset, config: str | None) -> tuple[Any, str | None]:
    """Return the splits of a configuration and the commit; if it needs a script, those of the hub's parquet conversion.

    Raises:
        MissingError: neither the hub nor the local cache has the repository.
    """
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    commit = hubs.resolve_commit("dataset", hub.id, hub.revision)
    try:
        return load_dataset(hub.id, config, revision=commit or hub.revision), commit
    except (OSError, ValueError, RuntimeError) as error:
        problem = hubs.unavailable_error("dataset", hub.id, error)
        if hub.revision or Path(hub.id).is_dir():
            raise problem from None
    try:
        commit = hubs.resolve_commit("dataset", hub.id, PARQUET_REVISION)
        return load_dataset(hub.id, data_dir=config, revision=commit or PARQUET_REVISION), commit
    except (OSError, ValueError, RuntimeError, MissingError):
        raise problem from None  # the first error is about the repository that the user named


def _rows(spec: TaskSpec, hub: HubDataset, table: Any, split: str, *, labelled: bool) -> list[Row]:
    column, *others = spec.label_columns or [row_formats.column_name(hub.columns, "label", table.column_names)]
    if not spec.has_label_column:
        values = [None] * len(table)
    elif others and {column, *others}.issubset(table.column_names):
        records = (row_formats.CheckedRecord(spec, RawRecord(row, f"{hub.id}, {split}"), hub.columns) for row in table)
        values = [row_formats.label_value(record) for record in records]
    elif column in table.column_names:
        values = table[column]
    elif labelled:
        raise UsageError(f"{hub.id}, {split}: no column '{column}'; the columns are {', '.join(table.column_names)}")
    else:
        values = [None] * len(table)
    expected = hub.labels or spec.labels
    names = class_names(table.features.get(column))
    if names and names != expected:
        raise UsageError(f"{hub.id}, {split}: the labels are {names}, the task has {expected}")
    class_indices = [str(index) for index in range(len(spec.labels))]
    stored_names = class_indices if names else spec.labels if others else hub.labels or class_indices
    origin = f"{hub.id}, {split}"
    labelled_records = (
        (
            RawRecord(record, f"{origin}, row {number}"),
            _label(spec, value, stored_names, f"{origin}, row {number}", labelled=labelled),
        )
        for number, (value, record) in enumerate(zip(values, table, strict=True))
    )
    return row_formats.parse_rows(spec, labelled_records, hub.columns, origin, labelled=labelled)


def class_names(feature: Any) -> list[str] | None:
    """Return the class names of a column of class indices, or of lists of them; None for other columns."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return list(names) if names else None


def _label(spec: TaskSpec, value: Any, names: list[str], where: str, *, labelled: bool) -> Label | None:
    is_own = "-1" in spec.labels or (labelled and spec.kind == "regression")
    hidden = value is None or (value == -1 and not is_own)  # -1: the hub's value for a hidden test label
    if hidden and labelled and spec.has_label_column:
        raise UsageError(f"{where}: no label")
    return None if hidden else row_formats.parse_label(spec, value, names, where)
