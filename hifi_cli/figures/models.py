"""What training does to a model: its features (EH-FT, figures 1, 4), its curves (5, 7) and its landscape (HiFi, figure 7)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, cast

import numpy as np
import torch
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pydantic import Field
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind, Row, train
from hifi_cli.grids.cells import GridCell, refuse_own_keys
from hifi_cli.heads import select as head_selection
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import MLPTaskHead, pool
from hifi_cli.results.record import StepMetrics
from hifi_cli.tasks import metrics
from hifi_cli.tasks.encode import (
    collate,
    evaluation_order,
    padding_values,
    rows_of,
    single_sequences,
)
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import ResourceCache, load_splits, reload, task_of
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.step import ModelRunner, loss_count

Floats = NDArray[np.float64]
Direction = list[Tensor]

# --- features that the task head reads


class Features(Kind):
    """Which models and examples are compared."""

    explanation = "the model of the reported epoch; mean over seeds, bars: their standard deviation"
    reads_runs = True
    examples: int = 1000
    """Highest number of training examples."""
    stages: bool = False
    """Whether the model after stage 1 is compared too; no run stores it, so it is trained again."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the L2 distance of the features of two models, a row per run and `pair`.

        Mean and standard deviation are over training examples; `epoch`, from 1, is that of the run's stored model.
        """
        pairs = (
            ["pretrained-stage1", "stage1-stage2", "pretrained-stage2"]
            if self.stages
            else ["pretrained-tuned"]
        )
        for cell, run in request.runs():
            examples = load_splits(cell.config, request.resources).train[: self.examples]
            states = self._features(request.resources, cell, single_sequences(examples))
            epoch = int(run["epochs" if run["report"] == "last" else "epoch_best"])
            keys = {
                "task": run["task"],
                "method": run["method"],
                "label": label_of("methods", run["method"]),
            }
            for pair in pairs:
                first, second = pair.split("-")
                distances = np.linalg.norm(states[second] - states[first], axis=1)
                numbers = {
                    "examples": len(distances),
                    "mean": distances.mean(),
                    "std": distances.std(),
                }
                yield {**keys, "seed": run["seed"], "epoch": epoch, "pair": pair, **numbers}

    def _features(
        self, resources: ResourceCache, cell: GridCell, examples: list[Example]
    ) -> dict[str, Floats]:
        """Return the features of the pretrained encoder, after stage 1 if needed, and of the run."""
        pretrained = resources.pretrained(cell.config)
        pad = padding_values(pretrained.tokenizer)
        states = {"pretrained": features(Encoder(pretrained.model), examples, pad)}
        if self.stages:
            states["stage1"] = features(
                train(cell.config, resources, only_stage1=True).encoder, examples, pad
            )
        prepared, _ = reload(resources.results_dir / cell.run_path, resources)
        states["tuned"] = states["stage2"] = features(prepared.encoder, examples, pad)
        return states

    def draw(self, data: style.Frame) -> Figure:
        """Draw a bar per method and pair with its number: mean over seeds of the mean distance."""
        panels = list(data.groupby("task", sort=False))
        count = data["method"].nunique() * (1 + 2 * self.stages)
        figure, axes = style.grid(len(panels), columns=2, height=0.8 + 0.24 * count)
        for ax, (task, panel) in zip(axes, panels, strict=True):
            table = panel.pivot_table("mean", "label", "pair", ["mean", "std"], sort=False).fillna(
                0
            )
            bars = {
                "width": 0.8,
                "edgecolor": "black",
                "linewidth": 0.6,
                "capsize": 2,
                "legend": self.stages,
            }
            colors = ["#dce6f0", "#6f9fc8", "#28527a"] if self.stages else "#6f9fc8"
            table["mean"].plot.barh(ax=ax, xerr=table["std"], color=colors, **bars)
            for bar in ax.containers:
                if isinstance(bar, BarContainer):  # not its error bar
                    ax.bar_label(bar, fmt="%.2f", padding=3, fontsize=7)
            title = label_of("tasks", task) if len(panels) > 1 else ""
            ax.set(title=title, xlabel="$L_2$ distance of the features", ylabel="")
            ax.invert_yaxis()
            ax.margins(x=0.15)
        return figure


class Tsne(Kind):
    """Which examples are shown, and how."""

    explanation = (
        "every head reads the pretrained backbone; training and development examples share one map, that of the first"
        " seed; numbers: means over seeds; silhouette: separation of the labels in all hidden dimensions, from -1 to 1;"
        " 0 is no separation"
    )
    examples: int = 300
    """Highest number of examples of each split."""
    perplexity: float = 30.0
    """Perplexity of t-SNE, lowered to what the number of examples allows."""
    seed: int = 0
    """Seed of t-SNE."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return a map for every task, head and seed: a row per example, with score and silhouette.

        Every head reads the pretrained backbone, as at the start of full fine-tuning. Both splits share one map.

        Raises:
            UsageError: the task has no classes, or its task head no hidden layer.
        """
        for task, method, seed in product(
            request.spec.tasks, request.spec.methods, request.spec.seeds
        ):
            yield from self._map(request.config(task, method, seed), request.resources)

    def _map(self, config: RunConfig, resources: ResourceCache) -> Iterator[Row]:
        task, splits = task_of(config), load_splits(config, resources)
        if task.kind != "classification" or config.task_head.kind != "mlp":
            raise UsageError(
                f"{task.label}: this figure requires a task with classes and task_head.kind=mlp"
            )
        train_part, dev_part = splits.train[: self.examples], splits.reported[: self.examples]
        pretrained = resources.pretrained(config)
        states = features(
            Encoder(pretrained.model),
            [*train_part, *dev_part],
            padding_values(pretrained.tokenizer),
        )
        hidden, logits = hidden_features(task_head(config, resources), states)
        perplexity = min(self.perplexity, (len(hidden) - 1) / 3)
        points = (
            TSNE(perplexity=perplexity, random_state=self.seed, init="pca")
            .fit_transform(hidden)
            .tolist()
        )
        head = label_of("methods", config.stage1.method) if config.stage1 else "Random"
        size = len(train_part)
        for split, part, own in (
            ("train", train_part, slice(size)),
            ("dev", dev_part, slice(size, None)),
        ):
            labels = [example.row.label for example in part if isinstance(example.row.label, int)]
            scores = metrics.compute(
                task, rows_of(part), metrics.predictions_of(task, part, logits[own])
            )
            silhouette = (
                float(silhouette_score(hidden[own], labels)) if len({*labels}) > 1 else None
            )
            keys = {
                "task": config.task,
                "method": config.method,
                "head": head,
                "seed": config.seed,
                "split": split,
            }
            numbers = {
                "score": scores[task.primary],
                "metric": task.primary,
                "silhouette": silhouette,
            }
            for (x, y), label in zip(points[own], labels, strict=True):
                yield {**keys, "x": x, "y": y, "label": task.labels[label], **numbers}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a column per task head, training examples above, development examples below."""
        keys = ["task", "split", "head"]
        means = data.drop_duplicates([*keys, "seed"]).groupby(keys)[["score", "silhouette"]].mean()
        maps = data[data["seed"] == data["seed"].iloc[0]]
        panels = list(maps.groupby(keys, sort=False))
        panels.sort(key=lambda panel: panel[0][1] == "dev")  # after all training examples
        figure, axes = style.grid(
            len(panels), columns=data["head"].nunique(), height=2.0, sharex="col", sharey="col"
        )
        for ax, (names, panel) in zip(axes, panels, strict=True):
            for label, points in panel.groupby("label"):
                ax.plot(
                    points["x"],
                    points["y"],
                    label=label,
                    linestyle="",
                    alpha=0.75,
                    markeredgewidth=0,
                )
            score, silhouette = means.loc[names]
            numbers = f"{panel['metric'].iloc[0]} {100 * score:.0f} %, silhouette {silhouette:.2f}"
            ax.set_title(f"{names[2]} head, {names[1]}\n{numbers}", fontsize=7)
            ax.set(xticks=[], yticks=[])
        style.shared_legend(figure, axes)
        return figure


@torch.inference_mode()
def features(encoder: Encoder, examples: list[Example], pad: dict[str, int]) -> Floats:
    """Return the last hidden state that the task head reads, without dropout: [examples, hidden size]."""
    encoder.model.eval()
    states = np.zeros((len(examples), encoder.hidden_size))
    for indices in evaluation_order(examples, batch_size=64):
        batch = collate([examples[index] for index in indices], pad)
        inputs = {name: values.to(encoder.device) for name, values in batch.items()}
        hidden = encoder.base(**inputs).last_hidden_state
        pooled = pool(hidden, inputs["attention_mask"]) if encoder.is_causal else hidden[:, 0]
        states[indices] = pooled.double().cpu().numpy()
    return states


def task_head(config: RunConfig, resources: ResourceCache) -> MLPTaskHead:
    """Return the task head as stage 1 leaves it, or else a new one."""
    encoder = (
        train(config, resources, only_stage1=True).encoder
        if config.stage1
        else resources.encoder(config)[0]
    )
    return cast(MLPTaskHead, encoder.model.get_submodule("task_head").cpu())


@torch.inference_mode()
def hidden_features(head: MLPTaskHead, states: Floats) -> tuple[Floats, Floats]:
    """Return the inputs of the task head's last layer, [examples, head width], and the logits."""
    hidden = head.activation(head.hidden(torch.from_numpy(states).float()))
    return hidden.double().numpy(), head.output(hidden).double().numpy()


# --- curves of training

_TITLES = {
    "distance": r"distance from pretrained, $\|\theta_f - \theta_f^*\|_2$",
    "loss": "training loss",
    "head_gradient": "gradient norm, head",
    "backbone_gradient": "gradient norm, backbone",
}


@dataclass
class TrajectoryRecorder(Callback):
    """Records the distance from the pretrained weights and gradient norms of one training run.

    Attributes:
        pretrained: the backbone's weights before training. Those that a stage keeps under another name, inside modules of a
            method, do not count.
        every: steps of a stage between two records, besides its first and last.
        rows: the records.
    """

    pretrained: dict[str, Tensor]
    every: int
    rows: list[Row] = field(default_factory=list)
    _gradients: Row = field(default_factory=dict)

    def on_backward_end(self, trainer: Trainer) -> None:
        gradients = {
            name: value.grad
            for name, value in trainer.model.named_parameters()
            if value.grad is not None
        }
        of_head = [gradients.pop(name) for name in trainer.encoder.task_head if name in gradients]
        self._gradients = {
            "head_gradient": norm(of_head),
            "backbone_gradient": norm(gradients.values()),
        }

    def on_step_end(self, trainer: Trainer) -> None:
        step, stage = trainer.progress.step, trainer.progress.phase + 1
        stage_step = step - (trainer.phase_ends[stage - 2] if stage > 1 else 0)
        if stage_step == 1 or stage_step % self.every == 0 or step in trainer.phase_ends:
            trainer.phase.method.before_evaluation(trainer.model)
            weights = dict(trainer.model.named_parameters())
            distance = norm(
                weights[name] - value.to(weights[name].device)
                for name, value in self.pretrained.items()
                if name in weights
            )
            place = {"stage": stage, "step": step, "stage_step": stage_step}
            self.rows.append({**place, "distance": distance, **self._gradients})


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

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Train, and return a row per measured step; `stage_step` counts within the stage."""
        if self.stage1_fractions:
            refuse_own_keys(request.overrides, ["settings.stage1_fraction"], "this figure")
        for task, method in product(request.spec.tasks, request.spec.methods):
            varies = self.stage1_fractions and request.config(task, method).stage1
            fractions = [
                {"settings.stage1_fraction": fraction} for fraction in self.stage1_fractions
            ]
            for keys, seed in product(fractions if varies else [{}], request.spec.seeds):
                config = request.config(task, method, seed, {"log_every": 1, **keys})
                labels = {
                    "task": task,
                    "method": method,
                    "label": label_of("methods", method),
                    "seed": seed,
                }
                for row in self._record(config, request.resources):
                    yield {**labels, **row}

    def _record(self, config: RunConfig, resources: ResourceCache) -> Iterator[Row]:
        encoder = Encoder(resources.pretrained(config).model)
        head = encoder.task_head
        pretrained = {
            name: value.detach()
            for name, value in encoder.model.named_parameters()
            if name not in head
        }
        recorder = TrajectoryRecorder(pretrained, self.every)
        trainer = train(config, resources, recorder)
        losses = {
            line.step: line.loss
            for line in trainer.progress.log_history
            if isinstance(line, StepMetrics)
        }
        fraction = getattr(trainer.method.settings, "stage1_fraction", 0.0)
        for row in recorder.rows:
            yield {"stage1_fraction": fraction, **row, "loss": losses[row["step"]]}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and curve, over the stage that fine-tunes the whole model."""
        last = data.groupby(["method", "stage1_fraction"])["stage"].transform("max")
        data = data[data["stage"] == last]
        if data.groupby("method")["stage1_fraction"].nunique().max() > 1:
            fractions = [
                f", {100 * fraction:g} % stage 1" if fraction else ""
                for fraction in data["stage1_fraction"]
            ]
            data = data.assign(label=data["label"] + fractions)
        means = data.groupby(["task", "label", "stage_step"], sort=False)[self.curves].mean()
        smooth = (
            means.groupby(["task", "label"], sort=False, group_keys=False)
            .apply(_running_mean)
            .reset_index()
        )
        long = smooth.melt(["task", "label", "stage_step"], self.curves, var_name="curve")
        long = long.assign(panel=style.panels(long, long["curve"].map(_TITLES)))
        labels, columns = ("iterations of full fine-tuning", ""), max(2, len(self.curves))
        figure, axes = style.line_panels(
            long, "stage_step", "value", by="label", labels=labels, columns=columns
        )
        for title, ax in axes.items():
            ax.set_yscale("log" if "gradient" in title else "linear")
        return figure


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of several tensors together."""
    return float(get_total_norm([tensor.detach() for tensor in tensors]))


def _running_mean(curves: style.Frame) -> style.Frame:
    return curves.rolling(max(1, len(curves) // 20), min_periods=1).mean()


# --- landscape of the loss


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
            self.snapshots[step] = [
                parameter.detach().cpu().clone() for parameter in trained(trainer.model)
            ]


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
    examples: int = 64
    """Highest number of training examples on which the loss is measured."""
    snapshots: int = 20
    """Number of snapshots of the weights during training."""
    seed: int = 0
    """Seed that draws the random directions and the examples."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the loss at each grid point (`part` contour), and for `pca` the trajectory.

        `moved` says which weights the plane moves: those the method trains (`pca`), or all.
        `share_x` and `share_y` are what the directions explain of the trajectory's variance.
        """
        refuse_own_keys(request.overrides, ["shots"], "this figure")
        spec, resources = request.spec, request.resources
        for task, shots, method, seed in product(spec.tasks, self.shots, spec.methods, spec.seeds):
            few_shot = {"shots": shots, "epochs": self.few_shot_epochs} if shots else {}
            config = request.config(task, method, seed, few_shot)
            sample = head_selection.sample(
                load_splits(config, resources).train, self.examples, self.seed
            )
            regime = f"{shots}-shot" if shots else "full-shot"
            labels = {
                "task": task,
                "regime": regime,
                "method": method,
                "label": label_of("methods", method),
                "seed": seed,
            }
            for row in (self._principal if self.plane == "pca" else self._random)(
                config, resources, sample
            ):
                yield {**labels, **row}

    def _principal(
        self, config: RunConfig, resources: ResourceCache, examples: list[Example]
    ) -> Iterator[Row]:
        recorder = SnapshotRecorder(self.snapshots)
        trainer = train(config, resources, recorder)
        directions, coordinates, explained = principal_plane(list(recorder.snapshots.values()))
        common = {"moved": "trained", "share_x": explained[0], "share_y": explained[1]}
        for step, (x, y) in zip(recorder.snapshots, coordinates.tolist(), strict=True):
            yield {**common, "part": "trajectory", "x": x, "y": y, "step": step, "loss": None}
        low, high = coordinates.min(axis=0), coordinates.max(axis=0)
        margin = 0.25 * np.maximum(high - low, 1e-6)  # beyond the ends of the trajectory
        axes = np.linspace(low - margin, high + margin, self.points).T
        for x, y, loss in surface(
            trainer.runner, trained(trainer.model), directions, axes, examples
        ):
            yield {**common, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}

    def _random(
        self, config: RunConfig, resources: ResourceCache, examples: list[Example]
    ) -> Iterator[Row]:
        trainer = train(config, resources)
        trainer.method.merge(trainer.encoder)
        weights, draws = list(trainer.model.parameters()), torch.Generator().manual_seed(self.seed)
        directions = [filter_normalized(weights, draws) for _ in range(2)]
        axis = np.linspace(-1, 1, self.points)  # 1 moves every filter by its own norm
        for x, y, loss in surface(trainer.runner, weights, directions, [axis, axis], examples):
            yield {"moved": "all", "part": "contour", "x": x, "y": y, "step": None, "loss": loss}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per regime and method: contours of the loss in one scale, and the trajectory."""
        data = data[data["seed"] == data["seed"].iloc[0]]
        panels = list(
            data.groupby(style.panels(data, data["label"] + ", " + data["regime"]), sort=False)
        )
        figure, axes = style.grid(len(panels), columns=data["label"].nunique(), height=2.3)
        losses = data[data["part"] == "contour"]["loss"]
        low, high = float(losses.min()), float(np.quantile(losses, 0.98))
        levels = MaxNLocator(16, steps=[1, 2, 5, 10]).tick_values(
            low, max(high, low + 1e-6)
        )  # round numbers
        for ax, (title, panel) in zip(axes, panels, strict=True):
            contour, trajectory = (
                panel[panel["part"] == part] for part in ("contour", "trajectory")
            )
            table = contour.pivot(index="y", columns="x", values="loss")
            image = ax.contourf(table.columns, table.index, table, levels=levels, extend="max")
            ax.contour(
                table.columns, table.index, table, levels=levels, colors="#202020", linewidths=0.3
            )
            ax.plot(
                trajectory["x"], trajectory["y"], "o-", color="#D55E00", markeredgecolor="white"
            )
            ax.plot(0, 0, "*", color="white", markeredgecolor="black", markersize=9)
            ax.set_title(title, fontsize=7)
            directions = "principal" if self.plane == "pca" else "random"
            style.label_outer(ax, f"first {directions} direction", f"second {directions} direction")
        bar = figure.colorbar(
            image, ax=axes, fraction=0.03, pad=0.02, aspect=35, ticks=levels[::2], format="%g"
        )
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
    flat = torch.stack([nn.utils.parameters_to_vector(weights) for weights in snapshots]).numpy()
    differences = flat - flat[-1]
    pca = PCA(2, svd_solver="full").fit(differences)
    sizes = [weight.numel() for weight in snapshots[-1]]
    directions = [
        [
            part.view(weight.shape)
            for part, weight in zip(component.split(sizes), snapshots[-1], strict=True)
        ]
        for component in torch.from_numpy(pca.components_)
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
    size, count = runner.config.eval_batch_size, loss_count(runner.task, examples)
    batches = [examples[start : start + size] for start in range(0, len(examples), size)]
    origins = [weight.detach().clone() for weight in weights]
    for x, y in product(*(axis.tolist() for axis in axes)):
        for weight, origin, along, across in zip(weights, origins, *directions, strict=True):
            weight.copy_(origin + x * along.to(weight.device) + y * across.to(weight.device))
        yield x, y, sum(float(runner.loss(batch)) for batch in batches) / count
    for weight, origin in zip(weights, origins, strict=True):
        weight.copy_(origin)
