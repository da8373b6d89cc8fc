"""Where a number comes from: command, code, libraries, machine; never environment variables."""

import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import code_file
from hifi_cli.files import digest, file_digest
from hifi_cli.results.record import GitState, Provenance
from hifi_cli.training.device import device_name
from hifi_cli.version import __version__

# Results, which a grid writes into the checkout, change no number
_SOURCES = ("hifi_cli", "configs")
_LIBRARIES = (
    *("torch", "transformers", "tokenizers", "accelerate", "datasets", "peft"),
    *("numpy", "scipy", "scikit-learn", "safetensors"),
)


def describe(*devices: torch.device, processes: int = 1) -> Provenance:
    """The command line, versions, git state of the checkout and devices that compute."""
    return Provenance(
        command=["hifi", *sys.argv[1:]],
        hifi=__version__,
        git=_git_state(),
        python=platform.python_version(),
        libraries={name: importlib.metadata.version(name) for name in _LIBRARIES},
        device=" and ".join(dict.fromkeys(map(device_name, devices))),
        threads=torch.get_num_threads(),
        platform=platform.platform(),
        processes=processes,
    )


def method_code(config: RunConfig) -> str | None:
    """The SHA-256 of the user's own code of a run's method, or of two stages."""
    files = [registry.user_file("methods", stage.method) for stage in config.stages]
    codes = [file.parent / code for file in files if file and (code := code_file(file))]
    digests = list(dict.fromkeys(map(file_digest, codes)))
    return digest(digests, 64) if len(digests) > 1 else next(iter(digests), None)


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory use, so that the next reading belongs to one run of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # not Linux: the reading is then the process's highest so far
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """The peak memory since the last reset, in bytes: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac


@functools.cache
def _git_state() -> GitState | None:
    """The state of the checkout, read once: a process goes on with the code it started with."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()

    try:
        changed = bool(git("status", "--porcelain", "--", *_SOURCES))
        return GitState(commit=git("rev-parse", "HEAD"), changed=changed)
    except (OSError, subprocess.CalledProcessError):
        return None
