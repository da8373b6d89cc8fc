"""One run, from its configuration to results.json."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import torch

from hifi_cli.config.draws import draws_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import Terminated, logger
from hifi_cli.files import digest, file_digest
from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import (
    SCHEMA,
    ClassCounts,
    Epochs,
    ParameterCounts,
    Prediction,
    RunResult,
    RunScores,
    StepMetrics,
    TrainingProcess,
)
from hifi_cli.records.signs import losses_of
from hifi_cli.runs.heads import selected_heads
from hifi_cli.runs.identity import own_code_digest
from hifi_cli.runs.log import MetricLogger
from hifi_cli.runs.provenance import (
    describe_process,
    describe_provenance,
    peak_memory,
    reset_peak_memory,
)
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import (
    PreparedRun,
    Workspace,
    enter_last_stage,
    load_task,
    prepare_run,
    save_delta,
)
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import rows_of, truncated_rows
from hifi_cli.tasks.examples import EncodedExample, Predictions, Values
from hifi_cli.tasks.task_spec import TaskSpec, rows_with_texts_of, task_digest
from hifi_cli.training import processes
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.device import set_up_device
from hifi_cli.training.loop import Splits, Trainer, measure_reported
from hifi_cli.training.runner import Diverged


def run(
    config: RunConfig,
    workspace: Workspace,
    *,
    force: bool = False,
    report_to: Sequence[str] = (),
) -> RunResult:
    """Train, evaluate and store one run; a finished run of the same configuration is not repeated.

    Args:
        force: repeat it nevertheless.
        report_to: trackers that get the log lines too.

    Raises:
        ConflictError: the directory holds another run, or another process is writing it.
        RunFailed: a batch does not fit in memory, or the disk is full.
        MissingError, UsageError: something it needs is missing or wrong, the requested GPU for
            example.
    """
    directory = RunDirectory.of(config, workspace.results_dir)
    device = set_up_device(config)  # refuses a missing GPU before anything is written
    load_task(config)  # refuses a metric or a loss that the task does not have
    with directory.hold() if processes.is_main() else nullcontext(True) as has_lock:
        finished = processes.run_on_main(
            lambda: _finished(config, workspace, has_lock, force=force)
        )
        if finished:
            logger.info(f"{config.run_label}: finished before, {summary(finished)}")
            return finished
        heads = selected_heads(config, workspace)
        splits = load_splits(config, workspace)
        prepared = prepare_run(config, workspace, heads)
        data = workspace.rows(config.task)
        # what a checkpoint must agree in to be continued
        decisive = [
            config.config_hash,
            task_digest(task_spec.load(config.task)),
            heads,
            prepared.pretrained.backbone_weights,
            data.fingerprint,
            # several processes train all words
            prepared.method.may_leave_out_words and prepared.processes.num_processes > 1,
        ]
        checkpoint = Checkpoint(directory.checkpoint, digest(decisive))
        process = describe_process(config, device)
        memory_is_own = reset_peak_memory(device)
        log = None
        if processes.is_main():
            log = MetricLogger(config, directory, report_to, shows_memory=memory_is_own)
        trainer = Trainer(
            prepared,
            prepared.method,
            splits,
            callback=log,
            checkpoint=checkpoint,
            process=process,
        )
        # nothing can refuse the run any more: what the directory holds of a former one goes
        processes.run_on_main(lambda: directory.begin(config, anew=force))
        if cut := truncated_rows(splits.train):
            logger.info(
                f"{config.run_label}: {cut:,} of {len(rows_of(splits.train)):,} train texts are"
                f" longer than max_length={config.max_length} and cut"
            )
        if splits.selection is not splits.reported:
            selecting = rows_of(splits.selection)
            if shared := rows_with_texts_of(selecting, rows_of(splits.train)):
                logger.warning(
                    f"note: {config.run_label}: {shared:,} of the {len(selecting):,} rows that select"
                    " the epoch have the texts of a train row"
                )
        code = own_code_digest(config)  # as it is now: the file may change while the run trains
        start = time.monotonic()
        with closing(log) if log else nullcontext():
            reason = _train(trainer, directory)
        params = count_parameters(prepared)
        if reason:
            outcome: dict[str, Any] = {"status": "diverged", "reason": reason, "collapsed": True}
        else:
            outcome = {"status": "done", **_store(trainer, prepared, splits, directory)}
        trained_by = trainer.progress.processes
        before = sum(process["seconds"] for process in trained_by[:-1])
        draws = draws_of(
            config,
            [process["device_type"] for process in trained_by],
            selects_heads=heads is not None,
        )
        result = RunResult(
            **outcome,
            schema_version=SCHEMA,
            task=config.task,
            task_digest=task_digest(task_spec.load(config.task)),
            method=config.method,
            backbone=config.backbone.name,
            protocol=config.protocol,
            seed=config.seed,
            split="validation",
            selection="few-shot" if config.shots else config.selection,
            report=config.report,
            primary_metric=prepared.task.primary,
            params=params,
            n_examples=splits.count(lambda examples: len(rows_of(examples))),
            truncated=splits.count(truncated_rows),
            shots=config.shots,
            fewshot=splits.fewshot,
            draws=draws,
            processes=[TrainingProcess.model_validate(process) for process in trained_by],
            precision=" and ".join(sorted({process["precision"] for process in trained_by})),
            limit=config.limit,
            variant=config.variant,
            config=config.model_dump(mode="json"),
            config_hash=config.config_hash,
            setting_hash=config.setting_hash,
            heads=heads,
            # of what all seeds share
            heads_sha256=digest(heads, 64) if heads and not config.heads_vary_with_seed else None,
            backbone_weights=prepared.pretrained.backbone_weights,
            started_from=prepared.pretrained.started_from,
            method_code=code,
            data=data.fingerprint,
            # the last two parts of a path or of a dataset's name
            data_origin={split: "/".join(at.split("/")[-2:]) for split, at in data.origin.items()},
            wall_s=round(before + time.monotonic() - start, 3),
            peak_memory_bytes=peak_memory(device),
            memory_is_own=memory_is_own,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            epoch_metrics=trainer.progress.epoch_metrics,
            provenance=describe_provenance(
                device, processes=processes.process_state().num_processes
            )
            | {"device": " and ".join(dict.fromkeys(process["device"] for process in trained_by))},
        )
        if processes.is_main():
            directory.finish(result)
    logger.info(f"{config.run_label}: {summary(result)}, {result.time_s or result.wall_s:.1f} s")
    return result


def _finished(
    config: RunConfig, workspace: Workspace, has_lock: bool, *, force: bool
) -> RunResult | None:
    """The finished run of a configuration, if its directory holds it; None: it is to be trained.

    Raises:
        ConflictError: another process is writing it, or it holds another run.
    """
    directory = RunDirectory.of(config, workspace.results_dir)
    directory.claim(has_lock)
    finished = None if force else workspace.identities.check_finished(config)
    if finished:
        # of a process that was killed between writing the result and removing this
        directory.checkpoint.unlink(missing_ok=True)
    return finished


def _train(trainer: Trainer, directory: RunDirectory) -> str:
    """Train to the end; returns why the run diverged, if it did."""
    try:
        trainer.train()
    except Diverged as error:
        # The last stage's parameters are counted and recorded, as of a finished run.
        enter_last_stage(trainer.method, trainer.encoder, trainer.progress.stage)
        return f"{error} at step {trainer.progress.step}"
    except (KeyboardInterrupt, Terminated):
        if directory.checkpoint.is_file():
            logger.warning(
                f"{trainer.config.run_label}: stopped; the same command without --force continues"
                " from its checkpoint"
            )
        raise
    return ""


def _store(
    trainer: Trainer, prepared: PreparedRun, splits: Splits, directory: RunDirectory
) -> dict[str, Any]:
    """Store delta and predictions of the reported epoch; returns what the record says of them.

    The predictions are those of the epoch's own evaluation. Where another split chose the epoch,
    the reported one may not have been evaluated then; it is now, with the delta.
    """
    task, config, progress = prepared.task, prepared.config, trainer.progress
    kept_epoch = progress.epoch if config.epoch_rule.kept == "last" else progress.best_epoch
    by_epoch = {line.epoch: line.metrics for line in progress.epoch_metrics}
    if trainer.logits is not None:
        logits = trainer.logits.numpy()
    else:
        with torch.no_grad():
            prepared.method.load_delta(prepared.encoder.model, trainer.delta)
        by_epoch[kept_epoch], logits = measure_reported(prepared, splits)
    predictions = task.rules.predictions(splits.reported, logits)
    delta_sha256 = delta_bytes = None
    if processes.is_main():
        belongs_to = {
            "method": config.method,
            "backbone": config.backbone.name,
            "backbone_weights_id": prepared.pretrained.backbone_weights,
            "heads": prepared.method.context.heads,
        }
        save_delta(directory.delta, trainer.delta, belongs_to)
        delta_sha256, delta_bytes = file_digest(directory.delta), directory.delta.stat().st_size
        rows = prediction_rows(task, splits.reported, logits, predictions)
        directory.write_predictions(rows)

    def scores(metric: str) -> RunScores:
        known = {epoch: values[metric] for epoch, values in by_epoch.items() if metric in values}
        highest = max(known.values()) if config.epoch_rule.has_max else None
        return RunScores(last=known[progress.epoch], best=known[progress.best_epoch], max=highest)

    reported = {epoch: values[task.primary] for epoch, values in by_epoch.items() if values}
    best_of_all = max(reported, key=reported.__getitem__)
    return {
        "collapsed": task.rules.is_collapsed(predictions),
        "classes": class_counts(task, splits.reported, predictions),
        "losses": losses_of(
            [line for line in progress.log_history if isinstance(line, StepMetrics)],
            trainer.plan.per_epoch,
        ),
        "scores": scores(task.primary),
        "epochs": Epochs(
            total=progress.epoch,
            last=progress.epoch,
            best=progress.best_epoch,
            max=best_of_all if config.epoch_rule.has_max else None,
        ),
        "metrics": by_epoch[kept_epoch],
        "extra_validation": {
            split: scores(f"{task.on_split(f'validation_{split}').primary}_{split}")
            for split in splits.extra_validation
        },
        "time_s": round(progress.seconds, 3),
        "delta_sha256": delta_sha256,
        "delta_bytes": delta_bytes,
    }


def class_counts(
    task: TaskSpec, examples: list[EncodedExample], predictions: Predictions
) -> ClassCounts | None:
    """How many rows have each class, and are predicted to have it; None where rows have no single class."""
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
    """How many numbers train, in all and in the backbone; those of delta and plain model."""
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
    """How many parameters a method trains, in all and outside of the task head."""
    trained, head = method.trainable_parameters(encoder.model), encoder.task_head.keys()
    sizes = {name: value.numel() for name, value in trained.items()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name not in head)


def prediction_rows(
    task: TaskSpec, examples: list[EncodedExample], logits: Values, predictions: Predictions
) -> list[Prediction]:
    """Lines of predictions.jsonl: id, label, prediction (label, number, answer, tags), logits."""
    outputs: list[tuple[Any, list[float]]]
    rules = task.rules
    if isinstance(predictions, np.ndarray):
        floats = logits.astype(np.float32).tolist()
        outputs = [
            (rules.label_word(value), row) for value, row in zip(predictions, floats, strict=True)
        ]
    else:
        outputs = [(output.prediction, output.logits) for output in predictions]
    return [
        Prediction(
            id=row.id,
            label=rules.stored_label(row),
            prediction=prediction,
            logits=values,
        )
        for row, (prediction, values) in zip(rows_of(examples), outputs, strict=True)
    ]


def summary(result: RunResult) -> str:
    """The result of a run in a few words."""
    if not result.epochs:
        return f"{result.status}: {result.reason}"
    flags = f"{', collapsed' * result.collapsed}{', limited' * (result.limit is not None)}"
    epoch = f"{result.report}, epoch {result.epoch()} of {result.epochs.total}"
    return f"{result.primary_metric} {100 * result.score():.2f} ({epoch}){flags}"
