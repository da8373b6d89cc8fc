"""Attention heads: what they put out, and how they are ranked.

HiFi, figures 3 to 6 and 8 to 11, and two figures of our own. The numbers of a figure are rows of a
CSV; each class's `rows` says which columns they have.
"""

import timeit
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations, product
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import kendalltau, norm

from hifi_cli.config.registry import label_of
from hifi_cli.drawing import style
from hifi_cli.errors import UsageError
from hifi_cli.figures.figure import FigureRequest, Kind, Row
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.heads.ranking import RANKINGS, Ranked
from hifi_cli.heads.scores import head_outputs, singular_values
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.head_files import HeadScores
from hifi_cli.tasks.encode import collate, single_sequences
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.batches import batches_by_length

# --- scores under several settings (HiFi, section 5.1)

# The keys of the standard setting, ST.
STANDARD: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_length": 128,
    "scoring.max_length": 128,
    "scoring.samples": 300,
}
# The keys that each setting changes of the standard one, by the names of the paper's legend.
VARIANTS: dict[str, dict[str, Any]] = {
    "ST": {},
    "BS": {"batch_size": 16},
    "LR": {"learning_rate": 5e-5},
    "SL": {"max_length": 64, "scoring.max_length": 64},
    "SS": {"scoring.samples": 1000},
    "PT": {"scoring.warm_steps": 0},
}


def _layer(data: style.Frame) -> style.Frame:
    """Name the layer of each row, counted from 1 as in the papers; a CSV counts from 0."""
    return "layer " + (data["layer"] + 1).astype(str)


def _in_words(keys: Mapping[str, Any]) -> str:
    """Say what keys of a setting are, of those that have an effect."""
    warm_steps = keys.get("scoring.warm_steps")
    words = []
    if warm_steps == 0:
        words.append("the pretrained encoder, as in Algorithm 1")
    if warm_steps != 0 and "batch_size" in keys:
        words.append(f"batch {keys['batch_size']}")
    if warm_steps != 0 and "learning_rate" in keys:
        words.append(f"learning rate {keys['learning_rate']:g}".replace("e-0", "e-"))
    if "scoring.max_length" in keys:
        words.append(f"{keys['scoring.max_length']} tokens")
    if "scoring.samples" in keys:
        words.append(f"up to {keys['scoring.samples']} samples")
    if warm_steps:
        words.append(f"after {warm_steps} steps of full fine-tuning")
    return ", ".join(words)


class ScoresBySetting(Kind):
    """Scores of heads under several settings."""

    warm_steps: int = 115
    """Full fine-tuning steps before scoring, in every setting but PT. Learning rate and batch size
    have no effect on the pretrained encoder, and BS and LR must differ from ST in these alone."""
    variants: list[str] = list(VARIANTS)
    """Names of the compared settings."""

    def explanation(self, data: style.Frame) -> str:
        """Say what the shown settings are: ST in full, and of the others what differs from it."""
        shown = list(dict.fromkeys(data["setting"]))
        standard = {**STANDARD, "scoring.warm_steps": self.warm_steps}
        others = [setting for setting in shown if setting != "ST"]
        sentences = []
        if "ST" in shown:
            sentences.append(f"ST: {_in_words(standard)}.")
            if others:
                sentences.append("The others differ from it in this alone.")
        for setting in others:
            keys = VARIANTS[setting]
            if "ST" not in shown:
                keys = {**standard, **keys}
            sentences.append(f"{setting}: {_in_words(keys)}.")
        of_training = [setting for setting in others if setting in ("BS", "LR")]
        if of_training:
            names = " and ".join(of_training)
            sentences.append(f"{names} would change nothing on the pretrained encoder.")
        return " ".join(sentences)

    def scores(self, request: FigureRequest) -> Iterator[tuple[dict[str, str], HeadScores]]:
        """Yield the columns `task` and `setting`, and the scores of heads of that task and setting.

        Raises:
            UsageError: the command line sets a key that the settings differ in.
        """
        refuse_own_keys(request.overrides, {*STANDARD, "scoring.warm_steps"}, "this figure")
        for task, setting in product(request.spec.tasks, self.variants):
            keys = {**STANDARD, "scoring.warm_steps": self.warm_steps, **VARIANTS[setting]}
            config = request.config(task, **keys)
            scores, _ = request.head_selector(config).score()
            yield {"task": task, "setting": setting}, scores


class Richness(ScoresBySetting):
    """Information richness I_h of every head (figure 3)."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield mean and deviation of I_h over samples, by task, setting, layer and head.

        Columns: task, setting, layer, head, mean, std.
        """
        for names, scores in self.scores(request):
            for (layer, head), mean in np.ndenumerate(scores.richness):
                std = scores.richness_std[layer][head]
                yield {**names, "layer": layer, "head": head, "mean": mean, "std": std}

    def explanation(self, data: style.Frame) -> str:
        """Say what the settings are, and what line and shade are."""
        return f"{super().explanation(data)} Mean over samples; shades: standard deviation."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per layer and a line per setting."""
        return style.line_panels(
            data.assign(panel=style.panels(data, _layer(data))),
            "head",
            "mean",
            by="setting",
            spread="std",
            # It is a number of singular values.
            limits=(0.0, inf),
            labels=("head", "richness $I_h$"),
            columns=4,
            height=1.6,
            sharex=True,
        )


class Correlation(ScoresBySetting):
    """Correlation r_hh' between the heads of a layer (figures 4 and 8 to 11)."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield r_hh' and its ratio to the layer's largest, for every pair of heads.

        Columns: task, setting, layer, head, other, correlation, normalized.
        """
        for names, scores in self.scores(request):
            _, correlation = scores.arrays
            for (layer, head, other), value in np.ndenumerate(correlation):
                yield {
                    **names,
                    "layer": layer,
                    "head": head,
                    "other": other,
                    "correlation": value,
                    "normalized": value / correlation[layer].max(),
                }

    def explanation(self, data: style.Frame) -> str:
        """Say what the settings are, and what the values are."""
        return f"{super().explanation(data)} Values are divided by the layer's largest."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a heatmap per layer and setting, all in one color scale."""
        titles = style.panels(data, data["setting"] + ", " + _layer(data))
        figure, panels = style.facets(data, titles, columns=4, height=1.7, sharex=True, sharey=True)
        for ax, pairs in panels:
            # A head's correlation with itself says nothing, and would be the darkest cell.
            others = pairs[pairs["head"] != pairs["other"]]
            table = others.pivot(index="head", columns="other", values="normalized")
            image = ax.imshow(table, vmin=0, vmax=1, interpolation="nearest")
            ax.locator_params(integer=True)
            style.label_outer(ax, "head", "head")
        # All panels have one scale, so that the last image stands for all.
        style.colorbar(figure, image, "correlation $r_{h,h'}$, normalized")
        return figure


# --- singular values


class SingularValues(Kind):
    """How fast the singular values of a head's output add up (figure 5)."""

    layers: int = 4
    """Number of layers, evenly spaced from the first to the last."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the fraction of the sum in the first t singular values, by task, layer and t.

        Mean and standard deviation are over the samples. Columns: task, layer, head, t, mean, std.
        """
        for task in request.spec.tasks:
            config = request.config(task)
            runner, examples = request.head_selector(config).model_and_examples()
            encoder = runner.encoder
            # The heads are drawn as the examples are, by the seed of the scoring.
            rng = np.random.default_rng(config.scoring.seed)
            spaced = np.linspace(0, encoder.num_layers - 1, self.layers).round().astype(int)
            layers = np.unique(spaced).tolist()
            heads = {layer: int(rng.integers(encoder.num_heads)) for layer in layers}
            sequences = single_sequences(examples)
            # By layer, [samples, head size].
            fractions = cumulative_fractions(encoder, sequences, runner.pad, heads)
            for layer, samples in fractions.items():
                place = {"task": task, "layer": layer, "head": heads[layer]}
                for t, values in enumerate(samples.T, start=1):
                    yield {**place, "t": t, "mean": values.mean(), "std": values.std()}

    def explanation(self, data: style.Frame) -> str:  # noqa: ARG002
        """Say which heads are shown, and what lines and shades are."""
        return (
            "One head of each layer shown, drawn at random. Mean over samples; shades: standard"
            " deviation. Gray line: xi = 0.9."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and a line per layer; a horizontal line marks xi = 0.9."""
        figure = style.line_panels(
            data.assign(panel=style.panels(data), line=_layer(data)),
            "t",
            "mean",
            by="line",
            spread="std",
            limits=(0.0, 1.0),
            labels=("first t singular values", "fraction of their sum"),
            sharey=True,
        )
        for ax in figure.axes:
            ax.axhline(0.9, color="#666666", linewidth=0.7)
        return figure


@torch.inference_mode()
def cumulative_fractions(
    encoder: Encoder,
    examples: list[EncodedExample],
    pad: dict[str, int],
    heads: dict[int, int],
    batch_size: int = 32,
) -> dict[int, NDArray[np.float64]]:
    """Compute the fraction of the singular values' sum in the first t, for one head of some layers.

    Args:
        encoder: whose heads put out what is decomposed.
        examples: single sequences.
        pad: the padding value of each of the tokenizer's lists.
        heads: the head of each layer.
        batch_size: examples that are computed at a time.

    Returns:
        By layer: [examples, head size], 1 beyond a sample's tokens.
    """
    # A sample has no more singular values than tokens: beyond these their sum is complete, 1.
    fractions = {layer: np.ones((len(examples), encoder.head_size)) for layer in heads}
    batches = batches_by_length(examples, batch_size)
    inputs = (collate(batch.examples, pad) for batch in batches)
    for batch, (outputs, real) in zip(batches, head_outputs(encoder, inputs), strict=True):
        for layer, head in heads.items():
            # [samples, 1, tokens, head size]: the function takes several heads.
            of_head = outputs[layer][:, head : head + 1]
            sigma = singular_values(of_head, real)[:, 0]
            fraction = sigma.cumsum(-1) / sigma.sum(-1, keepdim=True)
            fractions[layer][batch.numbers, : fraction.shape[-1]] = fraction.cpu().numpy()
    return fractions


# --- rankings

# The rankings that are shown side by side, and the titles of their panels.
_LABELS = {
    "richness": "richness $I_h$ alone",
    "correlation": "correlation alone",
    "pagerank-literal": "PageRank as printed",
    "pagerank": "PageRank, transposed",
    "pagerank-personalized": "PageRank, personalized",
}


class Damping(Kind):
    """PageRank's iterations and time against the damping factor d (figure 6, right)."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]
    """Values of PageRank's damping factor d."""
    repeats: int = 20
    """Repetitions of each timing; the shortest one counts."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Measure iterations to convergence and seconds, by task, damping factor and layer.

        Columns: task, damping, layer, iterations, seconds.

        Raises:
            UsageError: the configured ranking is not PageRank.
        """
        for task in request.spec.tasks:
            config = request.config(task)
            how = config.heads
            if not how.rank.startswith("pagerank"):
                raise UsageError(
                    f"heads.rank={how.rank} has no damping factor; this figure is for pagerank"
                )
            scores, _ = request.head_selector(config).score()
            richness, correlation = scores.arrays
            for damping, layer in product(self.dampings, range(len(richness))):
                rank = partial(
                    RANKINGS[how.rank], richness[layer], correlation[layer], damping, how.epsilon
                )
                yield {
                    "task": task,
                    "damping": damping,
                    "layer": layer,
                    "iterations": rank().iterations,
                    "seconds": min(timeit.repeat(rank, number=1, repeat=self.repeats)),
                }

    def explanation(self, data: style.Frame) -> str:  # noqa: ARG002
        """Say what a time is, and what lines and shades are."""
        return (
            f"Time: the shortest of {self.repeats} measurements."
            " Lines: mean over layers; shades: from minimum to maximum."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw iterations and milliseconds by d, a line per task."""
        data = data.assign(task=data["task"].map(lambda task: label_of("tasks", task)))
        # The columns become the titles of the panels.
        data["time of one layer [ms]"] = 1e3 * data["seconds"]
        # A row for each layer and panel, with its number in the column `value`.
        long = data.drop(columns=["seconds", "layer"]).melt(["task", "damping"], var_name="panel")
        by_damping = long.groupby(["panel", "task", "damping"], sort=False)["value"]
        return style.line_panels(
            by_damping.agg(["mean", "min", "max"]).reset_index(),
            "damping",
            "mean",
            by="task",
            band=("min", "max"),
            labels=("damping factor d", ""),
        )


class HeadRanking(Kind):
    """Rankings of heads side by side."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield a row per task, layer, ranking and head.

        Columns: task, layer, ranking, head, its `value` relative to the layer's mean, its `rank`
        from 1, and whether it is `chosen`.
        """
        for task in request.spec.tasks:
            config = request.config(task)
            how = config.heads
            scores, _ = request.head_selector(config).score()
            richness, correlation = scores.arrays
            for layer, name in product(range(len(richness)), _LABELS):
                rank = RANKINGS[name]
                ranked = rank(richness[layer], correlation[layer], how.damping, how.epsilon)
                # `order` lists the heads from the best on; its inverse has the place of each head.
                ranks = np.argsort(ranked.order) + 1
                for head, value in enumerate(ranked.values / ranked.values.mean()):
                    yield {
                        "task": task,
                        "layer": layer,
                        "ranking": name,
                        "head": head,
                        "value": value,
                        "rank": ranks[head],
                        "chosen": ranks[head] <= how.k,
                    }

    def explanation(self, data: style.Frame) -> str:  # noqa: ARG002
        """Say what the dots are, and why a heatmap may have none."""
        return (
            "Dots: chosen heads, the top k of a layer. Where a heatmap has one color, its values give"
            " no basis for a choice: PageRank as printed gives all heads of a layer one value."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a heatmap per task and ranking, with the chosen heads marked."""
        titles = style.panels(data, data["ranking"].map(_LABELS))
        data = data.assign(layer=data["layer"] + 1)
        heads = data["head"].nunique()
        layers = data["layer"].nunique()
        figure, panels = style.facets(
            data, titles, columns=5, height=0.7 + 0.13 * layers, sharex=True, sharey=True
        )
        # A few heads far from the mean would leave no color to all others.
        reach = (data["value"] - 1).abs().quantile(0.98)
        for ax, ranked in panels:
            table = ranked.pivot(index="layer", columns="head", values="value")
            image = ax.imshow(
                table,
                vmin=1 - reach,
                vmax=1 + reach,
                aspect="auto",
                interpolation="nearest",
                extent=(-0.5, heads - 0.5, layers + 0.5, 0.5),
            )
            # The head numbers decide between equal values, and dots would show a choice where none is.
            if np.ptp(table) > 1e-4:
                chosen = ranked[ranked["chosen"]]
                ax.plot(chosen["head"], chosen["layer"], "o", color="white", mec="black", ms=3)
            ax.locator_params(integer=True)
            ax.set_title(ax.get_title(), fontsize=7)
            style.label_outer(ax, "head", "layer")
        style.colorbar(figure, image, "value / layer's mean")
        return figure


# The methods that rank heads by the loss, which a task head computes.
_RANKINGS_OF_LOSS = {
    "hifi-gradient": "gradient",
    "hifi-ablation": "ablation",
    "hifi-fisher": "Fisher",
}


class HeadBench(Kind):
    """The agreement of the rankings by which methods select heads."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield a row per task and pair of methods.

        `value` is the rank correlation of their rankings, mean over the layers, from -1 to 1. Of
        unrelated rankings of as many heads and layers, 95 % have a mean between -`noise` and
        `noise`. Columns: task, method, other, value, noise.
        """
        refuse_own_keys(request.overrides, ["heads.rank"], "this figure")
        for task in request.spec.tasks:
            ranked = {}
            for method in request.spec.methods:
                config = request.config(task, method)
                ranked[method] = request.head_selector(config).rank()
            for first, second in combinations(ranked, 2):
                names = {"task": task, "method": first, "other": second}
                yield {**names, **rank_correlation(ranked[first], ranked[second])}

    def explanation(self, data: style.Frame) -> str:
        """Say what the numbers are, and which rankings depend on a task head."""
        text = (
            "Kendall's tau over a layer's heads, mean over the layers. Gray numbers are as small as"
            " between unrelated rankings."
        )
        shown = {*data["method"], *data["other"]}
        of_loss = [name for method, name in _RANKINGS_OF_LOSS.items() if method in shown]
        if not of_loss:
            return text
        *others, last = of_loss
        names = last
        if others:
            names = f"{', '.join(others)} and {last}"
        return (
            f"{text} Without warm steps, what {names} measure is the loss of a randomly initialized"
            " task head."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a heatmap per task with the number of each pair."""
        height = 1.1 + 0.22 * data["other"].nunique()
        figure, panels = style.facets(data, style.panels(data), columns=1, height=height)
        for ax, pairs in panels:
            columns = pairs["method"].unique()
            rows = pairs["other"].unique()
            table = pairs.pivot(index="other", columns="method", values="value").loc[rows, columns]
            ax.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto", interpolation="nearest")
            noise = pairs["noise"].iloc[0]
            for (row, column), value in np.ndenumerate(table):
                # Half of the table has no pair.
                if np.isnan(value):
                    continue
                # Cells are narrow, and all numbers but 1 begin with 0.
                text = f"{value:.2f}".replace("0.", ".")
                color = _color_of_number(value, noise)
                ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
            names = [label_of("methods", method) for method in columns]
            ax.set_xticks(range(len(columns)), names, rotation=45, ha="right")
            ax.set_yticks(range(len(rows)), [label_of("methods", method) for method in rows])
        return figure


def _color_of_number(value: float, noise: float) -> str:
    """Choose a color that can be read on a cell's own: gray for noise, white on dark cells."""
    if abs(value) <= noise:
        return "#888888"
    if value > 0.7 or value < -0.5:
        return "white"
    return "black"


def rank_correlation(ranking: list[Ranked], other: list[Ranked]) -> dict[str, float]:
    """Correlate two rankings in each layer that neither ranks all equal, and average.

    Returns:
        `value`: the mean of Kendall's tau, from -1 to 1; NaN where no layer is left. `noise`: 95 %
        of the means of unrelated rankings lie between -`noise` and `noise`, by the variance of tau
        of n heads without ties, 2 (2n + 5) / (9n (n - 1)).
    """
    heads = len(ranking[0].values)
    pairs = zip(ranking, other, strict=True)
    # Where a ranking has all heads of a layer equal, tau is NaN, which the mean leaves out.
    taus = pd.Series([kendalltau(a.preferences, b.preferences).statistic for a, b in pairs])
    variance = 2 * (2 * heads + 5) / (9 * heads * (heads - 1))
    layers = max(1, taus.count())
    # A mean over independent layers has the variance of one layer, divided by their number.
    deviation_of_mean = (variance / layers) ** 0.5
    noise = float(norm.ppf(0.975)) * deviation_of_mean
    return {"value": float(taus.mean()), "noise": noise}
