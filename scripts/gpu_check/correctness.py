"""Methods of every implementation on the demo encoder: their numbers against the CPU's, and resuming against not stopping."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from setting import (
    Job,
    Setting,
    new_trainer,
    random_examples,
    results_of,
    run_config,
    temporary_directory,
)
from torch import Tensor

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.config.specs import method_spec
from hifi_cli.errors import Terminated
from hifi_cli.methods import diff_pruning
from hifi_cli.methods.peft import DRAWS_WHERE_THE_WEIGHT_IS
from hifi_cli.models.token_packing import varlen_attention
from hifi_cli.records.record import MetricsLine, StepMetrics
from hifi_cli.runs.finished import load_final_delta
from hifi_cli.runs.heads import placeholder_heads
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.prepare import prepare_run
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.device import set_up_device
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.step_graphs import StepGraphs

LOGIT_TOLERANCE = 1e-3  # a run's steps multiply differences of rounding
TOLERANCES = {  # relative, of logits to the largest one
    "losses": 1e-4,
    "logits": LOGIT_TOLERANCE,
    "resumed": LOGIT_TOLERANCE,
    "bf16 losses": 0.05,
}
ROWS, BATCH_SIZE = 32, 8
RECORDED = ("full-ft", "hifi-layerwise", "lora")
STOP_AT = 3  # of 8 steps
# A GPU draws other numbers than a CPU, so noise is off; the demo encoder is too small for some methods' default sizes.
SETTINGS = {
    "mixout": ["settings.p=0"],
    "child-tuning-f": ["settings.p=1"],
    "top-k": ["settings.k=1"],
    "compacter": ["settings.reduction=4"],
}


class StepLosses(Callback):
    """Keeps the loss of every step, and stops the run once, as a signal from outside would.

    Args:
        stop_at: after this step; None: not at all.
    """

    def __init__(self, stop_at: int | None) -> None:
        self.losses: list[float] = []
        self.stop_at = stop_at

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.progress.step == self.stop_at:
            self.stop_at = None
            signal.raise_signal(signal.SIGTERM)

    def on_log(self, _: Trainer, line: MetricsLine) -> None:
        if isinstance(line, StepMetrics):
            self.losses.append(line.loss)


def kernel_jobs(setting: Setting, device: torch.device) -> list[Job]:
    """A large model's logits, and what takes the place of stock PyTorch on a GPU."""
    rows: list[Job] = [({"checked": "large model"}, lambda: large_model(setting, device))]
    for name in RECORDED:
        measure = partial(check_method, name, device, "kernels=auto", "record_steps=false")
        rows.append(({"checked": f"{name}, kernels=auto"}, measure))
    if device.type == "cuda":
        for head_size in (64, 32):
            about = {"checked": f"dropout in attention without padding, heads of {head_size}"}
            rows.append((about, partial(same_dropout, device, head_size)))
    return rows


def graph_jobs(device: torch.device) -> list[Job]:
    """Recorded steps."""
    keys = ("kernels=auto", "epochs=8")  # a batch's size comes more than twice
    return [
        ({"checked": "graphs with dropout"}, lambda: graphs_with_dropout(device)),
        *(
            ({"checked": f"{name}, recorded"}, partial(check_method, name, device, *keys))
            for name in RECORDED
        ),
    ]


def deterministic_jobs(device: torch.device) -> list[Job]:
    """Runs with `deterministic=true`, dropout and bf16, again and stopped: the same bits."""
    return [
        ({"checked": f"{name}, {how}"}, partial(same_bits, name, device, how))
        for how, name in product(("record_steps=false", "record_steps=true"), RECORDED[:2])
    ]


def same_bits(name: str, device: torch.device, *keys: str) -> dict[str, Any]:
    """Whether two runs, and one that is stopped and resumed, have the same losses and logits."""
    keys = (
        "kernels=auto",
        "deterministic=true",
        "dropout=0.1",
        "precision=bf16",
        "epochs=8",
        *keys,
    )
    runs = [train(config_of(name, device, *keys), stop_at=at) for at in (None, None, STOP_AT)]
    (losses, logits), *others = runs
    again, resumed = (
        bool((losses == other).all() and (logits == its_logits).all())
        for other, its_logits in others
    )
    return {"ok": again and resumed, "again": again, "resumed": resumed}


def method_jobs(setting: Setting, device: torch.device) -> list[Job]:
    """Every method in stock PyTorch."""
    some = ["full-ft", "hifi-layerwise", "prefix-tuning-mlp", "eh-ft-bitfit"]
    names = chosen_methods() if setting.batch_size > 8 else some
    rows: list[Job] = [({"checked": name}, partial(check_method, name, device)) for name in names]
    if device.type == "cuda":
        for name in DRAWS_WHERE_THE_WEIGHT_IS:
            about = {"checked": f"{name}, initial values of the CPU"}
            rows.insert(0, (about, partial(same_initial_values, name, device)))
    return rows


def same_initial_values(name: str, device: torch.device) -> dict[str, Any]:
    """Whether a method draws the values on the device, twice, that it draws on the CPU."""
    drawn = []
    for where in (torch.device("cpu"), device, device):
        prepared = prepared_model(config_of(name, where), Workspace(Path()))
        trained = prepared.method.trainable_parameters(prepared.encoder.model)
        drawn.append({name: value.detach().cpu() for name, value in trained.items()})
    on_cpu, *on_device = drawn
    same = all(torch.equal(values[name], on_cpu[name]) for values in on_device for name in on_cpu)
    return {"ok": same}


def large_model(setting: Setting, device: torch.device) -> dict[str, Any]:
    """The largest relative error of the logits of a model of the timed shape, in fp32."""
    cpu, other = (
        new_trainer(run_config("full-ft", setting, where, "kernels=auto"), setting, 36).runner
        for where in (torch.device("cpu"), device)
    )
    other.model.load_state_dict(cpu.model.state_dict())
    examples = random_examples(36, 8, 500)
    expected = cpu.predict(examples)
    error = float(np.abs(other.predict(examples) - expected).max() / np.abs(expected).max())
    return {"ok": error < LOGIT_TOLERANCE, "logits": _rounded(error)}


def same_dropout(device: torch.device, head_size: int = 64) -> dict[str, Any]:
    """Whether the backward pass drops the weights that the forward pass dropped.

    The output O is linear in the values V: the gradient G of O for O gives sum(V G) = sum(O O).
    """
    states = torch.randn(3, 60, 4, head_size, device=device, dtype=torch.bfloat16)
    query, key, value = states.requires_grad_()
    offsets = torch.tensor([0, 7, 40, 60], dtype=torch.int32, device=device)
    how = {"dropout": 0.5, "scale": 0.125, "window": None}
    output = varlen_attention(query, key, value, offsets, 33, **how)
    (gradient,) = torch.autograd.grad(output, value, output.detach())
    ratio = float((value * gradient).float().sum() / output.float().square().sum())
    error = abs(ratio - 1)
    return {"ok": error < 0.05, "dropout": _rounded(error)}


def graphs_with_dropout(device: torch.device) -> dict[str, Any]:
    """The largest relative difference of a loss, if what is recorded is called again instead."""
    recorded = []

    def call_again(_: Any, compute: Callable[[], Tensor]) -> tuple[Callable[[], Any], Tensor]:
        recorded.append(torch.zeros((), device=device))
        return partial(_compute_into, recorded[-1], compute), recorded[-1]

    keys = ("dropout=0.1", "precision=bf16")  # float32 with dropout has no graphs
    config = config_of("full-ft", device, "kernels=auto", "epochs=8", *keys)
    losses, _ = train(config)
    with patch.object(StepGraphs, "record", call_again):
        expected, _ = train(config)
    error = float(np.max(np.abs(losses - expected) / np.abs(expected)))
    # FlashAttention adds gradients in any order
    ok = error < TOLERANCES["bf16 losses"] and bool(recorded or device.type == "cpu")
    return {"ok": ok, "losses": _rounded(error), "graphs": len(recorded)}


def _compute_into(loss: Tensor, compute: Callable[[], Tensor]) -> None:
    loss.copy_(compute())


def _rounded(error: float) -> float:
    return float(f"{error:.2e}")


def chosen_methods() -> list[str]:
    """The first method of each implementation, every adapter type of peft, and others that compute something of their own."""
    implementations = {
        name: method_spec(name).implementation for name in reversed(registry.names("methods"))
    }
    first_of_each = {implementation: name for name, implementation in implementations.items()}
    adapter_types = {
        name for name, implementation in implementations.items() if implementation == "peft"
    }
    chosen = {
        *first_of_each.values(),
        *adapter_types,
        "full-ft",
        "prefix-tuning-mlp",
        "eh-ft-hifi",
        "eh-ft-lora-reserve",
    }
    return sorted(chosen - {"boft"})  # it compiles an extension


@contextmanager
def no_noise() -> Iterator[None]:
    """Diff-Pruning's gates without their noise, which has no setting."""
    with patch.object(diff_pruning._Search, "logistic_noise", lambda *_: (0.0, 0.0)):
        yield


def check_method(name: str, device: torch.device, *keys: str) -> dict[str, Any]:
    """Compare a run on the device with one on the CPU, with one that is stopped and resumed, and with one in bf16."""
    with no_noise():
        losses, logits = train(config_of(name, device, *keys))
        cpu_losses, cpu_logits = train(config_of(name, torch.device("cpu"), *keys))
        resumed_losses, resumed_logits = train(config_of(name, device, *keys), stop_at=STOP_AT)
        bf16_losses, _ = train(config_of(name, device, *keys, "precision=bf16"))

    def largest(values: Any, expected: Any) -> float:
        return float(np.max(np.abs(values - expected) / np.abs(expected)))

    errors = {
        "losses": largest(losses, cpu_losses),
        "logits": float(np.abs(logits - cpu_logits).max() / np.abs(cpu_logits).max()),
        "resumed": max(
            largest(resumed_losses, losses),
            float(np.abs(logits - resumed_logits).max() / np.abs(logits).max()),
        ),
        "bf16 losses": largest(bf16_losses, cpu_losses),
    }
    ok = bool(losses[-1] != losses[0]) and all(errors[key] < TOLERANCES[key] for key in errors)
    return {"ok": ok, **{key: _rounded(value) for key, value in errors.items()}}


def config_of(name: str, device: torch.device, *keys: str) -> RunConfig:
    """Eight steps on the demo's data without dropout."""
    changed = ["kernels=torch", "precision=fp32", "dropout=0", "report=last", "epochs=2"]
    changed += [
        f"limit={ROWS}",
        f"batch_size={BATCH_SIZE}",
        "log_every=1",
        f"device={device}",
        "heads.k=1",
    ]
    changed += [*SETTINGS.get(name, []), *keys]
    return resolve(
        task="demo-entailment", method=name, backbone="demo", protocol="demo", overrides=changed
    )


def train(config: RunConfig, stop_at: int | None = None) -> tuple[Any, Any]:
    """The loss of every step, and the logits of the model that a run's delta gives.

    Args:
        stop_at: stop after this step, with a checkpoint, and continue with a new model.
    """
    with temporary_directory() as directory:
        workspace = Workspace(results_of(directory))
        checkpoint = Checkpoint(
            Path(directory) / "checkpoint.pt", {"configuration": config.config_hash}
        )
        steps = StepLosses(stop_at)
        splits = load_splits(workspace.inputs(config, load_task(config)))
        for _ in range(2 if stop_at else 1):
            prepared = prepared_model(config, workspace)
            trainer = Trainer(
                prepared, prepared.method, splits, callback=steps, checkpoint=checkpoint
            )
            with suppress(Terminated):
                trainer.train()
        model = prepared_model(config, workspace)
        load_final_delta(model.method, model.encoder, trainer.delta)
        logits = model.predict(splits.reported)
    return np.array(steps.losses), logits


def prepared_model(config: RunConfig, workspace: Workspace) -> Any:
    """A model that the run's method prepared."""
    task = load_task(config)
    pretrained = workspace.pretrained(config, task)
    heads = placeholder_heads(config, pretrained.encoder)
    return prepare_run(config, task, pretrained, set_up_device(config), heads)
