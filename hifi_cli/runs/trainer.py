"""The training loop: one straight page, the same for every method."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hifi_cli.config.run_config import TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, Phase
from hifi_cli.runs import out_of_memory
from hifi_cli.runs.checkpoint import Checkpoint, Delta, Progress, restore
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.runs.signal_handling import Stopping
from hifi_cli.tasks.batches import training_order
from hifi_cli.tasks.tokenization import Example

Log = Callable[[dict[str, Any], bool], None]  # a line, and whether it is one from before a resumption told again


class Diverged(Exception):
    """The training loss is no longer a finite number.

    Attributes:
        phase: number of the method's phase in which that happened.
    """

    def __init__(self, loss: float, progress: Progress) -> None:
        super().__init__(f"the training loss is {loss} at step {progress.step}")
        self.phase = progress.phase


def learning_rate_factor(training: TrainingConfig, steps: int) -> Callable[[int], float]:
    """The schedule: linear warm-up over the share `warmup` of all steps, then linear decay or constant."""
    warm = math.ceil(training.warmup * steps)

    def factor(step: int) -> float:
        if step < training.hold_steps:
            return training.hold_factor
        if step < warm:
            return step / warm
        if training.schedule == "constant":
            return 1.0
        left = max(0.0, (steps - step) / max(1, steps - warm))
        return training.final_factor + (1 - training.final_factor) * left

    return factor


def phase_ends(phases: list[Phase], steps: int) -> list[int]:
    """The number of finished steps after which each phase ends; every phase has at least one step.

    Raises:
        UsageError: there are fewer steps than phases.
    """
    if steps < len(phases):
        raise UsageError(f"{steps} training steps cannot be shared by {len(phases)} stages; train for more epochs")
    ends: list[int] = []
    share = 0.0
    for number, phase in enumerate(phases):
        share += phase.share
        least, most = (ends[-1] if ends else 0) + 1, steps - (len(phases) - number - 1)
        ends.append(min(max(round(share * steps), least), most))
    return ends


def refuse_divergence(loss: float, progress: Progress) -> None:
    """Raise Diverged when a loss is not finite."""
    if not math.isfinite(loss):
        raise Diverged(loss, progress)


def seed_everything(seed: int) -> None:
    """Seed every source of randomness."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@dataclass
class Stretch:
    """A phase under way, with an optimiser and a schedule of its own.

    Attributes:
        clip_groups: parameters whose gradients are clipped by one norm.
    """

    runner: ModelRunner
    phase: Phase
    training: TrainingConfig
    adam: Any
    schedule: Any
    clip_groups: list[list[nn.Parameter]]

    @classmethod
    def start(cls, runner: ModelRunner, phase: Phase, steps: int) -> "Stretch":
        """AdamW and its schedule, fresh, over what the phase's method trains."""
        training, model = phase.training or runner.config, runner.encoder.model
        adam = torch.optim.AdamW(
            phase.method.param_groups(model, training.weight_decay),
            lr=training.learning_rate,
            betas=training.adam_betas,
            eps=training.adam_epsilon,
            fused=True,
        )
        factors = {"run": learning_rate_factor(training, steps), "constant": lambda _: 1.0}
        each = [factors[group.get("lr_schedule", "run")] for group in adam.param_groups]
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, each)
        runner.model, prepared = runner.accelerator.prepare(model, adam)
        return cls(runner, phase, training, prepared, schedule, phase.method.clip_groups(model))

    def step(self, batch: list[Example], number: int) -> Tensor:
        """One optimiser step; returns the batch's loss."""
        method, model = self.phase.method, self.runner.encoder.model
        method.before_step(model, number)
        loss = out_of_memory.accumulate(
            self.runner, len(batch), lambda: self.runner.accumulate_gradient(batch, method.extra_loss)
        )
        method.after_backward(model)
        if self.training.max_grad_norm:
            for group in self.clip_groups:
                self.runner.accelerator.clip_grad_norm_(group, self.training.max_grad_norm)
        method.before_optimizer_step(model)
        self.adam.step()
        self.schedule.step()
        self.adam.zero_grad(set_to_none=True)
        method.after_step(model)
        return loss


def fit(
    runner: ModelRunner,
    method: Method,
    train: list[Example],
    *,
    evaluate: Callable[[], tuple[float, float, dict[str, Any]]],
    log: Log,
    calibration_batches: Sequence[list[Example]] = (),
    checkpoint: Checkpoint | None = None,
    most_steps: int | None = None,
) -> tuple[Progress, Delta]:
    """Train a prepared model through the method's phases, evaluate after each epoch, keep the delta that is reported.

    Args:
        evaluate: gives the selection split's and the reported split's primary metric, and what to log.
        surveyed: batches whose gradients a method may look at before it starts.
        checkpoint: where the state is kept, and resumed from when it is there.
        most_steps: stop after so many steps, without evaluation (warm steps before scoring).

    Raises:
        Diverged: the loss is not finite.
        RunFailed: a batch does not fit in memory.
        UsageError: there are too few steps for all phases.
    """
    config, accelerator, encoder = runner.config, runner.accelerator, runner.encoder
    lengths = [len(example) for example in train]
    steps_per_epoch = math.ceil(len(train) / config.batch_size)
    steps = config.epochs * steps_per_epoch
    phases = method.phases()
    ends = phase_ends(phases, steps)
    state = checkpoint.read() if checkpoint else None
    progress = Progress(**state["progress"]) if state else Progress()
    runner.parts = progress.parts or runner.parts
    kept: Delta = state["kept"] if state else {}

    def stretch(number: int) -> Stretch:
        if config.reuse_frozen:
            runner.reuse_frozen(train)
        return Stretch.start(runner, phases[number], ends[number] - [0, *ends][number])

    def on_phase_start(phase: Phase) -> None:
        runner.model = encoder.model  # every process surveys the whole; DDP wraps the model when the phase starts
        runner.frozen = None
        encoder.model.train()
        phase.method.on_phase_start(encoder.model, backpropagate(runner, calibration_batches))

    def note(line: dict[str, Any]) -> None:
        progress.lines.append(line)
        log(line, False)

    def save() -> None:
        if checkpoint and current and accelerator.is_main_process:
            progress.running, progress.parts = running.item(), runner.parts
            now = current.phase.method
            checkpoint.save(progress, kept, now, encoder.model, current.adam, current.schedule)

    seed_everything(config.seed)
    current: Stretch | None = None
    if state:
        for phase in phases[1 : progress.phase + 1]:
            phase.begin(encoder)
        with torch.no_grad():
            phases[progress.phase].method.load_training_state(encoder.model, state["now"])
        current = stretch(progress.phase)
        restore(state, current.adam, current.schedule)
    else:
        on_phase_start(phases[0])
        current = stretch(0)
    for line in progress.lines:
        log(line, True)

    running = torch.tensor(progress.running, device=accelerator.device)
    with Stopping(accelerator, save) as stopping:
        while progress.epoch < config.epochs:
            encoder.model.train()
            order = training_order(
                lengths,
                config.batch_size,
                strategy=config.train_sampling_strategy,
                seed=config.seed,
                epoch=progress.epoch,
            )
            for batch in order[progress.step - progress.epoch * steps_per_epoch :]:
                if progress.step == ends[progress.phase]:
                    save()
                    current = None  # between two phases there is nothing to save
                    progress.phase += 1
                    phases[progress.phase].begin(encoder)
                    on_phase_start(phases[progress.phase])
                    current = stretch(progress.phase)
                assert current
                with stopping.held():
                    running += current.step([train[index] for index in batch], progress.step)
                    progress.count_step()
                    if progress.step % config.log_every == 0 or progress.step == steps:
                        mean = running.item() / progress.since
                        refuse_divergence(mean, progress)
                        rate = current.schedule.get_last_lr()[0]
                        note({"step": progress.step, "loss": mean, "learning_rate": rate})
                        running, progress.since = torch.zeros_like(running), 0
                if progress.step == most_steps:
                    return progress, current.phase.method.delta(encoder.model)
                if checkpoint and checkpoint.is_due():
                    save()
            refuse_divergence(running.item(), progress)
            chosen_by, reported, line = evaluate()
            with stopping.held():
                is_last_phase = progress.phase == len(phases) - 1
                progress.end_epoch(chosen_by, reported, early=not is_last_phase)
                note({"epoch": progress.epoch, **line})
                if is_last_phase and (config.report == "last" or progress.best_epoch == progress.epoch):
                    delta = method.delta(encoder.model)
                    kept = {name: value.detach().to("cpu", copy=True) for name, value in delta.items()}
                running, progress.since = torch.zeros_like(running), 0
            if checkpoint and checkpoint.is_due(epoch_ended=True) and progress.epoch < config.epochs:
                save()
    return progress, kept


def backpropagate(runner: ModelRunner, batches: Sequence[list[Example]]) -> Iterator[None]:
    """Leave the gradient of one batch after the other in the parameters."""
    for batch in batches:
        runner.encoder.model.zero_grad()
        runner.accumulate_gradient(batch)
        yield
    runner.encoder.model.zero_grad()
