"""Loss contours and training trajectories (HiFi, figure 7), after Li et al. (NeurIPS 2018)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row, train
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.heads import select as head_selection
from hifi_cli.tasks import losses
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import load_splits
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.step import ModelRunner

Floats = NDArray[np.float64]
Direction = list[Tensor]
_LEVELS = 16  # contour levels at most


class Settings(ConfigModel):
    """How the surface is cut."""

    shots: list[int | None] = [None, 16]
    """Rows per class of each regime; null: the full training set."""
    few_shot_epochs: int = 50
    """Epochs of few-shot runs, in which an epoch is one step."""
    plane: Literal["pca", "random"] = "pca"
    """`pca`: the two principal directions of the trajectory; `random`: two filter-normalized random directions around the
    trained model, the only ones in which the flatness of two models may be compared."""
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


@dataclass
class SnapshotRecorder(Callback):
    """Copies the trained weights at even distances, before the first and after the last step included.

    Attributes:
        count: snapshots after the one before the first step.
        snapshots: weights by finished steps.
    """

    count: int
    snapshots: dict[int, Direction] = field(default_factory=dict)
    _steps: frozenset[int] = frozenset()

    def on_train_begin(self, trainer: Trainer) -> None:
        if len(trainer.phase_ends) > 1:
            other = "plane: pca needs one, plane: random (hifi-7-flatness) does not"
            raise UsageError(f"{trainer.config.method} trains in several phases; {other}")
        self._steps = frozenset(np.linspace(0, trainer.total_steps, self.count + 1).round().astype(int).tolist())
        self.on_step_end(trainer)

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.progress.step in self._steps:
            weights = [parameter.detach().cpu().clone() for parameter in _trained(trainer.model)]
            self.snapshots[trainer.progress.step] = weights


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute rows of each run: per grid point (`part` contour: x, y, loss); for `pca` per snapshot (trajectory: x, y, step).

    `moved` says which weights the plane moves: those the method trains, or all of the model's. `share_x` and `share_y` are
    what the two directions explain of the trajectory's variance.
    """
    refuse_own_keys(request.overrides, ["shots"], "this figure")
    spec, settings = request.spec, request.settings
    runs = []  # all of them first: too few rows for a regime are an error before anything trains
    for task, shots, method, seed in product(spec.tasks, settings.shots, spec.methods, spec.seeds):
        few_shot = {"shots": shots, "epochs": settings.few_shot_epochs} if shots else {}
        config = request.config(task, method, seed, few_shot)
        train_examples = load_splits(config, request.resources).train
        examples = head_selection.sample(train_examples, settings.examples, settings.seed)
        regime = f"{shots}-shot" if shots else "full-shot"
        label = label_of("methods", method)
        runs.append(({"task": task, "regime": regime, "method": method, "label": label, "seed": seed}, config, examples))
    points = _principal if settings.plane == "pca" else _random
    rows: list[Row] = []
    for labels, config, examples in runs:
        measured = request.once(config, partial(points, request, config, examples))
        rows += [{**labels, **row} for row in measured]
    request.notes.append(f"loss of up to {settings.examples} training examples, dropout off")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a panel per regime (rows) and method (columns): contours of the loss in one scale, the trajectory over them.

    The levels of contours are round numbers. All panels are of the first seed.
    """
    seeds = data["seed"].unique()
    data = data[data["seed"] == seeds[0]]
    columns = data[["method", "label", "moved"]].drop_duplicates().itertuples(index=False)
    rows = data[["task", "regime"]].drop_duplicates().itertuples(index=False)
    panels = list(product(rows, columns))
    columns_count = len(data[["method", "moved"]].drop_duplicates())
    figure, axes = style.grid(len(panels), columns=columns_count, height=2.3)
    losses = data[data["part"] == "contour"]["loss"]
    low, high = float(losses.min()), float(np.quantile(losses, 0.98))
    levels = np.asarray(MaxNLocator(_LEVELS, steps=[1, 2, 5, 10]).tick_values(low, max(high, low + 1e-6)))
    for ax, ((task, regime), (method, label, moved)) in zip(axes, panels, strict=True):
        is_panel = (data["task"] == task) & (data["regime"] == regime) & (data["method"] == method)
        panel = data[is_panel & (data["moved"] == moved)]
        image = _contours(ax, panel[panel["part"] == "contour"], levels)
        title = style.panel_title(record, task, label, regime)
        weights = f"\n{'all' if moved == 'all' else 'tuned'} weights moved"
        is_random = record.settings["plane"] == "random"
        ax.set_title(title + (weights if is_random else ""), fontsize=7)
        if is_random:
            ax.plot(0, 0, marker="*", color="white", markeredgecolor="black", markersize=8)
        else:
            _trajectory(ax, panel[panel["part"] == "trajectory"])
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, aspect=35, ticks=levels[::2], format="%g")
    bar.set_label("training loss")
    points = record.settings["points"]
    record.notes.append(f"seed {seeds[0]} of {len(seeds)}" if len(seeds) > 1 else "one seed")
    record.notes.append(f"contours: {points} x {points} measured points")
    return figure


def principal_plane(snapshots: Sequence[Direction]) -> tuple[list[Direction], Floats, Floats]:
    """Return the plane through the last weights that explains most of the trajectory's variance.

    Returns:
        Two orthonormal directions, the snapshots' coordinates [snapshots, 2] with the last at the origin, and the fractions
        of the variance that the directions explain.
    """
    flat = torch.stack([torch.cat([weight.flatten() for weight in weights]) for weights in snapshots]).numpy()
    differences = flat - flat[-1]
    pca = PCA(2, svd_solver="full").fit(differences)
    shapes = [weight.shape for weight in snapshots[-1]]
    sizes = [shape.numel() for shape in shapes]
    directions = [
        [part.view(shape) for part, shape in zip(torch.from_numpy(component).split(sizes), shapes, strict=True)]
        for component in pca.components_
    ]
    coordinates: Floats = (differences @ pca.components_.T).astype(np.float64)
    return directions, coordinates, pca.explained_variance_ratio_.astype(np.float64)


def filter_normalized(weights: Sequence[Tensor], draws: torch.Generator) -> Direction:
    """Draw a random direction in which every filter (row of a matrix) has the norm of the weights' own filter; 0 for vectors.

    Biases and LayerNorms stay where they are, as in Li et al.: the loss is not invariant to their scale.
    """
    direction = []
    for weight in weights:
        drawn = torch.randn(weight.shape, generator=draws)
        if weight.dim() < 2:
            direction.append(torch.zeros_like(drawn))
            continue
        scale = weight.detach().cpu().flatten(1).norm(dim=1) / drawn.flatten(1).norm(dim=1)
        direction.append(drawn * scale.view(-1, *[1] * (weight.dim() - 1)))
    return direction


@torch.no_grad()
def surface(
    runner: ModelRunner,
    weights: Sequence[Tensor],
    directions: Sequence[Direction],
    axes: Sequence[Floats] | Floats,
    examples: list[Example],
) -> Iterator[tuple[float, float, float]]:
    """The mean loss at weights + x * first direction + y * second, for every x and y; leaves the weights as they were."""
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


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """The model's own parameters that train; of those of which only some entries do, the optimizer has copies."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _principal(request: FigureRequest, config: RunConfig, examples: list[Example]) -> Iterator[Row]:
    recorder = SnapshotRecorder(request.settings.snapshots)
    prepared = train(config, request.resources, recorder)
    directions, coordinates, explained = principal_plane(list(recorder.snapshots.values()))
    common = {"moved": "trained", "share_x": explained[0], "share_y": explained[1]}
    for step, (x, y) in zip(recorder.snapshots, coordinates.tolist(), strict=True):
        yield {**common, "part": "trajectory", "x": x, "y": y, "step": step, "loss": None}
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    margin = 0.25 * np.maximum(high - low, 1e-6)  # beyond the ends of the trajectory
    axes = np.linspace(low - margin, high + margin, request.settings.points).T
    for x, y, loss in surface(prepared.runner, _trained(prepared.encoder.model), directions, axes, examples):
        yield {**common, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}


def _random(request: FigureRequest, config: RunConfig, examples: list[Example]) -> Iterator[Row]:
    settings, prepared = request.settings, train(config, request.resources)
    model, method = prepared.encoder.model, prepared.method
    axis = np.linspace(-settings.reach, settings.reach, settings.points)
    trained = method.trainable_parameters(model)
    all_train = len(trained) == len(list(model.parameters()))
    for moved in ["all"] if all_train else ["trained", "all"]:
        if moved == "all" and not all_train:
            method.merge(prepared.encoder)
            trained = dict(model.named_parameters())
        weights, draws = list(trained.values()), torch.Generator().manual_seed(settings.seed)
        directions = [filter_normalized(weights, draws) for _ in range(2)]
        for x, y, loss in surface(prepared.runner, weights, directions, [axis, axis], examples):
            yield {"moved": moved, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}


def _contours(ax: Axes, points: style.Frame, levels: Floats) -> ContourSet:
    table = points.pivot(index="y", columns="x", values="loss")
    surface = table.columns, table.index, table
    filled = ax.contourf(*surface, levels=levels, cmap=style.COLOR_MAP, extend="max")
    ax.contour(*surface, levels=levels, colors="#202020", linewidths=0.3)
    names = "first random direction", "second random direction"
    if "share_x" in points:
        names = (
            f"first principal direction ({100 * points['share_x'].iloc[0]:.0f} %)",
            f"second direction ({100 * points['share_y'].iloc[0]:.0f} %)",
        )
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    return filled


def _trajectory(ax: Axes, points: style.Frame) -> None:
    ax.plot(points["x"], points["y"], color="white", linewidth=2.2)
    ax.plot(points["x"], points["y"], color="#D55E00", marker="o", markersize=2.5, linewidth=1.0)
    for place, marker, size in ((0, "s", 6), (-1, "*", 9)):
        point = points.iloc[place]
        ax.plot(point["x"], point["y"], marker, color="white", markeredgecolor="black", markersize=size)
