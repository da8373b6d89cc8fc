"""The training loop, the same for every method: stages, epochs, steps, the best epoch."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from accelerate.utils import reduce, set_seed
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.errors import RunFailed, Terminated, UsageError, logger
from hifi_cli.files import has_room
from hifi_cli.methods.base import Method, Stage
from hifi_cli.records.record import EpochMetrics, MetricsLine, StepMetrics, metrics_line
from hifi_cli.stopping import deferred_signals, exception_of
from hifi_cli.tasks.encode import epoch_batches
from hifi_cli.tasks.examples import Values
from hifi_cli.tasks.task_spec import EncodedExample, TaskSpec
from hifi_cli.text import counted_noun
from hifi_cli.training.checkpoint import Checkpoint, program_versions, set_rng_state
from hifi_cli.training.losses import ClassWeights, balanced_weights
from hifi_cli.training.runner import Diverged, ModelRunner
from hifi_cli.training.stage import TrainingStage, batch_gradients

# Generous sizes of results.json and of one row's line in predictions.jsonl, in bytes. They only
# decide whether a run on a full disk may go on without a checkpoint.
_RECORD_BYTES = 1 << 15
_PREDICTION_BYTES = 256
# Facts of a process that its numbers may depend on; a run that goes on with others says so.
_CONDITIONS = ("device", "precision", "threads", "processes")


# --- the examples of a run


@dataclass(frozen=True)
class Splits:
    """The examples of a run.

    Attributes:
        train: trained on.
        selection: select the best epoch.
        reported: what the scores of the run are measured on; empty: no model is scored or kept.
        gradient_batches: batches whose gradients a method may use when one of its stages starts:
            the train examples, in a few-shot run those of the full train split.
        extra_validation: extra validation splits that are reported, by the suffix of their metrics.
        fewshot: the ids of the rows of a few-shot run and their digest.
    """

    train: list[EncodedExample]
    selection: list[EncodedExample] = field(default_factory=list)
    reported: list[EncodedExample] = field(default_factory=list)
    gradient_batches: list[list[EncodedExample]] = field(default_factory=list)
    extra_validation: dict[str, list[EncodedExample]] = field(default_factory=dict)
    fewshot: dict[str, Any] | None = None

    def count(self, rows_in: Callable[[list[EncodedExample]], int]) -> dict[str, int]:
        """Count the rows of each split.

        Args:
            rows_in: counts the rows of some examples.
        """
        return {
            "train": rows_in(self.train),
            "selection": rows_in(self.selection),
            "reported": rows_in(self.reported),
        }


# --- how far a run has come, and how far it goes


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch: finished epochs.
        step: finished optimizer steps.
        stage_index: of the current stage, from 0.
        best_epoch: the first epoch with the highest score on the selection split, counted from 1;
            0: none yet.
        best_score: the score of that epoch.
        log_history: lines of metrics.jsonl so far.
        seconds: training time, evaluation included, over all resumptions.
        processes: what the record says of every process that trained, in order.
    """

    epoch: int = 0
    step: int = 0
    stage_index: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    log_history: list[MetricsLine] = field(default_factory=list)
    seconds: float = 0.0
    processes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def epoch_metrics(self) -> list[EpochMetrics]:
        """The lines of finished epochs."""
        return [line for line in self.log_history if isinstance(line, EpochMetrics)]

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain values: torch loads no classes from a checkpoint."""
        state = dict(vars(self))
        state["log_history"] = [line.model_dump() for line in self.log_history]
        # Checkpoints have the index under this name.
        state["stage"] = state.pop("stage_index")
        return state

    @classmethod
    def of_state_dict(cls, state: Mapping[str, Any]) -> "Progress":
        """Make the progress whose `state_dict` is given."""
        fields = dict(state)
        fields["log_history"] = [metrics_line(line) for line in state["log_history"]]
        fields["stage_index"] = fields.pop("stage")
        return cls(**fields)


@dataclass(frozen=True)
class StepPlan:
    """The optimizer steps of a run, numbered from 0.

    Attributes:
        per_epoch: steps of an epoch.
        total: steps of the whole run.
        stage_steps: the numbers of each stage's steps; every stage has at least one.
    """

    per_epoch: int
    total: int
    stage_steps: list[range]

    @classmethod
    def of(
        cls, config: RunConfig, batch_size: int, examples: int, method_stages: Sequence[Stage]
    ) -> "StepPlan":
        """Plan the steps of a run.

        Args:
            config: has the epochs of the run.
            batch_size: examples of a step; a few-shot run has other ones than `config` says.
            examples: their number in an epoch.
            method_stages: the stages of the run's method.

        Raises:
            UsageError: there are fewer steps than stages, or their fractions do not sum to 1.
        """
        per_epoch = math.ceil(examples / batch_size)
        total = config.epochs * per_epoch
        return cls(per_epoch, total, _steps_of_stages(method_stages, total))


def _steps_of_stages(method_stages: Sequence[Stage], total: int) -> list[range]:
    """Share the steps of a run by the stages' fractions; every stage gets at least one.

    Raises:
        UsageError: there are fewer steps than stages, or their fractions do not sum to 1.
    """
    whole = sum(stage.fraction for stage in method_stages)
    if method_stages and not math.isclose(whole, 1):
        raise UsageError(f"the fractions of the stages sum to {whole:g}, not to 1")
    if total < len(method_stages):
        raise UsageError(
            f"{counted_noun(total, 'training step')} cannot be shared by {len(method_stages)} stages;"
            " train for more epochs"
        )
    steps: list[range] = []
    start = 0
    # A stage ends at the sum of the fractions up to it: were each stage's own number of steps
    # rounded, the errors would add up.
    fractions = accumulate(stage.fraction for stage in method_stages)
    for index, fraction in enumerate(fractions, start=1):
        # Rounding may leave a short stage empty. It gets one step, and leaves one for each later
        # stage.
        latest_end = total - (len(method_stages) - index)
        end = min(max(round(fraction * total), start + 1), latest_end)
        steps.append(range(start, end))
        start = end
    return steps


def class_weights_of(
    config: RunConfig, task: TaskSpec, examples: Sequence[EncodedExample]
) -> ClassWeights:
    """Return the weight of each class in the loss of training steps; None: equal ones.

    Args:
        config: says what they are.
        task: of the run.
        examples: those that train, by which classes are balanced.
    """
    if config.class_weights == "balanced":
        return balanced_weights(task, examples)
    return config.class_weights


# --- the training


class Callback:
    """Hooks that a trainer calls; each of them may stay empty."""

    def on_train_begin(self, trainer: "Trainer") -> None:
        """Called once, before the first step of this process; a resumed run has progress then."""

    def on_backward_end(self, trainer: "Trainer") -> None:
        """Called in every step with the gradient of the whole batch, before it is clipped."""

    def on_step_end(self, trainer: "Trainer") -> None:
        """Called after every optimizer step."""

    def on_log(self, trainer: "Trainer", line: MetricsLine) -> None:
        """Called with each line of metrics.jsonl, after `on_step_end`."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Called once, after the last step of this process, also if an error or a signal ends it."""


class Trainer:
    """Trains a prepared model through the stages of its method and evaluates it after each epoch.

    Args:
        runner: has the model on its device.
        method: has prepared that model.
        splits: the examples.
        callback: is told of steps and log lines.
        checkpoint: where the state is saved, and resumed from if it is there.
        trains_all_words: whether the word embedding trains whole, also where the method may leave
            out the words that no train example has.
        process: what the record says of this process; see `runs.provenance.describe_process`.

    Attributes:
        plan: the optimizer steps of the run.
        method_stages: the stages of the method, in order: what each trains, and how.
        class_weights: of the loss; None: equal ones.
        progress: how far the run has come.
        delta: what training has changed, at the epoch that is kept.
        logits: of the reported split at that epoch; None where it was not evaluated then.
        repeated_steps: steps of this process that repeated a recorded one, in stages that have ended.
        losses: of the steps since the last logged one of the epoch, on the model's device.
        started_at: when the trainer was made, on this process's clock.
        seconds_before: training time of the processes before this one.

    Raises:
        UsageError: there are fewer steps than stages.
    """

    def __init__(
        self,
        runner: ModelRunner,
        method: Method,
        splits: Splits,
        *,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
        trains_all_words: bool = False,
        process: Mapping[str, Any] | None = None,
    ) -> None:
        self.runner = runner
        self.config = runner.config
        self.encoder = runner.encoder
        self.model = runner.encoder.model
        self.method = method
        self.splits = splits
        self.callback = callback or Callback()
        self.checkpoint = checkpoint
        self.trains_all_words = trains_all_words
        self.process = dict(process or {})
        self.class_weights = class_weights_of(self.config, runner.task, splits.train)
        self.method_stages = method.stages()
        self.plan = StepPlan.of(
            self.config, runner.batch_size, len(splits.train), self.method_stages
        )
        self.progress = Progress()
        self.delta: dict[str, Tensor] = {}
        self.logits: Tensor | None = None
        self.repeated_steps = 0
        self.losses: list[Tensor] = []
        self.started_at = time.monotonic()
        self.seconds_before = 0.0
        self._stage: TrainingStage | None = None

    @property
    def stage(self) -> TrainingStage:
        """The stage that trains; there is one as soon as a stage has begun."""
        assert self._stage is not None
        return self._stage

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are trained, or no epoch was better for as many as `patience`."""
        if self.progress.epoch == self.config.epochs:
            return True
        if self.config.patience is None or self.progress.best_epoch == 0:
            return False
        epochs_since_the_best = self.progress.epoch - self.progress.best_epoch
        return epochs_since_the_best >= self.config.patience

    def train(self, max_steps: int | None = None) -> None:
        """Train to the end, from the checkpoint if there is one.

        Args:
            max_steps: stop after this step of the run, before the evaluation; None: at the end.

        Raises:
            Diverged: the loss or the model's predictions are not finite.
            RunFailed: a batch does not fit in memory.
        """
        # Dropout draws from the global generators. The order of the examples and the task head have
        # generators of their own, made from the same seed.
        set_seed(self.config.seed)
        saved = self.checkpoint.read() if self.checkpoint else None
        if saved:
            self.resume(saved)
        else:
            self.begin_stage(0)
        progress = self.progress
        # This process has taken no step yet; `read_clock` brings its entry up to date.
        progress.processes.append(
            {
                **self.process,
                "first_step": progress.step + 1,
                "last_step": progress.step,
                "repeated_steps": 0,
                "seconds": 0.0,
            }
        )
        try:
            # A signal that comes from here on is only noted, also in the middle of a step.
            # `stop_or_save` reads it between two steps, when the state is whole and can be saved: who
            # sees that the run has begun can stop it without losing anything.
            with deferred_signals() as signals:
                self.callback.on_train_begin(self)
                self._train_epochs(signals, max_steps)
            # One that came after the last step that was to be taken: a resumed run may have none.
            if signals:
                raise exception_of(signals[0])
        finally:
            self.callback.on_train_end(self)
            self.close_stage()
        if progress.epoch < self.config.epochs and self.is_finished:
            logger.info(f"stopped early: no better epoch since epoch {progress.best_epoch}")

    def _train_epochs(self, signals: list[int], max_steps: int | None) -> None:
        """Train epoch after epoch, and evaluate after each.

        Args:
            signals: those that ask to stop; more may come at any time.
            max_steps: as `train` has it.
        """
        while not self.is_finished:
            self.model.train()
            for batch in self.remaining_batches():
                # A stage begins with its first step and not at the end of the one before: an
                # evaluation or a checkpoint between the two is of the stage that has trained.
                if self.progress.step == self.stage.steps.stop:
                    self.begin_stage(self.progress.stage_index + 1)
                self.train_step(batch)
                step = self.progress.step
                if step % self.config.log_every == 0 or step == self.plan.total:
                    self.log_loss()
                # Whoever asks for `max_steps` reads the model's weights, as an evaluation would.
                if step == max_steps:
                    self.stage.before_evaluation()
                    return
                self.stop_or_save(signals)
            self.stage.before_evaluation()
            self.end_epoch()
            # A signal during the evaluation stops the run here, with the epoch's scores in the
            # checkpoint.
            self.stop_or_save(signals)

    def remaining_batches(self) -> list[list[EncodedExample]]:
        """Return the batches of the current epoch that are to be trained on.

        A resumed run has trained on the first ones.
        """
        batches = epoch_batches(
            self.config, self.runner.batch_size, self.splits.train, self.progress.epoch
        )
        steps_done = self.progress.step - self.progress.epoch * self.plan.per_epoch
        return batches[steps_done:]

    # --- stopping and saving

    def stop_or_save(self, signals: list[int]) -> None:
        """Save a checkpoint if it is time, or if a signal came, and then stop.

        Raises:
            RunFailed: there is no room for a checkpoint, nor for the results.
        """
        stops = self.stops_with_all_processes(bool(signals))
        is_due = self.checkpoint is not None and self.checkpoint.is_due()
        if stops or is_due:
            problem = self.try_to_save()
            # A full disk does not end a run that can still write its results, and a run that stops
            # anyway only warns.
            if problem and not stops and not self.has_room_for_results():
                raise RunFailed(problem)
            if problem:
                logger.warning(f"{self.config.run_label}: no checkpoint is saved: {problem}")
        if stops:
            if signals:
                raise exception_of(signals[0])
            # Another process got the signal, and all of them stop.
            raise Terminated

    def stops_with_all_processes(self, stops: bool) -> bool:
        """Whether this process, or any other that trains with it, is to stop."""
        if self.runner.process_state.num_processes == 1:
            return stops
        stopping = torch.tensor(float(stops), device=self.runner.device)
        return bool(reduce(stopping, "sum"))

    def try_to_save(self) -> str:
        """Save a checkpoint; return why that is not possible, or an empty text.

        The error itself is gone then: it would keep the file open, and so the room that it takes.
        """
        try:
            self.save_checkpoint()
        except (RunFailed, OSError) as error:
            return str(error)
        return ""

    def has_room_for_results(self) -> bool:
        """Whether what the run itself will store can be written, so that it needs no checkpoint.

        The delta's size is exact. That of predictions and record is a generous guess.
        """
        assert self.checkpoint is not None
        delta = self.method.delta(self.model).values()
        delta_bytes = sum(tensor.numel() * tensor.element_size() for tensor in delta)
        other_bytes = _RECORD_BYTES + _PREDICTION_BYTES * len(self.splits.reported)
        return has_room(self.checkpoint.path.parent, [delta_bytes, other_bytes])

    # --- stages and steps

    def begin_stage(self, index: int) -> None:
        """Begin a stage: the model is prepared, the method chooses what trains, AdamW is made.

        Args:
            index: of the stage, from 0.
        """
        self.close_stage()
        self.progress.stage_index = index
        # All processes draw the same here: they must choose the same parameters.
        self.seed_process(0)
        method_stage = self.method_stages[index]
        # The method has prepared the model for its first stage.
        if index > 0:
            method_stage.prepare_model(self.encoder)
        # A method that reads gradients gets them with dropout on, as in training. They are computed
        # only as far as the method asks for them.
        self.model.train()
        gradients = batch_gradients(self.runner, self.splits.gradient_batches, self.class_weights)
        method_stage.method.on_stage_start(self.model, gradients)
        # The last gradient that the method has read would be a part of the first step's.
        self.model.zero_grad()
        self._stage = self.new_stage()

    def new_stage(self) -> TrainingStage:
        """Make what trains in the current stage, whose method has chosen its parameters."""
        index = self.progress.stage_index
        return TrainingStage(
            self.runner,
            self.method_stages[index],
            self.plan.stage_steps[index],
            self.splits.train,
            self.class_weights,
            trains_all_words=self.trains_all_words,
        )

    def close_stage(self) -> None:
        """End the current stage, if there is one."""
        if self._stage:
            # A stage that is closed has no recorded steps any more, so that steps count once: also
            # if it is closed again at the end, because the next stage could not begin.
            self.repeated_steps += self._stage.repeated_steps
            self._stage.close()

    def train_step(self, batch: list[EncodedExample]) -> None:
        """Take one optimizer step on a batch; nothing waits for its loss."""
        self.seed_process(self.runner.process_state.process_index)
        loss = self.stage.step(batch, partial(self.callback.on_backward_end, self))
        self.losses.append(loss)
        self.progress.step += 1
        self.callback.on_step_end(self)

    def log_loss(self) -> None:
        """Log the mean loss of the steps since the last logged one of the epoch.

        Raises:
            Diverged: the mean is not finite.
        """
        # Reading the loss waits for a GPU, so it is read once in `log_every` steps. A loss that is
        # not finite is noticed here, up to as many steps late.
        loss = float(sum(self.losses)) / len(self.losses)
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss}")
        rate = self.stage.learning_rate
        self.log(StepMetrics(step=self.progress.step, loss=loss, learning_rate=rate))
        self.losses.clear()

    def seed_process(self, rank: int) -> None:
        """If several processes train, seed torch for a step or a stage.

        So each process has dropout noise of its own, and a resumed run needs no process's state.

        Args:
            rank: of the process; 0 in all of them where they are to draw the same.
        """
        if self.runner.process_state.num_processes > 1:
            seed = digest([self.config.seed, self.progress.step, rank])
            torch.manual_seed(int(seed, 16))

    # --- the end of an epoch

    def end_epoch(self) -> None:
        """Count the epoch, evaluate the model, and read the clock."""
        self.progress.epoch += 1
        # Some figures train without a reported split: nothing is evaluated then.
        if self.splits.reported:
            self.evaluate()
        # The next logged loss is a mean over steps of the next epoch alone.
        self.losses.clear()
        self.read_clock()

    @property
    def seconds(self) -> float:
        """Seconds of the run until now, over all of its processes."""
        return self.seconds_before + time.monotonic() - self.started_at

    def read_clock(self) -> None:
        """Bring the seconds of the run up to date, and the seconds and steps of this process."""
        self.progress.seconds = self.seconds
        process = self.progress.processes[-1]
        process["last_step"] = self.progress.step
        process["repeated_steps"] = self.repeated_steps + self.stage.repeated_steps
        process["seconds"] = round(self.progress.seconds - self.seconds_before, 3)

    def evaluate(self) -> None:
        """Measure the model after an epoch, log its metrics, and keep it if the rule says so.

        `EpochRule` says which rows are measured when, and which epoch is kept.
        """
        rule = self.config.epoch_rule
        primary = self.runner.task.primary
        selecting_score = None
        scores: dict[str, float] = {}
        logits: Values | None = None
        if rule.selects_apart:
            selecting_scores, _ = self.runner.measure(self.splits.selection)
            selecting_score = selecting_scores[primary]
            # The best epoch is noted before `is_finished` is read, which counts the epochs since it.
            is_best = self.note_if_best(selecting_score)
            if rule.measures_reported_rows(is_best=is_best, is_last=self.is_finished):
                scores, logits = measure_reported_rows(self.runner, self.splits)
        else:
            # The same rows select and are reported: one evaluation serves both.
            scores, logits = measure_reported_rows(self.runner, self.splits)
            is_best = self.note_if_best(scores[primary])
        epoch = self.progress.epoch
        self.log(EpochMetrics(epoch=epoch, selection=selecting_score, **scores))
        if rule.keeps(is_best=is_best, may_be_kept=self.may_be_kept()):
            self.keep(logits)

    def note_if_best(self, score: float) -> bool:
        """Note the epoch that ends as the best one, if it may be kept and beats those before.

        Args:
            score: the primary metric on the selecting examples.

        Returns:
            Whether it is the best one.
        """
        # The first of equal scores stays the best: a later epoch must be higher.
        is_best = self.may_be_kept() and score > self.progress.best_score
        if is_best:
            self.progress.best_epoch = self.progress.epoch
            self.progress.best_score = score
        return is_best

    def keep(self, logits: Values | None) -> None:
        """Keep what training has changed, and the reported split's logits if it was measured."""
        self.logits = None if logits is None else torch.from_numpy(logits)
        # The copy stays on the device: bringing it to the host at each better epoch would wait for
        # a GPU.
        delta = self.method.delta(self.model)
        self.delta = {name: value.detach().clone() for name, value in delta.items()}

    def may_be_kept(self) -> bool:
        """Whether the model may be kept: the last stage has trained it, or the run ends.

        An epoch that ends before the last stage, or in the steps of a warm-up at a learning rate of
        0, has a model that the method does not mean. The last epoch may be kept in any case,
        because a run must keep one.
        """
        is_last_stage = self.progress.stage_index == len(self.method_stages) - 1
        is_at_end = self.progress.step == self.plan.total
        return is_last_stage and (self.stage.has_trained() or is_at_end)

    def has_trained(self) -> bool:
        """Whether any step of the run has trained something, as all stages before this one have."""
        return self.progress.stage_index > 0 or self.stage.has_trained()

    def log(self, line: MetricsLine) -> None:
        """Keep a line, and give it to the callback."""
        self.progress.log_history.append(line)
        self.callback.on_log(self, line)

    # --- checkpoints

    def save_checkpoint(self) -> None:
        """Save the state, on the main process."""
        if not self.checkpoint or not self.runner.process_state.is_main_process:
            return
        # The seconds up to here count, also if the process is killed after it has saved.
        self.read_clock()
        state: dict[str, Any] = {
            "progress": self.progress.state_dict(),
            "losses": self.losses,
            "delta": self.delta,
            "logits": self.logits,
            "method": self.stage.method.training_state(self.model),
            "stage": self.stage.state_dict(),
        }
        self.checkpoint.save(state, self.runner.device)

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint.

        The order is that of a run that was not stopped: the model of the stage, what trains in it,
        and the optimizer over that. The random generators come last, as anything before may draw
        from them.

        Args:
            saved: what `save_checkpoint` stored.
        """
        self.progress = Progress.of_state_dict(saved["progress"])
        self.seconds_before = self.progress.seconds
        self.delta = saved["delta"]
        self.logits = saved["logits"]
        self.losses = [loss.to(self.runner.device) for loss in saved["losses"]]
        # The method has prepared the model for its first stage. Each later stage builds on the one
        # before it, so all of them are gone through.
        index = self.progress.stage_index
        for method_stage in self.method_stages[1 : index + 1]:
            method_stage.prepare_model(self.encoder)
        method = self.method_stages[index].method
        # The method's state says which parameters it chose when the stage began; only then can the
        # optimizer be made for them.
        with torch.no_grad():
            method.load_training_state(self.model, saved["method"])
        self._stage = self.new_stage()
        self._stage.load_state_dict(saved["stage"])
        self.warn_of_other_conditions(saved)
        set_rng_state(saved["rng"], self.runner.device)

    def warn_of_other_conditions(self, saved: dict[str, Any]) -> None:
        """Warn where the run goes on with other libraries, or in other conditions, than before.

        Args:
            saved: what `save_checkpoint` stored.
        """
        before = {**saved["versions"], **saved["progress"]["processes"][-1]}
        now = {**program_versions(), **self.process}
        changed = []
        for name in [*program_versions(), *_CONDITIONS]:
            if name in now and before.get(name) != now[name]:
                changed.append(f"{name} {now[name]} (before: {before.get(name)})")
        if changed:
            logger.warning(
                f"note: {self.config.run_label}: goes on with {', '.join(changed)}: its numbers may"
                " differ from those of a run that was not stopped"
            )


def measure_reported_rows(runner: ModelRunner, splits: Splits) -> tuple[dict[str, float], Values]:
    """Measure a model on the reported split and on the extra ones.

    Returns:
        Every metric on the reported split, those on extra splits as `metric_split`, and the logits
        of the reported split.
    """
    measured, logits = runner.measure(splits.reported)
    for split, examples in splits.extra_validation.items():
        of_split, _ = runner.measure(examples, f"validation_{split}")
        for metric, score in of_split.items():
            measured[f"{metric}_{split}"] = score
    return measured, logits
