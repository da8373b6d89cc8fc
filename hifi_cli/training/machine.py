"""The machine that a run computes on: device, precision, processes of torchrun, provenance."""

import ctypes
import functools
import gc
import importlib.metadata
import logging
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from rich.console import Console
from rich.progress import track

from hifi_cli import __version__, launcher
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import HifiError, MissingError, logger

T = TypeVar("T")

# Results, which a grid writes into the checkout, change no number
_SOURCES = ("hifi_cli", "configs")
_has_trained = False  # whether this process has trained a run
_LIBRARIES = (
    *("torch", "transformers", "tokenizers", "accelerate", "datasets", "peft"),
    *("numpy", "scipy", "scikit-learn", "safetensors"),
)


# --- the device


def set_up_device(config: RunConfig) -> torch.device:
    """Set PyTorch's switches for the device of a run, before any CUDA work; return the device.

    Raises:
        MissingError: the requested GPU is not there.
    """
    device = select_device(config.device)
    if device.type == "cuda":
        if config.deterministic:
            # cuBLAS reads it when it starts
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        # cuDNN builds a plan for each new shape of a batch, about a second each
        torch.backends.cuda.enable_cudnn_sdp(False)
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)  # imports PyTorch's compiler
    torch.backends.cudnn.deterministic = config.deterministic
    return device


def select_device(requested: str) -> torch.device:
    """The device for a configuration's `device`; every process of torchrun gets a GPU of its own.

    Args:
        requested: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        MissingError: fewer GPUs are there than requested, or than processes.
    """
    launcher.ignore_leftovers()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    names_a_gpu = named not in ("", "-1", "NoDevFiles")  # which was then requested
    if requested == "cpu" or (requested == "auto" and not gpus and not names_a_gpu):
        process_state(cpu=True)
        return torch.device("cpu")
    if not gpus:
        reason = f"CUDA_VISIBLE_DEVICES={named}" if requested == "auto" else f"device={requested}"
        raise MissingError(
            f"{reason} requires a GPU, and PyTorch {torch.__version__} finds none: check the driver"
            " and that PyTorch is built with CUDA, or set device=cpu"
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    index = requested.partition(":")[2]
    if (index and processes > 1) or max(processes, int(index or 0) + 1) > gpus:
        raise MissingError(
            f"device={requested} for {processes} processes: the visible GPUs are cuda:0 to"
            f" cuda:{gpus - 1}; start one process per GPU with device=cuda, or set device=cpu"
        )
    return torch.device("cuda", int(index or os.environ.get("LOCAL_RANK", "0")))


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether `precision` means bfloat16; `auto`: if the hardware multiplies it."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def device_name(device: torch.device) -> str:
    """The name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    linux = Path("/proc/cpuinfo")  # where `platform` knows the architecture alone
    named = re.search(r"model name\s*: (.+)", linux.read_text() if linux.is_file() else "")
    return named[1] if named else platform.processor() or platform.machine()


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside this block, a GPU's float32 matrix products may round their factors to TF32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before


# --- several processes: one of them writes, and all take the same decisions


def process_state(*, cpu: bool = False) -> PartialState:
    """The processes of this run; on CPUs, accelerate joins them only if its `cpu` is set first.

    Args:
        cpu: whether they compute on CPUs although there is a GPU.

    Raises:
        UsageError: the environment speaks of processes that nobody started.
    """
    launcher.ignore_leftovers()
    if "LOCAL_RANK" not in os.environ:
        return PartialState()
    # imported later, by DDP, its default arguments would keep the process group alive
    import torch.distributed.nn

    on_cpus = cpu or not torch.cuda.is_available()
    if torch.distributed.is_initialized():
        return PartialState(cpu=on_cpus)
    with launcher.waiting_for_the_others():
        return PartialState(cpu=on_cpus)


def destroy_process_group() -> None:
    """End the processes' connections and their threads; models must not be used any more.

    gloo's threads still run when Python exits otherwise, and may abort the process.
    After an error of one process the group stays: NCCL would wait for the others.
    """
    if torch.distributed.is_initialized():
        gc.collect()  # a DDP model that is not freed yet holds the group
        torch.distributed.destroy_process_group()


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return bool(process_state().is_main_process)


def shows_progress(console: Console) -> bool:
    """Whether this process shows a progress bar: on a terminal, and not with --quiet."""
    is_terminal = sys.stderr.isatty() and not console.is_dumb_terminal
    return is_main() and is_terminal and logger.isEnabledFor(logging.INFO)


def progress(steps: Sequence[T], description: str) -> Iterable[T]:
    """The steps, with a progress bar while they are taken."""
    console = Console(stderr=True)
    return track(
        steps, description, console=console, transient=True, disable=not shows_progress(console)
    )


def from_main(compute: Callable[[], T]) -> T:
    """Compute a value on the main process; every process returns it, or raises its error."""
    result: list[object] = [None]
    if is_main():
        try:
            result = [compute()]
        except HifiError as error:
            result = [error]
    value = broadcast_object_list(result)[0]
    if isinstance(value, HifiError):
        raise value
    return cast(T, value)


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks, in every process."""
    return cast(list[T], gather_object([value]))


# --- what a record says of the machine; never environment variables


def describe_process(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """What a record says of a process that trains, without its steps and seconds."""
    return {
        "device": device_name(device),
        "device_type": device.type,
        "precision": "bf16" if uses_bf16(config.precision, device) else "fp32",
        "threads": torch.get_num_threads(),
        "processes": process_state().num_processes,
    }


def describe_provenance(*devices: torch.device, processes: int = 1) -> dict[str, Any]:
    """The command line, versions, git state of the checkout and devices that compute."""
    return {
        # of an absolute path its name alone: results are shared, directories of a machine are not
        "command": ["hifi", *(Path(w).name if Path(w).is_absolute() else w for w in sys.argv[1:])],
        "hifi": __version__,
        "git": _git_state(),
        "python": platform.python_version(),
        "libraries": _installed_versions(_LIBRARIES),
        "device": " and ".join(dict.fromkeys(map(device_name, devices))),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "processes": processes,
    }


def _installed_versions(libraries: Iterable[str]) -> dict[str, str]:
    """The versions of the libraries that are installed: data files are read without `datasets`."""
    versions = {}
    for library in libraries:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def release_memory() -> None:
    """Give back what former runs of the process left.

    Their models are in circles of references, which wait for Python's collector, and glibc's
    allocator keeps much of what was freed.
    """
    gc.collect()
    # Other C libraries have no such function
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the peak memory use; return whether the next reading belongs to one run alone.

    On a CPU it does in the first run of a process only. After another one the allocator places the
    same tensors otherwise, and the reading is up to a quarter higher, although all is given back.
    """
    global _has_trained
    release_memory()
    is_own = device.type == "cuda" or not _has_trained
    _has_trained = True
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # not Linux: the reading is then the process's highest so far
        Path("/proc/self/clear_refs").write_text("5")
    return is_own


def peak_memory(device: torch.device) -> int:
    """The peak memory since the last reset, in bytes: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac


@functools.cache
def _git_state() -> dict[str, str | bool] | None:
    """The commit of the checkout, and whether code or configuration files differ from it.

    It is read once: a process goes on with the code it started with.
    """
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "--no-optional-locks"]
    # Git sets GIT_DIR and others in its hooks, by which it would be asked about another repository
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
