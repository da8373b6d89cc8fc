"""The record of a run as typed objects, and the stored files around it."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hifi_cli.config.base import Model, StoredName, describe_problem, parse
from hifi_cli.config.epoch_rule import EpochChoice, EpochRule, Selection
from hifi_cli.config.run_config import RunConfig
from hifi_cli.files import MAKE_AGAIN, json_text, read_json, write_text
from hifi_cli.run_paths import run_path_of

# The schema of results.json. Runs of two schemas are never averaged.
# 1: `data` are digests of files, and `backbone_weights` of weights alone; the fields that schema 2
#    added are missing.
SCHEMA = 2
# Valid seeds. A configuration with another one is checked as a whole, which refuses it.
_SEEDS = range(2**32)


# Tables hold numbers of 64 bits: a larger one in a damaged record would stop the table of all runs.
# `hifi results check` names those below 0.
Count = Annotated[int, Field(ge=-(2**63), lt=2**63)]
# The number of an epoch, counted from 1.
Epoch = Annotated[int, Field(ge=1, lt=2**63)]

# The parts of a run's rows: those to train on, those that select the epoch, and those with its score.
SPLITS = ("train", "selection", "reported")

# One empty set for all records. pydantic copies it before it adds to it.
_NO_NAMES: set[str] = set()


class Record(BaseModel):
    """A part of a stored file. Keys without a default are required, unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    def model_post_init(self, _: Any) -> None:
        """Forget which fields the file named, which nobody asks.

        pydantic keeps a set of their names for each object, a quarter of the memory of a large study.
        """
        object.__setattr__(self, "__pydantic_fields_set__", _NO_NAMES)


def validated(
    model: type[Model], content: dict[str, Any], where: Path | str, *, advice: str = MAKE_AGAIN
) -> Model:
    """Type the content of a stored file, or of a part of it.

    Args:
        model: its type.
        content: as it was read.
        where: the file, or the place in one, that it was read from.
        advice: what a user can do if it is damaged.

    Raises:
        UsageError: a key is missing or of a wrong type; the message names it and `where`.
    """
    return parse(model, content, f"{where} is damaged ({advice})")


class StoredFile(Record):
    """A whole JSON file."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            MissingError: no such file.
            UsageError: a key is missing or of a wrong type; the message names it.
        """
        return validated(cls, read_json(path), path)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        write_text(path, json_text(self.model_dump(mode="json")))


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


class EpochMetrics(Record):
    """A line of metrics.jsonl after an epoch; every metric on the reported split is a key of its own.

    Attributes:
        epoch: finished epochs.
        selection: the score by which the best epoch is selected, and not the name of a split: the
            primary metric on the selection split. None where the reported split selects.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=True)
    __pydantic_extra__: dict[str, float]

    epoch: int
    selection: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the reported split, and on extra validation splits as `metric_split`."""
        return self.__pydantic_extra__

    def selecting_score(self, primary: str) -> float:
        """Return the score by which the best epoch is selected.

        It is `selection`, or the primary metric on the reported split where that split selects.
        """
        return self.metrics[primary] if self.selection is None else self.selection


MetricsLine = StepMetrics | EpochMetrics


def metrics_line(content: Mapping[str, Any]) -> MetricsLine:
    """Type a line of metrics.jsonl.

    Raises:
        ValidationError: a key is missing or of a wrong type.
    """
    if "epoch" in content:
        return EpochMetrics.model_validate(content)
    return StepMetrics.model_validate(content)


class Prediction(Record):
    """A line of predictions.jsonl.

    Attributes:
        id: of the example.
        label: the correct label's word, a number, a list of all correct answers or labels, or the
            tag of each word; None where it is not known.
        prediction: likewise.
        logits: an answer has two, of its first and of its last token; tags have one each, their own.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    id: str
    label: str | float | list[str] | None
    prediction: str | float | list[str] | None
    logits: list[float]


class Pruned(StoredFile):
    """The content of pruned.json: the weights of the run were here, and `hifi results prune` dropped them.

    Attributes:
        delta_sha256: digest of the file, as the record has it.
        delta_bytes: its size.
    """

    delta_sha256: str
    delta_bytes: int


class RunScores(Record):
    """The primary metric on the reported split, as fractions of 1.

    Attributes:
        last: after the last epoch.
        best: after the epoch with the best score on the selection split.
        max: the maximum over all epochs; None where the split was not evaluated after each of them.
    """

    last: float
    best: float
    max: float | None


class Epochs(Record):
    """The epochs of the scores, counted from 1.

    Attributes:
        total: trained epochs, which is also the last one.
        max: None where `RunScores.max` is.
    """

    total: Epoch
    last: Epoch
    best: Epoch
    max: Epoch | None


class ParameterCounts(Record):
    """Numbers of parameters.

    Attributes:
        trainable: trained in the last stage, task head included.
        trainable_backbone: trained in the last stage, task head excluded.
        stored: floating-point numbers in the delta file.
        stored_bytes: their bytes and those of the delta's other tensors.
        total: of the plain model.
    """

    trainable: Count
    trainable_backbone: Count
    stored: Count
    stored_bytes: Count
    total: Annotated[Count, Field(gt=0)]


class TrainingLosses(Record):
    """The mean training loss of the first and of the last epoch.

    Where there is one epoch, or one of the two has few logged steps, of the halves of what was
    logged.
    """

    first: float
    last: float


class ClassCounts(Record):
    """Rows of the reported split by class, in the order of the task's labels.

    Attributes:
        labels: rows that have the class.
        predicted: rows that are predicted to have it.
    """

    labels: dict[str, Count]
    predicted: dict[str, Count]

    @model_validator(mode="after")
    def _has_the_same_classes_twice(self) -> Self:
        if self.labels.keys() != self.predicted.keys():
            raise ValueError("labels and predicted count other classes")
        return self


class TrainingProcess(Record):
    """A process that trained a run, or a part of it: a stopped run may go on elsewhere.

    Attributes:
        device: name of its GPU or CPU.
        device_type: `cpu` or `cuda`.
        precision: of its matrix products in training, fp32 or bf16.
        threads: of PyTorch.
        processes: that trained together, as torchrun starts them.
        first_step, last_step: optimizer steps that count, from 1; a killed process loses those after
            its last checkpoint.
        repeated_steps: how many of them repeated a recorded one, as CUDA graphs; None: stored before
            they were counted.
        seconds: of training, up to the last step that counts.
    """

    device: str
    device_type: str
    precision: str
    threads: Count
    processes: Count
    first_step: Count
    last_step: Count
    repeated_steps: Count | None = None
    seconds: float


class RunResult(StoredFile):
    """The content of results.json: everything about a finished run.

    It is written last, so it marks a run as finished.
    """

    schema_version: int = 1
    """The schema of this file; files of schema 1 do not name it."""

    status: Literal["done", "diverged"]
    """`diverged`: the training loss was not finite, and there is no score."""
    reason: str = ""
    """Why the run diverged."""
    config: dict[str, Any]
    """The resolved configuration, as in config.yaml."""
    config_hash: str
    """Hash of every setting of the run, seed included; see `config_hash_of` for what is none."""
    setting_hash: str
    """Hash of the configuration without its seed; runs with the same one may be averaged."""
    task: StoredName
    task_digest: str | None = None
    """Digest of the task as it was read: kind, format, inputs, labels, metrics. None: schema 1."""
    method: StoredName
    backbone: StoredName
    protocol: StoredName
    seed: int
    shots: int | None
    """Few-shot: train rows per class; None: all rows."""
    limit: int | None
    """Only so many examples of each split were used; None: all."""
    variant: str | None = None
    """Name of a run with other settings than the usual one, of a search for example."""
    split: str
    """The reported split: the one that the scores are of."""
    selection: Selection
    """The examples that chose the best epoch."""
    report: EpochChoice
    """The score that tables show."""
    primary_metric: str
    """The metric that the scores are of."""
    scores: RunScores | None = None
    """None: diverged."""
    epochs: Epochs | None = None
    """The epochs of the scores; None: diverged."""
    metrics: dict[str, float] = {}
    """Every metric of the kept epoch, on the reported split and on extra validation splits."""
    extra_validation: dict[str, RunScores] = {}
    """The primary metric on extra validation splits, as `scores` has it on the reported one."""
    epoch_metrics: list[EpochMetrics] = []
    """The lines of metrics.jsonl that are of epochs."""
    classes: ClassCounts | None = None
    """None: diverged, rows have no single class, or not recorded."""
    losses: TrainingLosses | None = None
    """None: diverged, too few losses were logged, or not recorded."""
    collapsed: bool
    """The model predicts the same for every example, or diverged."""
    params: ParameterCounts
    n_examples: dict[str, Count]
    """Rows of the splits `train`, `selection` and `reported`."""
    truncated: dict[str, Count] | None = None
    """Those with a text that was truncated to `max_length`; None: not counted."""
    fewshot: dict[str, Any] | None
    """The ids of the rows (`train`, `dev`), and the SHA-256 of ids, texts and labels."""
    heads: list[list[int]] | None
    """The attention heads that the method tunes, a list per layer; None: it needs none."""
    heads_sha256: str | None
    """Digest of the attention heads, where runs of all seeds share them."""
    data: dict[str, str]
    """Digest of the rows of every split as they were read. Schema 1: of its file."""
    data_origin: dict[str, str]
    """Where the rows came from: the file of each split, or of the hub `hub`, `config` and `commit`."""
    backbone_weights: str
    """Digest of the encoder's weights, configuration and tokenizer, wherever the files came from;
    with `start_from`, of that and of the delta of the run that this one started from. Schema 1:
    commit on the hub, or SHA-256 of the weights file."""
    started_from: list[dict[str, str]] = []
    """The run whose weights this run started from, then the run that that one started from, and so
    on: each with its path from `runs/` on (`run`), `config_hash` and `delta_sha256`."""
    method_code: str | None = None
    """SHA-256 of the user's own code that implements the method or ranks its heads; None: none."""
    draws: dict[str, int] = {}
    """Version of each component that drew random numbers; see `hifi_cli.config.draws`."""
    processes: list[TrainingProcess] = []
    """Every process that trained the run, in order."""
    precision: str
    """Precision of training's matrix products, fp32 or bf16; both where processes differed."""
    gradient_accumulation_steps: int
    """Parts that every batch was cut into."""
    time_s: float | None = None
    """Seconds of training with its evaluations, in all processes that trained the run. Loading the
    encoder and scoring heads are not in it. None: diverged."""
    wall_s: float
    """The same, also of a run that diverged, and the seconds of storing delta and predictions, for
    which the kept epoch may be measured once more. Schema 1: of the last process."""
    peak_memory_bytes: Count
    """Peak memory of a GPU, or of the process that trained the run last."""
    memory_is_own: bool | None = None
    """Whether no other run had trained in the process, whose memory the peak would have too; None:
    not known."""
    delta_sha256: str | None = None
    """SHA-256 of delta.safetensors; None: diverged."""
    delta_bytes: Count | None = None
    """Its size; None: diverged."""
    provenance: dict[str, Any]
    """Command, code, libraries and machine; see `runs.provenance.describe_provenance`. `finished`:
    when the run finished, in UTC; records of before lack it."""

    @field_validator("schema_version")
    @classmethod
    def _is_a_known_schema(cls, version: int) -> int:
        """Refuse a record of a later version of the program, in which the fields may mean something else."""
        if not 1 <= version <= SCHEMA:
            raise ValueError(
                f"it is of schema {version}, and this version of hifi reads schemas up to {SCHEMA}"
            )
        return version

    @field_validator("config")
    @classmethod
    def _is_a_configuration(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse a configuration whose known keys are missing or wrong.

        Another version of the program may have other keys.
        """
        seed = config.get("seed")
        if type(seed) is not int or seed not in _SEEDS:
            _check_configuration(config)
            return config
        # Most runs of a study differ from another one in their seed alone. These are checked once,
        # and share their sections and texts.
        without_seed = {key: value for key, value in config.items() if key != "seed"}
        return {**config, **_checked_configuration(json.dumps(without_seed))}

    @field_validator("n_examples")
    @classmethod
    def _has_each_split(cls, rows: dict[str, int]) -> dict[str, int]:
        """Refuse numbers of rows without those of a split."""
        missing = [split for split in SPLITS if split not in rows]
        if missing:
            raise ValueError(f"it lacks {' and '.join(missing)}")
        return rows

    @field_validator("provenance")
    @classmethod
    def _has_command_and_version(cls, provenance: dict[str, Any]) -> dict[str, Any]:
        """Refuse a provenance without what exports name. Its other keys differ between versions."""
        if not isinstance(provenance.get("hifi"), str):
            raise ValueError("it lacks the version of hifi")
        command = provenance.get("command")
        is_command = isinstance(command, list) and all(isinstance(word, str) for word in command)
        if not is_command:
            raise ValueError("it lacks the command")
        return provenance

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        if self.status == "done" and (self.scores is None or self.epochs is None):
            raise ValueError("a run with status done has scores and epochs")
        return self

    @property
    def is_done(self) -> bool:
        """Whether the run has scores."""
        return self.status == "done"

    @property
    def run_path(self) -> PurePath:
        """Path of the run in a results directory."""
        return run_path_of(
            protocol=self.protocol,
            backbone=self.backbone,
            task=self.task,
            method=self.method,
            variant=self.variant,
            seed=self.seed,
            shots=self.shots,
        )

    @property
    def kept(self) -> Literal["last", "best"]:
        """The epoch whose model and predictions are kept."""
        return self.epoch_rule.kept

    def run_config(self) -> RunConfig | None:
        """Return the configuration; None: another version of the program wrote it, with other keys."""
        try:
            return RunConfig.model_validate(self.config, strict=False)
        except ValidationError:
            return None

    @property
    def epoch_rule(self) -> EpochRule:
        """The rule by which the run chose the epoch that it keeps, and its score in tables."""
        return EpochRule(self.report, self.selection)

    def score(self, epoch_choice: EpochChoice | None = None) -> float:
        """Return the primary metric of a run that is done on the reported split, a fraction of 1.

        Args:
            epoch_choice: None: the one that the run's protocol reports.
        """
        return float(getattr(self.scores, epoch_choice or self.report))

    def epoch(self, epoch_choice: EpochChoice | None = None) -> int:
        """Return the epoch of that score, counted from 1."""
        return int(getattr(self.epochs, epoch_choice or self.report))


def _check_configuration(config: dict[str, Any]) -> None:
    """Raise a ValueError for a configuration whose known keys are missing or wrong."""
    try:
        RunConfig.model_validate(config, strict=False)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            if problem["type"] != "extra_forbidden":
                raise ValueError(describe_problem(problem, RunConfig)) from None


@lru_cache(maxsize=1024)
def _checked_configuration(text: str) -> dict[str, Any]:
    """Return a configuration without its seed, once it is checked.

    Args:
        text: the configuration as JSON.
    """
    config = json.loads(text)
    _check_configuration(config)
    return dict(config)


def labelled_splits(data: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the splits that decide scores: rows of test splits have no labels.

    Args:
        data: digests of all splits, by name.
    """
    return {split: value for split, value in data.items() if not split.startswith("test")}
