"""How fast the singular values of a head's output add up (HiFi, figure 5)."""

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.scores import singular_values
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import head_outputs
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, single_sequences
from hifi_cli.tasks.task_spec import Example


class Settings(ConfigModel):
    """Which attention heads are shown."""

    layers: int = 4
    """Number of layers, evenly spaced from the first to the last."""
    seed: int = 0
    """Seed that draws one head of each layer."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the fraction of the sum in the first t singular values, mean and standard deviation over the samples.

    One row per task, layer, head and t.
    """
    rows = []
    counts: dict[str, int] = {}
    for task in request.spec.tasks:
        config = request.config(task)
        pretrained = request.resources.pretrained(config)
        encoder = Encoder(pretrained.model)
        rng = np.random.default_rng(request.settings.seed)
        spaced = np.linspace(0, encoder.num_layers - 1, request.settings.layers).round().astype(int)
        heads = {layer: int(rng.integers(encoder.num_heads)) for layer in np.unique(spaced).tolist()}
        train = request.resources.examples(config, "train", config.scoring.max_length)
        examples = single_sequences(head_selection.sample(train, config.scoring.samples, config.scoring.seed))
        counts[task] = len(examples)
        fractions = cumulative_fractions(encoder, examples, padding_values(pretrained.tokenizer), heads)
        for layer, samples in fractions.items():
            for t, (mean, deviation) in enumerate(zip(samples.mean(0), samples.std(0), strict=True), 1):
                rows.append({"task": task, "layer": layer, "head": heads[layer], "t": t, "mean": mean, "std": deviation})
    number = ", ".join(f"{count} ({task})" for task, count in counts.items())
    request.notes.append(f"one head of each layer, drawn at random; mean over samples: {number}; shade: standard deviation")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw a panel per task and a line per layer; a horizontal line marks xi = 0.9."""
    tasks = list(data["task"].unique())
    figure, axes = style.grid(len(tasks), columns=2, height=2.0, sharex=True, sharey=True)
    for ax, task in zip(axes, tasks, strict=True):
        panel = data[data["task"] == task]
        for number, ((layer, head), points) in enumerate(panel.groupby(["layer", "head"], sort=False)):
            line = style.line(number, marker=False)
            ax.plot(points["t"], points["mean"], label=f"layer {layer + 1}, head {head}", **line)
            low, high = points["mean"] - points["std"], (points["mean"] + points["std"]).clip(upper=1)
            ax.fill_between(points["t"], low, high, color=line["color"], alpha=0.12, linewidth=0)
        ax.axhline(0.9, color="#666666", linewidth=0.7)
        ax.annotate(r"$\xi$ = 0.9", (panel["t"].max(), 0.9), ha="right", va="top", fontsize=6, color="#404040")
        ax.set_title(style.panel_title(record, task))
        ax.legend(loc="lower right")
    style.label_outer(axes, "first t singular values", "fraction of their sum")
    return figure


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
