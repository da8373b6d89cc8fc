"""What a resumed run needs to go on as if it had never stopped."""

import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path
from hifi_cli.methods.base import Method

Delta = dict[str, Tensor]


@dataclass
class Progress:
    """How far a run has come: what a checkpoint keeps besides tensors.

    Attributes:
        epoch: finished epochs.
        step: finished optimiser steps.
        phase: the phase under way.
        early_epochs: epochs that ended before the last phase: their models are not the method's.
        chosen_by: the selection split's primary metric after each epoch.
        reported: the reported split's primary metric after each epoch.
        lines: lines of metrics.jsonl so far.
        seconds: training time so far, over all resumptions.
    """

    epoch: int = 0
    step: int = 0
    phase: int = 0
    early_epochs: int = 0
    chosen_by: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best_epoch(self) -> int:
        """The first epoch of the last phase, counted from 1, with the highest score on the selection split."""
        own = self.chosen_by[self.early_epochs :]
        return 1 + self.early_epochs + own.index(max(own))


def save(
    path: Path, progress: Progress, kept: Delta, method: Method, model: nn.Module, adam: Any, schedule: Any
) -> None:
    """Store the state of a run, of its phase's method and of every source of randomness, atomically."""
    state = {
        "progress": asdict(progress),
        "kept": kept,
        "now": method.training_state(model),
        "optimiser": adam.state_dict(),
        "schedule": schedule.state_dict(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
    }
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def read(path: Path) -> dict[str, Any]:
    """A stored state.

    Raises:
        UsageError: it is damaged.
    """
    try:
        found: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch's reader raises half a dozen kinds for a damaged archive
        first = str(error).strip().partition("\n")[0][:100]
        raise UsageError(f"the checkpoint {path} is damaged ({first}); train with --no-resume to start afresh") from None
    return found


def restore(state: dict[str, Any], adam: Any, schedule: Any) -> None:
    """Put optimiser, schedule and every source of randomness back."""
    adam.load_state_dict(state["optimiser"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
