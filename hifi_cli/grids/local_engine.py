"""One machine: a pool of processes over its GPUs, or over its cores with the threads shared out."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.grids.jobs import Job, Places
from hifi_cli.grids.scheduler import Outcome

_MEMORY_PER_PROCESS = 4 << 30  # what a run of a base-size encoder takes; larger ones are given their number by --jobs
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_STOP_SECONDS = 120  # for a checkpoint, before a process is killed


@dataclass(frozen=True)
class Slot:
    """What one process may use: a GPU, or some threads where the user set none."""

    environment: dict[str, str]


def slots(jobs: int | None) -> list[Slot]:
    """A slot per visible GPU; without GPUs one per core, as far as memory goes.

    Args:
        jobs: so many instead; GPUs are then shared in turn.
    """
    gpus, cores = visible_gpus(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = jobs or len(gpus) or max(1, min(cores, _memory() // _MEMORY_PER_PROCESS))
    if gpus:
        return [Slot({"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]}) for index in range(number)]
    given = any(os.environ.get(name) for name in THREADS)  # MKL goes by OMP_NUM_THREADS too: one that is set stands for both
    threads = {} if given else dict.fromkeys(THREADS, str(max(1, cores // number)))
    return [Slot(threads) for _ in range(number)]


def visible_gpus() -> list[str]:
    """The GPUs a process started here would see, without loading torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return [str(number) for number, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class LocalEngine:
    """A pool of processes; each job takes a free slot."""

    def __init__(self, places: Places, jobs: int | None = None) -> None:
        self.places = places
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        found = slots(jobs)
        self.processes = len(found)
        for slot in found:
            self._free.put(slot)
        self._pool = ThreadPoolExecutor(self.processes)
        self._started: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def submit(self, job: Job, log: Path) -> "Future[Outcome]":
        """Run a job in the next free slot."""
        return self._pool.submit(self._run, job, log)

    def _run(self, job: Job, log: Path) -> Outcome:
        slot = self._free.get()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                # In a process group of its own: Ctrl-C reaches the grid alone, which tells its processes to stop.
                process = subprocess.Popen(
                    job.arguments(self.places),
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
            return Outcome(code)
        except OSError as error:
            return Outcome(None, why=f"the process could not be started: {error}")
        finally:
            self._free.put(slot)

    def close(self) -> None:
        """End the pool."""
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
