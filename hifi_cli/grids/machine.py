"""This machine: its cores and GPUs, and the part of them that each process of a grid gets."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from hifi_cli import environment
from hifi_cli.runs.cost import Machine

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# The fields of a GPU in a line of nvidia-smi.
_GPU_FIELDS = "index,uuid,name,memory.total"


def slot_environments(jobs: int) -> list[dict[str, str]]:
    """Return the environment of each process: a GPU in turn, and its part of the cores, unless set.

    Args:
        jobs: processes at a time.
    """
    threads = {}
    if not any(os.environ.get(name) for name in THREADS):
        cores_of_each = max(1, available_cores() // jobs)
        threads = dict.fromkeys(THREADS, str(cores_of_each))
    gpus = visible_gpus()
    environments = []
    for index in range(jobs):
        variables = dict(threads)
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = gpus[index % len(gpus)]
        environments.append(variables)
    return environments


def available_cores() -> int:
    """Count the cores that this process may use."""
    # A Mac has no such function.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Name the GPUs that a process started here would see, as CUDA_VISIBLE_DEVICES does."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is None:
        return [gpu.index for gpu in _installed_gpus()]
    names = [name.strip() for name in devices.split(",")]
    # The last one is how Slurm says that there is none.
    return [name for name in names if name not in ("", "-1", "NoDevFiles")]


def machine_here(device: str, jobs: int) -> Machine | None:
    """Return where the runs of a grid train here, as their records will; None: their GPU is not known.

    Args:
        device: the key `device` of a run.
        jobs: processes at a time, which share the cores.
    """
    gpus = visible_gpus()
    if device != "cpu" and gpus:
        return _machine_with_gpu(gpus[0])
    if device.startswith("cuda"):
        return None
    # The environment of a process of the grid, whose number of threads records will name.
    variables = {**os.environ, **slot_environments(jobs)[0]}
    given = [variables[name] for name in THREADS if variables.get(name)]
    threads = int(given[0]) if given and given[0].isdigit() else None
    return Machine(environment.cpu_name(), threads)


def _machine_with_gpu(wanted: str) -> Machine | None:
    """Describe the GPU that processes here train on; None: nvidia-smi does not know it.

    Args:
        wanted: its index or the beginning of its UUID, as CUDA_VISIBLE_DEVICES names it.
    """
    for gpu in _installed_gpus():
        is_wanted = gpu.index == wanted or gpu.uuid.startswith(wanted)
        if is_wanted and gpu.memory is not None:
            return Machine(gpu.name, memory=gpu.memory)
    return None


@dataclass(frozen=True)
class _Gpu:
    """A GPU of this machine, as nvidia-smi describes it.

    Attributes:
        index, uuid: its two names in CUDA_VISIBLE_DEVICES.
        name: of the model.
        memory: in bytes; None: not known, as where CPU and GPU share it.
    """

    index: str
    uuid: str
    name: str
    memory: int | None


def _installed_gpus() -> list[_Gpu]:
    """List the GPUs of this machine; none where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    gpus = []
    for line in listed.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        # Other lines say what is wrong with a driver.
        if len(fields) == 4:
            index, uuid, name, mebibytes = fields
            # A mebibyte has 2^20 bytes.
            memory = int(mebibytes) << 20 if mebibytes.isdigit() else None
            gpus.append(_Gpu(index, uuid, name, memory))
    return gpus
