"""The hidden features of differently initialized task heads, in two dimensions (EH-FT, figure 4)."""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.instrumented_training import train
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import task_head_names
from hifi_cli.models.task_heads import EncoderWithTaskHead
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.runs.prepared_run import RunInputs, prepare
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.trainer import Trainer
from hifi_cli.tasks import metrics
from hifi_cli.tasks.batches import evaluation_order, padding_values
from hifi_cli.tasks.tokenization import Example, rows_of

TRAINS = True  # models of its own


class Settings(ConfigModel):
    """`examples` of each split at most; `perplexity` and `seed` of t-SNE."""

    examples: int = 300
    perplexity: float = 30.0
    seed: int = 0


def compute(request: FigureRequest) -> FigureTable:
    """Compute the head's score and silhouette on both splits, for every task, head and seed; and a map for the first seed.

    Of the first seed there is a row per example, with coordinates and label; of the others one row per split without them.
    Every head reads the pretrained backbone, as at the start of full fine-tuning. Both splits share one map.

    Raises:
        UsageError: the task has no classes, or its task head no hidden layer.
    """
    rows: list[Row] = []
    for task in request.spec.tasks:
        for method in request.spec.methods:
            for seed in request.spec.seeds:
                config = request.config(task, method, seed)
                has_map = seed == request.spec.seeds[0]
                train = partial(_rows, request, config, has_map=has_map)
                rows += request.finished.rows(config, train, "map" if has_map else "")
    return FigureTable(rows, ["every head reads the pretrained backbone; training and development examples share one map"])


def _rows(request: FigureRequest, config: RunConfig, *, has_map: bool) -> list[Row]:
    task = request.resources.task_of(config)
    if task.kind != "classification" or config.task_head.kind != "mlp":
        raise UsageError(
            f"{task.label}: the figure shows EH-FT's task head; a task with classes and task_head.kind=mlp are required"
        )
    runner = with_trained_head(config, request.resources)
    splits = load_splits(config, request.resources)
    parts = {"train": splits.train[: request.settings.examples], "dev": splits.reported[: request.settings.examples]}
    hidden, logits = hidden_features(runner, [example for part in parts.values() for example in part])
    perplexity = min(request.settings.perplexity, (len(hidden) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, random_state=request.settings.seed, init="pca")
    coordinates = tsne.fit_transform(hidden) if has_map else None
    rows, start = [], 0
    for split, examples in parts.items():
        part = slice(start, start := start + len(examples))
        labels = [task.classes_of(example.row)[0] for example in examples]
        predicted = metrics.predictions_of(task, examples, logits[part])
        score = metrics.compute(task, rows_of(examples), predicted)[task.primary]
        silhouette = float(silhouette_score(hidden[part], labels)) if len(set(labels)) > 1 else math.nan
        keys = {"task": config.task, "method": config.method, "head": _head(config), "seed": config.seed, "split": split}
        points: list[Row] = [{"x": None, "y": None, "label": None}]
        if coordinates is not None:
            points = [
                {"x": float(x), "y": float(y), "label": task.labels[label]}
                for (x, y), label in zip(coordinates[part], labels, strict=True)
            ]
        rows += [{**keys, **point, "score": score, "metric": task.primary, "silhouette": silhouette} for point in points]
    return rows


def _head(config: RunConfig) -> str:
    return label_of("methods", config.stage1.method) if config.stage1 else "Random"


def with_trained_head(config: RunConfig, resources: ResourceCache) -> ModelRunner:
    """Return the pretrained backbone with the task head that stage 1 of a two-stage method trained, or else a new one."""
    encoder, pretrained = resources.encoder(config)
    if config.stage1:
        inputs = RunInputs.resolve(config, resources)
        prepared = prepare(inputs.model)
        stage1_steps = Trainer(prepared.runner, prepared.method, inputs.splits.train).phase_ends[-2]
        trained = dict(train(config, resources, max_steps=stage1_steps).encoder.model.named_parameters())
        with torch.no_grad():
            for name in task_head_names(encoder):
                encoder.model.get_parameter(name).copy_(trained[name])
    return ModelRunner(encoder, resources.task(config.task), config, padding_values(pretrained.tokenizer))


@torch.inference_mode()
def hidden_features(runner: ModelRunner, examples: list[Example]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the inputs of the head's last layer, and the logits.

    Returns:
        [examples, head width] and [examples, outputs].
    """
    assert isinstance(runner.encoder.model, EncoderWithTaskHead)
    runner.model.eval()
    captured: list[Tensor] = []
    handle = runner.encoder.model.task_head.output.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    hidden, logits = [np.zeros(0)] * len(examples), [np.zeros(0)] * len(examples)
    try:
        for batch in evaluation_order(examples, runner.config.eval_batch_size):
            batch_logits = runner.logits([examples[index] for index in batch])
            for index, features, output in zip(batch, captured.pop(), batch_logits, strict=True):
                hidden[index], logits[index] = features.double().cpu().numpy(), output.double().cpu().numpy()
    finally:
        handle.remove()
    return np.stack(hidden), np.stack(logits)
