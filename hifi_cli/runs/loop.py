"""The training loop: one straight page, the same for every method."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hifi_cli.config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path
from hifi_cli.methods.base import Method
from hifi_cli.runs.engine import Engine
from hifi_cli.tasks.batches import training_order
from hifi_cli.tasks.inputs import Example

Delta = dict[str, Tensor]
Log = Callable[[dict[str, Any]], None]


class Diverged(Exception):
    """The training loss is no longer a finite number."""


@dataclass
class Progress:
    """How far a run has come: what a checkpoint keeps besides tensors.

    Attributes:
        epoch: finished epochs.
        step: finished optimiser steps.
        chosen_by: the selection split's primary metric after each epoch.
        reported: the reported split's primary metric after each epoch.
        lines: lines of metrics.jsonl so far.
        seconds: training time so far, over all resumptions.
    """

    epoch: int = 0
    step: int = 0
    chosen_by: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best_epoch(self) -> int:
        """The first epoch, from 1, with the highest score on the selection split."""
        return 1 + self.chosen_by.index(max(self.chosen_by))


def learning_rate_factor(config: RunConfig, steps: int) -> Callable[[int], float]:
    """The schedule: linear warm-up over the share `warmup` of all steps, then linear decay to 0 or constant."""
    warm = math.ceil(config.warmup * steps)

    def factor(step: int) -> float:
        if step < warm:
            return step / warm
        return max(0.0, (steps - step) / max(1, steps - warm)) if config.schedule == "linear" else 1.0

    return factor


def optimiser(method: Method, model: nn.Module, config: RunConfig, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW and its schedule over what the method trains."""
    adam = torch.optim.AdamW(
        method.param_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=config.adam_betas,
        eps=config.adam_epsilon,
        fused=True,
    )
    return adam, torch.optim.lr_scheduler.LambdaLR(adam, learning_rate_factor(config, steps))


def refuse_divergence(loss: float, step: int) -> None:
    """Raise Diverged when a loss is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"the training loss is {loss} at step {step}")


def seed_everything(seed: int) -> None:
    """Seed every source of randomness."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def fit(
    engine: Engine,
    method: Method,
    train: list[Example],
    *,
    evaluate: Callable[[], tuple[float, float, dict[str, Any]]],
    log: Log,
    checkpoint: Path | None = None,
    most_steps: int | None = None,
) -> tuple[Progress, Delta]:
    """Train a prepared model, evaluate after each epoch, keep the delta that the configuration reports.

    Args:
        evaluate: gives the selection split's and the reported split's primary metric, and what to log.
        checkpoint: where the state is kept from epoch to epoch, and resumed from when it is there.
        most_steps: stop after so many steps, without evaluation (warm steps before scoring).

    Raises:
        Diverged: the loss is not finite.
    """
    config, accelerator, encoder = engine.config, engine.accelerator, engine.encoder
    lengths = [len(example) for example in train]
    steps = config.epochs * math.ceil(len(train) / config.batch_size)
    adam, schedule = optimiser(method, encoder.model, config, steps)
    engine.model, adam = accelerator.prepare(engine.model, adam)
    trained = [parameter for parameter in encoder.model.parameters() if parameter.requires_grad]
    seed_everything(config.seed)
    progress = Progress()
    kept: Delta = {}
    if checkpoint and checkpoint.is_file():
        progress, kept = load_checkpoint(checkpoint, method, encoder.model, adam, schedule)
    for line in progress.lines:
        log(line)

    def note(line: dict[str, Any]) -> None:
        progress.lines.append(line)
        log(line)

    while progress.epoch < config.epochs:
        began = time.monotonic()
        engine.model.train()
        running, since = torch.zeros((), device=accelerator.device), 0
        for batch in training_order(lengths, config.batch_size, seed=config.seed, epoch=progress.epoch):
            running += engine.accumulate_gradient(method, [train[index] for index in batch])
            method.after_backward(encoder.model)
            if config.max_grad_norm:
                accelerator.clip_grad_norm_(trained, config.max_grad_norm)
            adam.step()
            schedule.step()
            adam.zero_grad(set_to_none=True)
            method.after_step(encoder.model)
            progress.step += 1
            since += 1
            if progress.step % config.log_every == 0 or progress.step == steps:
                mean = running.item() / since
                refuse_divergence(mean, progress.step)
                note({"step": progress.step, "loss": mean, "learning_rate": schedule.get_last_lr()[0]})
                running, since = torch.zeros_like(running), 0
            if progress.step == most_steps:
                return progress, method.delta(encoder.model)
        refuse_divergence(running.item(), progress.step)
        progress.epoch += 1
        chosen_by, reported, line = evaluate()
        progress.chosen_by.append(chosen_by)
        progress.reported.append(reported)
        note({"epoch": progress.epoch, **line})
        if config.report == "last" or progress.best_epoch == progress.epoch:
            kept = {name: value.detach().to("cpu", copy=True) for name, value in method.delta(encoder.model).items()}
        progress.seconds += time.monotonic() - began
        if checkpoint and progress.epoch < config.epochs and accelerator.is_main_process:
            save_checkpoint(checkpoint, progress, kept, method, encoder.model, adam, schedule)
    return progress, kept


def save_checkpoint(
    path: Path, progress: Progress, kept: Delta, method: Method, model: nn.Module, adam: Any, schedule: Any
) -> None:
    """Store all that a resumed run needs to go on as if it had never stopped, atomically."""
    state = {
        "progress": asdict(progress),
        "kept": kept,
        "now": method.delta(model),
        "optimiser": adam.state_dict(),
        "schedule": schedule.state_dict(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
    }
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(path: Path, method: Method, model: nn.Module, adam: Any, schedule: Any) -> tuple[Progress, Delta]:
    """Take up a stored state.

    Raises:
        UsageError: it is damaged.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch's reader raises half a dozen kinds for a damaged archive
        first = str(error).strip().partition("\n")[0][:100]
        raise UsageError(f"the checkpoint {path} is damaged ({first}); train with --no-resume to start afresh") from None
    with torch.no_grad():
        method.load_delta(model, state["now"])
    adam.load_state_dict(state["optimiser"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    return Progress(**state["progress"]), state["kept"]
