"""The record of a run as typed objects, the stored files around it, and the directory that holds them."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from hifi_cli.config import registry
from hifi_cli.config.base import Model, StoredName, describe_problem, flatten, parse
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import (
    EpochChoice,
    RunConfig,
    paths_in_place_of_names,
    run_path_of,
)
from hifi_cli.config.sources import code_file, override_value
from hifi_cli.errors import ConflictError, MissingError, UsageError, first_of
from hifi_cli.files import (
    TEMPORARY_SUFFIX,
    json_text,
    locked,
    read_json,
    read_jsonl,
    write_text,
)

# The schema of results.json. Runs of two schemas are never averaged.
# 1: `data` are digests of files, and `backbone_weights` of weights alone; the fields that schema 2
#    added are missing.
SCHEMA = 2


class Record(BaseModel):
    """A part of a stored file. Keys without a default are required, unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


def validated(model: type[Model], content: dict[str, Any], origin: Path | str) -> Model:
    """The content of a stored file, or of a part of it, typed.

    Raises:
        UsageError: a key is missing or of a wrong type; the message names it and `origin`.
    """
    return parse(model, content, f"{origin} is damaged (delete it and make it again)")


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

    def selecting_score(self, primary: str) -> float:
        """The score by which the best epoch is selected: `selection`, or the primary metric on the reported split."""
        return self.metrics[primary] if self.selection is None else self.selection


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

    total: int
    last: int
    best: int
    max: int | None


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


class TrainingLosses(Record):
    """The mean training loss of the first and of the last epoch; of the halves of a single one."""

    first: float
    last: float


class ClassCounts(Record):
    """Rows of the reported split by class, in the order of the task's labels.

    Attributes:
        labels: rows that have the class.
        predicted: rows that are predicted to have it.
    """

    labels: dict[str, int]
    predicted: dict[str, int]


def kept_score(report: EpochChoice) -> Literal["last", "best"]:
    """The score of the model that a run keeps, which is the best one also where tables show `max`.

    Args:
        report: the score that tables show.
    """
    return "last" if report == "last" else "best"


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
        seconds: of training, up to the last step that counts.
    """

    device: str
    device_type: str
    precision: str
    threads: int
    processes: int
    first_step: int
    last_step: int
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
    """Of every setting of the run, seed included; see `config_hash_of` for what is none."""
    setting_hash: str
    """The same without the seed; runs with the same one may be averaged."""
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
    selection: Literal["validation", "holdout", "few-shot"]
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
    n_examples: dict[str, int]
    """Rows of the splits `train`, `selection` and `reported`."""
    truncated: dict[str, int] | None = None
    """Those with a text that was cut to `max_length`; None: not counted."""
    fewshot: dict[str, Any] | None
    """The ids of the rows (`train`, `dev`), and the SHA-256 of ids, texts and labels."""
    heads: list[list[int]] | None
    """The attention heads that the method tunes, a list per layer; None: it needs none."""
    heads_sha256: str | None
    """Digest of the attention heads, where runs of all seeds share them."""
    data: dict[str, str]
    """Digest of the rows of every split as they were read. Schema 1: of its file."""
    data_origin: dict[str, str]
    """Where the rows of every split came from."""
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
    """Of training's matrix products, fp32 or bf16; both where processes differed."""
    gradient_accumulation_steps: int
    """Parts that every batch was cut into."""
    time_s: float | None = None
    """Seconds of training; None: diverged."""
    wall_s: float
    """Seconds of all processes that trained the run, from the prepared model to the stored
    predictions. Schema 1: of the last process."""
    peak_memory_bytes: int
    """Of a GPU, or of the process that trained the run last."""
    memory_is_own: bool | None = None
    """Whether no other run had trained in the process, whose memory the peak would have too; None:
    not known."""
    delta_sha256: str | None = None
    """Of delta.safetensors; None: diverged."""
    delta_bytes: int | None = None
    """Its size; None: diverged."""
    provenance: dict[str, Any]
    """Command, code, libraries and machine; see `machine.describe_provenance`."""

    @field_validator("config")
    @classmethod
    def _is_a_configuration(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse a configuration whose known keys are missing or wrong; another version may have others."""
        try:
            RunConfig.model_validate(config, strict=False)
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                if problem["type"] != "extra_forbidden":
                    raise ValueError(describe_problem(problem, RunConfig)) from None
        return config

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
    def kept_score(self) -> Literal["last", "best"]:
        """The score of the model that was kept, at its epoch."""
        return kept_score(self.report)

    def score(self, name: EpochChoice | None = None) -> float:
        """The primary metric of a run that is done on the reported split, a fraction of 1.

        Args:
            name: None: the score that the run's protocol reports.
        """
        return float(getattr(self.scores, name or self.report))

    def epoch(self, name: EpochChoice | None = None) -> int:
        """The epoch of that score, counted from 1."""
        return int(getattr(self.epochs, name or self.report))


def labelled_splits(data: Mapping[str, str]) -> dict[str, str]:
    """Of the digests of all splits, those that decide scores: rows of test splits have no labels."""
    return {split: value for split, value in data.items() if not split.startswith("test")}


OTHER_PLACE = "keep both with variant=NAME or another --results-dir, or replace it with --force"


RUNS = ("runs/*/*/*/*/seed*", "runs/*/*/*/*/*/seed*")  # directories; the second of variants
USER_FILES = "own"  # in a run's directory


class RunDirectory:
    """The directory of a run; results.json is written last.

    Attributes:
        checkpoint: the state of an unfinished run.
        predictions: of the reported split; others are in predictions-SPLIT.jsonl.
        user_files: copies of the user's own YAMLs, as KIND/NAME.yaml, with which the run is read again.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.config_file = path, path / "config.yaml"
        self.lock = path.parent / f".{path.name}.lock"
        self.results, self.delta = path / "results.json", path / "delta.safetensors"
        self.metrics, self.predictions = path / "metrics.jsonl", path / "predictions.jsonl"
        self.checkpoint, self.user_files = path / "checkpoints" / "last.pt", path / USER_FILES

    @classmethod
    def of(cls, config: RunConfig, results_dir: Path) -> "RunDirectory":
        """The directory where a configuration's run belongs."""
        return cls(results_dir / config.run_path)

    def user_name(self, kind: str, name: str, *, trust: bool = False) -> str:
        """A name, which carries the copy of the user's own file where the run keeps one.

        A name of code always carries it: without a copy, no other file of that name stands for it.

        Raises:
            ValueError: the name is a path, which would stand for a file that the user did not name.
        """
        if registry.own_file(name):
            return name
        copy = self._copy_of(kind, registry.plain_name(name))
        has_copy = copy.is_file() or (kind == "rankings" and name.endswith(".py"))
        return registry.NameWithFile(name, copy, is_trusted=trust) if has_copy else name

    # --- a run that begins, and ends

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the lock of the run; yields whether it is held.

        Where no lock can be written, as on a read-only disk, a finished run is read without it:
        nothing there can change.
        """
        with ExitStack() as stack:
            try:
                is_held = stack.enter_context(locked(self.lock, wait=False))
            except OSError:
                if not self.results.is_file():
                    raise
                is_held = True
            yield is_held

    def claim(self, is_held: bool) -> None:
        """Take the directory over from processes that were killed while they wrote to it.

        Args:
            is_held: whether the caller got the lock.

        Raises:
            ConflictError: another process holds it.
        """
        if not is_held:
            raise ConflictError(f"another process is writing {self.path}; wait for it")
        for part in self.path.glob(f"**/.*{TEMPORARY_SUFFIX}"):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()

    def check_is_of(self, config: RunConfig) -> None:
        """Refuse a directory that holds a run of another configuration.

        Raises:
            ConflictError: it does; differing keys are named.
        """
        if not self.config_file.is_file() and not self.results.is_file():
            return
        if self.results.is_file():
            schema = self.read_result().schema_version
            if schema != SCHEMA:
                raise ConflictError(
                    f"{self.path} holds a run of schema {schema}, and this version of hifi writes"
                    f" schema {SCHEMA}; {OTHER_PLACE}"
                )
        stored = self.read_config()
        for kind, file, copy in self._user_files(config):
            # of a task its digest and that of its rows tell more than its text
            if kind != "tasks" and _text_of(file) != _text_of(copy):
                raise ConflictError(
                    f"{self.path} holds a run by another {kind.removesuffix('s')} {copy.name}; {OTHER_PLACE}"
                )
        if stored.config_hash != config.config_hash:
            there, here = (flatten(c.model_dump(mode="json")) for c in (stored, config))
            differing = [
                f"{key} is {override_value(there.get(key))} there, {override_value(here.get(key))} here"
                for key in {**here, **there}
                if there.get(key) != here.get(key)
            ]
            raise ConflictError(
                f"{self.path} holds a run of another configuration ({first_of(differing)}); {OTHER_PLACE}"
            )

    def begin(self, config: RunConfig, *, anew: bool) -> None:
        """Write config.yaml, and copies of the user's own YAMLs and methods, and of no others.

        Args:
            anew: also where there is a checkpoint to continue from, a former run is removed first.
        """
        if anew or not self.checkpoint.is_file():
            self.clear()
        copies = {copy: file for _, file, copy in self._user_files(config) if file}
        for copy, file in copies.items():
            write_text(copy, file.read_text(encoding="utf-8"))
        for path in self.user_files.glob("**/*"):
            if path.is_file() and path not in copies:
                path.unlink()
        text = registry.yaml_text(config.model_dump(mode="json"))
        head = f"# the resolved configuration of this run; hash {config.config_hash}"
        write_text(self.config_file, f"{head}\n{text}")

    def finish(self, result: RunResult) -> None:
        """Store the result of the run, which is finished then."""
        result.write(self.results)
        self.checkpoint.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a former run's files, results.json first: no half of it can be mistaken for a run.

        The copies of the user's own YAMLs stay for `begin`: the next run may be made from them.
        """
        others = (self.metrics, self.checkpoint, self.config_file)
        splits = self.path.glob("predictions-*.jsonl")
        for path in (self.results, self.delta, self.predictions, *splits, *others):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)

    # --- its files

    def read_config(self) -> RunConfig:
        """The configuration: what results.json says, or config.yaml until there is one.

        Raises:
            MissingError: there is none.
        """
        if self.results.is_file():
            return parse(RunConfig, self.read_result().config, str(self.results))
        return parse(RunConfig, read_yaml(self.config_file), str(self.config_file))

    def with_user_yamls(self, config: RunConfig, *, trust: bool) -> RunConfig:
        """A configuration whose names mean the run's own YAMLs, where it keeps copies.

        Args:
            trust: whether the code that they name may be executed.
        """
        changes: dict[str, Any] = {
            "task": self.user_name("tasks", config.task, trust=trust),
            "method": self.user_name("methods", config.method, trust=trust),
        }
        if config.stage1:
            method = self.user_name("methods", config.stage1.method, trust=trust)
            changes["stage1"] = config.stage1.model_copy(update={"method": method})
        rank = self.user_name("rankings", config.heads.rank, trust=trust)
        changes["heads"] = config.heads.model_copy(update={"rank": rank})
        return config.model_copy(update=changes)

    def names_outside(self) -> Iterator[str]:
        """Say where files of the run name files outside of it, which must not be read for it."""
        if self.config_file.is_file():
            for key, problem in paths_in_place_of_names(read_yaml(self.config_file)).items():
                yield f"{self.config_file.name}: {key}: {problem}"
        for file in sorted(self.user_files.glob("methods/*.yaml")):
            try:
                code_file(file)
            except UsageError as error:
                yield str(error)

    def _copy_of(self, kind: str, name: str) -> Path:
        """Where the run keeps the user's own file of that name: a YAML, or Python code."""
        return self.user_files / kind / (name if name.endswith(".py") else f"{name}.yaml")

    def _user_files(self, config: RunConfig) -> Iterator[tuple[str, Path | None, Path]]:
        """What a configuration names, code too: kind, the user's own file if any, its copy here."""
        for kind, name in [
            ("tasks", config.task),
            *(("methods", stage.method) for stage in config.stages),
            ("rankings", config.heads.rank),
        ]:
            file, copy = registry.own_file(name), self._copy_of(kind, name)
            yield kind, file, copy
            source = file or copy
            if kind == "methods" and source.is_file() and (code := code_file(source)):
                yield kind, file and file.parent / code, copy.parent / code

    def read_result(self) -> RunResult:
        """The result of a finished run.

        Raises:
            MissingError: the run is not finished.
            UsageError: it is damaged.
        """
        if not self.results.is_file():
            raise MissingError(f"{self.path} holds no finished run; hifi ls runs lists all")
        return RunResult.read(self.results)

    def write_metrics(self, lines: Sequence[MetricsLine]) -> None:
        """Begin metrics.jsonl with the lines of a run so far; at no moment is it missing."""
        write_text(self.metrics, "".join(map(_metrics_text, lines)))

    def append_metrics(self, line: MetricsLine) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(_metrics_text(line))

    def write_predictions(
        self, predictions: Sequence[Prediction], split: str | None = None
    ) -> Path:
        """Store the predictions of the reported split, or of another one in a file of its own."""
        path = self.path / f"predictions-{split}.jsonl" if split else self.predictions
        lines = (json.dumps(prediction.model_dump()) + "\n" for prediction in predictions)
        write_text(path, "".join(lines))
        return path

    def read_predictions(self) -> list[Prediction]:
        """The predictions of the reported split, in the order of its rows.

        Raises:
            MissingError: there are none.
            UsageError: a line is damaged; it is named.
        """
        lines = read_jsonl(self.predictions)
        return [
            validated(Prediction, line, f"{self.predictions}, line {number}")
            for number, line in enumerate(lines, start=1)
        ]


def unfinished_runs(results_dir: Path) -> list[RunDirectory]:
    """Every run in a results directory that has begun and has no result, sorted by path."""
    begun = [path for run in RUNS for path in results_dir.glob(f"{run}/config.yaml")]
    runs = [path.parent for path in begun if not path.with_name("results.json").is_file()]
    return [RunDirectory(path) for path in sorted(runs, key=Path.as_posix)]


def _metrics_text(line: MetricsLine) -> str:
    return json.dumps(line.model_dump(exclude_none=True)) + "\n"


def _text_of(path: Path | None) -> str:
    """The content of a user's file, or of its copy; empty where it is not there."""
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""
