"""Several processes on one run (torchrun): one of them writes, and all go the same way."""

import os
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hifi_cli.errors import HifiError

T = TypeVar("T")


def state() -> PartialState:
    """The processes of this run; on processors accelerate joins them only when told that there is no GPU."""
    return PartialState(cpu="LOCAL_RANK" in os.environ and not torch.cuda.is_available())


def is_main() -> bool:
    """Whether this process writes."""
    return bool(state().is_main_process)


def from_main(compute: Callable[[], T]) -> T:
    """What the main process computes, in every process; an error it meets is raised in all of them."""
    if state().num_processes == 1:
        return compute()
    held: list[object] = [None]
    if is_main():
        try:
            held = [compute()]
        except HifiError as error:
            held = [error]
    found = broadcast_object_list(held)[0]
    if isinstance(found, HifiError):
        raise found
    return cast(T, found)
