"""The file that keeps the state of an unfinished run."""

import random
import time
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from hifi_cli.errors import logger
from hifi_cli.files import atomic_path

# Save at most once a minute: a kill then costs a minute of training. Where saving takes long, at
# least this many times its seconds lie between two checkpoints.
_MIN_SECONDS = 60.0
_MIN_RATIO = 20
# The version of the file's content; a file of another version is not used.
_LAYOUT = 12


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        path: where it is.
        run_id: digest of what decides the state, as configuration, data and heads; the state of
            another run is not used.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = f"{run_id}, layout {_LAYOUT}"
        self._due_at = time.monotonic() + _MIN_SECONDS

    def is_due(self) -> bool:
        """Whether to save now: after each minute, less often where saving takes long."""
        return time.monotonic() > self._due_at

    def save(self, state: dict[str, Any], device: torch.device) -> None:
        """Save the state of a run with that of every source of randomness, atomically.

        Several processes need no states of their own: each of them is seeded in every step.

        Args:
            state: of what trains.
            device: has the model, and a generator of its own if it is a GPU.
        """
        start = time.monotonic()
        content = {**state, "run_id": self.run_id, "rng": _rng_state(device)}
        try:
            with atomic_path(self.path) as temporary:
                torch.save(content, temporary)
        finally:
            # A checkpoint that cannot be saved is tried again after a while, not after each step.
            end = time.monotonic()
            self._due_at = end + max(_MIN_SECONDS, _MIN_RATIO * (end - start))

    def read(self) -> dict[str, Any] | None:
        """Read the saved state; None, with a warning, if it is damaged or another run's."""
        if not self.path.is_file():
            return None
        # torch raises half a dozen kinds of errors for a damaged file.
        try:
            _check_sums(self.path)
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
            if state["run_id"] == self.run_id:
                return state
            problem = "of another version of hifi"
            if state["run_id"].endswith(f", layout {_LAYOUT}"):
                problem = "of other data, heads, weights or processes"
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0][:100]
            problem = f"damaged ({first_line})"
        logger.warning(
            f"the checkpoint {self.path} is {problem}; the run starts from the beginning"
        )
        return None


def _rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every source of randomness, in types that torch loads as weights.

    Our methods draw from torch; a user's own method may draw from Python or numpy.
    """
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {
        "torch": torch.get_rng_state(),
        "cuda": on_gpu,
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Set what a checkpoint has as `rng`; a CPU ignores the state of a GPU."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def _check_sums(path: Path) -> None:
    """Compare every part of a file with its check sum, as `torch.load` does not.

    Raises:
        ValueError, BadZipFile: a part has another one.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged:
            raise ValueError(f"the check sum of {damaged} is another")
