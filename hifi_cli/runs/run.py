"""One run, from its configuration to results.json."""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, Terminated
from hifi_cli.files import digest, file_digest, locked, make_directory
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Method, MethodContext
from hifi_cli.models import delta as deltas
from hifi_cli.models.cpu_kernels import install_row_linears
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import DataSource, EpochMetrics, Manifest, Prediction
from hifi_cli.records.run_result import (
    Epochs,
    ExampleCounts,
    FewShotRows,
    GradientAccumulationSteps,
    ParameterCounts,
    RunResult,
    RunScores,
)
from hifi_cli.runs import distributed, head_selection, holdout, provenance
from hifi_cli.runs.checkpoint import Checkpoint, Progress
from hifi_cli.runs.metric_logger import MetricLogger
from hifi_cli.runs.model_runner import ModelRunner, uses_cpu_kernels
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.trainer import Diverged, Trainer, ValidationScores
from hifi_cli.tasks import fewshot, metrics
from hifi_cli.tasks.batches import training_order
from hifi_cli.tasks.metrics import Predictions, Values
from hifi_cli.tasks.task_spec import Split, TaskSpec
from hifi_cli.tasks.tokenization import Example, rows_of

logger = logging.getLogger("hifi")


@dataclass(frozen=True)
class Splits:
    """The examples a run trains on, chooses its epoch by, and reports on.

    Attributes:
        surveyed: batches that a method may look at before it starts, of the full-shot setting in a few-shot run too.
        further: validation splits reported besides, each under the suffix of its metrics.
        fewshot: the ids of a few-shot run's rows and their checksum.
    """

    train: list[Example]
    selection: list[Example]
    reported: list[Example]
    calibration_batches: list[list[Example]]
    extra_validation: dict[str, list[Example]] = field(default_factory=dict)
    fewshot: FewShotRows | None = None


@dataclass(frozen=True)
class Prepared:
    """A run ready to train, or a finished one ready to predict."""

    task: TaskSpec
    method: Method
    encoder: Encoder
    runner: ModelRunner
    task_head: TaskHeadSpec
    weights_id: str
    plain_parameters: int


def prepare(config: RunConfig, resources: ResourceCache, heads: methods.Heads | None) -> Prepared:
    """Build the model and let the method prepare it."""
    task = resources.task_of(config)
    encoder, pretrained = resources.encoder(config)
    plain = sum(parameter.numel() for parameter in encoder.model.parameters())
    if config.shots:  # scoring and masks are those of the full-shot setting; only training has the whole set as a batch
        config = config.model_copy(update={"batch_size": config.shots * len(task.labels)})
    runner = ModelRunner(encoder, task, config, head_selection.padding(pretrained.tokenizer))
    method = methods.build(config, MethodContext(heads, pretrained.missing_keys, config.seed, config.stage1))
    method.prepare(encoder)
    if uses_cpu_kernels(config):
        install_row_linears(encoder)
    runner.to_device()
    return Prepared(task, method, encoder, runner, resources.task_head(config), pretrained.weights_id, plain)


def chosen_heads(config: RunConfig, resources: ResourceCache) -> methods.Heads | None:
    """The heads a run's method tunes: given, or chosen by the configuration; None for a method that needs none."""
    if not methods.needs_heads(config):
        return None
    return config.heads.given or head_selection.heads(config, resources)[0].heads


def run(
    config: RunConfig,
    resources: ResourceCache,
    *,
    force: bool = False,
    resume: bool = True,
    auto_batch: bool = False,
    report_to: Sequence[str] = (),
) -> RunResult:
    """Train, evaluate and store one run; a finished run of the same configuration is not repeated.

    Args:
        report_to: trackers that get the log lines too; see `hifi_cli.runs.trackers`.
        auto_batch: compute a batch that does not fit in memory in more parts.

    Raises:
        ConflictError: the directory holds, or another process writes, another run.
        RunFailed: a batch does not fit in memory, or the disk is full.
        MissingError, UsageError: something it needs is missing or wrong.
    """
    directory = RunDirectory.of(config, resources.results_dir)
    make_directory(directory.path)
    with locked(directory.lock, wait=False) if distributed.is_main() else nullcontext(True) as had:
        before = distributed.from_main(lambda: _before(config, resources, directory, had, force, resume))
        return before or _train(config, resources, directory, auto_batch, report_to)


def _before(
    config: RunConfig, resources: ResourceCache, directory: RunDirectory, had: bool, force: bool, resume: bool
) -> RunResult | None:
    """The result of a finished run; or None, and the directory is ready for this one."""
    if not had:
        raise ConflictError(f"another process is writing {directory.path}; wait for it")
    directory.remove_leftovers()
    if force:
        directory.clear()
    directory.check_is_of(config)
    if directory.results.is_file():
        result = directory.read_result()
        _check_data(result, config, resources, directory)
        logger.info(f"{name(config)}: finished before, {summary(result)}")
        return result
    if not resume:
        directory.clear()
    return None


def name(config: RunConfig) -> str:
    """A run in one word."""
    return f"{config.task}/{config.method}/seed{config.seed}"


def summary(result: RunResult) -> str:
    """A run's result in a few words."""
    if not result.epochs:
        return f"{result.status}: {result.reason}"
    flags = "".join(f", {flag}" for flag in ("collapsed", "limited") if getattr(result, flag))
    epoch = f"{result.report}, epoch {result.epoch()} of {result.epochs.total}"
    return f"{result.primary_metric} {100 * result.score():.2f} ({epoch}){flags}"


def _train(
    config: RunConfig, resources: ResourceCache, directory: RunDirectory, auto_batch: bool, report_to: Sequence[str]
) -> RunResult:
    heads = chosen_heads(config, resources)
    splits = split_examples(config, resources)
    prepared = prepare(config, resources, heads)
    prepared.runner.auto_batch = auto_batch
    data = resources.rows(config.task)
    manifest = Manifest(
        **dict(provenance.describe()),
        heads=heads,
        backbone_weights_id=prepared.weights_id,
        data=DataSource(fingerprint=data.fingerprint, origin=data.origin),
        processes=prepared.runner.accelerator.num_processes,
    )
    inputs = manifest.model_dump(include={"heads", "backbone_weights_id", "data"})
    checkpoint = Checkpoint(directory.checkpoint, digest([config.hash, inputs]))
    if distributed.is_main():
        directory.write_config(config)
        directory.failure.unlink(missing_ok=True)
        manifest.write(directory.manifest)
    provenance.reset_peak_memory()
    began = time.monotonic()
    outcome: dict[str, Any]
    try:
        progress, params = _fit(prepared, splits, directory, checkpoint, report_to)
    except Diverged as error:
        methods.prepare_last_phase(prepared.method, prepared.encoder, error.phase)
        params = count_parameters(prepared)
        outcome = {"status": "diverged", "reason": str(error), "collapsed": True}
    else:
        logits = prepared.runner.predict(splits.reported)
        predictions = metrics.predictions_of(prepared.task, splits.reported, logits)
        best, reported = progress.best_epoch, progress.reported_scores
        outcome = {
            "status": "done",
            "scores": RunScores(last=reported[-1], best=reported[best - 1], max=max(reported)),
            "epochs": Epochs(total=progress.epoch, last=progress.epoch, best=best, max=1 + reported.index(max(reported))),
            "metrics": metrics.compute(prepared.task, rows_of(splits.reported), predictions)
            | measure_extra_validation(prepared, splits),
            "extra_validation": {
                name: extra_validation_scores(prepared.task, name, progress) for name in splits.extra_validation
            },
            "collapsed": metrics.is_collapsed(predictions),
            "time_s": round(progress.seconds, 3),
        }
        if distributed.is_main():
            directory.write_predictions(prediction_rows(prepared.task, splits.reported, logits, predictions))
            outcome["delta_sha256"] = file_digest(directory.delta)
    result = RunResult(
        **outcome,
        task=config.task,
        method=config.method,
        backbone=config.backbone.name,
        protocol=config.protocol,
        seed=config.seed,
        split="validation",
        selection="few-shot" if config.shots else config.selection,
        report=config.report,
        primary_metric=prepared.task.primary,
        n_examples=ExampleCounts(
            train=len(rows_of(splits.train)),
            selection=len(rows_of(splits.selection)),
            reported=len(rows_of(splits.reported)),
        ),
        shots=config.shots,
        fewshot=splits.fewshot,
        limit=config.limit,
        config_hash=config.hash,
        setting_hash=config.setting_hash,
        heads_sha256=digest(heads, 64) if heads and not config.heads_vary_with_seed else None,  # of what all seeds share
        data=data.fingerprint,
        params=params,
        wall_s=round(time.monotonic() - began, 3),
        peak_memory_bytes=provenance.peak_memory(),
        gradient_accumulation_steps=GradientAccumulationSteps(
            requested=config.gradient_accumulation_steps, used=prepared.runner.gradient_accumulation_steps
        ),
    )
    if distributed.is_main():
        result.write(directory.results)
        directory.checkpoint.unlink(missing_ok=True)
    logger.info(f"{name(config)}: {summary(result)}, {result.time_s or result.wall_s:.1f} s")
    return result


def _fit(
    prepared: Prepared, splits: Splits, directory: RunDirectory, checkpoint: Checkpoint, report_to: Sequence[str]
) -> tuple[Progress, ParameterCounts]:
    """Train, store the delta that is reported, and leave the model in that state.

    Returns:
        How far the run came, and the parameters of its last phase.
    """
    runner, task, method, config = prepared.runner, prepared.task, prepared.method, prepared.runner.config

    def evaluate() -> ValidationScores:
        reported = measure(prepared, splits.reported) | measure_extra_validation(prepared, splits)
        if splits.selection is splits.reported:
            return ValidationScores(reported[task.primary], reported[task.primary], reported)
        selection = measure(prepared, splits.selection)[task.primary]
        return ValidationScores(selection, reported[task.primary], {**reported, "selection": selection})

    lengths = [len(example) for example in splits.train]
    try:
        with MetricLogger(name(config), config, task.primary, lengths, directory, report_to) as metric_logger:
            trainer = Trainer(
                runner,
                method,
                splits.train,
                evaluate=evaluate,
                callbacks=[metric_logger],
                calibration_batches=splits.calibration_batches,
                checkpoint=checkpoint,
            )
            trainer.train()
    except (KeyboardInterrupt, Terminated):
        if directory.checkpoint.is_file():
            logger.warning(f"{name(config)}: stopped; the same command goes on from its checkpoint")
        raise
    metadata = {
        "method": config.method,
        "backbone": config.backbone.name,
        "backbone_weights_id": prepared.weights_id,
        "heads": method.context.heads,
    }
    if distributed.is_main():
        deltas.save(directory.delta, trainer.delta, metadata)
    params = count_parameters(prepared)
    with torch.no_grad():
        method.load_delta(prepared.encoder.model, trainer.delta)
    return trainer.progress, params


def measure(prepared: Prepared, examples: list[Example]) -> dict[str, float]:
    """Every metric of the model as it is."""
    predictions = metrics.predictions_of(prepared.task, examples, prepared.runner.predict(examples))
    return metrics.compute(prepared.task, rows_of(examples), predictions)


def measure_extra_validation(prepared: Prepared, splits: Splits) -> dict[str, float]:
    """Every metric on the validation splits besides the reported one, as `metric_split`."""
    return {
        f"{metric}_{name}": score
        for name, examples in splits.extra_validation.items()
        for metric, score in measure(prepared, examples).items()
    }


def extra_validation_scores(task: TaskSpec, name: str, progress: Progress) -> RunScores:
    """The primary metric on a further validation split, at the epochs that `scores` has it on the reported one."""
    metric = f"{task.primary}_{name}"
    by_epoch = [line.metrics[metric] for line in progress.log_history if isinstance(line, EpochMetrics)]
    return RunScores(last=by_epoch[-1], best=by_epoch[progress.best_epoch - 1], max=max(by_epoch))


def prediction_rows(task: TaskSpec, examples: list[Example], logits: Values, predictions: Predictions) -> list[Prediction]:
    """What predictions.jsonl holds: id, label, prediction (label words, numbers or answers) and logits (an answer's two)."""
    if isinstance(predictions, list):
        return [
            Prediction(id=row.id, label=[text for text, _ in row.answers], prediction=text, logits=[start, end])
            for row, (text, start, end) in zip(rows_of(examples), predictions, strict=True)
        ]

    def word(value: float | None) -> str | float | None:
        return value if value is None or task.kind == "regression" else task.labels[int(value)]

    return [
        Prediction(
            id=example.row.id,
            label=word(example.row.label),
            prediction=word(float(predicted)),
            logits=[float(np.float32(value)) for value in row],
        )
        for example, row, predicted in zip(examples, logits, predictions, strict=True)
    ]


def split_examples(config: RunConfig, resources: ResourceCache) -> Splits:
    """Train, choosing and reported examples, as `shots`, `selection` and `limit` say."""
    task, data = resources.task(config.task), resources.rows(config.task)
    extra_validation = {
        name: _examples(config, resources, split) for name, split in task.extra_validation.items() if split in data.splits
    }
    if config.shots:
        drawn = fewshot.sample(task, data.rows("train"), config.shots, config.seed)
        train, selection = (resources.tokenize(config, rows, config.max_length) for rows in (drawn.train, drawn.dev))
        whole = resources.examples(config, "train", config.max_length)
        reported = _examples(config, resources, "validation")
        return Splits(train, selection, reported, _batches(whole, config), extra_validation, FewShotRows(**drawn.record()))
    train, reported = _examples(config, resources, "train"), _examples(config, resources, "validation")
    if config.selection == "validation":
        return Splits(train, reported, reported, _batches(train, config), extra_validation)
    windows: dict[str, list[Example]] = {}
    for example in train:
        windows.setdefault(example.row.id, []).append(example)  # a row's windows go to the same side
    rest, held = ([example for row in ids for example in windows[row]] for ids in holdout.cut(config, resources))
    return Splits(rest, held, reported, _batches(rest, config), extra_validation)


def _batches(examples: list[Example], config: RunConfig) -> list[list[Example]]:
    """Each example once, in batches of the configured size."""
    lengths = [len(example) for example in examples]
    order = training_order(lengths, config.batch_size, strategy=config.train_sampling_strategy, seed=config.seed, epoch=0)
    return [[examples[index] for index in batch] for batch in order]


def _examples(config: RunConfig, resources: ResourceCache, split: Split) -> list[Example]:
    """A split's examples, or those of its first `limit` rows."""
    if config.limit is None:
        return resources.examples(config, split, config.max_length)
    return resources.tokenize(config, resources.rows(config.task).rows(split)[: config.limit], config.max_length)


def count_parameters(prepared: Prepared) -> ParameterCounts:
    """How many numbers train, in all and in the backbone, a delta stores (and its bytes), and the plain model has."""
    method, model = prepared.method, prepared.encoder.model
    head = set(methods.task_head_names(prepared.encoder))
    trained = {key: value.numel() for key, value in method.trainable_parameters(model).items()}
    stored = method.delta(model).values()
    return ParameterCounts(
        trainable=sum(trained.values()),
        trainable_backbone=sum(count for key, count in trained.items() if key not in head),
        stored=sum(tensor.numel() for tensor in stored if tensor.is_floating_point()),
        stored_bytes=sum(tensor.numel() * tensor.element_size() for tensor in stored),
        total=prepared.plain_parameters,
    )


def _check_data(result: RunResult, config: RunConfig, resources: ResourceCache, directory: RunDirectory) -> None:
    """Refuse to show a stored score as that of other data."""
    if resources.data_dir and resources.rows(config.task).fingerprint != result.data:
        raise ConflictError(
            f"{directory.path} holds a run on other data than those in {resources.data_dir};"
            " use --force to replace it or another --results-dir"
        )
