"""The process that `hifi grid` forks runs from: it has imported what every training imports.

`grids/processes.py` starts one for each run that may train at a time, in the environment of that run.
It imports, and waits for commands; each gets a fork of it, which is what `python -P -m hifi_cli` would
be after the same imports. For that, it starts no thread, uses no GPU, computes nothing and draws no
random number.
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
from hifi_cli.grids.processes import GPU_DRIVERS, CannotFork, Request

# Modules that every training imports late, besides those that `hifi train` imports at its start.
_IMPORTED_LATE = (
    "hifi_cli.runs.run",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# How many threads numpy's and scipy's products of matrices have.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def main() -> None:
    """Import, fork a process for each command of the grid, and run the command in that process.

    The only argument is the number of the connection to the grid. A request is answered by the number
    of its process, and later by its exit code; or by the reason why nothing can be forked, and then
    this process ends.
    """
    grid: Connection[Any, Any] = Connection(int(sys.argv[1]))
    _import_what_trains()
    # A scheduler may send its signals to all processes of a job. This one has to stay as long as its
    # run, whose end it tells the grid.
    signals = (signal.SIGINT, *stopping.SIGNALS)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # Where this signal is ignored, nobody can wait for the end of a process.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = None
    # The grid may end at any time, or need this process no more: then there is nothing left to do.
    with suppress(EOFError, OSError):
        try:
            _refuse_what_forks_lack()
        except CannotFork as error:
            grid.recv()
            grid.send(str(error))
            return
        request = _fork_for_each_request(grid)
    if request:
        _become_a_process_of_its_own(request.log, mask)
        sys.argv[1:] = request.words
        runpy.run_module("hifi_cli", run_name="__main__", alter_sys=True)


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


def _refuse_what_forks_lack() -> None:
    """Raise where a fork would lack something that the imports have made.

    Raises:
        CannotFork: it would lack threads, or a GPU.
    """
    others = len(list(Path("/proc/self/task").iterdir())) - 1
    if others:
        raise CannotFork(f"importing them starts {others} threads, which a fork lacks")
    for descriptor in Path("/proc/self/fd").iterdir():
        # The directory itself was open while it was listed.
        with suppress(FileNotFoundError):
            file = str(descriptor.readlink())
            if file in GPU_DRIVERS:
                raise CannotFork(f"importing them opens {file}, and a fork has no GPU then")


def _fork_for_each_request(grid: "Connection[Any, Any]") -> Request:
    """Fork a process for each request, one at a time; return the request in that process alone.

    Raises:
        EOFError, OSError: the grid has ended, or needs this process no more.
    """
    while True:
        request: Request = grid.recv()
        run = os.fork()
        if run == 0:
            grid.close()
            return request
        grid.send(run)
        _, status = os.waitpid(run, 0)
        grid.send(os.waitstatus_to_exitcode(status))


def _become_a_process_of_its_own(log: str, mask: Collection[int]) -> None:
    """Give a fork what a process that is started anew has for itself.

    Args:
        log: the file that its output is appended to.
        mask: the signals that it blocks.
    """
    import numpy as np
    import torch

    from hifi_cli.runs import provenance

    # Signals to the group of a process reach no other run.
    os.setsid()
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # One that has come since the fork is heard now.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
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
