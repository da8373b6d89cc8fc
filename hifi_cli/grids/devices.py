"""The GPUs and CPU threads of this machine and their division among processes; imports neither torch nor the configuration."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.errors import MissingError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started here would see, as names for CUDA_VISIBLE_DEVICES."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        return [name.strip() for name in devices.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    if not shutil.which("nvidia-smi"):  # in some containers; their GPUs have device files all the same
        return [str(index) for index in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    number = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(index) for index in range(number)]


def core_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(processes: int) -> dict[str, str]:
    """Return the variables that give each of `processes` processes its part of the cores; none where the user set one."""
    if any(os.environ.get(name) for name in THREADS):  # MKL reads OMP_NUM_THREADS too, so one of them is enough
        return {}
    return dict.fromkeys(THREADS, str(max(1, core_count() // processes)))


@dataclass(frozen=True)
class GpuMemory:
    """The memory of a GPU in bytes, and how much of it all processes use now."""

    uuid: str
    total: int
    used: int


def gpu_memory(gpus: Sequence[str]) -> list[GpuMemory]:
    """Return the memory of GPUs that are named as in CUDA_VISIBLE_DEVICES.

    Raises:
        MissingError: nvidia-smi is missing, or does not list one of them.
    """
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout if shutil.which("nvidia-smi") else ""
    by_name = {}
    for line in listed.splitlines():
        index, uuid, total, used = (word.strip() for word in line.split(","))
        if total.isdecimal() and used.isdecimal():  # not [N/A]
            by_name[index] = by_name[uuid] = GpuMemory(uuid, int(total) << 20, int(used) << 20)  # from MiB
    if unknown := [name for name in gpus if name not in by_name]:
        raise MissingError(f"nvidia-smi does not list the memory of GPU {unknown[0]}: use --jobs NUMBER, without --mps")
    return [by_name[name] for name in gpus]
