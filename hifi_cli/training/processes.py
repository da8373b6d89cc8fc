"""The processes of torchrun: one of them writes, and all take the same decisions."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from rich.console import Console
from rich.progress import track

from hifi_cli import launcher
from hifi_cli.errors import HifiError, logger

T = TypeVar("T")


# --- several processes: one of them writes, and all take the same decisions


def process_state(*, cpu: bool = False) -> PartialState:
    """Return the processes of this run; on CPUs, accelerate joins them only if `cpu` is set first.

    Args:
        cpu: whether they compute on CPUs although there is a GPU.

    Raises:
        UsageError: the environment speaks of processes that nobody started.
    """
    launcher.ignore_leftovers()
    if "LOCAL_RANK" not in os.environ:
        return PartialState()
    # Imported later, by DDP, its default arguments would keep the process group alive.
    import torch.distributed.nn

    on_cpus = cpu or not torch.cuda.is_available()
    if torch.distributed.is_initialized():
        return PartialState(cpu=on_cpus)
    with launcher.waiting_for_the_others():
        return PartialState(cpu=on_cpus)


def destroy_process_group() -> None:
    """End the processes' connections and their threads; models must not be used any more.

    gloo's threads still run when Python exits otherwise, and may abort the process.
    After an error of one process the group stays: NCCL would wait for the others.
    """
    if torch.distributed.is_initialized():
        # A DDP model that is not freed yet holds the group.
        gc.collect()
        torch.distributed.destroy_process_group()


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return bool(process_state().is_main_process)


def shows_progress(console: Console) -> bool:
    """Whether this process shows a progress bar: on a terminal, and not with --quiet."""
    is_terminal = sys.stderr.isatty() and not console.is_dumb_terminal
    return is_main() and is_terminal and logger.isEnabledFor(logging.INFO)


def progress(steps: Sequence[T], description: str) -> Iterable[T]:
    """Return the steps, with a progress bar while they are taken.

    Args:
        steps: what is iterated over.
        description: stands before the bar.
    """
    console = Console(stderr=True)
    return track(
        steps, description, console=console, transient=True, disable=not shows_progress(console)
    )


def run_on_main(compute: Callable[[], T]) -> T:
    """Compute a value on the main process; return it, or raise its error, in every process."""
    result: list[object] = [None]
    if is_main():
        try:
            result = [compute()]
        except HifiError as error:
            result = [error]
    value = broadcast_object_list(result)[0]
    if isinstance(value, HifiError):
        raise value
    return cast(T, value)


def gather(value: T) -> list[T]:
    """Return the values of all processes, in the order of their ranks, in every process."""
    return cast(list[T], gather_object([value]))
