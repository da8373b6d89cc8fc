"""What a task's YAML says, and what a row of a task is."""

from dataclasses import dataclass
from typing import Any, Literal

from hifi_cli import registry
from hifi_cli.config import Section, parse
from hifi_cli.errors import UsageError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class LocalFiles(Section):
    """The official download's layout.

    Attributes:
        folder: the task's folder.
        files: file of each split.
        header: column names of files that have no header line.
        columns: the files' column for an input, the label or the id, where it is called otherwise.
        labels: the words for the labels in the files, in label order; default: the task's own.
        generated: `demo`: the files are written by this project's own generator.
    """

    folder: str
    files: dict[Split, str]
    header: list[str] | None = None
    columns: dict[str, str] = {}
    labels: list[str] | None = None
    generated: Literal["demo"] | None = None


class HubDataset(Section):
    """A data set on the Hugging Face hub.

    Attributes:
        id: repository.
        config: configuration in the repository.
        revision: branch, tag or commit; the commit it resolved to is recorded in every manifest.
        columns: as in `LocalFiles`.
        splits: name of each split.
    """

    id: str
    config: str | None = None
    revision: str | None = None
    columns: dict[str, str] = {}
    splits: dict[Split, str] = {"train": "train", "validation": "validation", "test": "test"}


class TaskSpec(Section):
    """A task: its inputs, labels, metrics and sources.

    Attributes:
        label: the task's name in tables.
        source: where the task comes from.
        kind: what is predicted: one of the labels, or a number.
        inputs: one or two text columns.
        labels: class names in label order; for regression the one name of the number.
        value_range: of the number, for regression.
        metrics: names in `hifi_cli.tasks.metrics`.
        primary: the metric that chooses epochs and stands in tables.
        rows: official row counts, by split; others draw a warning.
        config: configuration keys the task sets.
    """

    description: str
    label: str
    source: str
    kind: Literal["classification", "regression"] = "classification"
    inputs: list[str]
    labels: list[str]
    value_range: tuple[float, float] | None = None
    metrics: list[str]
    primary: str
    local: LocalFiles
    hub: HubDataset | None = None
    rows: dict[Split, int] = {}
    config: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Row:
    """One example.

    Attributes:
        id: unique within its split.
        texts: one or two texts.
        label: class index, or the number; None in an unlabelled test split.
    """

    id: str
    texts: tuple[str, ...]
    label: int | float | None


@dataclass(frozen=True)
class Dataset:
    """The rows of a task's splits and where they were read.

    Attributes:
        fingerprint: SHA-256 of the content of each split's source.
        origin: what to tell a reader: files, or repository and commit.
    """

    splits: dict[Split, list[Row]]
    fingerprint: dict[str, str]
    origin: dict[str, str]


def load(name: str) -> TaskSpec:
    """The validated YAML of a task.

    Raises:
        UsageError: unknown task, or the YAML does not hold together.
    """
    path = str(registry.find("tasks", name))
    spec = parse(TaskSpec, registry.load("tasks", name), path)
    if spec.primary not in spec.metrics:
        raise UsageError(f"{path}: primary '{spec.primary}' is not among metrics {spec.metrics}")
    if len(spec.inputs) not in (1, 2):
        raise UsageError(f"{path}: inputs: one or two text columns are wanted")
    if (spec.kind == "regression") != (len(spec.labels) == 1):
        raise UsageError(f"{path}: labels: one name for regression, two or more for classification")
    return spec
