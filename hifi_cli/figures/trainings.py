"""What happens in training: curves (EH-FT, figures 5 and 7), landscape of the loss (HiFi, figure 7)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pydantic import Field
from sklearn.decomposition import PCA
from torch import Tensor, nn

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind, Row, train
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.heads import select as head_selection
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.record import MetricsLine, StepMetrics
from hifi_cli.tasks import losses
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import load_splits
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.step import ModelRunner

Floats = NDArray[np.float64]
Direction = list[Tensor]

_TITLES = {
    "distance": r"distance from pretrained, $\|\theta_f - \theta_f^*\|_2$",
    "loss": "training loss",
    "head_gradient": "gradient norm, head",
    "backbone_gradient": "gradient norm, backbone",
}


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
    _gradients: Row = field(default_factory=dict)

    def on_backward_end(self, trainer: Trainer) -> None:
        head, parameters = (
            {*task_head_names(trainer.encoder)},
            dict(trainer.model.named_parameters()),
        )
        of_head = [parameter.grad for name, parameter in parameters.items() if name in head]
        of_backbone = [parameter.grad for name, parameter in parameters.items() if name not in head]
        self._gradients = {"head_gradient": norm(of_head), "backbone_gradient": norm(of_backbone)}

    def on_step_end(self, trainer: Trainer) -> None:
        step, stage = trainer.progress.step, trainer.progress.phase + 1
        stage_step = step - (trainer.phase_ends[stage - 2] if stage > 1 else 0)
        if stage_step == 1 or stage_step % self.every == 0 or step in trainer.phase_ends:
            trainer.before_evaluation()
            place = {"stage": stage, "step": step, "stage_step": stage_step}
            self.rows.append(
                {
                    **place,
                    "distance": distance_from(self.pretrained, trainer.model),
                    **self._gradients,
                }
            )

    def on_log(self, line: MetricsLine) -> None:
        if isinstance(line, StepMetrics) and self.rows and self.rows[-1]["step"] == line.step:
            self.rows[-1]["loss"] = line.loss


class TrainingCurves(Kind):
    """What is trained."""

    explanation = (
        "mean over seeds, running mean over 5 % of the iterations; gradients before clipping; EH-FT: stage 2, which"
        " starts with the pretrained backbone"
    )
    stage1_fractions: list[float] = []
    """Fractions of the steps for stage 1 of two-stage methods; empty: as configured."""
    every: int = 1
    """Steps of a stage between two measurements, besides its first and last step."""
    curves: list[Literal["distance", "loss", "head_gradient", "backbone_gradient"]] = Field(
        ["loss", "head_gradient", "backbone_gradient"], min_length=1
    )
    """Curves that the picture shows; the CSV holds all."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Train, and record a row per measured step; `stage_step` counts within the stage."""
        if self.stage1_fractions:
            refuse_own_keys(request.overrides, ["settings.stage1_fraction"], "this figure")
        spec, rows = request.spec, []
        for task, method in product(spec.tasks, spec.methods):
            varies = self.stage1_fractions and request.config(task, method).stage1
            fractions = [{"settings.stage1_fraction": fraction} for fraction in self.stage1_fractions]
            for keys, seed in product(fractions if varies else [{}], spec.seeds):
                config = request.config(task, method, seed, {"log_every": 1, **keys})
                labels = {
                    "task": task,
                    "method": method,
                    "label": label_of("methods", method),
                    "seed": seed,
                }
                rows += [{**labels, **row} for row in self._record(config, request)]
        return pd.DataFrame(rows)

    def _record(self, config: RunConfig, request: FigureRequest) -> list[Row]:
        encoder = Encoder(request.resources.pretrained(config).model)
        head = {*task_head_names(encoder)}
        pretrained = {name: value.detach() for name, value in encoder.model.named_parameters() if name not in head}
        recorder = TrajectoryRecorder(pretrained, self.every)
        method = train(config, request.resources, recorder).method
        fraction = getattr(method.settings, "stage1_fraction", 0.0)
        return [{"stage1_fraction": fraction, **row} for row in recorder.rows]

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and curve, over the stage that fine-tunes the whole model."""
        last = data.groupby(["method", "stage1_fraction"])["stage"].transform("max")
        data = data[data["stage"] == last]
        if data.groupby("method")["stage1_fraction"].nunique().max() > 1:
            fractions = [f", {100 * fraction:g} % stage 1" if fraction else "" for fraction in data["stage1_fraction"]]
            data = data.assign(label=data["label"] + fractions)
        means = data.groupby(["task", "label", "stage_step"], sort=False)[self.curves].mean()
        smooth = means.groupby(["task", "label"], sort=False, group_keys=False).apply(_running_mean).reset_index()
        long = smooth.melt(["task", "label", "stage_step"], self.curves, var_name="curve")
        long = long.assign(panel=style.panels(long, long["curve"].map(_TITLES)))
        labels = ("iterations of full fine-tuning", "")
        figure, axes = style.line_panels(
            long, "stage_step", "value", by="label", labels=labels, columns=max(2, len(self.curves))
        )
        for title, ax in axes.items():
            ax.set_yscale("log" if "gradient" in title else "linear")
        return figure


def _running_mean(curves: style.Frame) -> style.Frame:
    return curves.rolling(max(1, len(curves) // 20), min_periods=1).mean()


def norm(gradients: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of several gradients together."""
    squares = (float(gradient.detach().double().pow(2).sum()) for gradient in gradients if gradient is not None)
    return math.sqrt(sum(squares))


def distance_from(pretrained: dict[str, Tensor], model: nn.Module) -> float:
    """Return ||theta - theta*||, the distance of the backbone's weights from the pretrained ones.

    Weights that a stage keeps under another name, inside modules of a method, do not count.
    """
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return norm(weights[name] - value.to(weights[name].device) for name, value in pretrained.items() if name in weights)


@dataclass
class SnapshotRecorder(Callback):
    """Copies the trained weights at even distances, the first and the last ones included.

    Attributes:
        count: snapshots after the one before the first step.
        snapshots: weights by finished steps.
    """

    count: int
    snapshots: dict[int, Direction] = field(default_factory=dict)

    def on_train_begin(self, trainer: Trainer) -> None:
        if len(trainer.phase_ends) > 1:
            other = "plane: pca needs one, plane: random (hifi-7-flatness) does not"
            raise UsageError(f"{trainer.config.method} trains in several phases; {other}")
        self.on_step_end(trainer)

    def on_step_end(self, trainer: Trainer) -> None:
        step = trainer.progress.step
        if step in np.linspace(0, trainer.total_steps, self.count + 1).round():
            self.snapshots[step] = [parameter.detach().cpu().clone() for parameter in trained(trainer.model)]


class Landscape(Kind):
    """How the surface is cut."""

    explanation = (
        "loss of up to {examples} training examples, dropout off, on {points} x {points} points; the first seed; star:"
        " the trained model"
    )
    shots: list[int | None] = [None, 16]
    """Rows per class of each regime; null: the full training set."""
    few_shot_epochs: int = 50
    """Epochs of few-shot runs, in which an epoch is one step."""
    plane: Literal["pca", "random"] = "pca"
    """`pca`: the two principal directions of the trajectory; `random`: two filter-normalized random
    directions, the only ones in which the flatness of two models may be compared."""
    points: int = 21
    """Grid points in each direction."""
    reach: float = 1.0
    """Half the width of a random plane; 1 moves every filter by its own norm."""
    examples: int = 64
    """Highest number of training examples on which the loss is measured."""
    snapshots: int = 20
    """Number of snapshots of the weights during training."""
    seed: int = 0
    """Seed that draws the random directions and the examples."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the loss at each grid point (`part` contour), and for `pca` the trajectory.

        `moved` says which weights the plane moves: those the method trains (`pca`), or all.
        `share_x` and `share_y` are what the directions explain of the trajectory's variance.
        """
        refuse_own_keys(request.overrides, ["shots"], "this figure")
        spec, measure = request.spec, self._principal if self.plane == "pca" else self._random
        rows: list[Row] = []
        for task, shots, method, seed in product(spec.tasks, self.shots, spec.methods, spec.seeds):
            few_shot = {"shots": shots, "epochs": self.few_shot_epochs} if shots else {}
            config = request.config(task, method, seed, few_shot)
            examples = load_splits(config, request.resources).train
            sample = head_selection.sample(examples, self.examples, self.seed)
            regime = f"{shots}-shot" if shots else "full-shot"
            labels = {
                "task": task,
                "regime": regime,
                "method": method,
                "label": label_of("methods", method),
            }
            rows += [{**labels, "seed": seed, **row} for row in measure(request, config, sample)]
        return pd.DataFrame(rows)

    def _principal(self, request: FigureRequest, config: RunConfig, examples: list[Example]) -> Iterator[Row]:
        recorder = SnapshotRecorder(self.snapshots)
        prepared = train(config, request.resources, recorder)
        directions, coordinates, explained = principal_plane(list(recorder.snapshots.values()))
        common = {"moved": "trained", "share_x": explained[0], "share_y": explained[1]}
        for step, (x, y) in zip(recorder.snapshots, coordinates.tolist(), strict=True):
            yield {**common, "part": "trajectory", "x": x, "y": y, "step": step, "loss": None}
        low, high = coordinates.min(axis=0), coordinates.max(axis=0)
        margin = 0.25 * np.maximum(high - low, 1e-6)  # beyond the ends of the trajectory
        axes = np.linspace(low - margin, high + margin, self.points).T
        for x, y, loss in surface(prepared.runner, trained(prepared.encoder.model), directions, axes, examples):
            yield {**common, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}

    def _random(self, request: FigureRequest, config: RunConfig, examples: list[Example]) -> Iterator[Row]:
        prepared = train(config, request.resources)
        prepared.method.merge(prepared.encoder)
        weights, draws = (
            list(prepared.encoder.model.parameters()),
            torch.Generator().manual_seed(self.seed),
        )
        directions = [filter_normalized(weights, draws) for _ in range(2)]
        axis = np.linspace(-self.reach, self.reach, self.points)
        for x, y, loss in surface(prepared.runner, weights, directions, [axis, axis], examples):
            yield {"moved": "all", "part": "contour", "x": x, "y": y, "step": None, "loss": loss}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per regime and method: contours of the loss in one scale, and the trajectory."""
        data = data[data["seed"] == data["seed"].iloc[0]]
        panels = list(data.groupby(style.panels(data, data["label"] + ", " + data["regime"]), sort=False))
        figure, axes = style.grid(len(panels), columns=data["label"].nunique(), height=2.3)
        losses = data[data["part"] == "contour"]["loss"]
        low, high = float(losses.min()), float(np.quantile(losses, 0.98))
        levels = MaxNLocator(16, steps=[1, 2, 5, 10]).tick_values(low, max(high, low + 1e-6))  # round numbers
        for ax, (title, panel) in zip(axes, panels, strict=True):
            contour, trajectory = (panel[panel["part"] == part] for part in ("contour", "trajectory"))
            table = contour.pivot(index="y", columns="x", values="loss")
            image = ax.contourf(table.columns, table.index, table, levels=levels, extend="max")
            ax.contour(table.columns, table.index, table, levels=levels, colors="#202020", linewidths=0.3)
            ax.plot(trajectory["x"], trajectory["y"], "-", color="white", linewidth=2.2)
            ax.plot(trajectory["x"], trajectory["y"], "o-", color="#D55E00")
            ax.plot(0, 0, "*", color="white", markeredgecolor="black", markersize=9)
            ax.set_title(title, fontsize=7)
            directions = "principal" if self.plane == "pca" else "random"
            style.label_outer(ax, f"first {directions} direction", f"second {directions} direction")
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, aspect=35, ticks=levels[::2], format="%g")
        bar.set_label("training loss")
        return figure


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The model's own parameters that train; where only some entries do, the whole parameter."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def principal_plane(snapshots: Sequence[Direction]) -> tuple[list[Direction], Floats, Floats]:
    """Return the plane through the last weights that explains most of the trajectory's variance.

    Returns:
        Two orthonormal directions, the snapshots' coordinates [snapshots, 2] with the last at the origin, and the
        fractions of the variance that the directions explain.
    """
    flat = torch.stack([torch.cat([weight.flatten() for weight in weights]) for weights in snapshots]).numpy()
    differences = flat - flat[-1]
    pca = PCA(2, svd_solver="full").fit(differences)
    sizes = [weight.numel() for weight in snapshots[-1]]
    directions = [
        [part.view(weight.shape) for part, weight in zip(torch.from_numpy(flat).split(sizes), snapshots[-1], strict=True)]
        for flat in pca.components_
    ]
    coordinates: Floats = (differences @ pca.components_.T).astype(np.float64)
    return directions, coordinates, pca.explained_variance_ratio_.astype(np.float64)


def filter_normalized(weights: Sequence[Tensor], draws: torch.Generator) -> Direction:
    """Draw a random direction in which every filter (row) has the norm of the weights' own filter.

    Biases and LayerNorms stay where they are, as in Li et al.: the loss varies with their scale.
    """
    direction = []
    for weight in weights:
        drawn = torch.randn(weight.shape, generator=draws)
        norms = weight.detach().cpu().norm(dim=-1, keepdim=True) if weight.dim() > 1 else 0
        direction.append(drawn / drawn.norm(dim=-1, keepdim=True) * norms)
    return direction


@torch.no_grad()
def surface(
    runner: ModelRunner,
    weights: Sequence[Tensor],
    directions: Sequence[Direction],
    axes: Sequence[Floats] | Floats,
    examples: list[Example],
) -> Iterator[tuple[float, float, float]]:
    """The mean loss at weights + x * first direction + y * second; restores the weights."""
    runner.model.eval()
    size, count = runner.config.eval_batch_size, losses.count(runner.task, examples)
    batches = [examples[start : start + size] for start in range(0, len(examples), size)]
    origins = [weight.detach().clone() for weight in weights]
    for x, y in product(*(axis.tolist() for axis in axes)):
        for weight, origin, along, across in zip(weights, origins, *directions, strict=True):
            weight.copy_(origin + x * along.to(weight.device) + y * across.to(weight.device))
        yield x, y, sum(float(runner.loss(batch)) for batch in batches) / count
    for weight, origin in zip(weights, origins, strict=True):
        weight.copy_(origin)
