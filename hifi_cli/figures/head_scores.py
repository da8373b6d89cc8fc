"""What attention heads put out: richness, correlation, singular values (HiFi, figures 3-5, 8-11)."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import choose_heads
from hifi_cli.heads.scores import singular_values
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import head_outputs
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, single_sequences
from hifi_cli.tasks.task_spec import Example

# The settings of HiFi's section 5.1: the standard one, and what the others change
STANDARD: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_length": 128,
    "scoring.max_length": 128,
    "scoring.samples": 300,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "ST": {},
    "BS": {"batch_size": 16},
    "LR": {"learning_rate": 5e-5},
    "SL": {"max_length": 64, "scoring.max_length": 64},
    "SS": {"scoring.samples": 1000},
    "PT": {"scoring.warm_steps": 0},
}


class ScoresBySetting(Kind):
    """What is scored under several settings."""

    explanation = (
        "ST: batch 32, learning rate 2e-5, 128 tokens, 300 samples; BS: batch 16; LR: 5e-5; SL: 64 tokens; SS: 1000"
        " samples; scored after {warm_steps} steps of full fine-tuning, as BS and LR would change nothing on the"
        " pretrained encoder; PT: the pretrained encoder, as in Algorithm 1"
    )
    warm_steps: int = 115
    """Full fine-tuning steps before scoring, in every setting but PT. Learning rate and batch size
    have no effect on the pretrained encoder, and BS and LR must differ from ST in these alone."""
    variants: list[str] = list(VARIANTS)
    """Names of the compared settings."""

    def scores(self, request: FigureRequest, task: str, variant: str) -> head_selection.HeadScores:
        """Return the head scores of a task under a setting."""
        keys = {**STANDARD, "scoring.warm_steps": self.warm_steps, **VARIANTS[variant]}
        return request.head_scores(request.config(task, keys=keys))


class Richness(ScoresBySetting):
    """Information richness I_h of every head (figure 3)."""

    explanation = f"{ScoresBySetting.explanation}; shades: standard deviation over samples"

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute mean and deviation of I_h over samples, by task, setting, layer and head."""
        rows = []
        for task, variant in product(request.spec.tasks, self.variants):
            scores = self.scores(request, task, variant)
            for (layer, head), mean in np.ndenumerate(scores.arrays[0]):
                keys = {"task": task, "setting": variant, "layer": layer, "head": head}
                rows.append({**keys, "mean": mean, "std": scores.richness_std[layer][head]})
        return pd.DataFrame(rows)

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per layer and a line per setting."""
        data = data.assign(panel=style.panels(data, "layer " + (data["layer"] + 1).astype(str)))
        data = data.assign(low=data["mean"] - data["std"], high=data["mean"] + data["std"])
        return style.line_panels(
            data,
            "head",
            "mean",
            by="setting",
            band=("low", "high"),
            labels=("head", "richness $I_h$"),
            columns=4,
            height=1.6,
            sharex=True,
        )[0]


class Correlation(ScoresBySetting):
    """Correlation r_hh' between the heads of a layer (figures 4 and 8 to 11)."""

    explanation = f"{ScoresBySetting.explanation}. Divided by each layer's largest value: one color scale for all"

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute r_hh' and its ratio to the layer's largest, a row per pair of heads."""
        rows = []
        for task, variant in product(request.spec.tasks, self.variants):
            correlation = self.scores(request, task, variant).arrays[1]
            for (layer, head, other), value in np.ndenumerate(correlation):
                keys = {
                    "task": task,
                    "setting": variant,
                    "layer": layer,
                    "head": head,
                    "other": other,
                }
                rows.append({**keys, "correlation": value, "normalized": value / correlation[layer].max()})
        return pd.DataFrame(rows)

    def draw(self, data: style.Frame) -> Figure:
        """Draw a heatmap per layer and setting, all in one color scale."""
        titles = style.panels(data, data["setting"] + ", layer " + (data["layer"] + 1).astype(str))
        panels = list(data.groupby(titles, sort=False))
        figure, axes = style.grid(len(panels), columns=4, height=1.7, sharex=True, sharey=True)
        for ax, (title, pairs) in zip(axes, panels, strict=True):
            values = pairs.pivot(index="head", columns="other", values="normalized").to_numpy(copy=True)
            np.fill_diagonal(values, np.nan)
            image = ax.imshow(values, vmin=0, vmax=1, interpolation="nearest")
            ax.locator_params(integer=True)
            ax.set_title(title)
            style.label_outer(ax, "head", "head")
        label = "correlation $r_{h,h'}$, normalized"
        figure.colorbar(image, ax=axes, label=label, fraction=0.03, pad=0.02, aspect=35)
        return figure


class Robustness(ScoresBySetting):
    """How far scores and chosen heads agree with those under the first setting (section 5.1)."""

    explanation = f"{ScoresBySetting.explanation}. Gray line: a random choice of heads"

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the agreement with the first setting, by task, setting, layer and measure.

        Measures: `richness`, Spearman's rank correlation of I_h; `correlation`, that of r_hh' over
        pairs of heads; `chosen`, the fraction of the k chosen heads that both settings choose;
        `chance` is expected for a random choice.
        """
        rows = []
        for task in request.spec.tasks:
            config = request.config(task)
            how = config.heads.selection_arguments(config.seed)
            scores = {name: self.scores(request, task, name) for name in self.variants}
            arrays = {name: some.arrays for name, some in scores.items()}
            chosen = {name: choose_heads(*both, **how).heads for name, both in arrays.items()}
            first, *others = self.variants
            richness, correlation = arrays[first]
            pairs = np.triu_indices(richness.shape[1], 1)
            for other, (layer, heads) in product(others, enumerate(chosen[first])):
                other_richness, other_correlation = arrays[other]
                keys = {"task": task, "setting": other, "layer": layer}
                values = {
                    "richness": spearmanr(richness[layer], other_richness[layer]).statistic,
                    "correlation": spearmanr(correlation[layer][pairs], other_correlation[layer][pairs]).statistic,
                }
                if heads:
                    values["chosen"] = len({*heads} & {*chosen[other][layer]}) / len(heads)
                chances = {"chosen": config.heads.k / richness.shape[1]}
                for measure, value in values.items():
                    rows.append({**keys, "measure": measure, "value": value, "chance": chances.get(measure)})
        return pd.DataFrame(rows)

    def draw(self, data: style.Frame) -> Figure:
        """Draw the agreement per layer, a panel per measure."""
        titles = {
            "richness": "rank correlation of $I_h$",
            "correlation": "rank correlation of $r_{h,h'}$",
            "chosen": "fraction of chosen heads shared",
        }
        data = data.assign(panel=style.panels(data, data["measure"].map(titles)), layer=data["layer"] + 1)
        figure, axes = style.line_panels(
            data,
            "layer",
            "value",
            by="setting",
            labels=("layer", f"agreement with {self.variants[0]}"),
            columns=len(titles),
            sharey=True,
        )
        for panel, chance in data.dropna(subset="chance").groupby("panel")["chance"].first().items():
            axes[panel].axhline(chance, color="#999999", linewidth=0.8)
        return figure


class SingularValues(Kind):
    """How fast the singular values of a head's output add up (figure 5)."""

    explanation = "one head of each layer, drawn at random; mean over samples, shades: standard deviation; gray line: xi = 0.9"
    layers: int = 4
    """Number of layers, evenly spaced from the first to the last."""
    seed: int = 0
    """Seed that draws one head of each layer."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the fraction of the sum in the first t singular values, by task, layer and t.

        Mean and standard deviation are over the samples.
        """
        tables = []
        for task in request.spec.tasks:
            config = request.config(task)
            pretrained = request.resources.pretrained(config)
            encoder = Encoder(pretrained.model)
            rng = np.random.default_rng(self.seed)
            spaced = np.linspace(0, encoder.num_layers - 1, self.layers).round().astype(int)
            heads = {layer: int(rng.integers(encoder.num_heads)) for layer in np.unique(spaced).tolist()}
            train = request.resources.examples(config, "train", config.scoring.max_length)
            examples = head_selection.sample(train, config.scoring.samples, config.scoring.seed)
            pad = padding_values(pretrained.tokenizer)
            fractions = cumulative_fractions(encoder, single_sequences(examples), pad, heads)
            for layer, samples in fractions.items():
                keys = {
                    "task": task,
                    "layer": layer,
                    "head": heads[layer],
                    "t": range(1, samples.shape[1] + 1),
                }
                tables.append(pd.DataFrame({**keys, "mean": samples.mean(0), "std": samples.std(0)}))
        return pd.concat(tables)

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and a line per layer; a horizontal line marks xi = 0.9."""
        data = data.assign(
            panel=style.panels(data),
            line="layer " + (data["layer"] + 1).astype(str),
            low=data["mean"] - data["std"],
            high=(data["mean"] + data["std"]).clip(upper=1),
        )
        labels = ("first t singular values", "fraction of their sum")
        band = ("low", "high")
        figure, axes = style.line_panels(data, "t", "mean", by="line", band=band, labels=labels, sharey=True)
        for ax in axes.values():
            ax.axhline(0.9, color="#666666", linewidth=0.7)
        return figure


@torch.inference_mode()
def cumulative_fractions(
    encoder: Encoder,
    examples: list[Example],
    pad: dict[str, int],
    heads: dict[int, int],
    batch_size: int = 32,
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
