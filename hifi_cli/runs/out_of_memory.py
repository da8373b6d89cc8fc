"""Batches that do not fit in memory: computed in more parts (`--auto-batch`), or one clear error."""

from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from hifi_cli.errors import RunFailed
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.tokenization import Example

T = TypeVar("T")


def accumulate(runner: ModelRunner, examples: int, compute: Callable[[], T]) -> T:
    """A step's gradient; with `auto_batch` the batch is cut into twice as many parts for as long as it does not fit.

    The global batch stays as it is, and the random numbers are those of the first attempt.

    Raises:
        RunFailed: it does not fit, whole or in the smallest parts.
    """
    while True:
        state = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        try:
            return compute()
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        if not runner.auto_batch or runner.parts >= examples:
            raise RunFailed(_advice(f"a batch of {examples} in {runner.parts} parts", runner))
        runner.parts *= 2
        runner.encoder.model.zero_grad(set_to_none=True)
        clear_device_cache(garbage_collection=True)
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])


def predict(runner: ModelRunner, examples: list[Example]) -> Values:
    """Logits of all examples; with `auto_batch` in batches half as large for as long as they do not fit.

    Raises:
        RunFailed: they do not fit.
    """
    while True:
        try:
            return runner.predict(examples)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        if not runner.auto_batch or runner.eval_batch_size == 1:
            raise RunFailed(_advice(f"an evaluation batch of {runner.eval_batch_size}", runner))
        runner.eval_batch_size //= 2
        clear_device_cache(garbage_collection=True)


def _is_out_of_memory(error: Exception) -> bool:
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or should_reduce_batch_size(error)
    return known or "could not create a primitive" in str(error)  # oneDNN's words when it gets no memory


def _advice(what: str, runner: ModelRunner) -> str:
    mend = "take a smaller max_length or backbone" if runner.auto_batch else "--auto-batch computes it in smaller parts"
    return f"{what} does not fit in memory; {mend}"
