"""Loss, gradients and distance from the pretrained weights, step by step (EH-FT, figures 5 and 7)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.instrumented_training import train
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.run_files import MetricsLine, StepMetrics
from hifi_cli.runs.trainer import Callback, Trainer

TRAINS = True  # models of its own


class Settings(ConfigModel):
    """What is trained."""

    stage1_fractions: list[float] = []
    """Fractions of the steps for stage 1 of two-stage methods; empty: as each method is configured."""
    every: int = 1
    """Steps of a stage between two measurements; its first and its last step are always measured."""
    curves: list[Literal["distance", "loss", "head_gradient", "backbone_gradient"]] = Field(
        ["loss", "head_gradient", "backbone_gradient"], min_length=1
    )
    """Curves that the picture shows; the CSV holds all."""


@dataclass
class TrajectoryRecorder(Callback):
    """Records loss, distance from the pretrained weights and gradient norms of one training run.

    Attributes:
        pretrained: the backbone's weights before training.
        every: steps of a stage between two records, besides its first and last.
        rows: the records.
    """

    pretrained: dict[str, Tensor]
    every: int
    rows: list[Row] = field(default_factory=list)
    _gradient_norms: dict[str, float] = field(default_factory=dict)
    _step: Row = field(default_factory=dict)

    def on_backward_end(self, trainer: Trainer) -> None:
        head = set(task_head_names(trainer.encoder))
        parameters = dict(trainer.model.named_parameters())
        self._gradient_norms = {
            "head_gradient": norm(parameter.grad for name, parameter in parameters.items() if name in head),
            "backbone_gradient": norm(parameter.grad for name, parameter in parameters.items() if name not in head),
        }

    def on_step_end(self, trainer: Trainer) -> None:
        step, phase = trainer.progress.step, trainer.progress.phase
        phase_step = step - (trainer.phase_ends[phase - 1] if phase else 0)
        is_due = phase_step == 1 or phase_step % self.every == 0 or step in trainer.phase_ends
        if is_due:
            trainer.before_evaluation()
        distance = distance_from(self.pretrained, trainer.model) if is_due else None
        self._step = {"stage": phase + 1, "step": step, "stage_step": phase_step, "distance": distance, **self._gradient_norms}

    def on_log(self, line: MetricsLine) -> None:
        if isinstance(line, StepMetrics) and self._step["distance"] is not None:
            self.rows.append({**self._step, "loss": line.loss})


def compute(request: FigureRequest) -> FigureTable:
    """Train and record one row per task, method, seed and measured step: loss, distance and gradient norms before clipping.

    `stage_step` counts the steps of the stage alone.
    """
    if request.settings.stage1_fractions:
        refuse_own_keys(request.overrides, ["settings.stage1_fraction"], "this figure")
    rows: list[Row] = []
    for task in request.spec.tasks:
        for method in request.spec.methods:
            for fraction in _stage1_fractions(request, task, method):
                for seed in request.spec.seeds:
                    extra = {"log_every": 1} | ({} if fraction is None else {"settings.stage1_fraction": fraction})
                    config = request.config(task, method, seed, extra)
                    name = label_of("methods", method)
                    labels = {"task": task, "method": method, "label": name, "seed": seed}
                    recorded = request.finished.rows(config, partial(_record, config, request))
                    rows += [{**labels, **row} for row in recorded]
    seeds = len(request.spec.seeds)
    return FigureTable(rows, [f"{seeds} seed{'s' * (seeds > 1)}"])


def norm(gradients: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of several gradients together."""
    return math.sqrt(sum(float(gradient.detach().double().pow(2).sum()) for gradient in gradients if gradient is not None))


@torch.no_grad()
def distance_from(pretrained: dict[str, Tensor], model: nn.Module) -> float:
    """Return ||theta - theta*||, the Euclidean distance of the backbone's weights from the pretrained weights.

    Weights that a stage keeps under another name, inside modules of a method, do not count.
    """
    weights = dict(model.named_parameters())
    squares = (
        (weights[name] - value.to(weights[name].device)).double().pow(2).sum()
        for name, value in pretrained.items()
        if name in weights
    )
    return math.sqrt(sum(float(square) for square in squares))


def _record(config: RunConfig, request: FigureRequest) -> list[Row]:
    encoder = Encoder(request.resources.pretrained(config).model)
    head = set(task_head_names(encoder))
    pretrained = {name: value.detach() for name, value in encoder.model.named_parameters() if name not in head}
    recorder = TrajectoryRecorder(pretrained, request.settings.every)
    method = train(config, request.resources, recorder).method
    fraction = getattr(method.settings, "stage1_fraction", 0.0)
    return [{"stage1_fraction": fraction, **row} for row in recorder.rows]


def _stage1_fractions(request: FigureRequest, task: str, method: str) -> list[float | None]:
    """Return the fractions of stage 1 that a method is trained with; None: as configured, or without stage 1."""
    fractions: list[float] = request.settings.stage1_fractions
    return [*fractions] if fractions and request.config(task, method).stage1 else [None]
