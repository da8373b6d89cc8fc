"""How fast the singular values of a head's output add up (HiFi, figure 5)."""

import numpy as np
import torch
from numpy.typing import NDArray

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.config.base import ConfigModel
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import head_outputs
from hifi_cli.runs import head_selection
from hifi_cli.scoring.head_scores import singular_values
from hifi_cli.tasks.batches import collate, evaluation_order, padding_values
from hifi_cli.tasks.tokenization import Example, single_sequences


class Settings(ConfigModel):
    """Which attention heads are shown."""

    layers: int = 4
    """Number of layers, evenly spaced from the first to the last."""
    seed: int = 0
    """Seed that draws one head of each layer."""


def compute(request: FigureRequest) -> FigureTable:
    """Compute the fraction of the sum in the first t singular values, mean and standard deviation over the samples.

    One row per task, layer, head and t.
    """
    rows: list[Row] = []
    counts: dict[str, int] = {}
    for task in request.spec.tasks:
        config = request.config(task)
        pretrained = request.resources.pretrained(config)
        encoder = Encoder(pretrained.model)
        rng = np.random.default_rng(request.settings.seed)
        layers = np.unique(np.linspace(0, encoder.num_layers - 1, request.settings.layers).round().astype(int)).tolist()
        heads = {layer: int(rng.integers(encoder.num_heads)) for layer in layers}
        train = request.resources.examples(config, "train", config.scoring.max_length)
        examples = single_sequences(head_selection.sample(train, config.scoring.samples, config.scoring.seed))
        counts[task] = len(examples)
        fractions = cumulative_fractions(encoder, examples, padding_values(pretrained.tokenizer), heads)
        for layer, samples in fractions.items():
            for t, (mean, deviation) in enumerate(zip(samples.mean(0), samples.std(0), strict=True), 1):
                rows.append({"task": task, "layer": layer, "head": heads[layer], "t": t, "mean": mean, "std": deviation})
    by_task = ", ".join(f"{count} ({task})" for task, count in counts.items())
    number = by_task if len(set(counts.values())) > 1 else str(next(iter(counts.values())))
    return FigureTable(
        rows, [f"one head of each layer, drawn at random; mean over {number} samples, shade: standard deviation"]
    )


@torch.inference_mode()
def cumulative_fractions(
    encoder: Encoder, examples: list[Example], pad: dict[str, int], heads: dict[int, int], batch_size: int = 32
) -> dict[int, NDArray[np.float64]]:
    """Compute the fraction of the singular values' sum in the first t, for one head of some layers.

    Args:
        heads: the head of each layer.

    Returns:
        By layer: [examples, head size], 1 beyond a sample's tokens.
    """
    fractions = {layer: np.ones((len(examples), encoder.head_size)) for layer in heads}
    order = evaluation_order(examples, batch_size)
    batches = (collate([examples[index] for index in indices], pad) for indices in order)
    for indices, (outputs, real) in zip(order, head_outputs(encoder, batches), strict=True):
        for layer, head in heads.items():
            sigma = singular_values(outputs[layer][:, head : head + 1], real)[:, 0]
            fraction = sigma.cumsum(-1) / sigma.sum(-1, keepdim=True)
            fractions[layer][indices, : fraction.shape[-1]] = fraction.cpu().numpy()
    return fractions
