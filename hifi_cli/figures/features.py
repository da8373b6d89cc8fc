"""The features that the task head reads: their change, and their classes (EH-FT, figures 1, 4)."""

from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind, Row, train
from hifi_cli.grids.cells import GridCell
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import MLPTaskHead
from hifi_cli.tasks import metrics
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, rows_of, single_sequences
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import ResourceCache, load_splits, reload, task_of

Floats = NDArray[np.float64]


class Features(Kind):
    """Which models and examples are compared."""

    explanation = "the model of the reported epoch; mean over seeds, bars: their standard deviation"
    reads_runs = True
    examples: int = 1000
    """Highest number of training examples."""
    stages: bool = False
    """Whether the model after stage 1 is compared too; no run stores it, so it is trained again."""
    published: dict[str, float] = {}
    """The distance between the stages that the paper prints, by method."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the L2 distance of the features of two models, a row per run and `pair`.

        Mean and standard deviation are over training examples; `epoch`, from 1, is that of the run's stored model.
        """
        stages = ["pretrained-stage1", "stage1-stage2", "pretrained-stage2"]
        pairs = stages if self.stages else ["pretrained-tuned"]
        rows = []
        for cell, run in request.runs():
            examples = load_splits(cell.config, request.resources).train[: self.examples]
            states = self._features(request, cell, single_sequences(examples))
            keys = {
                "task": run["task"],
                "method": run["method"],
                "label": label_of("methods", run["method"]),
            }
            epoch = int(run["epochs" if run["report"] == "last" else "epoch_best"])
            for pair in pairs:
                first, second = pair.split("-")
                distances = np.linalg.norm(states[second] - states[first], axis=1)
                numbers = {
                    "examples": len(distances),
                    "mean": distances.mean(),
                    "std": distances.std(),
                }
                rows.append({**keys, "seed": run["seed"], "epoch": epoch, "pair": pair, **numbers})
        return pd.DataFrame(rows)

    def _features(self, request: FigureRequest, cell: GridCell, examples: list[Example]) -> dict[str, Any]:
        """Return the features of the pretrained encoder, after stage 1 if needed, and of the run."""
        pretrained, resources = request.resources.pretrained(cell.config), request.resources
        pad = padding_values(pretrained.tokenizer)
        states = {"pretrained": features(Encoder(pretrained.model), examples, pad)}
        if self.stages:
            stage1 = train(cell.config, resources, only_stage1=True)
            states["stage1"] = features(stage1.encoder, examples, pad)
        with reload(cell.run_directory(resources.results_dir).path, resources) as (prepared, _):
            states["tuned"] = states["stage2"] = features(prepared.encoder, examples, pad)
        return states

    def draw(self, data: style.Frame) -> Figure:
        """Draw a bar per method and pair with its number: mean over seeds of the mean distance."""
        panels = list(data.groupby("task", sort=False))
        count = data["method"].nunique() * (1 + 2 * self.stages)
        figure, axes = style.grid(len(panels), columns=2, height=0.8 + 0.24 * count)
        labels = {label_of("methods", method): number for method, number in self.published.items()}
        for ax, (task, panel) in zip(axes, panels, strict=True):
            groups = panel.groupby(["label", "pair"], sort=False)["mean"]
            means, deviations = (numbers.unstack(sort=False) for numbers in (groups.mean(), groups.std().fillna(0)))
            names = [f"{label}\n(paper: {labels[label]:g})" if label in labels else label for label in means.index]
            means.set_axis(names).plot.barh(
                ax=ax,
                xerr=deviations.set_axis(names),
                color=["#dce6f0", "#6f9fc8", "#28527a"] if self.stages else "#6f9fc8",
                width=0.8,
                edgecolor="black",
                linewidth=0.6,
                capsize=2,
                legend=self.stages,
            )
            for bars in ax.containers:
                if isinstance(bars, BarContainer):
                    ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
            if self.stages:
                ax.legend()
            ax.invert_yaxis()
            ax.margins(x=0.15)
            ax.set(
                title=label_of("tasks", task) if len(panels) > 1 else "",
                xlabel="$L_2$ distance of the features",
                ylabel="",
            )
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

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute a map for every task, head and seed: a row per example, with score and silhouette.

        Every head reads the pretrained backbone, as at the start of full fine-tuning. Both splits share one map.

        Raises:
            UsageError: the task has no classes, or its task head no hidden layer.
        """
        spec = request.spec
        rows: list[Row] = []
        for task, method, seed in product(spec.tasks, spec.methods, spec.seeds):
            config = request.config(task, method, seed)
            rows += self._rows(request, config)
        return pd.DataFrame(rows)

    def _rows(self, request: FigureRequest, config: RunConfig) -> list[Row]:
        task, splits = task_of(config), load_splits(config, request.resources)
        if task.kind != "classification" or config.task_head.kind != "mlp":
            raise UsageError(f"{task.label}: this figure requires a task with classes and task_head.kind=mlp")
        encoder = encoder_with_trained_head(config, request.resources)
        parts = {"train": splits.train[: self.examples], "dev": splits.reported[: self.examples]}
        examples = [*parts["train"], *parts["dev"]]
        hidden, logits = hidden_features(encoder, examples, padding_values(request.resources.pretrained(config).tokenizer))
        perplexity = min(self.perplexity, (len(hidden) - 1) / 3)
        points = TSNE(perplexity=perplexity, random_state=self.seed, init="pca").fit_transform(hidden).tolist()
        head = label_of("methods", config.stage1.method) if config.stage1 else "Random"
        rows, start = [], 0
        for split, part in parts.items():
            own = slice(start, start := start + len(part))
            labels = [example.row.label for example in part if isinstance(example.row.label, int)]
            score = metrics.compute(task, rows_of(part), metrics.predictions_of(task, part, logits[own]))[task.primary]
            silhouette = float(silhouette_score(hidden[own], labels)) if len({*labels}) > 1 else None
            keys = {
                "task": config.task,
                "method": config.method,
                "head": head,
                "seed": config.seed,
                "split": split,
            }
            numbers = {"score": score, "metric": task.primary, "silhouette": silhouette}
            for (x, y), label in zip(points[own], labels, strict=True):
                rows.append({**keys, "x": x, "y": y, "label": task.labels[label], **numbers})
        return rows

    def draw(self, data: style.Frame) -> Figure:
        """Draw a column per task head, training examples above, development examples below."""
        keys = ["task", "split", "head"]
        means = data.drop_duplicates([*keys, "seed"]).groupby(keys)[["score", "silhouette"]].mean()
        maps = data[data["seed"] == data["seed"].iloc[0]]
        panels = list(maps.groupby(keys, sort=False))
        panels.sort(key=lambda panel: panel[0][1] == "dev")  # after all training examples
        heads = data["head"].nunique()
        figure, axes = style.grid(len(panels), columns=heads, height=2.0, sharex="col", sharey="col")
        for ax, ((task, split, head), panel) in zip(axes, panels, strict=True):
            for label, points in panel.groupby("label"):
                ax.plot(
                    points["x"],
                    points["y"],
                    label=label,
                    linestyle="",
                    alpha=0.75,
                    markeredgewidth=0,
                )
            score, silhouette = means.loc[(task, split, head)]
            title = f"{panel['metric'].iloc[0]} {100 * score:.0f} %, silhouette {silhouette:.2f}"
            ax.set_title(f"{head} head, {split}\n{title}", fontsize=7)
            ax.set(xticks=[], yticks=[])
        style.shared_legend(figure, axes)
        return figure


@torch.inference_mode()
def features(encoder: Encoder, examples: list[Example], pad: dict[str, int]) -> Floats:
    """Return the first token's last hidden state, without dropout: [examples, hidden size]."""
    encoder.model.eval()
    states = np.zeros((len(examples), encoder.hidden_size))
    for indices in evaluation_order(examples, batch_size=64):
        batch = collate([examples[index] for index in indices], pad)
        inputs = {name: values.to(encoder.device) for name, values in batch.items()}
        states[indices] = encoder.base(**inputs).last_hidden_state[:, 0].double().cpu().numpy()
    return states


def encoder_with_trained_head(config: RunConfig, resources: ResourceCache) -> Encoder:
    """Return the pretrained backbone with the task head of stage 1, or else with a new one."""
    encoder, _ = resources.encoder(config)
    if config.stage1:
        trained = train(config, resources, only_stage1=True).encoder.model
        weights = {name: trained.get_parameter(name) for name in task_head_names(encoder)}
        encoder.model.load_state_dict(weights, strict=False)
    return encoder


@torch.inference_mode()
def hidden_features(encoder: Encoder, examples: list[Example], pad: dict[str, int]) -> tuple[Floats, Floats]:
    """Return the inputs of the task head's last layer, [examples, head width], and the logits."""
    head = cast(MLPTaskHead, encoder.model.get_submodule("task_head"))
    states = torch.from_numpy(features(encoder, examples, pad)).to(encoder.device, torch.float32)
    hidden = head.activation(head.hidden(states))
    return hidden.double().cpu().numpy(), head.output(hidden).double().cpu().numpy()
