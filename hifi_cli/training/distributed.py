"""Several processes of one run (torchrun): one of them writes, and all take the same decisions."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import nn

from hifi_cli.errors import HifiError, Terminated

T = TypeVar("T")


def state(*, cpu: bool = False) -> PartialState:
    """The processes of this run; on CPUs, accelerate joins them only if its `cpu` is set first.

    Args:
        cpu: whether they compute on CPUs although there is a GPU.
    """
    if "LOCAL_RANK" in os.environ:
        # imported later, by DDP, its default arguments would keep the process group alive
        import torch.distributed.nn
    return PartialState(cpu="LOCAL_RANK" in os.environ and (cpu or not torch.cuda.is_available()))


@contextmanager
def process_group() -> Iterator[None]:
    """Destroy the process group after the block, which all processes leave together.

    gloo's threads still run when Python exits otherwise, and may abort the process.
    After an error of one process the group stays: NCCL would wait for the others.
    """
    try:
        yield
    except Terminated:
        destroy_process_group()
        raise
    destroy_process_group()


def destroy_process_group() -> None:
    """End the processes' connections and their threads; models must not be used any more."""
    if torch.distributed.is_initialized():
        gc.collect()  # a DDP model that is not freed yet holds the group
        torch.distributed.destroy_process_group()


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return bool(state().is_main_process)


def from_main(compute: Callable[[], T]) -> T:
    """Compute a value on the main process; every process returns it, or raises its error."""
    if state().num_processes == 1:
        return compute()
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
    """The values of all processes, in the order of their ranks, in every process."""
    return cast(list[T], gather_object([value])) if state().num_processes > 1 else [value]


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    """Replace every gradient by its mean over the processes."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= state().num_processes
