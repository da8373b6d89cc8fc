"""Batches that do not fit in memory: computed in smaller micro-batches (`--auto-batch`), or one clear error."""

from collections.abc import Callable

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import Tensor, nn

from hifi_cli.errors import RunFailed
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.tasks.metrics import Values
from hifi_cli.tasks.tokenization import Example


def accumulate_with_retries(
    runner: ModelRunner, batch: list[Example], extra_loss: Callable[[nn.Module], Tensor | float]
) -> Tensor:
    """`ModelRunner.accumulate_gradient`; with `auto_batch`, twice as many micro-batches for as long as they do not fit.

    The batch stays the same, and the random numbers are those of the first attempt.

    Raises:
        RunFailed: it does not fit, even in the smallest micro-batches allowed.
    """
    while True:
        cpu_rng, cuda_rng = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        try:
            return runner.accumulate_gradient(batch, extra_loss)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        if not runner.auto_batch or runner.gradient_accumulation_steps >= len(batch):
            raise RunFailed(_advice(f"a batch of {len(batch)} in {runner.gradient_accumulation_steps} parts", runner))
        runner.gradient_accumulation_steps *= 2
        runner.encoder.model.zero_grad(set_to_none=True)
        clear_device_cache(garbage_collection=True)
        torch.set_rng_state(cpu_rng)
        if cuda_rng:
            torch.cuda.set_rng_state_all(cuda_rng)


def predict_with_retries(runner: ModelRunner, examples: list[Example]) -> Values:
    """`ModelRunner.predict`; with `auto_batch`, in batches half as large for as long as they do not fit.

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
    is_known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or should_reduce_batch_size(error)
    return is_known or "could not create a primitive" in str(error)  # oneDNN's words when it gets no memory


def _advice(subject: str, runner: ModelRunner) -> str:
    fix = "take a smaller max_length or backbone" if runner.auto_batch else "--auto-batch computes it in smaller parts"
    return f"{subject} does not fit in memory; {fix}"
