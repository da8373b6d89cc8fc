"""One run, from its configuration to results.json."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from hifi_cli.config.own_code import own_code_digest
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import file_digest
from hifi_cli.errors import ConflictError, Terminated, logger
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.records.stored import refuse_packed
from hifi_cli.runs.finished import save_delta
from hifi_cli.runs.heads import HeadSelector
from hifi_cli.runs.identity import RunIdentity
from hifi_cli.runs.inputs import RunInputs, load_task
from hifi_cli.runs.log import MetricLogger
from hifi_cli.runs.prepare import PreparedRun, enter_last_stage, prepare_run
from hifi_cli.runs.provenance import describe_process, peak_memory, reset_peak_memory
from hifi_cli.runs.result import (
    Costs,
    Outcome,
    StoredDelta,
    count_parameters,
    evaluate_kept_epoch,
    outcome_of,
    prediction_rows,
    result_of,
    summary,
)
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import Workspace
from hifi_cli.stopping import deferred_signals, exception_of
from hifi_cli.tasks.encode import count_truncated_rows, rows_of
from hifi_cli.tasks.task_spec import rows_with_texts_of
from hifi_cli.training import processes
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.device import precision_note, set_up_device
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.runner import Diverged


def run(
    config: RunConfig,
    workspace: Workspace,
    *,
    force: bool = False,
    report_to: Sequence[str] = (),
) -> RunResult:
    """Train, evaluate and store one run; a finished run of the same configuration is not repeated.

    The lines follow the steps of `docs/architecture.md`: device and task, identity, directory,
    inputs, heads, splits, model, training, record. Evaluations are a part of training:
    `config/epoch_rule.py` says after which epochs the model is measured, and on which rows.

    Args:
        config: the run's settings.
        workspace: has the results and the data, and what former runs of the command loaded.
        force: repeat a finished run too.
        report_to: trackers that get the log lines too.

    Returns:
        The record, as results.json has it. A run that diverged has one too, with the status
        `diverged`, the reason, and no scores.

    Raises:
        ConflictError: the directory holds another run, or a checkpoint of one, or another process is
            writing it.
        RunFailed: a batch does not fit in memory, or the disk is full.
        MissingError, UsageError: something it needs is missing or wrong, the requested GPU for
            example; or the results are a packed study.
    """
    refuse_packed(workspace.results_dir)
    # A missing GPU, or a metric that the task does not have, is refused before anything is written.
    device = set_up_device(config)
    task = load_task(config)
    identity = workspace.identities.identity(config, task)
    directory = workspace.directory(config)
    # Under torchrun only the main process writes, and holds the lock for all of them. The lock is
    # taken before the look for a finished run: a second command could otherwise start the same one.
    lock = directory.hold() if processes.is_main() else nullcontext(True)
    with lock as is_held:
        finished = processes.run_on_main(
            lambda: _finished_run(identity, directory, is_held=is_held, force=force)
        )
        if finished:
            logger.info(f"{config.run_label}: finished before, {summary(finished)}")
            return finished
        # Runs of a command share their rows, their encoder and its tokens; `prepare_run` below
        # copies the encoder, because a method changes it in place.
        inputs = workspace.inputs(config, task)
        # Only methods that tune selected heads have any; scoring them may take minutes.
        heads = HeadSelector(inputs, device, workspace.results_dir).heads_to_tune()
        splits = load_splits(inputs)
        prepared = prepare_run(config, task, inputs.pretrained, device, heads)
        # The record names the code as it is now. The digest in `identity` was taken before heads
        # were scored, which may be an hour ago, and the user may have edited the file since.
        code = own_code_digest(config)
        checkpoint = _checkpoint(identity, directory, inputs, prepared)
        if not force:
            checkpoint.refuse_another_run()
        _log_what_to_expect(config, splits, device)
        # The peak memory is measured from here on.
        memory_is_own = reset_peak_memory(device)
        log = None
        if processes.is_main():
            log = MetricLogger(config, directory, report_to, shows_memory=memory_is_own)
        # A prepared run is itself the runner: the model on its device, with task and configuration.
        trainer = Trainer(
            runner=prepared,
            method=prepared.method,
            splits=splits,
            callback=log,
            checkpoint=checkpoint,
            process=describe_process(config, device),
        )
        # Everything that can refuse the run has been done, so a former run's files may be removed.
        # Until here, a setting refused under --force would have cost the user the old results.
        processes.run_on_main(lambda: directory.begin(config, anew=force))
        divergence = _train(trainer, directory)
        # A signal that comes from here on waits: storing takes seconds, and what was trained since
        # the last checkpoint would be lost.
        with deferred_signals() as signals:
            outcome = _evaluate_and_store(trainer, prepared, directory, divergence)
            # The evaluation of the kept epoch is a part of what the run takes.
            costs = Costs(trainer.seconds, peak_memory(device), memory_is_own)
            result = result_of(inputs, trainer, outcome, costs, code)
            if processes.is_main():
                # The record comes last, because its presence is what makes a run finished: a kill
                # before this line leaves a checkpoint to continue from.
                directory.finish(result, config, trainer.progress.log_history)
    # A diverged run has no time of a whole training.
    seconds = result.time_s or result.wall_s
    logger.info(f"{config.run_label}: {summary(result)}, {seconds:.1f} s")
    if signals:
        raise exception_of(signals[0])
    return result


def _finished_run(
    identity: RunIdentity, directory: RunDirectory, *, is_held: bool, force: bool
) -> RunResult | None:
    """Return the finished run of an identity, if its directory holds it; None: it is to be trained.

    Args:
        identity: what decides the run's numbers.
        directory: where the run belongs.
        is_held: whether this process holds the directory's lock.
        force: train it even if it is finished.

    Raises:
        ConflictError: another process is writing it, or it holds another run.
    """
    if not is_held:
        raise ConflictError(f"another process is writing {directory.path}; wait for it")
    directory.remove_parts()
    if force:
        return None
    finished = identity.finished_run(directory)
    if finished:
        # A process that is killed after it wrote the result leaves its checkpoint behind.
        directory.checkpoint.unlink(missing_ok=True)
    return finished


def _checkpoint(
    identity: RunIdentity, directory: RunDirectory, inputs: RunInputs, prepared: PreparedRun
) -> Checkpoint:
    """Return the checkpoint of a run, which holds the state of the very same run if it exists."""
    method = prepared.method
    # One process trains the words of the train examples, where the method may leave out the others.
    # Several processes train the whole word embedding: the optimizer's state fits only one of both.
    several_train = prepared.process_state.num_processes > 1
    belongs_to = identity.parts_of_training(
        inputs.data.fingerprint,
        inputs.pretrained.digest,
        method.context.heads,
        trains_all_words=method.may_leave_out_words and several_train,
    )
    return Checkpoint(directory.checkpoint, belongs_to)


def _log_what_to_expect(config: RunConfig, splits: Splits, device: torch.device) -> None:
    """Log before training what a user may not expect of the rows, or of the precision there."""
    _log_how_many_are_truncated(config, splits)
    _warn_of_shared_texts(config, splits)
    note = precision_note(config.precision, device)
    if note:
        logger.warning(f"note: {config.run_label}: {note}")


def _log_how_many_are_truncated(config: RunConfig, splits: Splits) -> None:
    """Log how many train texts are truncated to `max_length`, if any are."""
    cut = count_truncated_rows(splits.train)
    if cut:
        logger.info(
            f"{config.run_label}: {cut:,} of {len(rows_of(splits.train)):,} train texts are"
            f" longer than max_length={config.max_length} and cut"
        )


def _warn_of_shared_texts(config: RunConfig, splits: Splits) -> None:
    """Warn of rows that select the epoch and have the texts of a train row.

    The epoch is selected too optimistically where the selecting rows repeat what was trained on.
    """
    # Where no rows of their own select the epoch, there are none that could share a text.
    if not config.epoch_rule.selects_apart:
        return
    selecting = rows_of(splits.selection)
    shared = rows_with_texts_of(selecting, rows_of(splits.train))
    if shared:
        logger.warning(
            f"note: {config.run_label}: {shared:,} of the {len(selecting):,} rows that select"
            " the epoch have the texts of a train row"
        )


def _train(trainer: Trainer, directory: RunDirectory) -> str | None:
    """Train to the end, or until the run diverges.

    Returns:
        What is not finite, and at which step; None: the run has trained to its end.
    """
    try:
        trainer.train()
    except Diverged as error:
        # The record of a diverged run counts the last stage's parameters, as that of a finished run
        # does, also where it diverged in the first of two stages.
        enter_last_stage(trainer.method, trainer.encoder, trainer.progress.stage_index)
        return f"{error} at step {trainer.progress.step}"
    except (KeyboardInterrupt, Terminated):
        if directory.checkpoint.is_file():
            logger.warning(
                f"{trainer.config.run_label}: stopped; the same command without --force continues"
                " from its checkpoint"
            )
        raise
    return None


def _evaluate_and_store(
    trainer: Trainer, prepared: PreparedRun, directory: RunDirectory, divergence: str | None
) -> Outcome:
    """Evaluate the kept epoch, and store its delta and predictions.

    Args:
        trainer: has trained the model, or stopped where it diverged.
        prepared: what the trainer was made of.
        directory: where the files belong.
        divergence: why the run diverged; it then leaves no model. None: it has trained to its end.
    """
    params = count_parameters(prepared)
    if divergence is not None:
        return Outcome.diverged(params, divergence)
    # Every process takes part, because they share the batches of an evaluation. One of them writes.
    kept = evaluate_kept_epoch(trainer)
    stored = None
    if processes.is_main():
        stored = _store_delta(trainer, prepared, directory)
        reported = trainer.splits.reported
        rows = prediction_rows(prepared.task, reported, kept.logits, kept.predictions)
        directory.write_predictions(rows)
    return outcome_of(trainer, params, kept, stored)


def _store_delta(trainer: Trainer, prepared: PreparedRun, directory: RunDirectory) -> StoredDelta:
    """Write what training changed, at the kept epoch, with a note of what it belongs to."""
    belongs_to = {
        "method": prepared.config.method,
        "backbone": prepared.config.backbone.name,
        "backbone_weights_id": prepared.pretrained.digest,
        "heads": prepared.method.context.heads,
    }
    save_delta(directory.delta, trainer.delta, belongs_to)
    return StoredDelta(file_digest(directory.delta), directory.delta.stat().st_size)
