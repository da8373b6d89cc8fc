"""Methods of every implementation on the demo encoder: their numbers against the CPU's, and resuming against not stopping."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from setting import Setting, results_of, temporary_directory

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import method_spec, resolve
from hifi_cli.heads.select import placeholder_heads
from hifi_cli.methods import diff_pruning
from hifi_cli.results.record import MetricsLine, StepMetrics
from hifi_cli.training.data import ResourceCache, load_final_delta, load_splits, prepare_run
from hifi_cli.training.loop import Callback, Checkpoint, Trainer

TOLERANCE = 1e-4  # relative, of losses
LOGIT_TOLERANCE = (
    1e-3  # relative to the largest logit: a run's steps multiply differences of rounding
)
ROWS, BATCH_SIZE = 32, 8
STOP_AT = 3  # of 8 steps
# A GPU draws other numbers than a CPU, so noise is off; the demo encoder is too small for some methods' default sizes.
SETTINGS = {
    "mixout": ["settings.p=0"],
    "child-tuning-f": ["settings.p=1"],
    "top-k": ["settings.k=1"],
    "compacter": ["settings.reduction=4"],
}


class StepLosses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, line: MetricsLine) -> None:
        if isinstance(line, StepMetrics):
            self.losses.append(line.loss)


def check(setting: Setting, device: torch.device) -> list[dict[str, Any]]:
    """For each method: the largest relative error of a loss and of the final logits, and the same for a resumed run."""
    names = (
        chosen_methods()
        if setting.batch_size > 8
        else ["full-ft", "hifi-layerwise", "prefix-tuning-mlp", "eh-ft-bitfit"]
    )
    rows = []
    with no_noise():
        for name in names:
            try:
                rows.append(check_method(name, device))
            except (
                Exception
            ) as error:  # the check goes on to the other methods, and says what failed
                rows.append(
                    {"method": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
                )
    return rows


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


def check_method(name: str, device: torch.device) -> dict[str, Any]:
    """Compare a run on the device with one on the CPU, and with one on the device that is stopped and resumed."""
    losses, logits = train(config_of(name, device))
    cpu_losses, cpu_logits = train(config_of(name, torch.device("cpu")))
    resumed_losses, resumed_logits = train(config_of(name, device), stop_at=STOP_AT)
    errors = {
        "loss_error": float(np.max(np.abs(losses - cpu_losses) / np.abs(cpu_losses))),
        "logit_error": float(np.abs(logits - cpu_logits).max() / np.abs(cpu_logits).max()),
        "resumed_error": float(
            max(
                np.abs(losses - resumed_losses).max(),
                np.abs(logits - resumed_logits).max() / np.abs(logits).max(),
            )
        ),
    }
    learns = bool(losses[-1] != losses[0])
    ok = (
        errors["loss_error"] < TOLERANCE
        and max(errors["logit_error"], errors["resumed_error"]) < LOGIT_TOLERANCE
        and learns
    )
    return {
        "method": name,
        "ok": ok,
        **{key: float(f"{value:.2e}") for key, value in errors.items()},
    }


def config_of(name: str, device: torch.device) -> RunConfig:
    """Eight steps on the demo's data without dropout."""
    changed = ["kernels=torch", "precision=fp32", "dropout=0", "report=last", "epochs=2"]
    changed += [
        f"limit={ROWS}",
        f"batch_size={BATCH_SIZE}",
        "log_every=1",
        f"device={device}",
        "heads.k=1",
    ]
    changed += [*SETTINGS.get(name, [])]
    return resolve(
        task="demo-entailment", method=name, backbone="demo", protocol="demo", overrides=changed
    )


def train(config: RunConfig, stop_at: int | None = None) -> tuple[Any, Any]:
    """The loss of every step, and the logits of the model that a run's delta gives.

    Args:
        stop_at: stop after this step, with a checkpoint, and continue with a new model.
    """
    with temporary_directory() as directory:
        resources = ResourceCache(results_of(directory))
        checkpoint = Checkpoint(Path(directory) / "checkpoint.pt", config.config_hash)
        steps = StepLosses()
        if stop_at:
            first = new_trainer(config, resources, checkpoint, steps, stop_at)
            first.train()
            first.save_checkpoint()
        trainer = new_trainer(config, resources, checkpoint, steps, None)
        trainer.train()
        model = prepared_model(config, resources)
        load_final_delta(model.method, model.encoder, trainer.delta)
        logits = model.predict(load_splits(config, resources).reported)
    return np.array(steps.losses), logits


def prepared_model(config: RunConfig, resources: ResourceCache) -> Any:
    """A model that the run's method prepared."""
    encoder, _ = resources.encoder(config)
    return prepare_run(config, resources, placeholder_heads(config, encoder))


def new_trainer(
    config: RunConfig,
    resources: ResourceCache,
    checkpoint: Checkpoint,
    steps: StepLosses,
    max_steps: int | None,
) -> Trainer:
    """A trainer of the run."""
    prepared = prepared_model(config, resources)
    return Trainer(
        prepared,
        load_splits(config, resources),
        callback=steps,
        checkpoint=checkpoint,
        max_steps=max_steps,
    )
