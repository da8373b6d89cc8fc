"""Facts about the machine and the program for a record; never environment variables."""

import ctypes
import functools
import gc
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hifi_cli._version import __version__
from hifi_cli.config.run_config import RunConfig
from hifi_cli.files import without_directory
from hifi_cli.training.device import device_name, uses_bf16
from hifi_cli.training.processes import process_state

# Files of a checkout that can change numbers: results, which a grid writes into it, change none.
_SOURCES = ("hifi_cli", "configs")
_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "datasets",
    "peft",
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
)
# Whether this process has trained a run.
_memory_is_shared = False


def describe_process(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Return what a record says of a process that trains, but for its steps and seconds."""
    return {
        "device": device_name(device),
        "device_type": device.type,
        "precision": "bf16" if uses_bf16(config.precision, device) else "fp32",
        "threads": torch.get_num_threads(),
        "processes": process_state().num_processes,
    }


def describe_provenance(*devices: torch.device, processes: int = 1) -> dict[str, Any]:
    """Return the command line, versions, git state of the checkout and devices that compute.

    Args:
        devices: each is named once.
        processes: that compute together.
    """
    return {
        "command": ["hifi", *map(without_directory, sys.argv[1:])],
        "hifi": __version__,
        "git": _git_state(),
        "python": platform.python_version(),
        "libraries": dict(_installed_versions()),
        "device": " and ".join(dict.fromkeys(map(device_name, devices))),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "processes": processes,
    }


@functools.cache
def _installed_versions() -> dict[str, str]:
    """Return the versions of the installed libraries: data files are read without `datasets`.

    They are read once: a process goes on with the libraries it started with.
    """
    versions = {}
    for library in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def release_memory() -> None:
    """Give back what former runs of the process left.

    Their models are in circles of references, which wait for Python's collector, and glibc's
    allocator keeps much of what was freed.
    """
    gc.collect()
    # Other C libraries have no such function.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the peak memory use; return whether the next reading belongs to one run alone.

    On a CPU it does in the first run of a process only. After another one the allocator places the
    same tensors otherwise, and the reading is up to a quarter higher, although all is given back.
    A forked process reads less than a new one, because the libraries' memory is not its own.
    """
    release_memory()
    is_own = device.type == "cuda" or not _memory_is_shared
    share_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # Elsewhere than on Linux, the reading is the process's highest so far.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return is_own


def share_memory() -> None:
    """Note that this process's memory holds other things than those of its next run."""
    global _memory_is_shared
    _memory_is_shared = True


def peak_memory(device: torch.device) -> int:
    """Read the peak memory since the last reset, in bytes: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    # In bytes on a Mac.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@functools.cache
def _git_state() -> dict[str, str | bool] | None:
    """Return the commit of the checkout, and whether code or configuration files differ from it.

    It is read once: a process goes on with the code it started with.
    """
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "--no-optional-locks"]
    # Git sets GIT_DIR and others in its hooks, by which it would be asked about another repository.
    environment = {key: word for key, word in os.environ.items() if not key.startswith("GIT_")}
    with suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.check_output(
            [*git, "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL, env=environment
        )
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--", *_SOURCES], env=environment
        )
        return {"commit": commit.strip(), "changed": bool(changed)}
    return None
