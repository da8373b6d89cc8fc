"""What a resumed run needs to continue as if it had never stopped, and how a signal stops a run."""

import logging
import random
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator

from hifi_cli.errors import Terminated
from hifi_cli.files import atomic_path

_MIN_SECONDS = 60.0  # of work that a kill may cost, or more where saving takes long
_MIN_RATIO = 20  # at least this many times what saving took lies between two checkpoints
_LAYOUT = 6  # of the file; one of another layout is not used

logger = logging.getLogger("hifi")


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
