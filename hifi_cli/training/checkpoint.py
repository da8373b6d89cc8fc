"""What a resumed run needs to continue as if it had never stopped, and how a signal stops a run between two steps."""

import logging
import math
import random
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from hifi_cli.errors import Terminated
from hifi_cli.files import atomic_path
from hifi_cli.results.record import MetricsLine, metrics_line
from hifi_cli.tasks.metrics import Values
from hifi_cli.training import distributed
from hifi_cli.training.device import rng_state, set_rng_state

Delta = dict[str, Tensor]
_MIN_SECONDS = 60.0  # of work that a kill may cost, or more where saving takes long
_LAYOUT = 5  # of the file; one of another layout is not used
_MIN_RATIO = 20  # a checkpoint is saved when the time since the last one is this many times what saving it took

logger = logging.getLogger("hifi")


@dataclass
class Progress:
    """How far a run has come: what a checkpoint keeps besides tensors.

    Attributes:
        epoch: finished epochs.
        step: finished optimizer steps.
        phase: number of the current phase, from 0.
        skipped_epochs: first epochs whose models may not be reported; see `Trainer.is_candidate`.
        selection_scores: the primary metric on the selection split, after each epoch.
        log_history: lines of metrics.jsonl so far.
        loss_sum: sum of the losses since the last logged loss.
        loss_count: their number.
        seconds: training time so far, over all resumptions.
    """

    epoch: int = 0
    step: int = 0
    phase: int = 0
    skipped_epochs: int = 0
    selection_scores: list[float] = field(default_factory=list)
    log_history: list[MetricsLine] = field(default_factory=list)
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0

    def __post_init__(self) -> None:
        self._last_time = time.monotonic()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Progress":
        """The inverse of `state`."""
        return cls(**{**state, "log_history": [metrics_line(line) for line in state["log_history"]]})

    def state(self) -> dict[str, Any]:
        """Everything in types that torch loads with `weights_only`."""
        return {**asdict(self), "log_history": [line.to_dict() for line in self.log_history]}

    def end_step(self) -> None:
        """Count an optimizer step."""
        self.step += 1
        self.loss_count += 1
        self._add_time()

    def end_epoch(self) -> None:
        """Count an epoch."""
        self.epoch += 1
        self._add_time()

    def add_score(self, selection: float, *, is_candidate: bool) -> None:
        """Add the score of the epoch that ended, on the selection split."""
        self.selection_scores.append(selection)
        self.skipped_epochs += not is_candidate

    def is_best(self, selection: float) -> bool:
        """Whether a score on the selection split is higher than those of all finished epochs that may be reported."""
        return selection > max(self.selection_scores[self.skipped_epochs :], default=-math.inf)

    def _add_time(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._last_time
        self._last_time = now

    @property
    def best_epoch(self) -> int:
        """The epoch with the highest score on the selection split, counted from 1; the first of several with equal scores."""
        scores = self.selection_scores[self.skipped_epochs :]
        return 1 + self.skipped_epochs + scores.index(max(scores))


class SavedState(TypedDict):
    """The content of a checkpoint: of the run, of the method of its phase, and of every source of randomness."""

    run_id: str
    progress: dict[str, Any]
    delta: Delta
    logits: Tensor | None
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    lr_scheduler: dict[str, Any]
    torch_rng: tuple[Tensor, Tensor | None]
    python_rng: tuple[Any, ...]
    numpy_rng: tuple[Any, ...]
    machine: str


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        run_id: digest of configuration, data, heads and backbone; the state of a run with another id is not used.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.run_id = path, f"{run_id}, layout {_LAYOUT}"
        self._saved_at, self._saving_seconds = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Whether to save now: after every minute of training, more seldom where saving takes too much of the time."""
        return time.monotonic() - self._saved_at > max(_MIN_SECONDS, _MIN_RATIO * self._saving_seconds)

    def save(
        self,
        progress: Progress,
        delta: Delta,
        logits: Values | None,
        training_state: dict[str, Tensor],
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        device: torch.device,
    ) -> None:
        """Save the state of a run, of the method of its phase and of every source of randomness, atomically.

        Several processes need no states of their own: `Trainer.seed_process` seeds each of them in every step.
        """
        start = time.monotonic()
        name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())  # for a user's own method; ours draw from torch
        state: SavedState = {
            "run_id": self.run_id,
            "progress": progress.state(),
            "delta": delta,
            "logits": None if logits is None else torch.from_numpy(logits),
            "method": training_state,
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "torch_rng": rng_state(device),
            "python_rng": random.getstate(),
            "numpy_rng": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
            "machine": kind_of_machine(device),
        }
        with atomic_path(self.path) as temporary:
            torch.save(state, temporary)
        self._saved_at = time.monotonic()
        self._saving_seconds = self._saved_at - start

    def read(self) -> SavedState | None:
        """The saved state; None, with a warning, if it is damaged or belongs to another run: the run then starts anew."""
        if not self.path.is_file():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:  # torch itself does not compare the archive's checksums
                damaged_file = archive.testzip()
            if damaged_file:
                raise zipfile.BadZipFile(f"bad checksum of {damaged_file}")
            state: SavedState = torch.load(self.path, weights_only=True, map_location="cpu")
            is_same_run = state["run_id"] == self.run_id
        except Exception as error:  # the readers raise half a dozen kinds for a damaged archive
            first_line = str(error).strip().partition("\n")[0][:100]
            logger.warning(f"the checkpoint {self.path} is damaged ({first_line}); the run starts from the beginning")
            return None
        if not is_same_run:
            difference = "other data, heads or weights"
            logger.warning(f"the checkpoint {self.path} is of {difference}; the run starts from the beginning")
        return state if is_same_run else None


def restore(
    state: SavedState,
    optimizer: torch.optim.Optimizer,
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
) -> None:
    """Restore optimizer, schedule and every source of randomness, and say so if the run was on another kind of machine."""
    optimizer.load_state_dict(state["optimizer"])
    lr_scheduler.load_state_dict(state["lr_scheduler"])
    set_rng_state(device, state["torch_rng"])
    version, internal_state, gauss_next = state["python_rng"]
    random.setstate((version, tuple(internal_state), gauss_next))
    name, keys, *rest = state["numpy_rng"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if state["machine"] != kind_of_machine(device) and distributed.is_main():
        logger.warning(
            f"note: the checkpoint was saved on {state['machine']} and continues on {kind_of_machine(device)}: dropout noise"
            " and rounding differ from those of a run without a stop"
        )


def kind_of_machine(device: torch.device) -> str:
    """What decides the noise of a run: how many processes, and which kind of device."""
    processes = distributed.state().num_processes
    return f"{processes} {'GPU' if device.type == 'cuda' else device.type.upper()} process{'es' if processes > 1 else ''}"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulShutdown:
    """A block that a signal can stop without loss: `save` is called when a signal ends it.

    One process stops at once, or at the end of a `deferred` block. Several processes of one run receive signals at
    different moments, or not all of them do: they agree at the end of every `deferred` block, and stop after the same one.
    """

    def __init__(self, accelerator: Accelerator, save: Callable[[], None]) -> None:
        self._save = save
        self._is_distributed = accelerator.num_processes > 1
        self._received: list[int] = []
        self._exit_stack = ExitStack()

    def __enter__(self) -> "GracefulShutdown":
        if self._is_distributed:
            self._exit_stack.enter_context(self._record_signals())
            self._cpu_group = torch.distributed.new_group(backend="gloo")  # the GPU's would wait for its steps
            self._exit_stack.callback(torch.distributed.destroy_process_group, self._cpu_group)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            self._save()
        self._exit_stack.close()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that no signal interrupts; a signal received inside acts at its end."""
        if self._is_distributed:
            yield
            received = torch.tensor(float(bool(self._received)))
            torch.distributed.all_reduce(received, group=self._cpu_group)
            if received.item():
                raise Terminated
            return
        with self._record_signals():
            yield
        if self._received:
            signal.raise_signal(self._received.pop())

    @contextmanager
    def _record_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # Python gives signals to the main thread alone
            yield
            return
        handlers = {number: signal.signal(number, lambda number, _: self._received.append(number)) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
