"""The surroundings of a process: threads, memory and garbage collection, set by the command alone.

`import hifi_cli` changes nothing in a user's process. Programs that use the library call `apply` for
the same threads and memory.
"""

import atexit
import gc
import os
import platform
import re
import sys
import warnings
from pathlib import Path

from hifi_cli.errors import UsageError


def apply() -> None:
    """Set for your own program what the command sets; warn if torch was imported before.

    torch reads how threads wait when it is imported, so that a later call has no effect on them.
    """
    if "torch" in sys.modules:
        warnings.warn(
            "hifi_cli.environment.apply() was called after torch was imported, which has read its"
            " settings of threads already: call it first",
            stacklevel=2,
        )
    set_variables()


def set_variables() -> None:
    """Set how threads wait and how a GPU's memory grows, unless the user has set it.

    - Idle OpenMP threads spin for microseconds, then sleep. Threads that sleep at once take 1.5 times
      as long (194 instead of 124 ms a step of CoLA on two cores). Threads that never sleep take 8 times
      as long where two runs share the cores (docs/performance.md).
    - Segments of a GPU's memory grow, as batches have many sizes and would leave gaps between them.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["GOMP_SPINCOUNT"] = "4000"
    # The user may have set PyTorch's former name of the variable, which the present one would hide.
    given = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("PYTORCH_ALLOC_CONF", given)


def draw_into_files() -> None:
    """Set the backend of matplotlib that opens no window.

    A notebook names its own in the environment, which other processes cannot import.
    """
    os.environ["MPLBACKEND"] = "agg"


def import_without_garbage_collection() -> None:
    """Switch the garbage collector off until `collect_garbage`, and for the end of the process.

    Imported objects live as long as the process: to search them for garbage, and to free them one by
    one at exit, takes 2 s of a run.
    """
    gc.disable()
    atexit.register(gc.freeze)


def collect_garbage() -> None:
    """Switch the garbage collector on, for what is made from now on."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def check() -> None:
    """Refuse surroundings in which libraries fail with messages that name no cause.

    Raises:
        UsageError: the working directory is gone, or docstrings are.
    """
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise UsageError(
            "the working directory does not exist any more: change to another one, and repeat"
        ) from None
    if sys.flags.optimize > 1:
        raise UsageError(
            "PYTHONOPTIMIZE=2 (python -OO) removes docstrings, without which transformers does not"
            " work: unset it, or set PYTHONOPTIMIZE=1"
        )


def cpu_name() -> str:
    """Return the name of the CPU."""
    # On Linux, `platform` knows the architecture alone.
    cpus = Path("/proc/cpuinfo")
    if cpus.is_file():
        model = re.search(r"model name\s*: (.+)", cpus.read_text())
        if model:
            return model[1]
    return platform.processor() or platform.machine()
