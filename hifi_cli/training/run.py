"""One run, from its configuration to results.json."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, Terminated
from hifi_cli.files import digest, file_digest, locked, make_directory
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import (
    EpochMetrics,
    Epochs,
    ParameterCounts,
    RunResult,
    RunScores,
)
from hifi_cli.tasks import metrics
from hifi_cli.tasks.encode import rows_of, truncated_rows
from hifi_cli.tasks.metrics import Values
from hifi_cli.training import distributed, provenance
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.device import configure, uses_bf16
from hifi_cli.training.metric_logger import MetricLogger
from hifi_cli.training.prepared_run import (
    NonFiniteLogits,
    PreparedRun,
    RunInputs,
    count_parameters,
    measure,
    measure_extra_validation,
    prediction_rows,
    prepare,
)
from hifi_cli.training.resources import ResourceCache
from hifi_cli.training.splits import Splits
from hifi_cli.training.trainer import Diverged, EpochEvaluation, Trainer

logger = logging.getLogger("hifi")


@dataclass(frozen=True)
class RunOutcome:
    """The fields of `RunResult` that training decides."""

    status: Literal["done", "diverged"]
    params: ParameterCounts
    collapsed: bool
    reason: str = ""
    scores: RunScores | None = None
    epochs: Epochs | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    extra_validation: dict[str, RunScores] = field(default_factory=dict)
    time_s: float | None = None
    delta_sha256: str | None = None
    delta_bytes: int | None = None


def run(
    config: RunConfig,
    resources: ResourceCache,
    *,
    force: bool = False,
    resume: bool = True,
    report_to: Sequence[str] = (),
) -> RunResult:
    """Train, evaluate and store one run; a finished run of the same configuration is not repeated.

    Args:
        force: repeat it nevertheless.
        resume: continue from a checkpoint, if there is one.
        report_to: trackers that get the log lines too; see `hifi_cli.training.trackers`.

    Raises:
        ConflictError: the directory holds another run, or another process is writing it.
        RunFailed: a batch does not fit in memory, or the disk is full.
        MissingError, UsageError: something it needs is missing or wrong, the requested GPU for example.
    """
    configure(config)  # refuses a missing GPU before anything is written
    metrics.check_names(resources.task_of(config))
    directory = RunDirectory.of(config, resources.results_dir)
    make_directory(directory.path)
    with locked(directory.lock, wait=False) if distributed.is_main() else nullcontext(True) as is_locked:
        finished = distributed.from_main(lambda: _finished_before(config, resources, directory, is_locked, force))
        if finished:
            return finished
        inputs = RunInputs.resolve(config, resources)
        return _run(inputs, directory, report_to, anew=force or not resume)


def _finished_before(
    config: RunConfig, resources: ResourceCache, directory: RunDirectory, is_locked: bool, force: bool
) -> RunResult | None:
    """The result of a finished run; None: this one is to be trained."""
    if not is_locked:
        raise ConflictError(f"another process is writing {directory.path}; wait for it")
    directory.remove_leftovers()
    if force:
        return None
    directory.check_is_of(config)
    if directory.results.is_file():
        result = directory.read_result()
        resources.input_check.check(config, directory, result)
        logger.info(f"{name(config)}: finished before, {summary(result)}")
        return result
    return None


def _run(inputs: RunInputs, directory: RunDirectory, report_to: Sequence[str], *, anew: bool) -> RunResult:
    """Train, evaluate and store one run.

    Args:
        anew: do not continue from a checkpoint. Where there is none to continue from, what the directory holds is removed, once
            nothing can refuse the run any more.
    """
    config, splits, heads = inputs.model.config, inputs.splits, inputs.model.attention_heads
    prepared = prepare(inputs.model)
    precision = "bf16" if uses_bf16(config.precision, prepared.runner.device) else "fp32"
    weights = inputs.model.pretrained.weights_id
    code = provenance.method_code(config)  # as it is now: the file may change while the run trains
    run_id = digest([config.hash, heads, weights, inputs.data.fingerprint])
    trainer = _trainer(prepared, splits, Checkpoint(directory.checkpoint, run_id))
    distributed.from_main(lambda: directory.clear() if anew or not directory.checkpoint.is_file() else None)
    if distributed.is_main():
        directory.write_config(config)
        directory.failure.unlink(missing_ok=True)
    provenance.reset_peak_memory(prepared.runner.device)
    start = time.monotonic()
    try:
        _train(trainer, prepared, directory, report_to)
        try:
            outcome = _store_and_score(prepared, splits, trainer, directory)
        except (KeyboardInterrupt, Terminated):
            trainer.save_checkpoint()  # nothing is trained again
            raise
    except Diverged as error:
        methods.prepare_last_phase(prepared.method, prepared.encoder, error.phase)
        outcome = RunOutcome("diverged", count_parameters(prepared), collapsed=True, reason=str(error))
    except (KeyboardInterrupt, Terminated):
        if directory.checkpoint.is_file():
            logger.warning(f"{name(config)}: stopped; the same command continues from its checkpoint")
        raise
    result = RunResult(
        **vars(outcome),
        task=config.task,
        method=config.method,
        backbone=config.backbone.name,
        protocol=config.protocol,
        seed=config.seed,
        split="validation",
        selection="few-shot" if config.shots else config.selection,
        report=config.report,
        primary_metric=prepared.task.primary,
        n_examples=splits.count(lambda examples: len(rows_of(examples))),
        truncated=splits.count(truncated_rows),
        shots=config.shots,
        fewshot=splits.fewshot,
        precision=precision,
        limit=config.limit,
        variant=config.variant,
        config=config.model_dump(mode="json"),
        config_hash=config.hash,
        setting_hash=config.setting_hash,
        heads=heads,
        heads_sha256=digest(heads, 64) if heads and not config.heads_vary_with_seed else None,  # of what all seeds share
        backbone_weights=weights,
        started_from=inputs.model.pretrained.started_from,
        method_code=code,
        data=inputs.data.fingerprint,
        data_origin=inputs.data.origin,
        wall_s=round(time.monotonic() - start, 3),
        peak_memory_bytes=provenance.peak_memory(prepared.runner.device),
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        epoch_metrics=[line for line in trainer.progress.log_history if isinstance(line, EpochMetrics)],
        provenance=provenance.describe(prepared.runner.device, processes=prepared.runner.accelerator.num_processes),
    )
    if distributed.is_main():
        directory.write_result(result)
        directory.checkpoint.unlink(missing_ok=True)
    logger.info(f"{name(config)}: {summary(result)}, {result.time_s or result.wall_s:.1f} s")
    return result


def _trainer(prepared: PreparedRun, splits: Splits, checkpoint: Checkpoint) -> Trainer:
    """The trainer of a run, before its first step.

    Raises:
        UsageError: the run has fewer steps than its method has phases.
    """

    def reported() -> tuple[dict[str, float], Values]:
        measured, logits = measure(prepared, splits.reported)
        return measured | measure_extra_validation(prepared, splits.extra_validation), logits

    def selection() -> float:
        return measure(prepared, splits.selection)[0][prepared.task.primary]

    return Trainer(
        prepared.runner,
        prepared.method,
        splits.train,
        evaluation=EpochEvaluation(reported, prepared.task.primary, None if splits.selection is splits.reported else selection),
        calibration_batches=splits.calibration_batches,
        checkpoint=checkpoint,
    )


def _train(trainer: Trainer, prepared: PreparedRun, directory: RunDirectory, report_to: Sequence[str]) -> None:
    """Train to the end; the trainer then has its progress and the delta of the epoch that is reported."""
    config, lengths = trainer.config, [len(example) for example in trainer.train_examples]
    with MetricLogger(name(config), config, prepared.task.primary, lengths, directory, report_to) as metric_logger:
        trainer.callbacks = [metric_logger]
        try:
            trainer.train()
        except NonFiniteLogits:
            raise Diverged("the logits are not finite", trainer.progress) from None


def _store_and_score(prepared: PreparedRun, splits: Splits, trainer: Trainer, directory: RunDirectory) -> RunOutcome:
    """Store delta and predictions of the epoch that is reported, and return its scores.

    The predictions are those of the epoch's own evaluation. Where another split chose the epoch, the reported one may not have
    been evaluated then; it is now, with the delta.
    """
    task, config, progress = prepared.task, prepared.runner.config, trainer.progress
    params = count_parameters(prepared)
    kept_epoch = progress.epoch if config.report == "last" else progress.best_epoch
    measured = {line.epoch: line.metrics for line in progress.log_history if isinstance(line, EpochMetrics)}[kept_epoch]
    logits = trainer.logits
    if logits is None:
        with torch.no_grad():
            prepared.method.load_delta(prepared.encoder.model, trainer.delta)
        measured, logits = measure(prepared, splits.reported)
        measured |= measure_extra_validation(prepared, splits.extra_validation)
    predictions = metrics.predictions_of(task, splits.reported, logits)
    delta_sha256 = delta_bytes = None
    if distributed.is_main():
        deltas.save(directory.delta, trainer.delta, prepared.delta_metadata)
        delta_sha256, delta_bytes = file_digest(directory.delta), directory.delta.stat().st_size
        directory.write_predictions(prediction_rows(task, splits.reported, logits, predictions))
    by_epoch = _by_epoch(trainer, measured, task.primary)
    return RunOutcome(
        "done",
        params,
        collapsed=metrics.is_collapsed(predictions),
        scores=_scores_of(by_epoch, trainer),
        epochs=Epochs(
            total=progress.epoch,
            last=progress.epoch,
            best=progress.best_epoch,
            max=max(by_epoch, key=by_epoch.__getitem__) if config.evaluates_every_epoch else None,
        ),
        metrics=measured,
        extra_validation={
            split: _scores_of(_by_epoch(trainer, measured, f"{task.on_split(f'validation_{split}').primary}_{split}"), trainer)
            for split in splits.extra_validation
        },
        time_s=round(progress.seconds, 3),
        delta_sha256=delta_sha256,
        delta_bytes=delta_bytes,
    )


def _by_epoch(trainer: Trainer, measured: Mapping[str, float], metric: str) -> dict[int, float]:
    """A metric on the reported split after each evaluated epoch, with what was measured with the stored delta."""
    progress = trainer.progress
    kept_epoch = progress.epoch if trainer.config.report == "last" else progress.best_epoch
    lines = (line for line in progress.log_history if isinstance(line, EpochMetrics))
    return {kept_epoch: measured[metric]} | {line.epoch: line.metrics[metric] for line in lines if metric in line.metrics}


def _scores_of(by_epoch: dict[int, float], trainer: Trainer) -> RunScores:
    progress, has_max = trainer.progress, trainer.config.evaluates_every_epoch
    return RunScores.from_epochs(by_epoch, best=progress.best_epoch, total=progress.epoch, has_max=has_max)


def name(config: RunConfig) -> str:
    """The name of a run in messages."""
    return f"{config.task}/{config.method}/seed{config.seed}"


def summary(result: RunResult) -> str:
    """The result of a run in a few words."""
    if not result.epochs:
        return f"{result.status}: {result.reason}"
    flags = "".join(f", {flag}" for flag in ("collapsed", "limited") if getattr(result, flag))
    epoch = f"{result.report}, epoch {result.epoch()} of {result.epochs.total}"
    return f"{result.primary_metric} {100 * result.score():.2f} ({epoch}){flags}"
