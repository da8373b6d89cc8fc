"""The file that keeps the state of an unfinished run."""

import errno
import random
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers

from hifi_cli._version import __version__
from hifi_cli.errors import NO_MEMORY, ConflictError, RunFailed, logger
from hifi_cli.files import atomic_path

# Save at most once a minute: a kill then costs a minute of training. Where saving takes long, at
# least this many times its seconds lie between two checkpoints.
_MIN_SECONDS = 60.0
_MIN_RATIO = 20
# The version of the file's content; a file of another version is not continued.
_LAYOUT = 13


class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        path: where it is.
        belongs_to: what decides the state, such as the data and the heads: a value by the name that
            a user knows it by. The state of a run that differs in any of them is not continued.
    """

    def __init__(self, path: Path, belongs_to: Mapping[str, Any]) -> None:
        self.path = path
        self.belongs_to = dict(belongs_to)
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
        content = {
            **state,
            "layout": _LAYOUT,
            "belongs_to": self.belongs_to,
            "versions": program_versions(),
            "rng": _rng_state(device),
        }
        try:
            with atomic_path(self.path) as temporary:
                torch.save(content, temporary)
        finally:
            # A checkpoint that cannot be saved is tried again after a while, not after each step.
            end = time.monotonic()
            self._due_at = end + max(_MIN_SECONDS, _MIN_RATIO * (end - start))

    def refuse_another_run(self) -> None:
        """Refuse a file that `read` would refuse, before anything is written beside it.

        Raises:
            ConflictError: it is another run's, or of another version of hifi.
        """
        try:
            _check_sum_of_values(self.path)
            # Mapped into memory, the tensors stay on the disk.
            state = dict(torch.load(self.path, weights_only=True, map_location="cpu", mmap=True))
        except Exception:
            # There is none, or `read` tells what is wrong with it.
            return
        self._check_belongs_here(state)

    def read(self) -> dict[str, Any] | None:
        """Read the saved state; None, with a warning, if it is damaged.

        Raises:
            ConflictError: it is another run's, or of another version of hifi. It may hold hours of
                training, so that only its owner may delete it.
            RunFailed: it cannot be read now.
        """
        if not self.path.is_file():
            return None
        try:
            _check_sums(self.path)
            state = dict(torch.load(self.path, weights_only=True, map_location="cpu"))
        # torch raises half a dozen kinds of errors for a damaged file.
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0][:100]
            if _may_be_sound(error):
                raise RunFailed(
                    f"the checkpoint {self.path} cannot be read ({first_line}): mend that and repeat,"
                    " or delete it to train from the beginning"
                ) from None
            logger.warning(
                f"the checkpoint {self.path} is damaged ({first_line}); the run starts from the"
                " beginning"
            )
            return None
        self._check_belongs_here(state)
        return state

    def _check_belongs_here(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a run that differs from this one.

        Raises:
            ConflictError: it does; what differs is named.
        """
        if state.get("layout") != _LAYOUT:
            raise ConflictError(
                f"the checkpoint {self.path} is of another version of hifi: continue the run with"
                " that version, or delete the file to train from the beginning"
            )
        stored = state["belongs_to"]
        differing = []
        for name in {**self.belongs_to, **stored}:
            if stored.get(name) != self.belongs_to.get(name):
                differing.append(name)
        if differing:
            raise ConflictError(
                f"the checkpoint {self.path} is of a run that differs in: {', '.join(differing)};"
                " undo the change to go on from it, or delete the file to train from the beginning"
            )


def _may_be_sound(error: Exception) -> bool:
    """Whether a file that raised an error may be sound: another reading of it may succeed."""
    if isinstance(error, OSError):
        # A damaged file has offsets before its begin, which no file can be read from.
        return error.errno != errno.EINVAL
    return isinstance(error, MemoryError) or NO_MEMORY.search(str(error)) is not None


def program_versions() -> dict[str, str]:
    """Return the versions of this program, and of the libraries that compute its numbers."""
    return {
        "hifi": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


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


def _check_sum_of_values(path: Path) -> None:
    """Compare the part of a file that holds all but the tensors' numbers with its check sum.

    Raises:
        BadZipFile: it has another one.
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("data.pkl"):
                archive.read(name)
