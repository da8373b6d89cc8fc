"""Rows from a data set on the Hugging Face hub, or from a local copy of such a repository."""

from typing import Any

from hifi_cli import hub as hubs
from hifi_cli.errors import UsageError
from hifi_cli.files import digest
from hifi_cli.tasks.spec import Dataset, HubDataset, Row, Split, TaskSpec


def load(spec: TaskSpec, hub: HubDataset) -> Dataset:
    """Read every split of a repository in a form that needs no script (parquet, CSV, JSON).

    Raises:
        MissingError: neither the hub nor a cached copy answers.
        UsageError: columns or label names are not those of the task.
    """
    commit = hubs.commit("dataset", hub.id, hub.revision)
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    try:
        tables = load_dataset(hub.id, hub.config, revision=commit or hub.revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise hubs.not_to_be_had("dataset", hub.id, error) from None
    splits: dict[Split, list[Row]] = {}
    for split, name in hub.splits.items():
        if name in tables:
            splits[split] = _rows(spec, hub, tables[name], name)
        elif split != "test":
            raise UsageError(f"{hub.id} has no split '{name}'; there are {', '.join(tables)}")
    fingerprint: dict[str, str] = {
        split: digest([[row.id, *row.texts, row.label] for row in rows], 64) for split, rows in splits.items()
    }
    return Dataset(splits, fingerprint, {"hub": hub.id, "config": hub.config or "", "commit": commit or ""})


def _rows(spec: TaskSpec, hub: HubDataset, table: Any, split: str) -> list[Row]:
    columns = [hub.columns.get(name, name) for name in spec.inputs]
    label = hub.columns.get("label", "label")
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise UsageError(f"{hub.id}, {split}: no column '{missing[0]}'; there are {', '.join(table.column_names)}")
    values = table[label] if label in table.column_names else [None] * len(table)
    words = getattr(table.features.get(label), "names", None)
    if words and list(words) != spec.labels:
        raise UsageError(f"{hub.id}, {split}: labels {words}, the task has {spec.labels}")
    rows = []
    for number, (value, *texts) in enumerate(zip(values, *(table[name] for name in columns), strict=True)):
        unlabelled = value is None or value == -1  # the hub's mark for a hidden test label
        if not unlabelled and spec.kind == "classification" and value not in range(len(spec.labels)):
            raise UsageError(f"{hub.id}, {split}, row {number}: unknown label {value}")
        rows.append(Row(str(number), tuple(texts), None if unlabelled else value))
    return rows
