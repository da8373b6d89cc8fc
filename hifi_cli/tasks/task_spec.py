"""What a task's YAML says, and what a row of a task is."""

from dataclasses import dataclass
from typing import Any, Literal

from hifi_cli.config import registry
from hifi_cli.config.run_config import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError

Split = str  # one of SPLITS; a task may have more, such as validation_mismatched
Kind = Literal["classification", "regression", "multiple-choice", "span"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
NEEDED: tuple[Split, ...] = ("train", "validation")  # what training cannot do without


def is_labelled(split: Split) -> bool:
    """Whether a split's rows must carry labels; those of test splits are kept by the benchmark."""
    return split in NEEDED or split.startswith("validation_")


class LocalFiles(ConfigModel):
    """The official download's layout.

    Attributes:
        folder: the task's folder.
        files: file of each split, or several names of which the first that is there is read.
        reader: how the files are laid out; see `hifi_cli.tasks.readers`.
        header: column names of TSV files that have no header line.
        columns: the files' column for an input, the label or the id, where it is called otherwise.
        labels: the words for the labels in the files, in label order; default: the task's own.
        generated: `demo`: the files are written by this project's own generator.
    """

    folder: str
    files: dict[Split, str | list[str]]
    reader: Literal["tsv", "csv", "jsonl", "multirc", "squad"] = "tsv"
    header: list[str] | None = None
    columns: dict[str, str] = {}
    labels: list[str] | None = None
    generated: Literal["demo"] | None = None


class HubDataset(ConfigModel):
    """A data set on the Hugging Face hub.

    Attributes:
        id: repository, or a local copy of one.
        config: configuration in the repository.
        revision: branch, tag or commit; the commit it resolved to is recorded in every manifest.
        columns: as in `LocalFiles`.
        labels: names of the labels there, in label order; default: the task's own.
        splits: name of each split; `config/split` where it lies in another configuration.
    """

    id: str
    config: str | None = None
    revision: str | None = None
    columns: dict[str, str] = {}
    labels: list[str] | None = None
    splits: dict[Split, str] = {"train": "train", "validation": "validation", "test": "test"}


class Submission(ConfigModel):
    """How the benchmark's server wants the task's test predictions.

    Attributes:
        benchmark: whose zip the files belong in.
        files: the file for each test split.
        labels: the words it wants, in label order.
        without_model: `majority`: may be filled with the commonest training label when no run is there.
    """

    benchmark: Literal["glue", "superglue"]
    files: dict[Split, str]
    labels: list[str] = []
    without_model: Literal["majority"] | None = None


class TaskSpec(ConfigModel):
    """A task: its inputs, labels, metrics and sources.

    Attributes:
        label: the task's name in tables.
        source: where the task comes from.
        kind: what is predicted: one of the labels, a number, one of several texts, or a part of the text.
        format: how a record's columns become texts; see `hifi_cli.tasks.row_formats`.
        inputs: text columns that must be there and hold something.
        id: column of the row's unique id; a file without it numbers its rows.
        labels: class names in label order; for regression the one name of the number; none for spans.
        value_range: of the number, for regression.
        metrics: names in `hifi_cli.tasks.metrics`.
        evaluate: a metric of the `evaluate` library besides, by name or local path.
        primary: the metric that chooses epochs and stands in tables.
        rows: official row counts, by split; others draw a warning.
        skip_incomplete: rows with missing columns or an empty text are left out and counted, not refused: for official
            data that hold some.
        config: configuration keys the task sets.
    """

    description: str
    label: str
    source: str
    kind: Kind = "classification"
    format: Literal["plain", "copa", "wic", "wsc", "multirc", "swag", "squad"] = "plain"
    inputs: list[str]
    id: str | None = None
    labels: list[str] = []
    value_range: tuple[float, float] | None = None
    metrics: list[str]
    evaluate: str | None = None
    primary: str
    local: LocalFiles
    hub: HubDataset | None = None
    submission: Submission | None = None
    rows: dict[Split, int] = {}
    skip_incomplete: bool = False
    config: dict[str, Any] = {}

    def with_primary(self, metric: str | None) -> "TaskSpec":
        """The task with another of its metrics as the primary one; None: as it is.

        Raises:
            UsageError: the task does not have that metric.
        """
        if metric is not None and metric not in self.metrics and not self.evaluate:
            suggestion = registry.nearest(metric, self.metrics)
            raise UsageError(f"primary_metric: {self.label} has no '{metric}'{suggestion}; it has {', '.join(self.metrics)}")
        return self.model_copy(update={"primary": metric}) if metric else self

    @property
    def has_target_words(self) -> bool:
        """Whether a row's answer depends on a word in each text, whose state the head reads."""
        return self.format == "wic"

    @property
    def extra_validation(self) -> dict[str, Split]:
        """The validation splits besides the main one, by the suffix of their metrics (MNLI: mismatched)."""
        return {split.removeprefix("validation_"): split for split in self.local.files if split.startswith("validation_")}


@dataclass(frozen=True, slots=True)
class Row:
    """One example.

    Attributes:
        id: unique within its split.
        sequences: one sequence of one or two texts; in multiple choice one per choice.
        label: index of the class or choice, or the number; None when it is not known, and for spans.
        words: WiC: for each text the characters [start, end) of the target word.
        answers: span: the accepted (text, start) in the last text.
        group: MultiRC: what the answers to one question share.
    """

    id: str
    sequences: tuple[tuple[str, ...], ...]
    label: int | float | None
    words: tuple[tuple[int, int], ...] = ()
    answers: tuple[tuple[str, int], ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Dataset:
    """The rows of a task's splits and where they were read.

    Attributes:
        fingerprint: SHA-256 of the content of each split's source.
        origin: what to tell a reader: files, or repository and commit.
    """

    splits: dict[Split, list[Row]]
    fingerprint: dict[Split, str]
    origin: dict[str, str]

    def rows(self, split: Split) -> list[Row]:
        """A split's rows.

        Raises:
            MissingError: the source has no such split.
        """
        if split not in self.splits:
            raise MissingError(f"no {split} split in the data at hand; there are {', '.join(self.splits)}")
        return self.splits[split]


def load(name: str) -> TaskSpec:
    """The validated YAML of a task.

    Raises:
        UsageError: unknown task, or the YAML does not hold together.
    """
    path = str(registry.find("tasks", name))
    spec = parse(TaskSpec, registry.load("tasks", name), path)
    for split in spec.local.files:
        if split not in SPLITS and not split.startswith(("validation_", "test_")):
            raise UsageError(f"{path}: local.files: '{split}' is none of {', '.join(SPLITS)}, validation_NAME, test_NAME")
    if spec.primary not in spec.metrics and not spec.evaluate:
        raise UsageError(f"{path}: primary '{spec.primary}' is not among metrics {spec.metrics}")
    if not spec.inputs or (spec.format == "plain" and len(spec.inputs) > 2):
        raise UsageError(f"{path}: inputs: one or two text columns are wanted")
    fits = {"regression": len(spec.labels) == 1, "span": not spec.labels}.get(spec.kind, len(spec.labels) > 1)
    if not fits:
        raise UsageError(f"{path}: labels: none for spans, one name for regression, two or more otherwise")
    return spec
