"""The process that `hifi grid` forks runs from: it has imported what every training imports.

`grids/processes.py` starts one for each run that may train at a time, in the environment of that run.
It imports, and waits for commands; each gets a fork of it, which is what `python -P -m hifi_cli` would
be after the same imports. For that, it starts no thread, uses no GPU, computes nothing and draws no
random number.
"""

import gc
import importlib
import os
import resource
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

# What every training imports when it needs it, besides what `hifi train` imports at its start.
_IMPORTED_LATE = (
    "hifi_cli.runs.run",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
# How many threads numpy's and scipy's products of matrices have.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_PAGE_BYTES = resource.getpagesize()


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
            pages = _check_and_find_pages()
        except CannotFork as error:
            grid.recv()
            grid.send(str(error))
            return
        request = _fork_for_each_request(grid)
    if request:
        _become_a_process_of_its_own(request.log, mask, pages)
        sys.argv[1:] = request.words
        runpy.run_module("hifi_cli", run_name="__main__", alter_sys=True)


def _import_what_trains() -> None:
    """Import what every training imports, with the garbage collector as the command has it.

    What some trainings alone need is left to them, so that a run's memory holds what it would hold.
    """
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


def _check_and_find_pages() -> list[int]:
    """Check that forks lack nothing; return the addresses of what they have to read.

    Raises:
        CannotFork: they would lack something.
    """
    others = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208
    if others:
        raise CannotFork(f"importing them starts {others} threads, which a fork lacks")
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # The directory itself was open while it was listed.
        with suppress(FileNotFoundError):
            file = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
            if file in GPU_DRIVERS:
                raise CannotFork(f"importing them opens {file}, and a fork has no GPU then")
    try:
        return _library_pages()
    except OSError as error:
        raise CannotFork(f"a forked run could not measure its memory ({error})") from None


def _library_pages() -> list[int]:
    """Return the addresses of the pages of files, mostly of libraries, that this process has read."""
    import numpy as np

    addresses: list[int] = []
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, permissions, _, _, inode, *_ = line.split()
            if inode == "0" or not permissions.startswith("r"):
                continue
            start, end = (int(address, 16) for address in span.split("-"))
            # An entry of 8 bytes for each page; its highest bit says that the page is in memory.
            pagemap.seek(start // _PAGE_BYTES * 8)
            entries = np.frombuffer(pagemap.read((end - start) // _PAGE_BYTES * 8), np.uint64)
            present = np.flatnonzero(entries >> np.uint64(63))
            addresses += (start + _PAGE_BYTES * present).tolist()
    return addresses


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


def _become_a_process_of_its_own(log: str, mask: Collection[int], pages: list[int]) -> None:
    """Give a fork what a process that is started anew has for itself.

    Args:
        log: the file that its output is appended to.
        mask: the signals that it blocks.
        pages: addresses of what the imports have read of libraries.
    """
    import numpy as np
    import torch

    # Signals to the group of a process reach no other run.
    os.setsid()
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # One that has come since the fork is heard now.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _read_pages(pages)
    _start_blas_threads()
    # Where nobody sets a seed, no two processes draw the same numbers.
    np.random.seed()
    torch.default_generator.seed()


def _read_pages(addresses: list[int]) -> None:
    """Read a byte of each page, so that peak memory counts it.

    A fork has no pages of libraries until it reads them; a new process has read them in its imports.
    """
    # Unlike a pointer, this file answers with an error where a page has gone.
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    for address in addresses:
        with suppress(OSError):
            os.pread(memory, 1, address)
    os.close(memory)


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
