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

_MIN_SECONDS = 60.0  # of work that a kill may cost, or more where saving takes long
_MIN_RATIO = 20  # at least this many times what saving took lies between two checkpoints
_LAYOUT = 12  # of the file; one of another layout is not used


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        run_id: digest of what decides the state, as configuration, data and heads; the state of
            another run is not used.
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
        try:
            with atomic_path(self.path) as temporary:
                torch.save({**state, "run_id": self.run_id, "rng": rng}, temporary)
        finally:  # one that cannot be saved is tried again after a while, not after each step
            end = time.monotonic()
            self._due_at = end + max(_MIN_SECONDS, _MIN_RATIO * (end - start))

    def read(self) -> dict[str, Any] | None:
        """The saved state; None, with a warning, if it is damaged or another run's."""
        if not self.path.is_file():
            return None
        try:
            _check_sums(self.path)
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
            if state["run_id"] == self.run_id:
                return state
            is_of_this_layout = state["run_id"].endswith(f", layout {_LAYOUT}")
            other = "other data, heads, weights or processes"
            problem = f"of {other if is_of_this_layout else 'another version of hifi'}"
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


def _check_sums(path: Path) -> None:
    """Compare every part of a file that `torch.save` wrote with its check sum, which `torch.load` does not.

    Raises:
        ValueError, BadZipFile: one is another.
    """
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"the check sum of {damaged} is another")
