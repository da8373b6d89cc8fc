"""The training loop, the same for every method: phases, epochs, steps, the best epoch."""

import logging
import math
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import reduce, set_seed
from torch import Tensor

from hifi_cli.errors import Terminated, UsageError, counted_noun
from hifi_cli.files import atomic_path, digest
from hifi_cli.methods.base import Method, Phase, layer_wise
from hifi_cli.models.modules import WordRows
from hifi_cli.results.record import EpochMetrics, MetricsLine, StepMetrics, metrics_line
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import Splits, epoch_batches
from hifi_cli.training.step import Diverged, ModelRunner, balanced_weights, learning_rate_factor

_MIN_SECONDS = 60.0  # of work that a kill may cost, or more where saving takes long
_MIN_RATIO = 20  # at least this many times what saving took lies between two checkpoints
_LAYOUT = 8  # of the file; one of another layout is not used

logger = logging.getLogger("hifi")


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        run_id: digest of configuration, data, heads and backbone; the state of another run is not
            used.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, f"{run_id}, layout {_LAYOUT}"
        self._due_at = time.monotonic() + _MIN_SECONDS

    def is_due(self) -> bool:
        """Whether to save now: after each minute, more seldom where saving takes long."""
        return time.monotonic() > self._due_at

    def save(self, state: dict[str, Any], device: torch.device) -> None:
        """Save the state of a run with that of every source of randomness, atomically.

        Several processes need no states of their own: each of them is seeded in every step.
        """
        start = time.monotonic()
        # for a user's own method: ours draw from torch
        name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
        rng = {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "python": random.getstate(),
            "numpy": (name, keys.tolist(), *rest),  # in types that torch loads with `weights_only`
        }
        with atomic_path(self.path) as temporary:
            torch.save({**state, "run_id": self.run_id, "rng": rng}, temporary)
        end = time.monotonic()
        self._due_at = end + max(_MIN_SECONDS, _MIN_RATIO * (end - start))

    def read(self) -> dict[str, Any] | None:
        """The saved state; None, with a warning, if it is damaged or another run's."""
        if not self.path.is_file():
            return None
        problem = "of other data, heads or weights"
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
            if state["run_id"] == self.run_id:
                return state
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            first_line = str(error).strip().partition("\n")[0][:100]
            problem = f"damaged ({first_line})"
        logger.warning(
            f"the checkpoint {self.path} is {problem}; the run starts from the beginning"
        )
        return None


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Set what a checkpoint has as `rng`; the part of a GPU is ignored on a CPU."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


@contextmanager
def deferred_signals() -> Iterator[list[type[BaseException]]]:
    """The exceptions of the SIGINT and SIGTERM of the block; a second signal raises at once."""
    received: list[type[BaseException]] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
        if len(received) > 1:
            raise received[-1]

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch, step: finished ones.
        phase: number of the current phase, from 0.
        best_epoch: the first one with the highest score on the selection split, counted from 1; 0:
            none yet.
        log_history: lines of metrics.jsonl so far.
        loss_count: of losses since the last logged one.
        seconds: training time, evaluation included, over all resumptions.
    """

    epoch: int = 0
    step: int = 0
    phase: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    log_history: list[MetricsLine] = field(default_factory=list)
    loss_count: int = 0
    seconds: float = 0.0

    @property
    def epoch_metrics(self) -> list[EpochMetrics]:
        """The lines of finished epochs."""
        return [line for line in self.log_history if isinstance(line, EpochMetrics)]


class Callback:
    """Hooks that a trainer calls; each may stay as it is here."""

    def on_train_begin(self, trainer: "Trainer") -> None:
        """Called once, before the first step of this process; a resumed run has progress then."""

    def on_backward_end(self, trainer: "Trainer") -> None:
        """Called in every step with the gradient of the whole batch, before it is clipped."""

    def on_step_end(self, trainer: "Trainer") -> None:
        """Called after every optimizer step."""

    def on_log(self, line: MetricsLine) -> None:
        """Called with each line of metrics.jsonl, after `on_step_end`."""


class Trainer:
    """Trains a prepared model through the phases of its method and evaluates it after each epoch.

    Args:
        evaluated: what the model is scored on after each epoch; None: nothing, and no delta is
            kept.
        calibration_batches: batches whose gradients a method may use when one of its phases starts.
        checkpoint: where the state is saved, and resumed from if it is there.
        max_steps: stop after this number of steps, before the evaluation.

    Attributes:
        delta: what training changed, at the epoch that is reported.
        logits: of the reported split at that epoch; None where it was not evaluated then.
        total_steps: optimizer steps of the whole run.
        phase_ends: for each phase, the number of finished steps after which it ends.
        optimizer, lr_scheduler: of the current phase.
        clip_groups: parameters whose gradients are clipped by one norm.
        word_rows: the words that train, where those that do not occur are left out of training.

    Raises:
        UsageError: there are fewer steps than phases.
    """

    def __init__(
        self,
        runner: ModelRunner,
        method: Method,
        train_examples: list[Example],
        *,
        evaluated: Splits | None = None,
        callbacks: Sequence[Callback] = (),
        calibration_batches: Sequence[list[Example]] = (),
        checkpoint: Checkpoint | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.runner, self.method, self.train_examples = runner, method, train_examples
        self.evaluated, self.callbacks = evaluated, callbacks
        self.calibration_batches = calibration_batches
        self.checkpoint, self.max_steps = checkpoint, max_steps
        self.config, self.encoder, self.model = runner.config, runner.encoder, runner.encoder.model
        weights = self.config.class_weights
        runner.class_weights = (
            balanced_weights(runner.task, train_examples) if weights == "balanced" else weights
        )
        self.steps_per_epoch = math.ceil(len(train_examples) / self.config.batch_size)
        self.total_steps = self.config.epochs * self.steps_per_epoch
        self.phases = method.phases()
        self.phase_ends = phase_ends(self.phases, self.total_steps)
        self.progress = Progress()
        self.word_rows: WordRows | None = None
        self.delta: dict[str, Tensor] = {}
        self.logits: Values | None = None
        self.loss_sum = torch.zeros((), device=runner.device)

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[self.progress.phase]

    def train(self) -> None:
        """Train to the end, from the checkpoint if there is one.

        Raises:
            Diverged: the loss or the model's predictions are not finite.
            RunFailed: a batch does not fit in memory.
        """
        set_seed(self.config.seed)
        self.start = time.monotonic()
        if saved := self.checkpoint and self.checkpoint.read():
            self.resume(saved)
        else:
            self.setup_phase(0)
        for callback in self.callbacks:
            callback.on_train_begin(self)
        with deferred_signals() as signals:
            while self.progress.epoch < self.config.epochs and not self.is_out_of_patience(
                self.progress.epoch
            ):
                self.model.train()
                for batch in self.remaining_batches():
                    if self.progress.step == self.phase_ends[self.progress.phase]:
                        self.setup_phase(self.progress.phase + 1)
                    self.train_step(batch)
                    step = self.progress.step
                    if step % self.config.log_every == 0 or step == self.total_steps:
                        self.log_loss()
                    if step == self.max_steps:
                        self.before_evaluation()
                        return
                    self.stop_or_save(signals)
                self.refuse_divergence(self.loss_sum.item())
                self.before_evaluation()
                self.end_epoch()
                self.stop_or_save(signals)
        if self.progress.epoch < self.config.epochs:
            logger.info(f"stopped early: no better epoch since epoch {self.progress.best_epoch}")

    def stop_or_save(self, signals: list[type[BaseException]]) -> None:
        """Save a checkpoint if it is time, or if a signal came, and then stop."""
        stops = bool(signals)
        if self.runner.processes.num_processes > 1:  # which must agree
            stops = bool(reduce(torch.tensor(float(stops), device=self.runner.device), "sum"))
        if stops or (self.checkpoint and self.checkpoint.is_due()):
            self.save_checkpoint()
        if stops:
            raise signals[0] if signals else Terminated

    def remaining_batches(self) -> list[list[Example]]:
        """The batches of the current epoch that were not trained on yet."""
        finished = self.progress.step - self.progress.epoch * self.steps_per_epoch
        return epoch_batches(self.config, self.train_examples, self.progress.epoch)[finished:]

    def setup_phase(self, number: int) -> None:
        """Start a phase: prepare the model, call the method's hook, create the optimizer."""
        self.progress.phase = number
        self.seed_process(0)
        self.runner.unwrap()
        if self.word_rows:
            self.word_rows.merge()
            self.word_rows.hook.remove()
        if number:  # the method prepared the model for the first phase
            self.phase.prepare_model(self.encoder)
        self.model.train()
        gradients = calibration_gradients(self.runner, self.calibration_batches)
        self.phase.method.on_phase_start(self.model, gradients)
        self.create_optimizer()

    def create_optimizer(self) -> None:
        """Create AdamW over what the current phase trains, and its learning rate schedule."""
        number, method = self.progress.phase, self.phase.method
        steps = range(self.phase_ends[number - 1] if number else 0, self.phase_ends[number])
        method.steps = steps
        training = self.phase.training or self.config
        groups = method.param_groups(self.model, training.weight_decay)
        if self.config.layer_decay < 1:
            groups = layer_wise(
                groups, method, self.encoder, training.learning_rate, self.config.layer_decay
            )
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=training.learning_rate,
            betas=training.adam_betas,
            eps=training.adam_epsilon,
            fused=True,
        )
        self.max_grad_norm, self.clip_groups = (
            training.max_grad_norm,
            method.clip_groups(self.model),
        )
        self.word_rows = self.occurring_words()
        if self.word_rows:
            self.word_rows.train_by(self.optimizer)
            self.clip_groups = [self.word_rows.replace_in(group) for group in self.clip_groups]
        schedules = {"run": learning_rate_factor(training, len(steps)), "constant": lambda _: 1.0}
        factors = [
            schedules[group.get("lr_schedule", "run")] for group in self.optimizer.param_groups
        ]
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factors)
        self.runner.wrap()

    def occurring_words(self) -> WordRows | None:
        """The words of the train examples; None if the method needs all, or several processes train."""
        embedding = self.encoder.word_embedding
        may_leave_out = (
            self.phase.method.trains_occurring_words and self.runner.processes.num_processes == 1
        )
        if not (may_leave_out and embedding and embedding.weight.requires_grad):
            return None
        lists = [
            sequence["input_ids"]
            for example in self.train_examples
            for sequence in example.sequences
        ]
        return WordRows(
            embedding, [*np.unique(np.concatenate(lists)).tolist(), self.runner.pad["input_ids"]]
        )

    def train_step(self, batch: list[Example]) -> None:
        """One optimizer step on a batch; nothing waits for its loss."""
        method = self.phase.method
        self.seed_process(self.runner.processes.process_index)
        method.before_step(self.model, self.progress.step)
        self.loss_sum += self.runner.accumulate_gradient(batch, method.regularization_loss)
        method.after_backward(self.model)
        for callback in self.callbacks:
            callback.on_backward_end(self)
        if self.max_grad_norm:
            for parameters in self.clip_groups:
                torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        method.before_optimizer_step(self.model)
        self.optimizer.step()
        self.lr_scheduler.step()
        method.after_optimizer_step(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.loss_count += 1
        for callback in self.callbacks:
            callback.on_step_end(self)

    def log_loss(self) -> None:
        """Log the mean loss since the last time."""
        mean = self.loss_sum.item() / self.progress.loss_count
        self.refuse_divergence(mean)
        learning_rate = float(self.lr_scheduler.get_last_lr()[0])
        self.log(StepMetrics(step=self.progress.step, loss=mean, learning_rate=learning_rate))
        self.reset_loss()

    def before_evaluation(self) -> None:
        """Bring the model's weights to what training has reached."""
        self.phase.method.before_evaluation(self.model)
        if self.word_rows:
            self.word_rows.merge()

    def seed_process(self, rank: int) -> None:
        """If several processes train, seed torch for a step, or for a phase (as rank 0 in all).

        So each process has dropout noise of its own, and a resumed run needs no process's state.
        """
        if self.runner.processes.num_processes > 1:
            torch.manual_seed(int(digest([self.config.seed, self.progress.step, rank]), 16))

    def refuse_divergence(self, loss: float) -> None:
        """Raise Diverged when a loss is not finite."""
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss}")

    def end_epoch(self) -> None:
        """Score the model, and keep its delta if this epoch is the one to report so far."""
        progress = self.progress
        scored = self.evaluate(self.evaluated) if self.evaluated else None
        progress.epoch += 1
        if scored:
            metrics, logits = scored
            score = metrics.selecting_score(self.runner.task.primary)
            is_best = self.is_candidate and score > progress.best_score
            if is_best:
                progress.best_epoch, progress.best_score = progress.epoch, score
            self.log(metrics)
            if is_best or (self.is_candidate and self.config.report == "last"):
                delta = self.method.delta(self.model)
                self.delta = {
                    name: value.detach().to("cpu", copy=True) for name, value in delta.items()
                }
                self.logits = logits
        self.reset_loss()
        progress.seconds = time.monotonic() - self.start

    @property
    def is_candidate(self) -> bool:
        """Whether the model may be reported: the last phase has trained it, or it is the last.

        The first step of a warm-up has a learning rate of 0 and trains nothing.
        """
        factors, steps = (
            self.lr_scheduler.lr_lambdas,
            range(self.lr_scheduler.last_epoch),
        )  # steps, in spite of its name
        has_trained = any(factor(step) > 0 for factor in factors for step in steps)
        is_last_phase = self.progress.phase == len(self.phases) - 1
        return is_last_phase and (has_trained or self.progress.step == self.total_steps)

    def is_out_of_patience(self, epoch: int) -> bool:
        """Whether training stops early after an epoch unless its score is the best so far."""
        patience, best = self.config.patience, self.progress.best_epoch
        return patience is not None and best > 0 and epoch - best >= patience

    def evaluate(self, splits: Splits) -> tuple[EpochMetrics, Values | None]:
        """The metrics of an epoch, with the logits of the reported split where it was evaluated."""
        config, epoch, selection = self.config, self.progress.epoch + 1, None
        if splits.selection is not splits.reported:
            selection = self.runner.measure(splits.selection)[0][self.runner.task.primary]
        is_best = (
            self.is_candidate and selection is not None and selection > self.progress.best_score
        )
        is_reported = (
            selection is None
            or config.evaluates_every_epoch
            or epoch == config.epochs
            or (self.is_out_of_patience(epoch) and not is_best)
            # where the last epoch's delta is kept, that of the best one cannot be evaluated later
            or (config.report == "last" and is_best)
        )
        metrics, logits = measure_reported(self.runner, splits) if is_reported else ({}, None)
        return EpochMetrics(epoch=epoch, selection=selection, **metrics), logits

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
        if self.checkpoint and self.runner.processes.is_main_process:
            self.progress.seconds = time.monotonic() - self.start
            if self.word_rows:
                self.word_rows.write()
            history = [line.model_dump() for line in self.progress.log_history]
            state: dict[str, Any] = {
                "progress": {**asdict(self.progress), "log_history": history},
                "loss_sum": self.loss_sum,
                "delta": self.delta,
                "logits": None if self.logits is None else torch.from_numpy(self.logits),
                "method": self.phase.method.training_state(self.model),
                "optimizer": self.optimizer.state_dict(),
                "lr_scheduler": self.lr_scheduler.state_dict(),
            }
            self.checkpoint.save(state, self.runner.device)

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        history = [metrics_line(line) for line in saved["progress"]["log_history"]]
        self.progress = Progress(**{**saved["progress"], "log_history": history})
        self.start -= self.progress.seconds
        self.delta = saved["delta"]
        self.logits = None if saved["logits"] is None else saved["logits"].numpy()
        self.loss_sum.copy_(saved["loss_sum"])
        for phase in self.phases[1 : self.progress.phase + 1]:
            phase.prepare_model(self.encoder)
        with torch.no_grad():
            self.phase.method.load_training_state(self.model, saved["method"])
        self.create_optimizer()
        self.optimizer.load_state_dict(saved["optimizer"])
        self.lr_scheduler.load_state_dict(saved["lr_scheduler"])
        set_rng_state(saved["rng"], self.runner.device)


def measure_reported(runner: ModelRunner, splits: Splits) -> tuple[dict[str, float], Values]:
    """Every metric on the reported and (as `metric_split`) on extra splits; and its logits."""
    measured, logits = runner.measure(splits.reported)
    for split, examples in splits.extra_validation.items():
        extra, _ = runner.measure(examples, f"validation_{split}")
        measured |= {f"{metric}_{split}": score for metric, score in extra.items()}
    return measured, logits


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
    for number, fraction in enumerate(accumulate(phase.fraction for phase in phases), start=1):
        lowest, highest = (ends[-1] if ends else 0) + 1, steps - len(phases) + number
        ends.append(min(max(round(fraction * steps), lowest), highest))
    return ends


def calibration_gradients(runner: ModelRunner, batches: Sequence[list[Example]]) -> Iterator[None]:
    """Leave the gradient of each batch in the parameters, the same bits in every process."""
    for batch in batches:
        runner.encoder.model.zero_grad()
        runner.accumulate_gradient(batch)
        if runner.processes.num_processes > 1:
            # GPUs add in any order, and a method chooses by these gradients
            for parameter in runner.encoder.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = reduce(parameter.grad, "mean")
        yield
    runner.encoder.model.zero_grad()
