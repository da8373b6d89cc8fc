"""Loss contours and training trajectories (HiFi, figure 7), after Li et al. (NeurIPS 2018)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor, nn

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.instrumented_training import train
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.runs import head_selection
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.runs.prepared_run import PreparedRun
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.trainer import Callback, Trainer
from hifi_cli.tasks import losses
from hifi_cli.tasks.tokenization import Example

TRAINS = True  # models of its own
Floats = NDArray[np.float64]
Direction = list[Tensor]


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
        snapshots: finished steps and weights of each.
    """

    count: int
    snapshots: list[tuple[int, Direction]] = field(default_factory=list)
    _trained: list[nn.Parameter] = field(default_factory=list)
    _steps: frozenset[int] = frozenset()

    def on_train_begin(self, trainer: Trainer) -> None:
        if len(trainer.phase_ends) > 1:
            method = trainer.config.method
            raise UsageError(
                f"{method} trains in several phases; plane: pca needs one, plane: random (hifi-7-flatness) does not"
            )
        self._steps = frozenset(np.linspace(0, trainer.total_steps, self.count + 1).round().astype(int).tolist())
        self._trained = _trained(trainer.model)
        self._copy(0)

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.progress.step in self._steps:
            self._copy(trainer.progress.step)

    def _copy(self, step: int) -> None:
        self.snapshots.append((step, [parameter.detach().cpu().clone() for parameter in self._trained]))


def compute(request: FigureRequest) -> FigureTable:
    """Compute rows of each run: per grid point (`part` contour: x, y, loss); for `pca` per snapshot (trajectory: x, y, step).

    `moved` says which weights the plane moves: those the method trains, or all of the model's. `share_x` and `share_y` are
    what the two directions explain of the trajectory's variance.
    """
    rows: list[Row] = []
    for run in list(_runs(request)):  # all of them first: too few rows for a regime are an error before anything trains
        points = request.finished.rows(run.config, partial(_points, run, request))
        rows += [{**run.labels, **row} for row in points]
    return FigureTable(rows, [f"loss of up to {request.settings.examples} training examples, dropout off"])


@dataclass(frozen=True)
class _Run:
    labels: Row
    config: RunConfig
    examples: list[Example]  # on which the loss is measured


def _runs(request: FigureRequest) -> Iterator[_Run]:
    refuse_own_keys(request.overrides, ["shots"], "this figure")
    for task in request.spec.tasks:
        for shots in request.settings.shots:
            for method, seed in itertools.product(request.spec.methods, request.spec.seeds):
                few_shot = {"shots": shots, "epochs": request.settings.few_shot_epochs}
                config = request.config(task, method, seed, few_shot if shots else {})
                train_examples = load_splits(config, request.resources).train
                examples = head_selection.sample(train_examples, request.settings.examples, request.settings.seed)
                regime = f"{shots}-shot" if shots else "full-shot"
                labels = {"task": task, "regime": regime, "method": method, "label": label_of("methods", method), "seed": seed}
                yield _Run(labels, config, examples)


def _points(run: _Run, request: FigureRequest) -> Iterator[Row]:
    if request.settings.plane == "random":
        return _random(request.settings, train(run.config, request.resources), run.examples)
    recorder = SnapshotRecorder(request.settings.snapshots)
    prepared = train(run.config, request.resources, recorder)
    return _principal(request.settings, prepared, recorder.snapshots, run.examples)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """The model's own parameters that train; of those of which only some entries do, the optimizer has copies."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _principal(
    settings: Settings, prepared: PreparedRun, snapshots: list[tuple[int, Direction]], examples: list[Example]
) -> Iterator[Row]:
    runner, trained = prepared.runner, _trained(prepared.encoder.model)
    directions, coordinates, explained = principal_plane([weights for _, weights in snapshots])
    common = {"moved": "trained", "share_x": explained[0], "share_y": explained[1]}
    for (step, _), (x, y) in zip(snapshots, coordinates, strict=True):
        yield {**common, "part": "trajectory", "x": x, "y": y, "step": step, "loss": None}
    axes = [_axis(coordinates[:, axis], settings.points) for axis in (0, 1)]
    for x, y, loss in surface(runner, trained, directions, axes, examples):
        yield {**common, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}


def _random(settings: Settings, prepared: PreparedRun, examples: list[Example]) -> Iterator[Row]:
    runner, encoder, method = prepared.runner, prepared.encoder, prepared.method
    axis = np.linspace(-settings.reach, settings.reach, settings.points)
    trained = method.trainable_parameters(encoder.model)
    all_train = len(trained) == len(list(encoder.model.parameters()))
    planes = {"all": trained} if all_train else {"trained": trained, "all": {}}
    for moved, parameters in planes.items():
        if not parameters:
            method.merge(encoder)
            parameters = dict(encoder.model.named_parameters())
        weights = list(parameters.values())
        draws = torch.Generator().manual_seed(settings.seed)
        directions = [filter_normalized(weights, draws) for _ in range(2)]
        for x, y, loss in surface(runner, weights, directions, [axis, axis], examples):
            yield {"moved": moved, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}


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
    axes: Sequence[Floats],
    examples: list[Example],
) -> Iterator[tuple[float, float, float]]:
    """The mean loss at weights + x * first direction + y * second, for every x and y; leaves the weights as they were."""
    runner.model.eval()
    start = [weight.detach().clone() for weight in weights]
    first, second = (
        [part.to(weight.device) for part, weight in zip(direction, weights, strict=True)] for direction in directions
    )
    try:
        for x in axes[0]:
            for y in axes[1]:
                for weight, origin, along, across in zip(weights, start, first, second, strict=True):
                    weight.copy_(origin + float(x) * along + float(y) * across)
                yield float(x), float(y), mean_loss(runner, examples)
    finally:
        for weight, origin in zip(weights, start, strict=True):
            weight.copy_(origin)


def mean_loss(runner: ModelRunner, examples: list[Example]) -> float:
    """The task's mean loss."""
    size = runner.config.eval_batch_size
    batches = (examples[start : start + size] for start in range(0, len(examples), size))
    return sum(float(runner.loss(batch)) for batch in batches) / losses.count(runner.task, examples)


def _axis(coordinates: Floats, points: int) -> Floats:
    """From one end of the trajectory to the other, and a quarter of its length beyond."""
    low, high = float(coordinates.min()), float(coordinates.max())
    margin = 0.25 * max(high - low, 1e-6)
    return np.linspace(low - margin, high + margin, points)
