"""results.json: the scores of a finished run and what they are scores of."""

from pathlib import PurePath
from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from hifi_cli.config.choices import Score
from hifi_cli.config.run_config import run_path_of
from hifi_cli.records.stored_file import Record, StoredFile


class RunScores(Record):
    """The primary metric on the reported split, as fractions of 1.

    Attributes:
        last: after the last epoch.
        best: after the epoch with the best score on the selection split.
        max: the maximum over all epochs.
    """

    last: float
    best: float
    max: float


class Epochs(Record):
    """The number of epochs, and the epochs of the scores, counted from 1."""

    total: int
    last: int
    best: int
    max: int


class ParameterCounts(Record):
    """Numbers of parameters.

    Attributes:
        trainable: trained in the last phase, task head included.
        trainable_backbone: trained in the last phase, task head excluded.
        stored: floating-point numbers in the delta file.
        stored_bytes: their bytes and those of the delta's other tensors.
        total: of the plain model.
    """

    trainable: int
    trainable_backbone: int
    stored: int
    stored_bytes: int
    total: PositiveInt


class ExampleCounts(Record):
    """Numbers of rows of the splits of a run."""

    train: int
    selection: int
    reported: int


class FewShotRows(Record):
    """The ids of the rows of a few-shot run, and the SHA-256 of ids, texts and labels."""

    train: list[str]
    dev: list[str]
    sha256: str


class GradientAccumulationSteps(Record):
    """The configured number of micro-batches, and the number used in the end: `--auto-batch` raises it."""

    requested: int
    used: int


class RunResult(StoredFile):
    """The content of results.json, which is written last: it marks a run as finished.

    Attributes:
        status: `diverged`: the training loss was not finite, and there is no score.
        reason: why the run diverged.
        selection: the examples that chose the best epoch.
        report: the score that tables show.
        shots: few-shot: train rows per class.
        variant: name of a setting in a search.
        config_hash: hash of the configuration.
        config_sha256: SHA-256 of config.yaml; None in files of earlier versions.
        setting_hash: the same without the seed; runs with the same one may be averaged.
        heads_sha256: digest of the attention heads, where runs of all seeds share them.
        data: fingerprint of every split.
        precision: of training's matrix products, fp32 or bf16; None in files of earlier versions.
        limit: only so many examples of each split were used.
        metrics: every metric at the reported epoch, on the reported split and on extra validation splits.
        extra_validation: the primary metric on extra validation splits, as `scores` has it on the reported one.
        collapsed: the model predicts the same for every example, or diverged.
        time_s: seconds of training.
        wall_s: seconds of the whole last process.
        delta_sha256: SHA-256 of delta.safetensors.
        delta_bytes: its size; None in files of earlier versions.
    """

    schema_number: ClassVar[int] = 2
    description: ClassVar[str] = "results.json of a finished run"
    remedy: ClassVar[str] = "train the run again with --force"

    status: Literal["done", "diverged"]
    reason: str = ""
    task: str
    method: str
    backbone: str
    protocol: str
    seed: int
    split: str
    selection: Literal["validation", "holdout", "few-shot"]
    report: Score
    primary_metric: str
    n_examples: ExampleCounts
    shots: int | None
    fewshot: FewShotRows | None
    precision: str | None = None
    limit: int | None
    variant: str | None = None
    config_hash: str
    config_sha256: str | None = None
    setting_hash: str
    heads_sha256: str | None
    data: dict[str, str]
    params: ParameterCounts
    scores: RunScores | None = None
    epochs: Epochs | None = None
    metrics: dict[str, float] = {}
    extra_validation: dict[str, RunScores] = {}
    collapsed: bool
    time_s: float | None = None
    wall_s: float
    peak_memory_bytes: int
    gradient_accumulation_steps: GradientAccumulationSteps
    delta_sha256: str | None = None
    delta_bytes: int | None = None

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
    def limited(self) -> bool:
        """Whether only a part of the examples was used."""
        return self.limit is not None

    def score(self, name: Score | None = None) -> float:
        """The primary metric on the reported split, a fraction of 1.

        Args:
            name: None: the score that the run's protocol reports.

        Raises:
            ValueError: the run diverged.
        """
        if self.scores is None:
            raise ValueError(f"a run that {self.status} has no scores")
        score: float = getattr(self.scores, name or self.report)
        return score

    def epoch(self, name: Score | None = None) -> int:
        """The epoch of that score, counted from 1.

        Raises:
            ValueError: the run diverged.
        """
        if self.epochs is None:
            raise ValueError(f"a run that {self.status} has no reported epoch")
        epoch: int = getattr(self.epochs, name or self.report)
        return epoch
