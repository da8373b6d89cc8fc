"""The hidden features of differently initialized task heads, in two dimensions (EH-FT, figure 4)."""

import math
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row, StopAfterStage1, train
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.task_heads import EncoderWithTaskHead
from hifi_cli.tasks import metrics
from hifi_cli.tasks.encode import padding_values, rows_of
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.data import ResourceCache, load_splits
from hifi_cli.training.device import choose_device
from hifi_cli.training.step import ModelRunner


class Settings(ConfigModel):
    """`examples` of each split at most; `perplexity` and `seed` of t-SNE."""

    examples: int = 300
    perplexity: float = 30.0
    seed: int = 0


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the head's score and silhouette on both splits, for every task, head and seed; and a map for the first seed.

    Of the first seed there is a row per example, with coordinates and label; of the others one row per split without them.
    Every head reads the pretrained backbone, as at the start of full fine-tuning. Both splits share one map.

    Raises:
        UsageError: the task has no classes, or its task head no hidden layer.
    """
    spec = request.spec
    rows: list[Row] = []
    for task, method, seed in product(spec.tasks, spec.methods, spec.seeds):
        config, has_map = request.config(task, method, seed), seed == spec.seeds[0]
        rows += request.once(config, partial(_rows, request, config, has_map), "map" if has_map else "")
    request.notes.append("every head reads the pretrained backbone; training and development examples share one map")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a column per task head, training examples above, development examples below.

    The map is that of the first seed; score and silhouette are means over all seeds.
    """
    runs = data.drop_duplicates(["task", "split", "head", "seed"])
    means = runs.groupby(["task", "split", "head"])[["score", "silhouette"]].mean()
    seeds, heads = data["seed"].unique(), data["head"].unique()
    panels = list(product(data["task"].unique(), data["split"].unique(), heads))
    points = data.dropna(subset="x")
    figure, axes = style.grid(len(panels), columns=len(heads), height=2.0, sharex="col", sharey="col")
    for ax, (task, split, head) in zip(axes, panels, strict=True):
        panel = points[(points["task"] == task) & (points["split"] == split) & (points["head"] == head)]
        labels = sorted(points[points["task"] == task]["label"].unique())
        for number, label in enumerate(labels):
            of_label = panel[panel["label"] == label]
            look = {"s": 9, "alpha": 0.75, "linewidths": 0.3, **style.marker(number)}
            ax.scatter(of_label["x"], of_label["y"], label=label, **look)
        score, silhouette = means.loc[(task, split, head)]
        numbers = f"{panel['metric'].iloc[0]} {100 * score:.0f} %, silhouette {silhouette:.2f}"
        ax.set_title(f"{head} head, {split}\n{numbers.replace('-', style.MINUS)}", fontsize=7)
        ax.set_xticks([])
        ax.set_yticks([])
    style.shared_legend(figure, axes)
    if len(seeds) > 1:
        record.notes.append(f"the maps are those of seed {seeds[0]}, the numbers means over {len(seeds)} seeds")
    meaning = "separation of the labels in all hidden dimensions, from -1 to 1; 0 is no separation"
    record.notes.append(f"silhouette: {meaning}")
    return figure


def _rows(request: FigureRequest, config: RunConfig, has_map: bool) -> list[Row]:
    task, settings = request.resources.task_of(config), request.settings
    if task.kind != "classification" or config.task_head.kind != "mlp":
        needs = "a task with classes and task_head.kind=mlp are required"
        raise UsageError(f"{task.label}: the figure shows EH-FT's task head; {needs}")
    runner = with_trained_head(config, request.resources)
    splits = load_splits(config, request.resources)
    parts = {"train": splits.train[: settings.examples], "dev": splits.reported[: settings.examples]}
    hidden, logits = hidden_features(runner, [example for part in parts.values() for example in part])
    perplexity = min(settings.perplexity, (len(hidden) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, random_state=settings.seed, init="pca")
    coordinates = tsne.fit_transform(hidden) if has_map else None
    head = label_of("methods", config.stage1.method) if config.stage1 else "Random"
    rows, start = [], 0
    for split, examples in parts.items():
        part = slice(start, start := start + len(examples))
        labels = [task.classes_of(example.row)[0] for example in examples]
        predicted = metrics.predictions_of(task, examples, logits[part])
        score = metrics.compute(task, rows_of(examples), predicted)[task.primary]
        silhouette = float(silhouette_score(hidden[part], labels)) if len(set(labels)) > 1 else math.nan
        keys = {"task": config.task, "method": config.method, "head": head, "seed": config.seed, "split": split}
        points: list[Row] = [{"x": None, "y": None, "label": None}]
        if coordinates is not None:
            places = zip(coordinates[part].tolist(), labels, strict=True)
            points = [{"x": x, "y": y, "label": task.labels[label]} for (x, y), label in places]
        rows += [{**keys, **point, "score": score, "metric": task.primary, "silhouette": silhouette} for point in points]
    return rows


def with_trained_head(config: RunConfig, resources: ResourceCache) -> ModelRunner:
    """Return the pretrained backbone with the task head that stage 1 of a two-stage method trained, or else a new one."""
    encoder, pretrained = resources.encoder(config)
    if config.stage1:
        trained = dict(train(config, resources, StopAfterStage1()).encoder.model.named_parameters())
        with torch.no_grad():
            for name in task_head_names(encoder):
                encoder.model.get_parameter(name).copy_(trained[name])
    pad, device = padding_values(pretrained.tokenizer), choose_device(config)
    return ModelRunner(encoder, resources.task(config.task), config, pad, device)


@torch.inference_mode()
def hidden_features(runner: ModelRunner, examples: list[Example]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the inputs of the head's last layer, and the logits.

    Returns:
        [examples, head width] and [examples, outputs].
    """
    assert isinstance(runner.encoder.model, EncoderWithTaskHead)
    runner.model.eval()
    hidden: list[Tensor] = []
    output = runner.encoder.model.task_head.output
    handle = output.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    size = runner.config.eval_batch_size
    logits = [runner.logits(examples[start : start + size]) for start in range(0, len(examples), size)]
    handle.remove()
    both = [torch.cat(tensors).double().cpu().numpy() for tensors in (hidden, logits)]
    return both[0], both[1]
