"""What a resumed run needs to go on as if it had never stopped."""

import logging
import random
import time
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hifi_cli.files import atomic_path
from hifi_cli.methods.base import Method

Delta = dict[str, Tensor]
_MOST_SECONDS = 300.0  # of work that a kill in the middle of an epoch may cost
_SHARE = 20  # a checkpoint is made when the time since the last is so many times what that one took

logger = logging.getLogger("hifi")


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
        running: the sum of the losses since the last line.
        since: their number.
        parts: what a batch is computed in; 0: what the configuration says.
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
    running: float = 0.0
    since: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        self._counted = time.monotonic()

    def count_step(self) -> None:
        """A step was made."""
        self.step += 1
        self.since += 1
        self._count_time()

    def end_epoch(self, chosen_by: float, reported: float, *, early: bool) -> None:
        """An epoch was trained and evaluated."""
        self.epoch += 1
        self.early_epochs += early
        self.chosen_by.append(chosen_by)
        self.reported.append(reported)
        self._count_time()

    def _count_time(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._counted
        self._counted = now

    @property
    def best_epoch(self) -> int:
        """The first epoch of the last phase, counted from 1, with the highest score on the selection split."""
        own = self.chosen_by[self.early_epochs :]
        return 1 + self.early_epochs + own.index(max(own))


class Checkpoint:
    """The file that keeps a run's state.

    Args:
        belongs_to: what a state must have been made with to be taken up: configuration, data, heads and backbone.
    """

    def __init__(self, path: Path, belongs_to: str) -> None:
        self.path, self.belongs_to = path, belongs_to
        self._ended, self._took = time.monotonic(), 0.0

    def is_due(self, *, epoch_ended: bool = False) -> bool:
        """Whether it is time: after an epoch, and in a long one every few minutes, unless saving would take too much of it."""
        since = time.monotonic() - self._ended
        return since > _SHARE * self._took and (epoch_ended or since > _MOST_SECONDS)

    def save(self, progress: Progress, kept: Delta, method: Method, model: nn.Module, adam: Any, schedule: Any) -> None:
        """Store the state of a run, of its phase's method and of every source of randomness, atomically."""
        began = time.monotonic()
        state = {
            "belongs_to": self.belongs_to,
            "progress": asdict(progress),
            "kept": kept,
            "now": method.training_state(model),
            "optimiser": adam.state_dict(),
            "schedule": schedule.state_dict(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "python": random.getstate(),
        }
        with atomic_path(self.path) as temporary:
            torch.save(state, temporary)
        self._ended = time.monotonic()
        self._took = self._ended - began

    def read(self) -> dict[str, Any] | None:
        """The stored state; None, and a warning, where it is damaged or belongs to something else: the run starts afresh."""
        if not self.path.is_file():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:  # torch itself does not compare the archive's checksums
                broken = archive.testzip()
            if broken:
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
            found: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
            fits = found["belongs_to"] == self.belongs_to
        except Exception as error:  # the readers raise half a dozen kinds for a damaged archive
            first = str(error).strip().partition("\n")[0][:100]
            logger.warning(f"the checkpoint {self.path} is damaged ({first}); the run starts afresh")
            return None
        if not fits:
            logger.warning(f"the checkpoint {self.path} is of other data, heads or weights; the run starts afresh")
        return found if fits else None


def restore(state: dict[str, Any], adam: Any, schedule: Any) -> None:
    """Put optimiser, schedule and every source of randomness back."""
    adam.load_state_dict(state["optimiser"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
