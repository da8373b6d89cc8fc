"""Effects of training on a model: features (EH-FT, figures 1, 4), curves (5, 7), landscape (HiFi, 7).

The numbers of a figure are rows of a CSV; each class's `rows` says which columns they have.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.nn.utils import get_total_norm, parameters_to_vector, vector_to_parameters

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.drawing import style
from hifi_cli.errors import UsageError
from hifi_cli.figures.figure import FigureRequest, Kind, Row, train
from hifi_cli.grids.cells import GridCell, refuse_own_keys
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import last_token_states
from hifi_cli.records.record import StepMetrics
from hifi_cli.runs.heads import sample
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.splits import load_splits
from hifi_cli.tasks.encode import collate, single_sequences
from hifi_cli.tasks.kinds import Classification
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.batches import batches_by_length, in_order
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.losses import loss_normalizer
from hifi_cli.training.runner import ModelRunner

Floats = NDArray[np.float64]

# --- features that the task head reads


class Features(Kind):
    """The distance between the features of the pretrained encoder and of trained ones."""

    examples: int = 1000
    """Highest number of training examples."""
    stages: bool = False
    """Whether the model after stage 1 is compared too; no run stores it, so it is trained again."""

    def cells(self, request: FigureRequest) -> list[GridCell]:
        """Give the run of every task, method and seed."""
        return request.cells(request.spec.tasks, request.spec.methods, {})

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the L2 distance of the features of two models, a row per run and `pair`.

        Mean and standard deviation are over training examples; `epoch`, from 1, is the run's kept
        epoch. Columns: task, method, label, seed, epoch, pair, examples, mean, std.
        """
        for cell, run in request.runs().items():
            states = self._states(cell.config, request)
            for first, second in combinations(states, 2):
                # The distance of each example, over the hidden dimensions.
                distances = np.linalg.norm(states[second] - states[first], axis=1)
                yield {
                    "task": cell.config.task,
                    "method": cell.config.method,
                    "label": label_of("methods", cell.config.method),
                    "seed": run.seed,
                    "epoch": run.epoch(run.kept),
                    "pair": f"{first}-{second}",
                    "examples": len(distances),
                    "mean": distances.mean(),
                    "std": distances.std(),
                }

    def _states(self, config: RunConfig, request: FigureRequest) -> dict[str, Floats]:
        """Compute the features of the same examples by each model of a run, [examples, hidden size].

        The models are in the order in which training passes them.
        """
        workspace = request.workspace
        prepared, _ = workspace.open(workspace.directory(config).path)
        encoders = {"pretrained": prepared.pretrained.encoder}
        if self.stages:
            encoders["stage1"] = train(config, request, until_last_stage=True).encoder
            encoders["stage2"] = prepared.encoder
        else:
            encoders["tuned"] = prepared.encoder
        splits = load_splits(workspace.inputs(config, load_task(config)))
        examples = single_sequences(splits.train[: self.examples])
        states = {}
        for name, encoder in encoders.items():
            states[name] = features(encoder, examples, prepared.pad)
        return states

    def explanation(self, data: style.Frame) -> str:
        """Say which models are compared, and what bars and error bars are."""
        models = "Models of the kept epoch."
        if self.stages:
            models = (
                "stage1: the model after stage 1, trained again for this figure; stage2: the model"
                " of the kept epoch."
            )
        seeds = data.groupby(["task", "method", "pair"])["seed"].nunique()
        return f"{models} {style.over_seeds(seeds, 'error bars')}."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a bar per method and pair with its number: mean over seeds of the mean distance."""
        count = data["method"].nunique()
        colors: str | list[str] = "#6f9fc8"
        if self.stages:
            # A bar for each pair of three models.
            count *= 3
            colors = ["#dce6f0", "#28527a", "#6f9fc8"]
        figure, panels = style.facets(data, style.panels(data), height=0.8 + 0.24 * count)
        for ax, rows in panels:
            over_seeds = rows.groupby(["label", "pair"], sort=False)["mean"].agg(["mean", "std"])
            # One seed has no deviation. A row per method, and in it a bar per pair.
            bars = over_seeds.fillna(0).unstack()
            bars["mean"].plot.barh(
                ax=ax,
                xerr=bars["std"],
                color=colors,
                width=0.8,
                edgecolor="black",
                linewidth=0.6,
                capsize=2,
                legend=False,
            )
            for bar in ax.containers:
                # The other containers are error bars.
                if isinstance(bar, BarContainer):
                    ax.bar_label(bar, fmt="%.2f", padding=3, fontsize=7)
            ax.set(xlabel="$L_2$ distance of the features", ylabel="")
            # matplotlib counts rows from the bottom.
            ax.invert_yaxis()
            # The numbers beside the longest bars need room.
            ax.margins(x=0.15)
        if self.stages:
            style.shared_legend(figure)
        return figure


class Tsne(Kind):
    """A map of the examples as task heads see them before full fine-tuning."""

    examples: int = 300
    """Highest number of examples of each split."""
    perplexity: float = 30.0
    """Perplexity of t-SNE, lowered to what the number of examples allows."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield score and silhouette for every task, head, seed and split.

        Every head reads the pretrained backbone, as at the start of full fine-tuning. The first
        seed has a row per example, with its place in the map that both splits share. Columns: task,
        method, head, seed, split, score, metric, silhouette, and of the first seed x, y, label.

        Raises:
            UsageError: the task has no classes, or its task head no hidden layer.
        """
        for names in product(request.spec.tasks, request.spec.methods, request.spec.seeds):
            config = request.config(*names)
            yield from request.part(config, partial(self._map, config, request))

    def _map(self, config: RunConfig, request: FigureRequest) -> Iterator[Row]:
        """Train one head, and yield its rows: one per split, or of the first seed one per example."""
        task = load_task(config)
        if not isinstance(task.rules, Classification) or config.task_head.kind != "mlp":
            raise UsageError(
                f"{task.label}: this figure requires a task with classes and task_head.kind=mlp"
            )
        splits = load_splits(request.workspace.inputs(config, task))
        trainer = train(config, request, until_last_stage=True)
        # The model is brought to where it is before full fine-tuning.
        trainer.method_stages[-1].prepare_model(trainer.encoder)
        parts = {"train": splits.train[: self.examples], "dev": splits.reported[: self.examples]}
        scores = {split: trainer.runner.measure(part)[0] for split, part in parts.items()}
        # Without its output layer the head gives what this layer reads.
        trainer.model.set_submodule("task_head.output", nn.Identity())
        hidden = {split: trainer.runner.predict(part) for split, part in parts.items()}
        places: dict[str, Floats] = {}
        if config.seed == request.spec.seeds[0]:
            places = self._places(hidden["train"], hidden["dev"])
        head = "Random"
        if config.stage1:
            head = label_of("methods", config.stage1.method)
        for split, part in parts.items():
            labels = task.rules.targets(part)
            measured = {
                "task": config.task,
                "method": config.method,
                "head": head,
                "seed": config.seed,
                "split": split,
                "score": scores[split][task.primary],
                "metric": task.primary,
                "silhouette": _silhouette(hidden[split], labels),
            }
            if not places:
                yield measured
                continue
            for label, (x, y) in zip(labels, places[split], strict=True):
                yield {**measured, "x": x, "y": y, "label": task.labels[label]}

    def _places(self, train: Floats, dev: Floats) -> dict[str, Floats]:
        """Place the examples of both splits in one map; each gets its [examples, 2]."""
        both = np.concatenate([train, dev])
        # t-SNE refuses a perplexity that few examples cannot have.
        perplexity = min(self.perplexity, (len(both) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, random_state=0, init="pca")
        of_train, of_dev = np.split(tsne.fit_transform(both), [len(train)])
        return {"train": of_train, "dev": of_dev}

    def explanation(self, data: style.Frame) -> str:
        """Say what the heads read, which seed is mapped, and what the numbers are."""
        seeds = "Training and development examples share one map."
        if data["seed"].nunique() > 1:
            seeds = (
                "Training and development examples share one map, that of the first seed; the"
                " numbers are means over seeds."
            )
        return (
            f"Every head reads the pretrained backbone. {seeds} Silhouette: separation of the labels"
            " in all hidden dimensions, from -1 to 1; 0 is no separation."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a column per task head, training examples above, development examples below."""
        panel = ["task", "split", "head"]
        runs = data.drop_duplicates([*panel, "seed"])
        means = runs.groupby(panel)[["score", "silhouette"]].mean()
        data = data[data["x"].notna()].join(means.add_suffix("_mean"), on=panel)
        # The train examples are above the development examples.
        data = data.sort_values("split", ascending=False, kind="stable")
        # A category has one colour in every panel.
        data = data.astype({"label": "category"})
        titles = [
            f"{row.head} head, {row.split}\n"
            f"{row.metric} {100 * row.score_mean:.0f} %, silhouette {row.silhouette_mean:.2f}"
            for row in data.itertuples()
        ]
        figure, panels = style.facets(
            data,
            style.panels(data, titles),
            columns=data["head"].nunique(),
            height=2.0,
            sharex="col",
            sharey="col",
        )
        for ax, rows in panels:
            for label, points in rows.groupby("label", observed=False):
                ax.plot(points["x"], points["y"], ls="", label=label, alpha=0.75, mew=0)
            ax.set_title(ax.get_title(), fontsize=7)
            ax.set(xticks=[], yticks=[])
        style.shared_legend(figure)
        return figure


def _silhouette(hidden: Floats, labels: Sequence[int]) -> float | None:
    """Compute how separate the labels are; None where there is one label, or one for each example."""
    number_of_labels = len(set(labels))
    if not 1 < number_of_labels < len(labels):
        return None
    return float(silhouette_score(hidden, labels))


@torch.inference_mode()
def features(encoder: Encoder, examples: list[EncodedExample], pad: dict[str, int]) -> Floats:
    """Compute the last hidden state that the task head reads, without dropout.

    Args:
        encoder: is left in evaluation mode.
        examples: single sequences.
        pad: the padding value of each of the tokenizer's lists.

    Returns:
        [examples, hidden size].
    """
    encoder.model.eval()
    batches = batches_by_length(examples, size=64)
    states: list[Floats] = []
    for batch in batches:
        padded = collate(batch.examples, pad)
        inputs = {name: values.to(encoder.device) for name, values in padded.items()}
        hidden = encoder.base(**inputs).last_hidden_state
        read_by_head = hidden[:, 0]
        if encoder.is_causal:
            read_by_head = last_token_states(hidden, inputs["attention_mask"])
        states.append(read_by_head.double().cpu().numpy())
    return np.stack(in_order(batches, states))


# --- curves of training

# The setting of two-stage methods that says how many of all steps stage 1 has.
_STAGE1_FRACTION = "settings.stage1_fraction"
# The titles of the panels, by column.
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
        pretrained: the model before training.
        every: steps of a stage between two records, besides its first and last.
        rows: the records.
    """

    pretrained: nn.Module
    every: int
    rows: list[Row] = field(default_factory=list)
    _gradients: Row = field(default_factory=dict)

    def on_backward_end(self, trainer: Trainer) -> None:
        task_head = trainer.encoder.task_head
        parameters = dict(trainer.model.named_parameters())
        # Methods that train single entries have taken the gradient out of the model.
        for name, value in trainer.stage.method.trainable_parameters(trainer.model).items():
            if name not in parameters or parameters[name].grad is None:
                parameters[name] = value
        of_head: list[Tensor] = []
        of_backbone: list[Tensor] = []
        for name, value in parameters.items():
            if value.grad is not None:
                gradients = of_head if name in task_head else of_backbone
                gradients.append(value.grad)
        self._gradients = {
            "head_gradient": norm(of_head),
            "backbone_gradient": norm(of_backbone),
        }

    def on_step_end(self, trainer: Trainer) -> None:
        steps = trainer.stage.steps
        # `progress.step` counts the finished steps of all stages; the first one of a stage is 1.
        stage_step = trainer.progress.step - steps.start
        if stage_step not in (1, len(steps)) and stage_step % self.every != 0:
            return
        # Some methods bring their weights into the model before an evaluation alone.
        trainer.stage.method.before_evaluation(trainer.model)
        self.rows.append(
            {
                "stage": trainer.progress.stage_index + 1,
                "step": trainer.progress.step,
                "stage_step": stage_step,
                "distance": self._distance(trainer),
                **self._gradients,
            }
        )

    def _distance(self, trainer: Trainer) -> float:
        """Compute the Euclidean distance of the backbone's weights from the pretrained ones.

        Weights that have no place in the pretrained model, such as an adapter's, do not count.
        """
        task_head = trainer.encoder.task_head
        weights = dict(self._plain_model(trainer).named_parameters())
        moved = []
        for name, value in self.pretrained.named_parameters():
            if name in weights and name not in task_head:
                moved.append(weights[name] - value.to(weights[name].device))
        return norm(moved)

    def _plain_model(self, trainer: Trainer) -> nn.Module:
        """Return the model with the weights of the method's modules merged into the backbone's."""
        names = {name for name, _ in trainer.model.named_parameters()}
        has_modules = any(name not in names for name, _ in self.pretrained.named_parameters())
        method = trainer.stage.method
        if not has_modules or not method.mergeable:
            return trainer.model
        # The training goes on with the modules, so a copy is merged. It takes memory, and is made only
        # where the method has such modules.
        encoder = copy.deepcopy(trainer.encoder)
        method.merge(encoder)
        return encoder.model


class TrainingCurves(Kind):
    """Curves of trainings with several methods."""

    stage1_fractions: list[float] = []
    """Fractions of the steps for stage 1 of two-stage methods; empty: as configured."""
    every: int = 1
    """Steps of a stage between two measurements, besides its first and last step."""
    curves: list[Literal["distance", "loss", "head_gradient", "backbone_gradient"]] = [
        "loss",
        "head_gradient",
        "backbone_gradient",
    ]
    """Curves that the picture shows; the CSV holds all."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Train, and yield a row per measured step; `stage_step` counts within the stage.

        Columns: task, method, label, seed, stage1_fraction, stage, step, stage_step, distance,
        head_gradient, backbone_gradient, loss.
        """
        spec = request.spec
        own_keys = ["log_every"]
        if self.stage1_fractions:
            own_keys.append(_STAGE1_FRACTION)
        refuse_own_keys(request.overrides, own_keys, "this figure")
        for task, method in product(spec.tasks, spec.methods):
            settings: list[dict[str, Any]] = [{}]
            if self.stage1_fractions and request.config(task, method).stage1:
                settings = [{_STAGE1_FRACTION: fraction} for fraction in self.stage1_fractions]
            for setting, seed in product(settings, spec.seeds):
                # The loss of every step is in the log, and the measured steps are among them.
                config = request.config(task, method, seed, log_every=1, **setting)
                yield from request.part(config, partial(self._curves, config, request))

    def _curves(self, config: RunConfig, request: FigureRequest) -> Iterator[Row]:
        """Train one run, and yield its rows."""
        pretrained = request.workspace.pretrained(config, load_task(config)).model
        recorder = TrajectoryRecorder(pretrained, self.every)
        trainer = train(config, request, recorder)
        losses = {
            line.step: line.loss
            for line in trainer.progress.log_history
            if isinstance(line, StepMetrics)
        }
        for row in recorder.rows:
            yield {
                "task": config.task,
                "method": config.method,
                "label": label_of("methods", config.method),
                "seed": config.seed,
                "stage1_fraction": getattr(trainer.method.settings, "stage1_fraction", 0.0),
                **row,
                "loss": losses[row["step"]],
            }

    def explanation(self, data: style.Frame) -> str:
        """Say what is averaged, and which part of a training with several stages is shown."""
        data = _last_stages(data)
        lines = data.groupby(["task", "label"])
        words = style.over_seeds(lines["seed"].nunique())
        if lines["stage_step"].nunique().map(_window).max() > 1:
            words += ", running mean over 5 % of the iterations"
        sentences = [f"{words}."]
        if any("gradient" in curve for curve in self.curves):
            sentences.append("Gradients are those before clipping.")
        later = data[data["stage"] > 1]
        # Stage 1 of these trains a task head, which stage 2 takes to the pretrained backbone.
        starts_anew = later["stage1_fraction"] > 0
        two_stages = _labels(later["method"][starts_anew])
        if two_stages:
            sentences.append(f"{two_stages}: stage 2, which starts from the pretrained backbone.")
        others = _labels(later["method"][~starts_anew])
        if others:
            sentences.append(f"{others}: the last stage.")
        return " ".join(sentences)

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and curve, over the last stage of each method."""
        data = _last_stages(data)
        by_step = data.groupby(["task", "method", "label", "stage_step"], sort=False)
        means = by_step[self.curves].mean()
        curves = means.groupby(["task", "method", "label"], sort=False, group_keys=False)
        smooth = curves.apply(
            lambda curve: curve.rolling(_window(len(curve)), min_periods=1).mean()
        )
        long = smooth.melt(var_name="curve", ignore_index=False).reset_index()
        long = long.assign(panel=style.panels(long, long["curve"].map(_TITLES)))
        figure = style.line_panels(
            long,
            "stage_step",
            "value",
            by="label",
            labels=("iterations", ""),
            columns=max(2, len(self.curves)),
        )
        for ax in figure.axes:
            # Norms of gradients differ by orders of magnitude.
            if "gradient" in ax.get_title():
                ax.set_yscale("log")
        return figure


def _last_stages(data: style.Frame) -> style.Frame:
    """Give the rows of each method's last stage, with the fraction of stage 1 in its `label`."""
    last = data.groupby(["method", "stage1_fraction"])["stage"].transform("max")
    data = data[data["stage"] == last]
    fractions = data["stage1_fraction"].map(lambda part: f", {100 * part:g} % stage 1")
    return data.assign(label=data["label"] + fractions.where(data["stage1_fraction"] > 0, ""))


def _window(points: int) -> int:
    """Return over how many points of a curve its running mean is: 5 % of the iterations."""
    return max(1, points // 20)


def _labels(methods: Iterable[str]) -> str:
    """Return the labels of methods, each once."""
    return ", ".join(dict.fromkeys(label_of("methods", method) for method in methods))


def norm(tensors: Iterable[Tensor]) -> float:
    """Compute the Euclidean norm of several tensors together."""
    return float(get_total_norm([tensor.detach() for tensor in tensors]))


# --- landscape of the loss


@dataclass
class SnapshotRecorder(Callback):
    """Copies the trained weights at even distances, the first and the last ones included.

    Attributes:
        count: snapshots after the one before the first step.
        snapshots: weights by finished steps, as one vector.
    """

    count: int
    snapshots: dict[int, Tensor] = field(default_factory=dict)

    def on_train_begin(self, trainer: Trainer) -> None:
        if len(trainer.method_stages) > 1:
            raise UsageError(
                f"{trainer.config.method} trains in several stages; this figure is for one trajectory"
            )
        self.on_step_end(trainer)

    def on_step_end(self, trainer: Trainer) -> None:
        step = trainer.progress.step
        # The steps of a run need not be a multiple of the snapshots: the nearest ones are taken.
        steps_of_snapshots = np.linspace(0, trainer.plan.total, self.count + 1).round()
        if step in steps_of_snapshots:
            self.snapshots[step] = parameters_to_vector(trained(trainer.model)).detach().cpu()


class Landscape(Kind):
    """The loss on a plane through the trained weights, and the way that training took there."""

    shots: list[int | None] = [None, 16]
    """Rows per class of each regime; null: the full training set."""
    few_shot_epochs: int = 50
    """Epochs of few-shot runs, in which an epoch is one step."""
    points: int = 21
    """Grid points in each direction."""
    examples: int = 64
    """Highest number of training examples on which the loss is measured."""
    snapshots: int = 20
    """Number of snapshots of the weights during training."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the loss at each grid point (`part` contour), and the trajectory.

        The plane moves the weights that the method trains. `share_x` and `share_y` are what its
        directions explain of the trajectory's variance. Columns: task, regime, method, label, seed,
        share_x, share_y, part, x, y, step, loss.
        """
        refuse_own_keys(request.overrides, ["shots"], "this figure")
        spec = request.spec
        for task, shots, method, seed in product(spec.tasks, self.shots, spec.methods, spec.seeds):
            keys: dict[str, Any] = {"shots": shots}
            if shots:
                keys["epochs"] = self.few_shot_epochs
            config = request.config(task, method, seed, **keys)
            yield from request.part(config, partial(self._landscape, config, request))

    def _landscape(self, config: RunConfig, request: FigureRequest) -> Iterator[Row]:
        """Train one run, and yield its trajectory and the loss around it."""
        recorder = SnapshotRecorder(self.snapshots)
        trainer = train(config, request, recorder)
        directions, places, explained = principal_plane(list(recorder.snapshots.values()))
        regime = "full-shot"
        if config.shots:
            regime = f"{config.shots}-shot"
        common = {
            "task": config.task,
            "regime": regime,
            "method": config.method,
            "label": label_of("methods", config.method),
            "seed": config.seed,
            "share_x": explained[0],
            "share_y": explained[1],
        }
        for step, (x, y) in zip(recorder.snapshots, places, strict=True):
            yield {**common, "part": "trajectory", "x": x, "y": y, "step": step, "loss": None}
        # The ends of the trajectory in both directions, [2].
        low = places.min(axis=0)
        high = places.max(axis=0)
        # The surface goes on beyond the ends of the trajectory.
        margin = 0.25 * np.maximum(high - low, 1e-6)
        # [2, points]: the values of x, and those of y.
        axes = np.linspace(low - margin, high + margin, self.points).T
        inputs = request.workspace.inputs(config, load_task(config))
        train_examples = load_splits(inputs).train
        examples = sample(train_examples, self.examples, config.scoring.seed)
        weights = trained(trainer.model)
        for x, y, loss in surface(trainer.runner, weights, directions, axes, examples):
            yield {**common, "part": "contour", "x": x, "y": y, "step": None, "loss": loss}

    def explanation(self, data: style.Frame) -> str:
        """Say on what the loss was measured, and what the marks are."""
        seed = ""
        if data["seed"].nunique() > 1:
            seed = "; first seed"
        return (
            f"Loss of up to {self.examples} training examples without dropout, on {self.points} x"
            f" {self.points} points{seed}. Orange: the weights during training. Star: the trained"
            " model."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per regime and method: contours of the loss in one scale, and the trajectory."""
        # Each seed has a plane of its own, so that the surfaces of several have no mean.
        data = data[data["seed"] == data["seed"].iloc[0]]
        low = data["loss"].min()
        # A few steep corners would hide all other contours.
        high = max(data["loss"].quantile(0.98), low + 1e-6)
        levels = MaxNLocator(16, steps=[1, 2, 5, 10]).tick_values(low, high)
        titles = style.panels(data, data["label"] + ", " + data["regime"])
        figure, panels = style.facets(data, titles, columns=data["label"].nunique(), height=2.3)
        for ax, rows in panels:
            contour = rows[rows["part"] == "contour"]
            trajectory = rows[rows["part"] == "trajectory"]
            table = contour.pivot(index="y", columns="x", values="loss")
            grid = (table.columns, table.index, table)
            image = ax.contourf(*grid, levels=levels, extend="max")
            ax.contour(*grid, levels=levels, colors="#202020", linewidths=0.3)
            ax.plot(trajectory["x"], trajectory["y"], "o-", color="#D55E00", mec="white")
            # The origin of the plane is the trained model.
            ax.plot(0, 0, "*", color="white", mec="black", markersize=9)
            ax.locator_params(nbins=5)
            style.label_outer(ax, "first principal direction", "second principal direction")
        style.colorbar(figure, image, "training loss", ticks=levels[::2], format="%g")
        return figure


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Give the model's own parameters that train; where only some entries do, the whole parameter."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def principal_plane(snapshots: list[Tensor]) -> tuple[Tensor, Floats, Floats]:
    """Find the plane through the last weights that explains most of the trajectory's variance.

    Returns:
        Two orthonormal directions [2, weights], the snapshots' coordinates [snapshots, 2] with the
        last at the origin, and the fractions of the variance that the directions explain [2].
    """
    differences = (torch.stack(snapshots) - snapshots[-1]).numpy()
    # The full decomposition draws nothing at random.
    pca = PCA(2, svd_solver="full").fit(differences)
    coordinates = (differences @ pca.components_.T).astype(np.float64)
    return torch.from_numpy(pca.components_), coordinates, pca.explained_variance_ratio_


@torch.no_grad()
def surface(
    runner: ModelRunner,
    weights: Sequence[Tensor],
    directions: Tensor,
    axes: Floats,
    examples: list[EncodedExample],
) -> Iterator[tuple[float, float, float]]:
    """Compute the mean loss at weights + x * first direction + y * second; restores the weights.

    Args:
        runner: has the model, which is left in evaluation mode.
        weights: the parameters that are moved.
        directions: [2, all numbers of the weights].
        axes: the values of x and those of y, [2, points].
        examples: on which the loss is measured.

    Yields:
        x, y, and the loss there.
    """
    runner.model.eval()
    size = runner.config.eval_batch_size
    # The runner's loss is a sum over examples or words; divided by their number it is the mean.
    count = loss_normalizer(runner.task, examples)
    batches = [examples[start : start + size] for start in range(0, len(examples), size)]
    origin = parameters_to_vector(weights)
    first, second = directions.to(origin.device)
    for x, y in product(*axes.tolist()):
        vector_to_parameters(origin + x * first + y * second, weights)
        total = sum(float(runner.loss(batch)) for batch in batches)
        yield x, y, total / count
    vector_to_parameters(origin, weights)
