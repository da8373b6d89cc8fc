"""Run jobs on one machine: a pool of processes, on its GPUs, or on its cores with the threads divided."""

import contextlib
import os
import queue
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hifi_cli.grids.devices import thread_environment, visible_gpus
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import JobOutcome

_STOP_SECONDS = 120  # for a checkpoint, before a process is killed


def environments(jobs: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return the environment of each process: its GPU, if there is one, and its part of the threads where the user set none."""
    threads = thread_environment(jobs)
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; CUDA's own begins with the fastest
    devices = [
        {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)], "CUDA_DEVICE_ORDER": order} if gpus else {} for index in range(jobs)
    ]
    return [{**threads, **device} for device in devices]


class LocalEngine:
    """A pool of processes, which share the visible GPUs in turn."""

    def __init__(self, options: JobOptions, jobs: int) -> None:
        self.options = options
        self.processes = jobs
        self._free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()  # the environments that no process has
        for environment in environments(jobs, visible_gpus()):
            self._free.put(environment)
        self._pool = ThreadPoolExecutor(jobs)
        self._started: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def submit(self, job: Job, log: Path) -> "Future[JobOutcome]":
        """Run a job as soon as a process is free."""
        return self._pool.submit(self._run, job, log)

    def _run(self, job: Job, log: Path) -> JobOutcome:
        environment = self._free.get()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                # A process group of its own: Ctrl-C reaches only the grid, which then stops its processes.
                process = subprocess.Popen(
                    job.process_arguments(self.options),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
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
            self._free.put(environment)

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
