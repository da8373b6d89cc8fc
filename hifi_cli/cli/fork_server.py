"""The fork server of `hifi grid --fork`: it has imported what every training imports, and forks runs.

`grids/forks.py` starts one for each run that may train at a time, in the environment of that run, and
has what the two send one another. Each command gets a fork of the server, which is what
`python -P -m hifi_cli` would be after the same imports. For that, the server starts no thread, uses
no GPU, computes nothing and draws no random number.
"""

import gc
import importlib
import os
import runpy
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hifi_cli import environment, stopping
from hifi_cli.cli.streams import prepare_streams
from hifi_cli.grids.forks import Command, Ended, Forked, Refused

# Modules that every training imports late, besides those that `hifi train` imports at its start.
_IMPORTED_LATE = (
    "hifi_cli.runs.run",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# How many threads numpy's and scipy's products of matrices have.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Files of the drivers of GPUs: NVIDIA's, AMD's, and that of Linux on Windows. Every process that uses
# a GPU has one of them open.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def main() -> None:
    """Import, fork a process for each command of the grid, and run the command in that process.

    The only argument is the number of the connection to the grid.
    """
    grid: Connection[Any, Any] = Connection(int(sys.argv[1]))
    _import_what_trains()
    usual_mask = _block_stopping_signals()
    try:
        command = _serve(grid)
    except (EOFError, OSError):
        # The grid has ended, or needs this server no more.
        return
    if command:
        # From here on, this process is a fork.
        _become_a_process_of_its_own(command.log, usual_mask)
        sys.argv[1:] = command.words
        runpy.run_module("hifi_cli", run_name="__main__", alter_sys=True)


def _serve(grid: "Connection[Any, Any]") -> Command | None:
    """Fork a process for each command, one at a time; return in each fork, with its command.

    The fork returns, and does not run the command here, so that nothing of the server is around it.
    In the server itself this returns None if nothing can be forked, and else never.

    Raises:
        EOFError, OSError: the grid has ended, or needs this server no more.
    """
    reason = _why_not_to_fork()
    if reason:
        grid.recv()
        grid.send(Refused(reason))
        return None
    while True:
        command: Command = grid.recv()
        pid = os.fork()
        if pid == 0:
            grid.close()
            return command
        grid.send(Forked(pid))
        _, status = os.waitpid(pid, 0)
        grid.send(Ended(os.waitstatus_to_exitcode(status)))


# --- in the server, before it forks


def _import_what_trains() -> None:
    """Import what every training imports, with the garbage collector as the command has it."""
    environment.import_without_garbage_collection()
    environment.set_variables()
    prepare_streams()
    # Before all others, some of which import numpy.
    _import_blas_without_threads()
    importlib.import_module("hifi_cli.cli.app")
    importlib.import_module("hifi_cli.cli.train")
    environment.collect_garbage()
    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    gc.collect()
    # The collector of a fork then leaves these objects alone, whose memory it shares.
    gc.freeze()


def _import_blas_without_threads() -> None:
    """Import numpy and scipy with one thread each, unless the user has set their number.

    Their OpenBLAS starts its threads when it is imported. It ends them before a fork, but some of its
    versions then wait for them forever (0.3.30, OpenMathLib/OpenBLAS#5520). A fork starts them
    (`_start_blas_threads`). torch starts its own with the first product.
    """
    if _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    importlib.import_module("numpy")
    importlib.import_module("scipy.linalg")
    del os.environ[_BLAS_THREADS]


def _block_stopping_signals() -> Collection[int]:
    """Let no signal stop the server; return the signals that were blocked before.

    A scheduler may send its signals to all processes of a job. The server has to stay as long as its
    run, whose end it tells the grid. The fork, which starts with the same mask, unblocks them.
    """
    # Where this signal is ignored, nobody can wait for the end of a process.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *stopping.SIGNALS))


def _why_not_to_fork() -> str | None:
    """Return what a fork would lack that the imports have made, threads or a GPU; None: nothing."""
    others = len(list(Path("/proc/self/task").iterdir())) - 1
    if others:
        return f"importing them starts {others} threads, which a fork lacks"
    for descriptor in Path("/proc/self/fd").iterdir():
        # The directory itself was open while it was listed.
        with suppress(FileNotFoundError):
            file = str(descriptor.readlink())
            if file in _GPU_DRIVERS:
                return f"importing them opens {file}, and a fork has no GPU then"
    return None


# --- in a fork, before its command runs


def _become_a_process_of_its_own(log: str, usual_mask: Collection[int]) -> None:
    """Give a fork what a process that is started anew has for itself.

    Args:
        log: the file that its output is appended to.
        usual_mask: the signals that it blocks.
    """
    import numpy as np
    import torch

    from hifi_cli.runs import provenance

    # Signals to the group of a process reach no other run.
    os.setsid()
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # A signal that has come since the fork is heard now.
    signal.pthread_sigmask(signal.SIG_SETMASK, usual_mask)
    _start_blas_threads()
    provenance.share_memory()
    # Where nobody sets a seed, no two processes draw the same numbers.
    np.random.seed()
    torch.default_generator.seed()


def _start_blas_threads() -> None:
    """Give numpy's and scipy's products as many threads as torch's, unless the user has set their number.

    With another number than a new process has, a long sum would be rounded in another way.
    """
    if _BLAS_THREADS in os.environ:
        return
    import torch
    from threadpoolctl import ThreadpoolController

    blas = ThreadpoolController().select(internal_api="openblas")
    blas.limit(limits=torch.get_num_threads())


if __name__ == "__main__":
    main()
