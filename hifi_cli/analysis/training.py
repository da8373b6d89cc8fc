"""Loss, gradients and distance from the pretrained weights, step by step (EH-FT, figures 5 and 7)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.analysis.observers import Watcher, train
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.run_config import RunConfig
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.reports.table_spec import label_of
from hifi_cli.runs.run import Prepared, Splits


class Settings(ConfigModel):
    """What is trained."""

    shares: list[float] = []
    """Fractions of the steps for stage 1 of two-stage methods; empty: as each method is configured."""
    every: int = 1
    """Steps between two measurements."""
    curves: list[Literal["distance", "loss", "head_gradient", "backbone_gradient"]] = Field(
        ["loss", "head_gradient", "backbone_gradient"], min_length=1
    )
    """Curves that the picture shows; the CSV holds all."""


@dataclass
class _Course(Watcher):
    """Measures one training run."""

    pretrained: dict[str, Tensor]
    every: int
    rows: list[Row] = field(default_factory=list)
    _head: frozenset[str] = frozenset()
    _ends: list[int] = field(default_factory=lambda: [0])
    _norms: dict[str, float] = field(default_factory=dict)
    _now: Row = field(default_factory=dict)

    def begin(self, prepared: Prepared, splits: Splits) -> None:  # noqa: ARG002
        self._head = frozenset(task_head_names(prepared.encoder))

    def gradients(self, model: nn.Module, stage: int) -> None:  # noqa: ARG002
        parameters = dict(model.named_parameters())
        self._norms = {
            "head_gradient": norm(one.grad for name, one in parameters.items() if name in self._head),
            "backbone_gradient": norm(one.grad for name, one in parameters.items() if name not in self._head),
        }

    def weights(self, model: nn.Module, stage: int, step: int) -> None:
        if stage == len(self._ends):
            self._ends.append(step - 1)
        distance = None
        if step % self.every == 0 or step == 1 + self._ends[-1]:
            distance = distance_from(self.pretrained, model)
        place = {"stage": stage + 1, "step": step, "stage_step": step - self._ends[stage]}
        self._now = {**place, "distance": distance, **self._norms}

    def logged(self, line: dict[str, Any], again: bool) -> None:  # noqa: ARG002
        if "loss" in line and self._now["distance"] is not None:
            self.rows.append({**self._now, "loss": line["loss"]})


def compute(asked: FigureRequest) -> Points:
    """One row per task, method, seed and measured step: loss, distance, and the norms of both gradients before clipping.

    `stage_step` counts the steps of the stage alone.
    """
    rows: list[Row] = []
    for task in asked.spec.tasks:
        for method in asked.spec.methods:
            for share in _shares(asked, task, method):
                for seed in asked.spec.seeds:
                    extra = {"log_every": 1} | ({} if share is None else {"settings.share": share})
                    config = asked.config(task, method, seed, extra)
                    name = label_of("methods", method)
                    place = {"task": task, "method": method, "label": name, "share": share or 0.0, "seed": seed}
                    rows += [{**place, **row} for row in _course(config, asked).rows]
    seeds = len(asked.spec.seeds)
    return Points(rows, [f"{seeds} seed{'s' * (seeds > 1)}"])


def norm(gradients: Iterable[Tensor | None]) -> float:
    """The Euclidean norm of several gradients together."""
    return math.sqrt(sum(float(one.detach().double().pow(2).sum()) for one in gradients if one is not None))


@torch.no_grad()
def distance_from(pretrained: dict[str, Tensor], model: nn.Module) -> float:
    """||theta - theta*||, the Euclidean distance of the backbone's weights from the pretrained ones.

    Weights that a stage keeps under another name, inside modules of a method, do not count.
    """
    here = dict(model.named_parameters())
    squares = ((here[name] - value).double().pow(2).sum() for name, value in pretrained.items() if name in here)
    return math.sqrt(sum(float(one) for one in squares))


def _course(config: RunConfig, asked: FigureRequest) -> _Course:
    encoder = Encoder(asked.resources.pretrained(config).model)
    head = set(task_head_names(encoder))
    backbone = {name: value.detach() for name, value in encoder.model.named_parameters() if name not in head}
    course = _Course(backbone, asked.settings.every)
    train(config, asked.resources, course)
    return course


def _shares(asked: FigureRequest, task: str, method: str) -> list[float | None]:
    """Stage 1's shares a method is trained with; one run without stage 1 or without a choice of shares."""
    shares: list[float] = asked.settings.shares
    return [*shares] if shares and asked.config(task, method).stage1 else [None]
