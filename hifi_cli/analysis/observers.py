"""Training that is watched step by step: for what ordinary runs do not store (weights on the way, gradients)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from torch import nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed
from hifi_cli.methods.base import Method, Phase
from hifi_cli.runs import run as runs
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.run import Prepared, Splits
from hifi_cli.runs.trainer import Diverged, fit


class Watcher:
    """What is looked at; every hook may stay as it is.

    `stage` counts a run's phases from 0, `step` its finished optimiser steps.
    """

    def begin(self, prepared: Prepared, splits: Splits) -> None:
        """Called once, before the first step."""

    def gradients(self, model: nn.Module, stage: int) -> None:
        """Called in every step with the whole batch's gradient, before it is clipped."""

    def weights(self, model: nn.Module, stage: int, step: int) -> None:
        """Called after every optimiser step."""

    def logged(self, line: dict[str, Any], again: bool) -> None:
        """Called after `weights` with each line of the log."""


class _Watched:
    """A method that tells a watcher about its steps and is otherwise the method itself."""

    def __init__(self, method: Method, watcher: Watcher, stage: int, count: Callable[[], int]) -> None:
        self._method, self._watcher, self._stage, self._count = method, watcher, stage, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def phases(self) -> list[Phase]:
        phases = self._method.phases()
        watched = (_Watched(phase.method, self._watcher, stage, self._count) for stage, phase in enumerate(phases))
        return [replace(phase, method=cast(Method, one)) for phase, one in zip(phases, watched, strict=True)]

    def after_backward(self, model: nn.Module) -> None:
        self._method.after_backward(model)
        self._watcher.gradients(model, self._stage)

    def after_step(self, model: nn.Module) -> None:
        self._method.after_step(model)
        self._watcher.weights(model, self._stage, self._count())


def train(config: RunConfig, resources: ResourceCache, watcher: Watcher, *, most_steps: int | None = None) -> Prepared:
    """Train as a run does, without evaluation, and leave the model as it is after the last step.

    Args:
        most_steps: stop after so many.

    Raises:
        RunFailed: the loss is not finite.
    """
    heads = runs.chosen_heads(config, resources)
    splits = runs.split_examples(config, resources)
    prepared = runs.prepare(config, resources, heads)
    watcher.begin(prepared, splits)
    done = 0

    def count() -> int:
        nonlocal done
        done += 1
        return done

    try:
        fit(
            prepared.runner,
            cast(Method, _Watched(prepared.method, watcher, 0, count)),
            splits.train,
            evaluate=lambda: (0.0, 0.0, {}),
            log=watcher.logged,
            calibration_batches=splits.calibration_batches,
            most_steps=most_steps,
        )
    except Diverged as error:
        raise RunFailed(f"{runs.name(config)}: {error}; a smaller learning_rate=... may mend it") from None
    return prepared
