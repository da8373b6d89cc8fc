"""Loss, gradients and distance from the pretrained weights, step by step (EH-FT, figures 5 and 7)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row, train
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.record import MetricsLine, StepMetrics
from hifi_cli.training.loop import Callback, Trainer

_TITLES = {
    "distance": r"distance from pretrained, $\|\theta_f - \theta_f^*\|_2$",
    "loss": "training loss",
    "head_gradient": "gradient norm, head",
    "backbone_gradient": "gradient norm, backbone",
}


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
    _step: Row = field(default_factory=dict)

    def on_backward_end(self, trainer: Trainer) -> None:
        head, gradients = set(task_head_names(trainer.encoder)), dict[bool, list[Tensor | None]]()
        for name, parameter in trainer.model.named_parameters():
            gradients.setdefault(name in head, []).append(parameter.grad)
        norms = {is_head: norm(gradients.get(is_head, [])) for is_head in (True, False)}
        self._step = {"head_gradient": norms[True], "backbone_gradient": norms[False]}

    def on_step_end(self, trainer: Trainer) -> None:
        step, phase = trainer.progress.step, trainer.progress.phase
        phase_step = step - (trainer.phase_ends[phase - 1] if phase else 0)
        distance = None
        if phase_step == 1 or phase_step % self.every == 0 or step in trainer.phase_ends:
            trainer.before_evaluation()
            distance = distance_from(self.pretrained, trainer.model)
        self._step = {"stage": phase + 1, "step": step, "stage_step": phase_step, "distance": distance, **self._step}

    def on_log(self, line: MetricsLine) -> None:
        if isinstance(line, StepMetrics) and self._step["distance"] is not None:
            self.rows.append({**self._step, "loss": line.loss})


def compute(request: FigureRequest) -> pd.DataFrame:
    """Train and record one row per task, method, seed and measured step: loss, distance and gradient norms before clipping.

    `stage_step` counts the steps of the stage alone.
    """
    spec, fractions = request.spec, request.settings.stage1_fractions
    if fractions:
        refuse_own_keys(request.overrides, ["settings.stage1_fraction"], "this figure")
    rows: list[Row] = []
    for task, method in product(spec.tasks, spec.methods):
        labels = {"task": task, "method": method, "label": label_of("methods", method)}
        varies = fractions and request.config(task, method).stage1
        for fraction, seed in product(fractions if varies else [None], spec.seeds):
            extra = {"settings.stage1_fraction": fraction} if varies else {}
            config = request.config(task, method, seed, {"log_every": 1, **extra})
            recorded = request.once(config, partial(_record, config, request))
            rows += [{**labels, "seed": seed, **row} for row in recorded]
    request.notes.append(f"{len(spec.seeds)} seed{'s' * (len(spec.seeds) > 1)}")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a row per task and a panel per curve, over the stage that fine-tunes the whole model."""
    tasks, curves = list(data["task"].unique()), record.settings["curves"]
    panels, columns = len(tasks) * len(curves), max(2, len(curves))
    width = style.WIDE if panels > 1 else style.MIDDLE
    figure, axes = style.grid(panels, columns=columns, height=2.3, width=width)
    for row, task in enumerate(tasks):
        row_axes = dict(zip(curves, axes[row * len(curves) :], strict=False))
        runs_by_label = _runs_of_last_stage(data[data["task"] == task])
        for curve, ax in row_axes.items():
            for number, (label, runs) in enumerate(runs_by_label.items()):
                _plot(ax, runs, curve, label, number)
            ax.set_title(style.panel_title(record, task, _TITLES[curve]))
            ax.set_xlabel("iterations of full fine-tuning")
            if not curve.endswith("gradient"):
                ax.set_ylim(bottom=0)
        _share_log_axis([ax for curve, ax in row_axes.items() if curve.endswith("gradient")])
    style.shared_legend(figure, axes)
    if "distance" in curves:
        record.notes.append("distance: a line per seed; EH-FT: stage 2, which starts with the pretrained backbone")
    if set(curves) - {"distance"}:
        smooth = "mean over seeds, running mean over 5 % of the iterations"
        record.notes.append(f"{smooth}; gradients before clipping; EH-FT: stage 2")
    return figure


def norm(gradients: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of several gradients together."""
    return math.sqrt(sum(float(gradient.detach().double().pow(2).sum()) for gradient in gradients if gradient is not None))


@torch.no_grad()
def distance_from(pretrained: dict[str, Tensor], model: nn.Module) -> float:
    """Return ||theta - theta*||, the Euclidean distance of the backbone's weights from the pretrained weights.

    Weights that a stage keeps under another name, inside modules of a method, do not count.
    """
    weights = dict(model.named_parameters())
    return norm(weights[name] - value.to(weights[name].device) for name, value in pretrained.items() if name in weights)


def _record(config: RunConfig, request: FigureRequest) -> list[Row]:
    encoder = Encoder(request.resources.pretrained(config).model)
    head = set(task_head_names(encoder))
    pretrained = {name: value.detach() for name, value in encoder.model.named_parameters() if name not in head}
    recorder = TrajectoryRecorder(pretrained, request.settings.every)
    method = train(config, request.resources, recorder).method
    fraction = getattr(method.settings, "stage1_fraction", 0.0)
    return [{"stage1_fraction": fraction, **row} for row in recorder.rows]


def _plot(ax: Axes, runs: style.Frame, curve: str, label: str, number: int) -> None:
    """Plot a line per seed for the distance; otherwise the smoothed mean over seeds, geometric for gradient norms."""
    table, look = runs.pivot(index="stage_step", columns="seed", values=curve).dropna(), style.line(number, marker=False)
    if curve == "distance":
        labels = [label, *[None] * (table.shape[1] - 1)]
        ax.plot(table, label=labels, alpha=0.85, **look)
        return
    mean = table.mean(axis=1) if curve == "loss" else np.exp(np.log(table.clip(lower=1e-12)).mean(axis=1))
    ax.plot(mean.rolling(max(1, len(mean) // 20), min_periods=1).mean(), label=label, **look)


def _share_log_axis(axes: list[Axes]) -> None:
    """Give panels one logarithmic y axis with plain numbers, so that they can be compared."""
    for ax in axes:
        ax.set_yscale("log")
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        low, high = min(limits), max(limits)
        ax.set_ylim(low, high)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _runs_of_last_stage(data: style.Frame) -> dict[str, style.Frame]:
    """Each method's rows of the last stage, by legend label, which names stage 1's fraction where several are compared."""
    last = data.groupby(["method", "stage1_fraction"])["stage"].transform("max")
    full = data[data["stage"] == last]
    several = full.groupby("method")["stage1_fraction"].nunique().max() > 1
    runs_by_label = {}
    for (label, fraction), runs in full.groupby(["label", "stage1_fraction"], sort=False):
        runs_by_label[f"{label}, {100 * fraction:g} % stage 1" if several and fraction else label] = runs
    return runs_by_label
