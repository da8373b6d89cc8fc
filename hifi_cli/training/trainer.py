"""The trainer: one plain epoch and step loop, the same for every method."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hifi_cli.config.run_config import TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import digest
from hifi_cli.methods.base import Method, Phase
from hifi_cli.results.record import EpochMetrics, MetricsLine, StepMetrics
from hifi_cli.tasks.encode import training_order
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training import distributed
from hifi_cli.training.checkpoint import Checkpoint, Delta, GracefulShutdown, Progress, restore
from hifi_cli.training.model_runner import ModelRunner
from hifi_cli.wording import counted_noun


class Diverged(Exception):
    """The training loss, or what the model predicts, is no longer a finite number.

    Attributes:
        phase: number of the method's phase in which that happened.
    """

    def __init__(self, reason: str, progress: Progress) -> None:
        super().__init__(f"{reason} at step {progress.step}")
        self.phase = progress.phase


@dataclass(frozen=True)
class EpochEvaluation:
    """How the model is scored after an epoch.

    Attributes:
        reported: returns the metrics on the reported split, and its logits.
        primary: the one among them that selects the best epoch.
        selection: returns the score that selects the best epoch, where another split does. The reported split is then
            evaluated only after the last epoch, and that of the best epoch once training has ended.
    """

    reported: Callable[[], tuple[dict[str, float], Values]]
    primary: str
    selection: Callable[[], float] | None = None


class Callback:
    """Hooks that a trainer calls; each may stay as it is here."""

    def on_resume(self, log_history: list[MetricsLine]) -> None:
        """Called when a run resumes from a checkpoint, with the lines that it logged before."""

    def on_train_begin(self, trainer: "Trainer") -> None:
        """Called once, before the first step of this process."""

    def on_backward_end(self, trainer: "Trainer") -> None:
        """Called in every step with the gradient of the whole batch, before it is clipped."""

    def on_step_end(self, trainer: "Trainer") -> None:
        """Called after every optimizer step."""

    def on_log(self, line: MetricsLine) -> None:
        """Called with each line of metrics.jsonl, after `on_step_end`."""


@dataclass(frozen=True)
class PhaseState:
    """The optimizer of a phase and what belongs to it.

    Attributes:
        training: the learning rate and the like of this phase.
        clip_groups: parameters whose gradients are clipped by one norm.
    """

    method: Method
    training: TrainingConfig
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LambdaLR
    clip_groups: list[list[nn.Parameter]]

    @classmethod
    def create(cls, runner: ModelRunner, phase: Phase, steps: int) -> "PhaseState":
        """A new AdamW over the parameters that the phase trains, and its learning rate schedule over `steps` steps."""
        training, model = phase.training or runner.config, runner.encoder.model
        optimizer = torch.optim.AdamW(
            phase.method.param_groups(model, training.weight_decay),
            lr=training.learning_rate,
            betas=training.adam_betas,
            eps=training.adam_epsilon,
            fused=True,
        )
        schedules = {"run": learning_rate_factor(training, steps), "constant": lambda _: 1.0}
        factors = [schedules[group.get("lr_schedule", "run")] for group in optimizer.param_groups]
        lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return cls(phase.method, training, optimizer, lr_scheduler, phase.method.clip_groups(model))

    @property
    def has_trained(self) -> bool:
        """Whether a step had a learning rate above 0: the first step of a warm-up has rate 0."""
        steps = self.lr_scheduler.last_epoch  # taken so far, in spite of its name
        return any(factor(step) > 0 for factor in self.lr_scheduler.lr_lambdas for step in range(steps))


class Trainer:
    """Trains a prepared model through the phases of its method and evaluates it after each epoch.

    Args:
        evaluation: how the model is scored after each epoch; None: not at all, and no delta is kept.
        calibration_batches: batches whose gradients a method may use when one of its phases starts.
        checkpoint: where the state is saved, and resumed from if it is there.
        max_steps: stop after this number of steps, before the evaluation.

    Attributes:
        progress: finished steps and epochs, scores and log lines.
        delta: what training changed, at the epoch that is reported.
        logits: of the reported split at that epoch; None where it was not evaluated then.
        total_steps: optimizer steps of the whole run.
        phase_ends: for each phase, the number of finished steps after which it ends.

    Raises:
        UsageError: there are fewer steps than phases.
    """

    def __init__(
        self,
        runner: ModelRunner,
        method: Method,
        train_examples: list[Example],
        *,
        evaluation: EpochEvaluation | None = None,
        callbacks: Sequence[Callback] = (),
        calibration_batches: Sequence[list[Example]] = (),
        checkpoint: Checkpoint | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.runner, self.method, self.train_examples = runner, method, train_examples
        self.evaluation, self.callbacks, self.calibration_batches = evaluation, callbacks, calibration_batches
        self.checkpoint, self.max_steps = checkpoint, max_steps
        self.config, self.encoder, self.model = runner.config, runner.encoder, runner.encoder.model
        self.steps_per_epoch = math.ceil(len(train_examples) / self.config.batch_size)
        self.total_steps = self.config.epochs * self.steps_per_epoch
        self.phases = method.phases()
        self.phase_ends = phase_ends(self.phases, self.total_steps)
        self.phase_state: PhaseState | None = None
        self.progress = Progress()
        self.delta: Delta = {}
        self.logits: Values | None = None
        self.epoch_logits: Values | None = None
        self.loss_sum = torch.zeros((), device=runner.device)

    def train(self) -> None:
        """Train to the end, from the checkpoint if there is one.

        Raises:
            Diverged: the loss is not finite.
            RunFailed: a batch does not fit in memory.
        """
        seed_everything(self.config.seed)
        if not self.resume():
            self.setup_phase(0)
        for callback in self.callbacks:
            callback.on_train_begin(self)
        with GracefulShutdown(self.runner.accelerator, self.save_checkpoint) as shutdown:
            while self.progress.epoch < self.config.epochs:
                self.model.train()
                for batch in self.remaining_batches():
                    if self.progress.step == self.phase_ends[self.progress.phase]:
                        self.save_checkpoint()
                        self.setup_phase(self.progress.phase + 1)
                    with shutdown.deferred():
                        self.train_step(batch)
                        if self.progress.step % self.config.log_every == 0 or self.progress.step == self.total_steps:
                            self.log_loss()
                    if self.progress.step == self.max_steps:
                        self.before_evaluation()
                        return
                    if self.checkpoint and self.checkpoint.is_due():
                        self.save_checkpoint()
                refuse_divergence(self.loss_sum.item(), self.progress)
                self.before_evaluation()
                metrics = self.evaluate(self.evaluation) if self.evaluation else None
                with shutdown.deferred():
                    self.end_epoch(metrics)

    def remaining_batches(self) -> list[list[Example]]:
        """The batches of the current epoch that were not trained on yet."""
        order = training_order(
            [len(example) for example in self.train_examples],
            self.config.batch_size,
            strategy=self.config.train_sampling_strategy,
            seed=self.config.seed,
            epoch=self.progress.epoch,
        )
        finished = self.progress.step - self.progress.epoch * self.steps_per_epoch
        return [[self.train_examples[index] for index in batch] for batch in order[finished:]]

    def setup_phase(self, number: int) -> None:
        """Start a phase: prepare the model, call the method's phase-start hook, create the optimizer."""
        self.phase_state = None  # until the phase is set up, there is nothing to save
        self.progress.phase = number
        self.seed_process(0)
        phase = self.phases[number]
        self.runner.unwrap()
        if number:  # the method prepared the model for the first phase
            phase.prepare_model(self.encoder)
        self.model.train()
        phase.method.on_phase_start(self.model, calibration_gradients(self.runner, self.calibration_batches))
        self.create_optimizer()

    def create_optimizer(self) -> None:
        """Create the optimizer and the learning rate schedule of the current phase."""
        number = self.progress.phase
        steps = range(self.phase_ends[number - 1] if number else 0, self.phase_ends[number])
        self.phases[number].method.set_steps(steps)
        self.phase_state = PhaseState.create(self.runner, self.phases[number], len(steps))
        self.runner.wrap()

    def train_step(self, batch: list[Example]) -> None:
        """One optimizer step on a batch."""
        assert self.phase_state
        state, method, model = self.phase_state, self.phase_state.method, self.model
        self.seed_process(self.runner.accelerator.process_index)
        method.before_step(model, self.progress.step)
        loss = self.runner.accumulate_gradient(batch, method.regularization_loss)
        method.after_backward(model)
        for callback in self.callbacks:
            callback.on_backward_end(self)
        if state.training.max_grad_norm:
            for parameters in state.clip_groups:
                self.runner.accelerator.clip_grad_norm_(parameters, state.training.max_grad_norm)
        method.before_optimizer_step(model)
        state.optimizer.step()
        state.lr_scheduler.step()
        method.after_optimizer_step(model)
        state.optimizer.zero_grad(set_to_none=True)
        self.loss_sum += loss
        self.progress.end_step()
        for callback in self.callbacks:
            callback.on_step_end(self)

    def before_evaluation(self) -> None:
        """Let the method of the current phase bring the model's weights to what training has reached."""
        assert self.phase_state
        self.phase_state.method.before_evaluation(self.model)

    def seed_process(self, rank: int) -> None:
        """If several processes train, seed torch for what begins now, a step or (as rank 0 in every process) a phase.

        So each process has dropout noise of its own, whatever the others draw, and a resumed run needs no process's state.
        """
        if self.runner.accelerator.num_processes > 1:
            torch.manual_seed(int(digest([self.config.seed, self.progress.step, rank]), 16))

    def log_loss(self) -> None:
        """Log the mean loss since the last time."""
        assert self.phase_state
        mean = self.loss_sum.item() / self.progress.loss_count
        refuse_divergence(mean, self.progress)
        learning_rate = float(self.phase_state.lr_scheduler.get_last_lr()[0])
        self.log(StepMetrics(step=self.progress.step, loss=mean, learning_rate=learning_rate))
        self.reset_loss()

    @property
    def is_candidate(self) -> bool:
        """Whether the model may be reported: the last phase has trained it (the last model of a run always may)."""
        assert self.phase_state
        is_last_phase = self.progress.phase == len(self.phases) - 1
        return is_last_phase and (self.phase_state.has_trained or self.progress.step == self.total_steps)

    def evaluate(self, evaluation: EpochEvaluation) -> EpochMetrics:
        """Score the model after an epoch."""
        epoch, selection = self.progress.epoch + 1, evaluation.selection() if evaluation.selection else None
        is_reported = (
            selection is None
            or self.config.evaluates_every_epoch
            or epoch == self.config.epochs
            # where the last epoch's delta is kept, that of the best one cannot be evaluated later
            or (self.config.report == "last" and self.is_candidate and self.progress.is_best(selection))
        )
        metrics, self.epoch_logits = evaluation.reported() if is_reported else ({}, None)
        return EpochMetrics(epoch=epoch, selection=selection, **metrics)

    def end_epoch(self, metrics: EpochMetrics | None) -> None:
        """Log the metrics of an epoch, and keep the delta if this epoch is the one to report so far."""
        self.progress.end_epoch()
        if metrics:
            assert self.evaluation
            self.progress.add_score(metrics.selecting_score(self.evaluation.primary), is_candidate=self.is_candidate)
            self.log(metrics)
            if self.is_candidate and (self.config.report == "last" or self.progress.best_epoch == self.progress.epoch):
                delta = self.method.delta(self.model)
                self.delta = {name: value.detach().to("cpu", copy=True) for name, value in delta.items()}
                self.logits = self.epoch_logits
        self.reset_loss()

    def reset_loss(self) -> None:
        """Start a new mean of the loss."""
        self.loss_sum.zero_()
        self.progress.loss_count = 0

    def log(self, line: MetricsLine) -> None:
        """Give a line to all callbacks."""
        self.progress.log_history.append(line)
        for callback in self.callbacks:
            callback.on_log(line)

    def save_checkpoint(self) -> None:
        """Save the state, on the main process."""
        if self.checkpoint and self.phase_state and self.runner.accelerator.is_main_process:
            self.progress.loss_sum = self.loss_sum.item()
            state = self.phase_state
            training_state = state.method.training_state(self.model)
            self.checkpoint.save(
                self.progress, self.delta, self.logits, training_state, state.optimizer, state.lr_scheduler, self.runner.device
            )

    def resume(self) -> bool:
        """Continue from the checkpoint; returns whether there is one."""
        saved = self.checkpoint.read() if self.checkpoint else None
        if saved is None:
            return False
        self.progress, self.delta = Progress.from_state(saved["progress"]), saved["delta"]
        self.logits = None if saved["logits"] is None else saved["logits"].numpy()
        self.loss_sum.fill_(self.progress.loss_sum)
        for phase in self.phases[1 : self.progress.phase + 1]:
            phase.prepare_model(self.encoder)
        with torch.no_grad():
            self.phases[self.progress.phase].method.load_training_state(self.model, saved["method"])
        self.create_optimizer()
        assert self.phase_state
        restore(saved, self.phase_state.optimizer, self.phase_state.lr_scheduler, self.runner.device)
        for callback in self.callbacks:
            callback.on_resume(self.progress.log_history)
        return True


def learning_rate_factor(training: TrainingConfig, steps: int) -> Callable[[int], float]:
    """The schedule: linear warm-up over the fraction `warmup` of all steps, then linear decay or a constant."""
    warmup_steps = math.ceil(training.warmup * steps)

    def factor(step: int) -> float:
        if step < training.hold_steps:
            return training.hold_factor
        if step < warmup_steps:
            return step / warmup_steps
        if training.schedule == "constant":
            return 1.0
        remaining = max(0.0, (steps - step) / max(1, steps - warmup_steps))
        return training.final_factor + (1 - training.final_factor) * remaining

    return factor


def phase_ends(phases: list[Phase], steps: int) -> list[int]:
    """The number of finished steps after which each phase ends; every phase has at least one step.

    Raises:
        UsageError: there are fewer steps than phases.
    """
    if steps < len(phases):
        raise UsageError(
            f"{counted_noun(steps, 'training step')} cannot be shared by {len(phases)} stages; train for more epochs"
        )
    ends: list[int] = []
    fraction = 0.0
    for number, phase in enumerate(phases):
        fraction += phase.fraction
        lowest, highest = (ends[-1] if ends else 0) + 1, steps - (len(phases) - number - 1)
        ends.append(min(max(round(fraction * steps), lowest), highest))
    return ends


def refuse_divergence(loss: float, progress: Progress) -> None:
    """Raise Diverged when a loss is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"the training loss is {loss}", progress)


def seed_everything(seed: int) -> None:
    """Seed every source of randomness."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def calibration_gradients(runner: ModelRunner, batches: Sequence[list[Example]]) -> Iterator[None]:
    """Leave the gradient of one batch after the other in the parameters, bit for bit the same in every process."""
    for batch in batches:
        runner.encoder.model.zero_grad()
        runner.accumulate_gradient(batch)
        if distributed.state().num_processes > 1:  # GPUs add in any order, and a method chooses by these gradients
            distributed.average_gradients(runner.encoder.model)
        yield
    runner.encoder.model.zero_grad()
