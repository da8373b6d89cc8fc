"""The other files of a run: manifest.json, lines of metrics.jsonl and predictions.jsonl, and failure.json."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict

from hifi_cli.records.stored_file import Record, StoredFile


class GitState(Record):
    """The commit of the project's checkout, and whether files differ from it."""

    commit: str
    changed: bool


class Provenance(Record):
    """The command, the code, the libraries and the machine that made a number.

    Attributes:
        command: the words of the command line.
        hifi: version of hifi.
        git: None without a checkout.
        libraries: versions; None for a library that is not installed.
        device: name of the GPU, or of the CPU; both where both compute.
        threads: of torch.
    """

    command: list[str]
    hifi: str
    git: GitState | None
    python: str
    libraries: dict[str, str | None]
    device: str
    threads: int
    platform: str


class DataSource(Record):
    """Fingerprint and origin of the rows of every split."""

    fingerprint: dict[str, str]
    origin: dict[str, str]


class StartingRun(Record):
    """A run whose weights another run started from.

    Attributes:
        run: its path from `runs/` on.
    """

    run: str
    config_hash: str
    delta_sha256: str


class Manifest(StoredFile, Provenance):
    """manifest.json: where the numbers of a run come from.

    Attributes:
        heads: the attention heads the method tunes, a list per layer; None for a method that needs none.
        backbone_weights_id: commit on the hub, or SHA-256 of the weights file; with `start_from`, the SHA-256 of
            that and of the delta of the run that this one started from.
        started_from: the run whose weights this run started from, then the run that that one started from, and so on.
        processes: how many trained together.
        precision: of training's matrix products, fp32 or bf16; None, like the next two, in files of older versions.
        tf32: whether a GPU's float32 products in training may round their factors to TF32.
        deterministic: whether a repetition on the same device gives the same bits.
    """

    schema_number: ClassVar[int] = 2
    description: ClassVar[str] = "manifest"
    remedy: ClassVar[str] = "train the run again with --force"

    heads: list[list[int]] | None
    backbone_weights_id: str
    started_from: list[StartingRun] = []
    data: DataSource
    processes: int
    precision: str | None = None
    tf32: bool | None = None
    deterministic: bool | None = None


class Failure(StoredFile):
    """failure.json: a failed attempt of a grid to make the run; the next attempt removes it.

    Attributes:
        exit_code: None where the process vanished.
        command: the command line that repeats the run.
        lines: the last lines of the process's output.
    """

    schema_number: ClassVar[int] = 1
    description: ClassVar[str] = "failure.json"
    remedy: ClassVar[str] = "delete it"

    exit_code: int | None
    attempts: int
    command: str
    lines: list[str]


class StepMetrics(Record):
    """A line of metrics.jsonl after some optimizer steps.

    Attributes:
        step: finished optimizer steps.
        loss: mean since the line before.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    step: int
    loss: float
    learning_rate: float

    def to_dict(self) -> dict[str, float]:
        """The line as it is stored."""
        return self.model_dump()


class EpochMetrics(Record):
    """A line of metrics.jsonl after an epoch; every metric on the reported split is a key of its own.

    Attributes:
        epoch: finished epochs.
        selection: primary metric on the selection split, where that is not the reported one.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=True)
    __pydantic_extra__: dict[str, float]

    epoch: int
    selection: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the reported split, and on extra validation splits as `metric_split`."""
        return self.__pydantic_extra__

    def to_dict(self) -> dict[str, float]:
        """The line as it is stored."""
        selection = {} if self.selection is None else {"selection": self.selection}
        return {"epoch": self.epoch, **self.metrics, **selection}


MetricsLine = StepMetrics | EpochMetrics


def metrics_line(content: Mapping[str, Any]) -> MetricsLine:
    """A line of metrics.jsonl, typed.

    Raises:
        ValidationError: a key is missing or of a wrong type.
    """
    return (EpochMetrics if "epoch" in content else StepMetrics).model_validate(content)


class Prediction(Record):
    """A line of predictions.jsonl.

    Attributes:
        label: the correct label's word, a number, a list of all correct answers or labels, or the tag of each word; None where
            it is not known.
        prediction: likewise.
        logits: an answer has two, of its first and of its last token; tags have one each, their own.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    id: str
    label: str | float | list[str] | None
    prediction: str | float | list[str] | None
    logits: list[float]
