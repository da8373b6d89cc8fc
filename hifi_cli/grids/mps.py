"""CUDA's Multi-Process Service (MPS): the kernels of several processes run on a GPU at the same time, not in turns."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hifi_cli.errors import MissingError, RunFailed

logger = logging.getLogger("hifi")

_CONTROL = "nvidia-cuda-mps-control"
_TIMEOUT_SECONDS = 30


@contextmanager
def mps(gpu_uuids: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run an MPS control daemon for some GPUs, and yield the variables of its clients.

    A control daemon that is running already is used and left as it is. Clients must name their GPU by its UUID, because MPS
    numbers the GPUs that a daemon serves anew.

    Raises:
        MissingError: MPS is not installed.
        RunFailed: the daemon does not start.
    """
    if not shutil.which(_CONTROL):
        raise MissingError(f"--mps needs {_CONTROL} in PATH; leave --mps out to share GPUs without it")
    if _control("get_server_list", {}).returncode == 0:
        logger.info("MPS: using the control daemon that is running already")
        yield {}
        return
    directory = Path(tempfile.mkdtemp(prefix="hifi-mps-"))
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), "CUDA_MPS_LOG_DIRECTORY": str(directory)}
    started = subprocess.run(
        [_CONTROL, "-d"],
        env={**os.environ, **variables, "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # no pipe: the daemon would keep it open
        stderr=subprocess.DEVNULL,
        check=False,
    )
    try:
        if started.returncode:
            raise RunFailed(f"{_CONTROL} -d ended with exit code {started.returncode} (logs: {directory}); leave --mps out")
        logger.info(f"MPS: started a control daemon in {directory}")
        yield variables
    finally:
        if not started.returncode:
            _control("quit", variables)
            shutil.rmtree(directory)


def _control(command: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    return subprocess.run(
        [_CONTROL], input=f"{command}\n", env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
