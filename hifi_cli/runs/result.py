"""The record of a run, made of its configuration, its rows, what training left, and what it cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import torch

from hifi_cli.config.draws import draws_of
from hifi_cli.config.epoch_rule import EpochRule
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.methods.base import Heads, Method
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.record import (
    SCHEMA,
    ClassCounts,
    Epochs,
    ParameterCounts,
    Prediction,
    RunResult,
    RunScores,
    StepMetrics,
    TrainingLosses,
    TrainingProcess,
)
from hifi_cli.records.signs import losses_of
from hifi_cli.runs.inputs import RunInputs
from hifi_cli.runs.prepare import PreparedRun
from hifi_cli.runs.provenance import describe_provenance
from hifi_cli.tasks.encode import count_truncated_rows, rows_of
from hifi_cli.tasks.examples import EncodedExample, Predictions, Values
from hifi_cli.tasks.task_spec import TaskSpec, task_digest
from hifi_cli.text import format_number
from hifi_cli.training import processes
from hifi_cli.training.loop import Progress, Trainer, measure_reported_rows

# --- the epoch that is kept, and its scores


@dataclass(frozen=True)
class KeptEpoch:
    """The epoch whose model a run keeps, with what that model predicts on the reported split.

    Attributes:
        number: counted from 1.
        metrics_by_epoch: every metric on the reported and on extra splits, of the epochs that were
            measured there: the last, the best and the kept one at least.
        logits: of the reported split.
        predictions: of the reported split, which follow from the logits.
    """

    number: int
    metrics_by_epoch: dict[int, dict[str, float]]
    logits: Values
    predictions: Predictions


def evaluate_kept_epoch(trainer: Trainer) -> KeptEpoch:
    """Return the kept epoch with what its model predicts; evaluate it now, if it was not before.

    The logits are usually those of the epoch's own evaluation. Where other rows than the reported
    ones selected the epoch, the reported rows may not have been evaluated then. The delta of that
    epoch is then loaded, and they are evaluated now.

    Args:
        trainer: has trained to the end.
    """
    progress = trainer.progress
    number = progress.best_epoch
    if trainer.config.epoch_rule.kept == "last":
        number = progress.epoch
    # An epoch without metrics was measured on the selecting rows alone.
    by_epoch = {line.epoch: line.metrics for line in progress.epoch_metrics if line.metrics}
    if trainer.logits is not None:
        logits = trainer.logits.numpy()
    else:
        with torch.no_grad():
            trainer.method.load_delta(trainer.model, trainer.delta)
        by_epoch[number], logits = measure_reported_rows(trainer.runner, trainer.splits)
    predictions = trainer.runner.task.rules.predictions(trainer.splits.reported, logits)
    return KeptEpoch(number, by_epoch, logits, predictions)


def run_scores(rule: EpochRule, progress: Progress, kept: KeptEpoch, metric: str) -> RunScores:
    """Return a metric after the last, the best and the highest epoch.

    Args:
        rule: says whether every epoch was measured.
        progress: how far training came.
        kept: has the metrics by epoch.
        metric: its name, on an extra split with the split's suffix.
    """
    scores = {epoch: metrics[metric] for epoch, metrics in kept.metrics_by_epoch.items()}
    highest = None
    if rule.measures_every_epoch:
        highest = scores[highest_epoch(kept, metric)]
    return RunScores(last=scores[progress.epoch], best=scores[progress.best_epoch], max=highest)


def run_epochs(rule: EpochRule, progress: Progress, kept: KeptEpoch, metric: str) -> Epochs:
    """Return the epochs of `run_scores`, counted from 1.

    Args:
        rule: says whether every epoch was measured.
        progress: how far training came.
        kept: has the metrics by epoch.
        metric: by which the highest epoch is told.
    """
    highest = None
    if rule.measures_every_epoch:
        highest = highest_epoch(kept, metric)
    return Epochs(total=progress.epoch, last=progress.epoch, best=progress.best_epoch, max=highest)


def highest_epoch(kept: KeptEpoch, metric: str) -> int:
    """Return the epoch after which a metric was highest, the first one of equal scores."""
    by_epoch = kept.metrics_by_epoch
    return max(by_epoch, key=lambda epoch: by_epoch[epoch][metric])


# --- what became of a run


@dataclass(frozen=True)
class StoredDelta:
    """The file with what training changed: its SHA-256 and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, as fields of its record; a run that diverged has no scores.

    Attributes:
        params: what trains in the method's last stage.
        reason: why the run diverged; empty: it has trained to its end.
        collapsed: whether the model predicts one class for every row; a run that diverged has no
            model that tells classes apart.
        time_s: seconds of training, evaluations included.
    """

    params: ParameterCounts
    status: Literal["done", "diverged"]
    reason: str
    collapsed: bool
    classes: ClassCounts | None = None
    losses: TrainingLosses | None = None
    scores: RunScores | None = None
    epochs: Epochs | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    extra_validation: dict[str, RunScores] = field(default_factory=dict)
    time_s: float | None = None
    delta_sha256: str | None = None
    delta_bytes: int | None = None

    @classmethod
    def diverged(cls, params: ParameterCounts, divergence: str) -> "Outcome":
        """Return the outcome of a run that diverged.

        Args:
            params: what trains in the method's last stage.
            divergence: what is not finite, and at which step.
        """
        return cls(params, status="diverged", reason=divergence, collapsed=True)


def outcome_of(
    trainer: Trainer, params: ParameterCounts, kept: KeptEpoch, delta: StoredDelta | None
) -> Outcome:
    """Return the outcome of a run that has trained to its end.

    Args:
        trainer: has trained the model.
        params: what trains in the last stage.
        kept: the kept epoch, and what its model predicts.
        delta: None: another process of the run stores it.
    """
    task = trainer.runner.task
    rule = trainer.config.epoch_rule
    splits = trainer.splits
    progress = trainer.progress
    extra = {}
    for split in splits.extra_validation:
        metric = task.on_split(f"validation_{split}").primary
        extra[split] = run_scores(rule, progress, kept, f"{metric}_{split}")
    step_lines = [line for line in progress.log_history if isinstance(line, StepMetrics)]
    return Outcome(
        params,
        status="done",
        reason="",
        collapsed=task.rules.is_collapsed(kept.predictions),
        classes=class_counts(task, splits.reported, kept.predictions),
        losses=losses_of(step_lines, trainer.plan.per_epoch),
        scores=run_scores(rule, progress, kept, task.primary),
        epochs=run_epochs(rule, progress, kept, task.primary),
        metrics=kept.metrics_by_epoch[kept.number],
        extra_validation=extra,
        time_s=round(progress.seconds, 3),
        delta_sha256=delta.sha256 if delta else None,
        delta_bytes=delta.size if delta else None,
    )


@dataclass(frozen=True)
class Costs:
    """The costs of a run.

    Attributes:
        seconds: of all its processes, from the prepared model to the stored predictions.
        peak_memory_bytes: of a GPU, or of the last process.
        memory_is_own: whether that is the memory of this run alone. On a CPU, the reading after
            another run of the process is too high.
    """

    seconds: float
    peak_memory_bytes: int
    memory_is_own: bool


# --- the record


def result_of(
    inputs: RunInputs, trainer: Trainer, outcome: Outcome, costs: Costs, code: str | None
) -> RunResult:
    """Build the record of a run.

    Args:
        inputs: what it was computed from, with the run's own configuration.
        trainer: has trained the model, or stopped where it diverged.
        outcome: its scores, or why it diverged.
        costs: what it took.
        code: digest of the user's own code; None: there is none.
    """
    config = inputs.config
    task = inputs.task
    data = inputs.data
    pretrained = inputs.pretrained
    splits = trainer.splits
    heads = trainer.method.context.heads
    trained_by = trainer.progress.processes
    device_types = [process["device_type"] for process in trained_by]
    precisions = sorted({process["precision"] for process in trained_by})
    return RunResult(
        # Every field of an outcome is a field of the record, under the same name.
        **vars(outcome),
        schema_version=SCHEMA,
        task=config.task,
        task_digest=task_digest(task),
        method=config.method,
        backbone=config.backbone.name,
        protocol=config.protocol,
        seed=config.seed,
        split="validation",
        selection=config.epoch_rule.selection,
        report=config.report,
        primary_metric=trainer.runner.task.primary,
        n_examples=splits.count(lambda examples: len(rows_of(examples))),
        truncated=splits.count(count_truncated_rows),
        shots=config.shots,
        fewshot=splits.fewshot,
        draws=draws_of(config, device_types, selects_heads=heads is not None),
        processes=[TrainingProcess.model_validate(process) for process in trained_by],
        precision=" and ".join(precisions),
        limit=config.limit,
        variant=config.variant,
        config=config.model_dump(mode="json"),
        config_hash=config.config_hash,
        setting_hash=config.setting_hash,
        heads=heads,
        heads_sha256=_digest_of_shared_heads(config, heads),
        backbone_weights=pretrained.digest,
        started_from=pretrained.started_from,
        method_code=code,
        data=data.fingerprint,
        data_origin=_short_origins(data.origin),
        wall_s=round(costs.seconds, 3),
        peak_memory_bytes=costs.peak_memory_bytes,
        memory_is_own=costs.memory_is_own,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        epoch_metrics=trainer.progress.epoch_metrics,
        provenance=_provenance(trainer.runner.device, trained_by),
    )


def _provenance(device: torch.device, trained_by: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return command, code, libraries and machine of a run that finishes now, with all its devices.

    Args:
        device: of this process.
        trained_by: what is known of each process that trained it, in order.
    """
    count = processes.process_state().num_processes
    devices = dict.fromkeys(process["device"] for process in trained_by)
    provenance = describe_provenance(device, processes=count)
    provenance["device"] = " and ".join(devices)
    provenance["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    return provenance


def _digest_of_shared_heads(config: RunConfig, heads: Heads | None) -> str | None:
    """Return the digest of the tuned heads, if runs of all seeds tune the same ones.

    Seeds are averaged only if it agrees. Heads that each seed draws for itself may differ.
    """
    if not heads or config.heads_vary_with_seed:
        return None
    return digest(heads, 64)


def _short_origins(origins: Mapping[str, str]) -> dict[str, str]:
    """Return the last two parts of each path or dataset's name: the others are of this machine."""
    return {split: "/".join(origin.split("/")[-2:]) for split, origin in origins.items()}


# --- counts


def class_counts(
    task: TaskSpec, examples: list[EncodedExample], predictions: Predictions
) -> ClassCounts | None:
    """Count the rows that have each class, and those that are predicted to have it.

    Args:
        task: has the classes.
        examples: of a split.
        predictions: one for each row of the examples.

    Returns:
        None where rows have no single class.
    """
    if not task.classes:
        return None
    rules = task.rules
    labels = Counter(rules.label_word(row.label) for row in rows_of(examples))
    predicted = Counter(rules.label_word(value) for value in predictions)
    return ClassCounts(
        labels={word: labels[word] for word in task.classes},
        predicted={word: predicted[word] for word in task.classes},
    )


def count_parameters(prepared: PreparedRun) -> ParameterCounts:
    """Count the trained parameters (in all and in the backbone), the stored ones, and the model's.

    `total` counts the plain encoder with its task head, without what the method adds.
    """
    trainable, trainable_backbone = trained_sizes(prepared.method, prepared.encoder)
    stored = prepared.method.delta(prepared.encoder.model).values()
    return ParameterCounts(
        trainable=trainable,
        trainable_backbone=trainable_backbone,
        stored=sum(tensor.numel() for tensor in stored if tensor.is_floating_point()),
        stored_bytes=sum(tensor.numel() * tensor.element_size() for tensor in stored),
        total=sum(value.numel() for value in prepared.pretrained.model.parameters()),
    )


def trained_sizes(method: Method, encoder: Encoder) -> tuple[int, int]:
    """Count the parameters that a method trains, in all and outside of the task head."""
    trained = method.trainable_parameters(encoder.model)
    task_head = encoder.task_head.keys()
    sizes = {name: value.numel() for name, value in trained.items()}
    in_backbone = [size for name, size in sizes.items() if name not in task_head]
    return sum(sizes.values()), sum(in_backbone)


# --- predictions


def prediction_rows(
    task: TaskSpec, examples: list[EncodedExample], logits: Values, predictions: Predictions
) -> list[Prediction]:
    """Make the lines of predictions.jsonl: id, label, prediction (label, number, answer, tags), logits.

    Args:
        task: says what labels are called.
        examples: of a split, in its order.
        logits: of the examples.
        predictions: of the examples' rows, as the task's rules make them of the logits.
    """
    rules = task.rules
    predicted: list[Any]
    logits_of_rows: list[list[float]]
    if isinstance(predictions, np.ndarray):
        # Numbers, which stand in the file as people read them, with the logits of the row's example.
        predicted = [rules.label_word(value) for value in predictions]
        logits_of_rows = logits.astype(np.float32).tolist()
    else:
        # Answers or tags, which have the logits that they were chosen by.
        predicted = [output.prediction for output in predictions]
        logits_of_rows = [output.logits for output in predictions]
    lines = []
    of_rows = zip(rows_of(examples), predicted, logits_of_rows, strict=True)
    for row, prediction, row_logits in of_rows:
        label = rules.stored_label(row)
        lines.append(Prediction(id=row.id, label=label, prediction=prediction, logits=row_logits))
    return lines


def summary(result: RunResult) -> str:
    """Return the result of a run in a few words."""
    if not result.epochs:
        return f"{result.status}: {result.reason}"
    epoch = f"{result.report}, epoch {result.epoch()} of {result.epochs.total}"
    score = format_number(100 * result.score(), ".2f")
    words = [f"{result.primary_metric} {score} ({epoch})"]
    if result.collapsed:
        words.append("collapsed")
    if result.limit is not None:
        words.append("limited")
    return ", ".join(words)
