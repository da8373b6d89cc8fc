"""What each speed-up is worth alone: a training step with all of them, without one of them, and with torch.compile."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from setting import Setting, fresh_memory, new_trainer, run_config, seconds_per_step
from torch import Tensor

from hifi_cli.models import token_packing
from hifi_cli.tasks import losses
from hifi_cli.training import step as training_step
from hifi_cli.training.loop import Trainer

METHODS = ("full-ft", "hifi-layerwise")
TOKENS = 36
BF16 = ("precision=bf16", "tf32=true")
PADDED = (*BF16, "padding_free=false")


def measure(setting: Setting, device: torch.device) -> list[dict[str, Any]]:
    """A row for each method and kind of step; `ratio` is its time over that of the step with all measures."""
    steps: dict[str, Callable[[str], float]] = {
        "all measures": lambda method: _step(method, setting, device, BF16),
        "fp32 instead of bf16": lambda method: _step(method, setting, device, ("precision=fp32", "tf32=true")),
        "fp32 without TF32": lambda method: _step(method, setting, device, ("precision=fp32", "tf32=false")),
        "padding": lambda method: _step(method, setting, device, PADDED),
        "AdamW not fused": lambda method: _step(method, setting, device, BF16, _not_fused),
        "copies that the host waits for": lambda method: _step_with_waiting_copies(method, setting, device),
        "padding, layers compiled": lambda method: _step(
            method,
            setting,
            device,
            PADDED,
            lambda trainer: _compile_layers(trainer, backend=setting.compile_backend, dynamic=True),
        ),
    }
    if device.type == "cuda":
        steps["padding, layers compiled with CUDA graphs"] = lambda method: _step(
            method, setting, device, PADDED, lambda trainer: _compile_layers(trainer, mode="reduce-overhead")
        )
    rows = []
    for method in METHODS:
        base = None
        for name, step in steps.items():
            row = {"method": method, "step": name}
            try:
                seconds = step(method)
            except Exception as error:  # the other steps are timed all the same
                rows.append({**row, "error": f"{type(error).__name__}: {error}"})
                continue
            base = seconds if name == "all measures" else base
            rows.append({**row, "ms": round(1e3 * seconds, 3), **({"ratio": round(seconds / base, 3)} if base else {})})
    return rows


def _step(
    method: str,
    setting: Setting,
    device: torch.device,
    keys: tuple[str, ...],
    change: Callable[[Trainer], object] | None = None,
) -> float:
    """Seconds of a step, of a trainer that was changed."""
    fresh_memory(device)
    trainer = new_trainer(run_config(method, setting, device, *keys), setting, TOKENS)
    if change:
        change(trainer)
    seconds = seconds_per_step(trainer)
    torch.compiler.reset()
    return seconds


def _step_with_waiting_copies(method: str, setting: Setting, device: torch.device) -> float:
    def copy(values: Any, device: torch.device) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(device)

    with (
        mock.patch.object(training_step, "copy_to_device", copy),
        mock.patch.object(token_packing, "copy_to_device", copy),
        mock.patch.object(losses, "copy_to_device", copy),
    ):
        return _step(method, setting, device, BF16)


def _not_fused(trainer: Trainer) -> None:
    assert trainer.phase_state is not None
    for group in trainer.phase_state.optimizer.param_groups:
        group["fused"] = False


def _compile_layers(trainer: Trainer, **options: Any) -> None:
    """Compile each layer for itself; on a GPU batches are padded to multiples of 8, so that there are few lengths."""
    for layer in trainer.runner.encoder.layers:
        layer.compile(**options)
