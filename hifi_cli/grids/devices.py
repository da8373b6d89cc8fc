"""The GPUs and CPU threads of this machine and their division among processes; imports neither torch nor the configuration."""

import os
import shutil
import subprocess
from pathlib import Path

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
