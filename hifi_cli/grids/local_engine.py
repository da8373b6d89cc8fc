"""Run jobs on one machine: a pool of processes, on its GPUs, or on its cores with the threads divided."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.devices import core_count, gpu_memory, thread_environment, visible_gpus
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.mps import mps
from hifi_cli.grids.scheduler import JobOutcome

_MEMORY_PER_PROCESS = 4 << 30  # for a run of a base-size encoder; for larger ones, set --jobs
_CONTEXT_BYTES = 1 << 30  # GPU memory of a process beside its predicted memory: CUDA's context, workspaces, fragmentation
_MAX_RUNS_PER_GPU = 6  # more share the GPU's time without using it better
QUERY_SECONDS = 5.0
_STOP_SECONDS = 120  # for a checkpoint, before a process is killed

MemoryOfRun = Callable[[GridCell], int | None]
"""The predicted memory of a run in bytes; None if it is not known."""


@dataclass(frozen=True)
class Slot:
    """The environment of one process: its GPU, if there is one, and its part of the threads where the user set none."""

    environment: dict[str, str]

    @property
    def gpu(self) -> str | None:
        """The GPU, as in CUDA_VISIBLE_DEVICES."""
        return self.environment.get("CUDA_VISIBLE_DEVICES")


def slots(jobs: int | None, gpus: Sequence[str]) -> list[Slot]:
    """Return a slot per GPU; without GPUs one per core, as far as the memory suffices.

    Args:
        jobs: number of slots instead; several may then share a GPU.
    """
    number = jobs or len(gpus) or max(1, min(core_count(), _memory() // _MEMORY_PER_PROCESS))
    threads = thread_environment(number)
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own begins with the fastest
    devices = [
        {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)], "CUDA_DEVICE_ORDER": order} if gpus else {} for index in range(number)
    ]
    return [Slot({**threads, **device}) for device in devices]


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class GpuAdmission:
    """Decides by memory whether one more job may start on a GPU that other jobs of this grid use."""

    def __init__(self, gpus: Sequence[str], memory_of_run: MemoryOfRun) -> None:
        self._memory_of_run, self._gpus = memory_of_run, gpus
        self._available = self._unused_memory()
        self._unused, self._queried = self._available, time.monotonic()

    def admits(self, gpu: str, job: Job, running: Sequence[Job]) -> bool:
        """Return whether a job fits beside those that run on its GPU, which may all reach their peak later."""
        required = [self._required_memory(each) for each in (job, *running)]
        if sum(required) > self._available[gpu]:
            return False
        if time.monotonic() - self._queried > QUERY_SECONDS:  # processes of others may have come since
            self._unused, self._queried = self._unused_memory(), time.monotonic()
        return required[0] <= self._unused[gpu]

    def _required_memory(self, job: Job) -> float:
        """The memory of a job's largest run in bytes; infinite if a prediction is missing, so that it does not share a GPU."""
        predictions = [self._memory_of_run(cell) for cell in job.cells]
        return max(math.inf if memory is None else memory + _CONTEXT_BYTES for memory in predictions)

    def _unused_memory(self) -> dict[str, int]:
        return {gpu: memory.total - memory.used for gpu, memory in zip(self._gpus, gpu_memory(self._gpus), strict=True)}


class LocalEngine:
    """A pool of processes; each job takes a free slot.

    Args:
        jobs: number of processes; None for one per GPU or core.
        memory_of_run: instead of a number of `jobs`; they share a GPU as far as these predictions fit in its memory.
        use_mps: let the processes on a GPU share it through CUDA's Multi-Process Service.
    """

    def __init__(
        self, options: JobOptions, jobs: int | None = None, *, memory_of_run: MemoryOfRun | None = None, use_mps: bool = False
    ) -> None:
        self.options = options
        self._closing = contextlib.ExitStack()
        gpus, variables = visible_gpus(), {}
        if use_mps and not gpus:
            raise MissingError("--mps needs a GPU, and none is visible here (nvidia-smi -L)")
        if gpus and (memory_of_run or use_mps):
            gpus = [memory.uuid for memory in gpu_memory(gpus)]
        if use_mps:
            variables = self._closing.enter_context(mps(gpus))
        self._admission = GpuAdmission(gpus, memory_of_run) if gpus and memory_of_run else None
        if self._admission:
            jobs = len(gpus) * max(1, min(_MAX_RUNS_PER_GPU, core_count() // len(gpus)))
        self._variables = variables
        self._free = slots(jobs, gpus)
        self.processes = len(self._free)
        self._pool = ThreadPoolExecutor(self.processes)
        self._lock = threading.Lock()  # of the two below
        self._running: dict[int, tuple[Slot, Job]] = {}  # by the number of the job
        self._sharing: set[int] = set()  # jobs beside which another one ran on the same GPU
        self._submitted = 0
        self._started: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome] | None":
        """Run a job in a free slot, on the GPU that has the fewest jobs; None if it has to wait for one."""
        with self._lock:
            on_gpu = {slot.gpu: self._jobs_on(slot.gpu) for slot in self._free}
            usable = [slot for slot in self._free if self._admits(slot.gpu, job, list(on_gpu[slot.gpu].values()))]
            if not usable:
                return None
            slot = min(usable, key=lambda slot: len(on_gpu[slot.gpu]))
            self._free.remove(slot)
            self._submitted += 1
            number = self._submitted
            if slot.gpu is not None and on_gpu[slot.gpu]:
                self._sharing |= {number, *on_gpu[slot.gpu]}
            self._running[number] = (slot, job)
        return self._pool.submit(self._run, number, slot, job, log)

    def _jobs_on(self, gpu: str | None) -> dict[int, Job]:
        return {number: job for number, (slot, job) in self._running.items() if slot.gpu == gpu}

    def _admits(self, gpu: str | None, job: Job, running: Sequence[Job]) -> bool:
        if gpu is None or not running:
            return True
        if job.alone or any(other.alone for other in running):
            return False
        return self._admission is None or self._admission.admits(gpu, job, running)

    def _run(self, number: int, slot: Slot, job: Job, log: Path) -> JobOutcome:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                # A process group of its own: Ctrl-C reaches only the grid, which then stops its processes.
                process = subprocess.Popen(
                    job.process_arguments(self.options),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._variables, **slot.environment},
                    start_new_session=True,
                )
            self._started.add(process)
            if self._stopping:
                process.terminate()
            code = process.wait()
            self._started.discard(process)
            return JobOutcome(code, shared_gpu=number in self._sharing)
        except OSError as error:
            return JobOutcome(None, reason=f"the process could not be started: {error}")
        finally:
            with self._lock:
                del self._running[number]
                self._free.append(slot)

    def close(self) -> None:
        """Shut the pool down."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._closing.close()

    def stop(self) -> None:
        """Send SIGTERM to every process, wait for its checkpoint, and kill what does not end."""
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self._started):
            process.terminate()
        for process in list(self._started):
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
