"""How fast the singular values of a head's output add up (HiFi, figure 5)."""

import numpy as np
import torch
from numpy.typing import NDArray

from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.config.run_config import ConfigModel
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import head_outputs
from hifi_cli.runs import head_selection
from hifi_cli.scoring.richness import singular_values
from hifi_cli.tasks.batches import collate, evaluation_order
from hifi_cli.tasks.tokenization import Example, single_sequences


class Settings(ConfigModel):
    """`layers`: how many, evenly from the first to the last; `seed`: draws the head shown of each."""

    layers: int = 4
    seed: int = 0


def compute(asked: FigureRequest) -> Points:
    """Share of the sum that the first t singular values carry, mean and deviation over the samples.

    One row per task, layer, head and t.
    """
    rows: list[Row] = []
    for task in asked.spec.tasks:
        config = asked.config(task)
        pretrained = asked.resources.pretrained(config)
        encoder = Encoder(pretrained.model)
        draws = np.random.default_rng(asked.settings.seed)
        layers = np.unique(np.linspace(0, encoder.num_layers - 1, asked.settings.layers).round().astype(int)).tolist()
        shown = {layer: int(draws.integers(encoder.num_heads)) for layer in layers}
        train = asked.resources.examples(config, "train", config.scoring.max_length)
        examples = single_sequences(head_selection.sample(train, config.scoring.samples, config.scoring.seed))
        shares = cumulative_shares(encoder, examples, head_selection.padding(pretrained.tokenizer), shown)
        for layer, found in shares.items():
            for t, (mean, deviation) in enumerate(zip(found.mean(0), found.std(0), strict=True), 1):
                rows.append({"task": task, "layer": layer, "head": shown[layer], "t": t, "mean": mean, "std": deviation})
    samples = asked.config(asked.spec.tasks[0]).scoring.samples
    return Points(rows, [f"one head of each layer, drawn at random; mean over {samples} samples, shade: standard deviation"])


@torch.inference_mode()
def cumulative_shares(
    encoder: Encoder, examples: list[Example], pad: dict[str, int], shown: dict[int, int], batch_size: int = 32
) -> dict[int, NDArray[np.float64]]:
    """The share of the singular values' sum in the first t, for one head of some layers.

    Args:
        shown: the head of each layer.

    Returns:
        By layer: [examples, head size], 1 beyond a sample's tokens.
    """
    shares = {layer: np.ones((len(examples), encoder.head_size)) for layer in shown}
    order = evaluation_order([len(example) for example in examples], batch_size)
    batches = (collate([examples[index] for index in indices], pad) for indices in order)
    for indices, (outputs, real) in zip(order, head_outputs(encoder, batches), strict=True):
        for layer, head in shown.items():
            sigma = singular_values(outputs[layer][:, head : head + 1], real)[:, 0]
            share = sigma.cumsum(-1) / sigma.sum(-1, keepdim=True)
            shares[layer][indices, : share.shape[-1]] = share.cpu().numpy()
    return shares
