"""The rows of a data file or hub dataset that is given in the place of a task, and what the command line says about them."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import hub_dataset, readers
from hifi_cli.tasks.readers import HUB, RawRecord
from hifi_cli.tasks.row_formats import label_name
from hifi_cli.tasks.task_spec import HubDataset, LocalFiles


def _names(value: Any) -> Any:
    """A name or a list of names; YAML reads some names as numbers or booleans."""
    return [item if isinstance(item, str) else label_name(item) for item in (value if isinstance(value, list) else [value])]


DataKind = Literal["classification", "multi-label", "regression", "token-classification"]  # others need formats of their own
Names = Annotated[list[str], BeforeValidator(_names)]


class DataOptions(ConfigModel):
    """How a data file is read, as `key=value` on the command line; what is not given is recognized."""

    inputs: Names = []
    """One or two text columns, or the column of words; the columns of a CoNLL file are numbers from 1."""
    label: Names = []
    """Column of the label or of the tags; for multi-label it may be several columns of 0 and 1."""
    separator: str | None = Field(None, min_length=1)
    """The character between the labels of a row (multi-label)."""
    id: str | None = None
    """Column of the row's unique id."""
    kind: DataKind | None = None
    """What is predicted."""
    labels: Names = []
    """Class names, in label order; default: sorted."""
    validation: str | float | None = None
    """File (hub: split) of the validation rows, or the fraction of the rows that is cut off for validation."""
    test: str | None = None
    """File (hub: split) of rows to predict."""
    split_seed: Seed = 0
    """Seed of the cut."""
    skip_incomplete: bool = False
    """Skip rows with an empty text instead of refusing the file."""


@dataclass(frozen=True)
class DataTable:
    """The labelled rows of a data source.

    Attributes:
        source: the file or dataset, for messages.
        records: train rows first, then the validation rows if they are given.
        rows: number of train rows.
        sections: the keys `local` and `hub` of the task's YAML.
        has_validation: whether validation rows are given.
        class_names: of hub columns that store class indices.
    """

    source: str
    records: list[RawRecord]
    rows: int
    sections: dict[str, Any]
    has_validation: bool
    class_names: dict[str, list[str]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The column names of the first row."""
        return list(self.records[0].values)

    def values(self, column: str) -> list[Any]:
        """Return every row's value of a column.

        Raises:
            UsageError: no such column, or a row lacks it.
        """
        if column not in self.columns:
            suggestion = registry.nearest(column, self.columns)
            raise UsageError(f"{self.source}: no column '{column}'{suggestion}; the columns are {', '.join(self.columns)}")
        for record in self.records:
            if column not in record.values:
                raise UsageError(f"{record.where}: no column '{column}'; every row requires the columns of the first one")
        return [record.values[column] for record in self.records]


def read(source: str, options: DataOptions) -> DataTable:
    """Read the labelled rows of a data file or of a hub dataset.

    Raises:
        MissingError: no such file or dataset.
        UsageError: the file is malformed, or the dataset has no such split.
    """
    return _read_hub(source, options) if source.startswith(HUB) else _read_file(Path(source), options)


def _read_file(path: Path, options: DataOptions) -> DataTable:
    reader = readers.READER_OF_SUFFIX[path.suffix.lower()]
    files = {"train": str(path)}
    if isinstance(options.validation, str):
        files["validation"] = options.validation
    if options.test:
        files["test"] = options.test
    for file in files.values():
        if not Path(file).is_file():
            raise MissingError(f"no file {file}")
        if Path(file).suffix.lower() != path.suffix.lower():
            raise UsageError(f"{file}: all files of a task have the same format; {path.suffix} is expected")
    layout = LocalFiles(folder=".", files={}, reader=reader)
    directory = path.resolve().parent
    parts = [
        list(readers.read(Path(files[split]), layout, labelled=True, skip_incomplete=False))
        for split in ("train", "validation")
        if split in files
    ]
    if not parts[0]:
        raise UsageError(f"{path} has no rows")
    names = {split: os.path.relpath(Path(file).resolve(), directory) for split, file in files.items()}
    local = {"folder": ".", "directory": str(directory), "reader": reader, "files": names}
    return DataTable(str(path), [record for part in parts for record in part], len(parts[0]), {"local": local}, len(parts) > 1)


def _read_hub(source: str, options: DataOptions) -> DataTable:
    repository, _, config = source.removeprefix(HUB).partition(":")
    hub = HubDataset(id=repository, config=config or None)
    tables, _ = hub_dataset.load_tables(hub, hub.config)
    if "train" not in tables:
        raise UsageError(f"{source} has no split 'train'; the splits are {', '.join(tables)}")
    given = options.validation if isinstance(options.validation, str) else None
    usual = next((name for name in ("validation", "dev", "valid", "val") if name in tables), None)
    validation = given or (usual if options.validation is None else None)
    test = options.test or ("test" if "test" in tables else None)
    splits = {"train": "train"} | ({"validation": validation} if validation else {}) | ({"test": test} if test else {})
    for name in splits.values():
        if name not in tables:
            raise UsageError(f"{source} has no split '{name}'; the splits are {', '.join(tables)}")
    parts = [
        [RawRecord(record, f"{source}, {name}, row {number}") for number, record in enumerate(tables[name])]
        for split, name in splits.items()
        if split != "test"
    ]
    features = tables["train"].features.items()
    class_names = {column: names for column, feature in features if (names := hub_dataset.class_names(feature))}
    sections = {
        "local": {"folder": ".", "files": {}},
        "hub": {"id": repository, **({"config": config} if config else {}), "splits": splits},
    }
    return DataTable(
        source, [record for part in parts for record in part], len(parts[0]), sections, bool(validation), class_names
    )
