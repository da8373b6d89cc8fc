"""Run jobs on one machine: a pool of processes, one per GPU, or one per core with the threads divided."""

import contextlib
import os
import queue
import signal
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.grids.devices import core_count, thread_environment, visible_gpus
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import JobOutcome

_MEMORY_PER_PROCESS = 4 << 30  # for a run of a base-size encoder; for larger ones, set --jobs
_STOP_SECONDS = 120  # for a checkpoint, before a process is killed


@dataclass(frozen=True)
class Slot:
    """The environment of one process: its GPU, if there is one, and its part of the threads where the user set none."""

    environment: dict[str, str]


def slots(jobs: int | None) -> list[Slot]:
    """Return a slot per visible GPU; without GPUs one per core, as far as the memory suffices.

    Args:
        jobs: number of slots instead; several may then share a GPU.
    """
    gpus = visible_gpus()
    number = jobs or len(gpus) or max(1, min(core_count(), _memory() // _MEMORY_PER_PROCESS))
    threads = thread_environment(number)
    devices = [{"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if gpus else {} for index in range(number)]
    return [Slot({**threads, **device}) for device in devices]


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class LocalEngine:
    """A pool of processes; each job takes a free slot."""

    def __init__(self, options: JobOptions, jobs: int | None = None) -> None:
        self.options = options
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        all_slots = slots(jobs)
        self.processes = len(all_slots)
        for slot in all_slots:
            self._free.put(slot)
        self._pool = ThreadPoolExecutor(self.processes)
        self._started: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        """Run a job in the next free slot."""
        return self._pool.submit(self._run, job, log)

    def _run(self, job: Job, log: Path) -> JobOutcome:
        slot = self._free.get()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                # A process group of its own: Ctrl-C reaches only the grid, which then stops its processes.
                process = subprocess.Popen(
                    job.process_arguments(self.options),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **slot.environment},
                    start_new_session=True,
                )
            self._started.add(process)
            if self._stopping:
                process.terminate()
            code = process.wait()
            self._started.discard(process)
            return JobOutcome(code)
        except OSError as error:
            return JobOutcome(None, reason=f"the process could not be started: {error}")
        finally:
            self._free.put(slot)

    def close(self) -> None:
        """Shut the pool down."""
        self._pool.shutdown(wait=False, cancel_futures=True)

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
