"""The training loop, the same for every method: phases, epochs, steps, the best epoch."""

import logging
import math
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from hifi_cli.errors import Terminated, UsageError
from hifi_cli.files import atomic_path, digest
from hifi_cli.methods.base import Method, Phase
from hifi_cli.results.record import EpochMetrics, MetricsLine, StepMetrics, metrics_line
from hifi_cli.tasks.encode import training_order
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training import machine
from hifi_cli.training.data import Splits
from hifi_cli.training.step import ModelRunner, NonFiniteLogits, PhaseState, train_step
from hifi_cli.wording import counted_noun

_MIN_SECONDS = 60.0  # of work that a kill may cost, or more where saving takes long
_MIN_RATIO = 20  # at least this many times what saving took lies between two checkpoints
_LAYOUT = 6  # of the file; one of another layout is not used


logger = logging.getLogger("hifi")
Delta = dict[str, Tensor]


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        run_id: digest of configuration, data, heads and backbone; the state of another run is not
            used.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, f"{run_id}, layout {_LAYOUT}"
        self._saved_at, self._saving_seconds = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Whether to save now: after each minute, more seldom where saving takes long."""
        wait = max(_MIN_SECONDS, _MIN_RATIO * self._saving_seconds)
        return time.monotonic() - self._saved_at > wait

    def save(self, state: dict[str, Any], device: torch.device) -> None:
        """Save the state of a run with that of every source of randomness, atomically.

        Several processes need no states of their own: each of them is seeded in every step.
        """
        start = time.monotonic()
        rng = rng_state(device)
        with atomic_path(self.path) as temporary:
            torch.save({**state, "run_id": self.run_id, "rng": rng}, temporary)
        self._saved_at = time.monotonic()
        self._saving_seconds = self._saved_at - start

    def read(self) -> dict[str, Any] | None:
        """The saved state; None, with a warning, if it is damaged or another run's."""
        if not self.path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
            is_same_run = state["run_id"] == self.run_id
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            first_line = str(error).strip().partition("\n")[0][:100]
            problem = f"damaged ({first_line})"
        else:
            if is_same_run:
                return state
            problem = "of other data, heads or weights"
        logger.warning(f"the checkpoint {self.path} is {problem}; the run starts from the beginning")
        return None


def rng_state(device: torch.device) -> dict[str, Any]:
    """The state of every source of randomness, in types that torch loads with `weights_only`."""
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())  # for a user's own method; ours draw from torch
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Set what `rng_state` returned; the part of a GPU is ignored on a CPU."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


class StopSignal:
    """SIGINT and SIGTERM in the block act at the next `check`, a second one at once."""

    _EXCEPTIONS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._received: type[BaseException] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # only it gets signals
            self._previous = {number: signal.signal(number, self._note) for number in self._EXCEPTIONS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        exception = self._EXCEPTIONS[signal.Signals(number)]
        if self._received:
            raise exception
        self._received = exception

    def check(self) -> type[BaseException] | None:
        """The exception to stop with, None to go on; several processes agree."""
        if self._accelerator.num_processes == 1:
            return self._received
        if self._received:
            self._accelerator.set_trigger()
        return Terminated if self._accelerator.check_trigger() else None


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch, step: finished ones.
        phase: number of the current phase, from 0.
        best_epoch: the first one with the highest score on the selection split, counted from 1; 0:
            none yet.
        log_history: lines of metrics.jsonl so far.
        loss_sum, loss_count: of the losses since the last logged one.
        seconds: training time, evaluation included, over all resumptions.
    """

    epoch: int = 0
    step: int = 0
    phase: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    log_history: list[MetricsLine] = field(default_factory=list)
    loss_sum: float = 0.0
    loss_count: int = 0
    seconds: float = 0.0

    @property
    def epoch_metrics(self) -> list[EpochMetrics]:
        """The lines of finished epochs."""
        return [line for line in self.log_history if isinstance(line, EpochMetrics)]


class Diverged(Exception):
    """The training loss, or what the model predicts, is no longer a finite number.

    Attributes:
        phase: number of the method's phase in which that happened.
    """

    def __init__(self, reason: str, progress: Progress) -> None:
        super().__init__(f"{reason} at step {progress.step}")
        self.phase = progress.phase


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
        self.steps_per_epoch = math.ceil(len(train_examples) / self.config.batch_size)
        self.total_steps = self.config.epochs * self.steps_per_epoch
        self.phases = method.phases()
        self.phase_ends = phase_ends(self.phases, self.total_steps)
        self.phase_state: PhaseState | None = None
        self.progress = Progress()
        self.delta: Delta = {}
        self.logits: Values | None = None
        self.loss_sum = torch.zeros((), device=runner.device)
        self.last_time = time.monotonic()

    def train(self) -> None:
        """Train to the end, from the checkpoint if there is one.

        Raises:
            Diverged: the loss or the model's predictions are not finite.
            RunFailed: a batch does not fit in memory.
        """
        seed_everything(self.config.seed)
        self.last_time = time.monotonic()
        if not self.resume():
            self.setup_phase(0)
        for callback in self.callbacks:
            callback.on_train_begin(self)
        with StopSignal(self.runner.accelerator) as stop:
            while self.progress.epoch < self.config.epochs:
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
                    self.stop_or_save(stop)
                self.refuse_divergence(self.loss_sum.item())
                self.before_evaluation()
                self.end_epoch()
                self.stop_or_save(stop)

    def stop_or_save(self, stop: StopSignal) -> None:
        """Save a checkpoint if it is time, or if a signal came, and then stop."""
        stop_with = stop.check()
        if stop_with or (self.checkpoint and self.checkpoint.is_due()):
            self.save_checkpoint()
        if stop_with:
            raise stop_with

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
        """Start a phase: prepare the model, call the method's hook, create the optimizer."""
        self.phase_state = None  # frees the optimizer of the phase before
        self.progress.phase = number
        self.seed_process(0)
        phase = self.phases[number]
        self.runner.unwrap()
        if number:  # the method prepared the model for the first phase
            phase.prepare_model(self.encoder)
        self.model.train()
        gradients = calibration_gradients(self.runner, self.calibration_batches)
        phase.method.on_phase_start(self.model, gradients)
        self.create_optimizer()

    def create_optimizer(self) -> None:
        """Create the optimizer and the learning rate schedule of the current phase."""
        number = self.progress.phase
        steps = range(self.phase_ends[number - 1] if number else 0, self.phase_ends[number])
        self.phases[number].method.steps = steps
        self.phase_state = PhaseState.create(self.runner, self.phases[number], len(steps))
        self.runner.wrap()

    def train_step(self, batch: list[Example]) -> None:
        """One optimizer step on a batch."""
        assert self.phase_state
        self.seed_process(self.runner.accelerator.process_index)
        step = self.progress.step
        self.loss_sum += train_step(self.runner, self.phase_state, batch, step, self.on_backward_end)
        self.progress.step += 1
        self.progress.loss_count += 1
        for callback in self.callbacks:
            callback.on_step_end(self)

    def on_backward_end(self) -> None:
        """Call the callbacks that read gradients."""
        for callback in self.callbacks:
            callback.on_backward_end(self)

    def log_loss(self) -> None:
        """Log the mean loss since the last time."""
        assert self.phase_state
        mean = self.loss_sum.item() / self.progress.loss_count
        self.refuse_divergence(mean)
        learning_rate = float(self.phase_state.lr_scheduler.get_last_lr()[0])
        self.log(StepMetrics(step=self.progress.step, loss=mean, learning_rate=learning_rate))
        self.reset_loss()

    def before_evaluation(self) -> None:
        """Let the method of the phase bring the model's weights to what training has reached."""
        assert self.phase_state
        self.phase_state.method.before_evaluation(self.model)

    def seed_process(self, rank: int) -> None:
        """If several processes train, seed torch for a step, or for a phase (as rank 0 in all).

        So each process has dropout noise of its own, and a resumed run needs no process's state.
        """
        if self.runner.accelerator.num_processes > 1:
            torch.manual_seed(int(digest([self.config.seed, self.progress.step, rank]), 16))

    def refuse_divergence(self, loss: float) -> None:
        """Raise Diverged when a loss is not finite."""
        if not math.isfinite(loss):
            raise Diverged(f"the training loss is {loss}", self.progress)

    def end_epoch(self) -> None:
        """Score the model, and keep its delta if this epoch is the one to report so far."""
        progress = self.progress
        try:
            scored = self.evaluate(self.evaluated) if self.evaluated else None
        except NonFiniteLogits:
            raise Diverged("the logits are not finite", progress) from None
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
                self.delta = {name: value.detach().to("cpu", copy=True) for name, value in delta.items()}
                self.logits = logits
        self.reset_loss()
        self.count_time()

    @property
    def is_candidate(self) -> bool:
        """Whether the model may be reported: the last phase has trained it, or it is the last."""
        assert self.phase_state
        is_last_phase = self.progress.phase == len(self.phases) - 1
        is_last = self.progress.step == self.total_steps
        return is_last_phase and (self.phase_state.has_trained or is_last)

    def evaluate(self, splits: Splits) -> tuple[EpochMetrics, Values | None]:
        """The metrics of an epoch, with the logits of the reported split where it was evaluated."""
        config, epoch, selection = self.config, self.progress.epoch + 1, None
        if splits.selection is not splits.reported:
            selection = self.runner.measure(splits.selection)[0][self.runner.task.primary]
        is_reported = (
            selection is None
            or config.evaluates_every_epoch
            or epoch == config.epochs
            # where the last epoch's delta is kept, that of the best one cannot be evaluated later
            or (config.report == "last" and self.is_candidate and selection > self.progress.best_score)
        )
        metrics, logits = measure_reported(self.runner, splits) if is_reported else ({}, None)
        return EpochMetrics(epoch=epoch, selection=selection, **metrics), logits

    def reset_loss(self) -> None:
        """Start a new mean of the loss."""
        self.loss_sum.zero_()
        self.progress.loss_count = 0

    def count_time(self) -> None:
        """Add the time since the last call to the training time."""
        now = time.monotonic()
        self.progress.seconds += now - self.last_time
        self.last_time = now

    def log(self, line: MetricsLine) -> None:
        """Give a line to all callbacks."""
        self.progress.log_history.append(line)
        for callback in self.callbacks:
            callback.on_log(line)

    def save_checkpoint(self) -> None:
        """Save the state, on the main process."""
        if self.checkpoint and self.phase_state and self.runner.accelerator.is_main_process:
            self.count_time()
            self.progress.loss_sum = self.loss_sum.item()
            history = [line.model_dump() for line in self.progress.log_history]
            state: dict[str, Any] = {
                "progress": {**asdict(self.progress), "log_history": history},
                "delta": self.delta,
                "logits": None if self.logits is None else torch.from_numpy(self.logits),
                "method": self.phase_state.method.training_state(self.model),
                "optimizer": self.phase_state.optimizer.state_dict(),
                "lr_scheduler": self.phase_state.lr_scheduler.state_dict(),
            }
            self.checkpoint.save(state, self.runner.device)

    def resume(self) -> bool:
        """Continue from the checkpoint; returns whether there is one."""
        saved = self.checkpoint.read() if self.checkpoint else None
        if saved is None:
            return False
        history = [metrics_line(line) for line in saved["progress"]["log_history"]]
        self.progress = Progress(**{**saved["progress"], "log_history": history})
        self.delta = saved["delta"]
        self.logits = None if saved["logits"] is None else saved["logits"].numpy()
        self.loss_sum.fill_(self.progress.loss_sum)
        for phase in self.phases[1 : self.progress.phase + 1]:
            phase.prepare_model(self.encoder)
        with torch.no_grad():
            method = self.phases[self.progress.phase].method
            method.load_training_state(self.model, saved["method"])
        self.create_optimizer()
        assert self.phase_state
        self.phase_state.optimizer.load_state_dict(saved["optimizer"])
        self.phase_state.lr_scheduler.load_state_dict(saved["lr_scheduler"])
        set_rng_state(saved["rng"], self.runner.device)
        return True


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
    fraction = 0.0
    for number, phase in enumerate(phases):
        fraction += phase.fraction
        lowest, highest = (ends[-1] if ends else 0) + 1, steps - (len(phases) - number - 1)
        ends.append(min(max(round(fraction * steps), lowest), highest))
    return ends


def seed_everything(seed: int) -> None:
    """Seed every source of randomness."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def calibration_gradients(runner: ModelRunner, batches: Sequence[list[Example]]) -> Iterator[None]:
    """Leave the gradient of each batch in the parameters, the same bits in every process."""
    for batch in batches:
        runner.encoder.model.zero_grad()
        runner.accumulate_gradient(batch)
        if machine.process_state().num_processes > 1:
            # GPUs add in any order, and a method chooses by these gradients
            machine.average_gradients(runner.encoder.model)
        yield
    runner.encoder.model.zero_grad()
