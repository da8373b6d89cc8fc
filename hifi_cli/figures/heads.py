"""Attention heads: what they put out (HiFi, figures 3-5, 8-11), and how they are ranked (figure 6, and two of our own)."""

import timeit
from collections.abc import Iterator
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import kendalltau, norm

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind, Row
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import RANKINGS, Ranked, check_k
from hifi_cli.heads.scores import head_outputs, singular_values
from hifi_cli.methods.base import needs_heads
from hifi_cli.models.encoder import Encoder
from hifi_cli.statistics import mean_interval
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, single_sequences
from hifi_cli.tasks.task_spec import Example

# --- scores under several settings (HiFi, section 5.1): the standard one, and what the others change

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

    def setting(self, request: FigureRequest, task: str, variant: str) -> RunConfig:
        """Return the configuration of a task under a setting."""
        return request.config(
            task, keys={**STANDARD, "scoring.warm_steps": self.warm_steps, **VARIANTS[variant]}
        )


class Richness(ScoresBySetting):
    """Information richness I_h of every head (figure 3)."""

    explanation = f"{ScoresBySetting.explanation}; shades: standard deviation over samples"

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return mean and deviation of I_h over samples, by task, setting, layer and head."""
        for task, variant in product(request.spec.tasks, self.variants):
            scores = request.head_scores(self.setting(request, task, variant))
            for (layer, head), mean in np.ndenumerate(scores.arrays[0]):
                keys = {"task": task, "setting": variant, "layer": layer, "head": head}
                yield {**keys, "mean": mean, "std": scores.richness_std[layer][head]}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per layer and a line per setting."""
        data = data.assign(panel=style.panels(data, "layer " + (data["layer"] + 1).astype(str)))
        labels = ("head", "richness $I_h$")
        return style.line_panels(
            data,
            "head",
            "mean",
            by="setting",
            spread="std",
            labels=labels,
            columns=4,
            height=1.6,
            sharex=True,
        )[0]


class Correlation(ScoresBySetting):
    """Correlation r_hh' between the heads of a layer (figures 4 and 8 to 11)."""

    explanation = f"{ScoresBySetting.explanation}. Divided by each layer's largest value: one color scale for all"

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return r_hh' and its ratio to the layer's largest, for every pair of heads."""
        for task, variant in product(request.spec.tasks, self.variants):
            correlation = request.head_scores(self.setting(request, task, variant)).arrays[1]
            for (layer, head, other), value in np.ndenumerate(correlation):
                keys = {
                    "task": task,
                    "setting": variant,
                    "layer": layer,
                    "head": head,
                    "other": other,
                }
                yield {**keys, "correlation": value, "normalized": value / correlation[layer].max()}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a heatmap per layer and setting, all in one color scale."""
        titles = style.panels(data, data["setting"] + ", layer " + (data["layer"] + 1).astype(str))
        panels = list(data.groupby(titles, sort=False))
        figure, axes = style.grid(len(panels), columns=4, height=1.7, sharex=True, sharey=True)
        for ax, (title, pairs) in zip(axes, panels, strict=True):
            table = pairs[pairs["head"] != pairs["other"]].pivot(
                index="head", columns="other", values="normalized"
            )
            image = ax.imshow(table, vmin=0, vmax=1, interpolation="nearest")
            ax.locator_params(integer=True)
            ax.set_title(title)
            style.label_outer(ax, "head", "head")
        label = "correlation $r_{h,h'}$, normalized"
        figure.colorbar(image, ax=axes, label=label, fraction=0.03, pad=0.02, aspect=35)
        return figure


# --- singular values


class SingularValues(Kind):
    """How fast the singular values of a head's output add up (figure 5)."""

    explanation = "one head of each layer, drawn at random; mean over samples, shades: standard deviation; gray line: xi = 0.9"
    layers: int = 4
    """Number of layers, evenly spaced from the first to the last."""
    seed: int = 0
    """Seed that draws one head of each layer."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the fraction of the sum in the first t singular values, by task, layer and t.

        Mean and standard deviation are over the samples.
        """
        for task in request.spec.tasks:
            config = request.config(task)
            pretrained = request.resources.pretrained(config)
            encoder, rng = Encoder(pretrained.model), np.random.default_rng(self.seed)
            spaced = np.linspace(0, encoder.num_layers - 1, self.layers).round().astype(int)
            heads = {
                layer: int(rng.integers(encoder.num_heads)) for layer in np.unique(spaced).tolist()
            }
            train = request.resources.examples(config, "train", config.scoring.max_length)
            examples = single_sequences(
                head_selection.sample(train, config.scoring.samples, config.scoring.seed)
            )
            fractions = cumulative_fractions(
                encoder, examples, padding_values(pretrained.tokenizer), heads
            )
            for layer, samples in fractions.items():
                keys = {"task": task, "layer": layer, "head": heads[layer]}
                for t, values in enumerate(samples.T, start=1):
                    yield {**keys, "t": t, "mean": values.mean(), "std": values.std()}

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and a line per layer; a horizontal line marks xi = 0.9."""
        data = data.assign(
            panel=style.panels(data), line="layer " + (data["layer"] + 1).astype(str)
        )
        labels = ("first t singular values", "fraction of their sum")
        figure, axes = style.line_panels(
            data, "t", "mean", by="line", spread="std", labels=labels, sharey=True
        )
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


# --- rankings

_DAMPINGS = [round(0.05 * number, 2) for number in range(1, 20)]
_LABELS = {
    "richness": "richness $I_h$ alone",
    "correlation": "correlation alone",
    "pagerank-literal": "PageRank as printed",
    "pagerank": "PageRank, transposed",
    "pagerank-personalized": "PageRank, personalized",
}
_SIGNALS, _PAGERANKS = list(_LABELS)[:2], list(_LABELS)[2:]


class Damping(Kind):
    """PageRank's iterations and time against the damping factor d (figure 6, right)."""

    explanation = (
        "time: the shortest of {repeats}; lines: mean over layers, shades: from minimum to maximum"
    )
    dampings: list[float] = _DAMPINGS
    """Values of PageRank's damping factor d."""
    repeats: int = 20
    """Repetitions of each timing; the shortest one counts."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Measure iterations to convergence and seconds, by task, damping factor and layer."""
        for task in request.spec.tasks:
            config = request.config(task)
            how = config.heads
            if not how.rank.startswith("pagerank"):
                raise UsageError(
                    f"heads.rank={how.rank} has no damping factor; this figure is for pagerank"
                )
            layers = enumerate(zip(*request.head_scores(config).arrays, strict=True))
            for damping, (layer, (richness, correlation)) in product(self.dampings, layers):
                rank = partial(RANKINGS[how.rank], richness, correlation, damping, how.epsilon)
                seconds = min(timeit.repeat(rank, number=1, repeat=self.repeats))
                keys = {"task": task, "damping": damping, "layer": layer}
                yield {**keys, "iterations": rank().iterations, "seconds": seconds}

    def draw(self, data: style.Frame) -> Figure:
        """Draw iterations and milliseconds by d, a line per task."""
        tasks = data["task"].map(lambda task: label_of("tasks", task))
        data = data.assign(task=tasks, **{"time of one layer [ms]": 1e3 * data["seconds"]})
        long = data.melt(
            ["task", "damping"], ["iterations", "time of one layer [ms]"], var_name="panel"
        )
        over_layers = (
            long.groupby(["panel", "task", "damping"], sort=False)["value"]
            .agg(["mean", "min", "max"])
            .reset_index()
        )
        labels = ("damping factor d", "")
        return style.line_panels(
            over_layers, "damping", "mean", by="task", band=("min", "max"), labels=labels
        )[0]


class HeadRanking(Kind):
    """What decides which heads are chosen: rankings side by side, overlaps by damping factor."""

    explanation = (
        "dots: chosen heads, the top k of a layer; where a heatmap has one color, the values give no basis for a"
        " choice, and PageRank as printed orders heads by rounding noise; gray lines: a random choice"
    )
    dampings: list[float] = _DAMPINGS
    """Values of PageRank's damping factor d at which the selections are compared."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the rows of two panels.

        `panel` values: one row per task, layer, ranking and head: its `value` relative to the
        layer's mean, its `rank` from 1, whether it is `chosen`. `panel` overlap: one row per task,
        layer, damping factor, PageRank and the signal that it is compared `with`: how many of the k
        chosen heads they share (`value`), and how many by `chance`.
        """
        for task in request.spec.tasks:
            config = request.config(task)
            how, arrays = config.heads, request.head_scores(config).arrays
            heads = arrays[0].shape[1]
            check_k(how.k, heads)
            for layer, (richness, correlation) in enumerate(zip(*arrays, strict=True)):
                keys = {"task": task, "layer": layer}
                for name in _LABELS:
                    ranked = RANKINGS[name](richness, correlation, how.damping, how.epsilon)
                    ranks = np.argsort(ranked.order) + 1
                    for head, value in enumerate(ranked.values / ranked.values.mean()):
                        place = {
                            "value": value,
                            "rank": ranks[head],
                            "chosen": ranks[head] <= how.k,
                        }
                        yield {**keys, "panel": "values", "ranking": name, "head": head, **place}
                for damping in self.dampings:
                    top = {
                        name: {
                            *RANKINGS[name](richness, correlation, damping, how.epsilon).top(how.k)
                        }
                        for name in _LABELS
                    }
                    for name, signal in product(_PAGERANKS, _SIGNALS):
                        shared = {
                            "value": len(top[name] & top[signal]),
                            "k": how.k,
                            "chance": how.k**2 / heads,
                        }
                        yield {
                            **keys,
                            "panel": "overlap",
                            "damping": damping,
                            "ranking": name,
                            "with": signal,
                            **shared,
                        }

    def draw(self, data: style.Frame) -> Figure:
        """Draw each ranking as a heatmap with the chosen heads marked; below, overlaps.

        An overlap near k means that the ranking follows one signal alone. Only the first task is
        shown.
        """
        data = data[data["task"] == data["task"].iloc[0]]
        values, overlaps = data[data["panel"] == "values"], data[data["panel"] == "overlap"]
        heights = [0.7 + 0.13 * values["layer"].nunique(), 1.8]
        figure = Figure(figsize=(style.WIDE, sum(heights) + 1.2), layout="constrained")
        axes = figure.subplot_mosaic("AABBCCDDEE;FFFFFGGGGG", height_ratios=heights)
        *heatmaps, left, right = axes.values()
        extent = float(np.quantile(np.abs(values["value"] - 1), 0.98))
        for ax, (name, label) in zip(heatmaps, _LABELS.items(), strict=True):
            heads = values[values["ranking"] == name]
            table = heads.pivot(index="layer", columns="head", values="value")
            image = ax.imshow(
                table, vmin=1 - extent, vmax=1 + extent, aspect="auto", interpolation="nearest"
            )
            if np.ptp(table) > 1e-4:
                chosen = heads[heads["chosen"].astype(bool)]
                ax.plot(
                    chosen["head"],
                    chosen["layer"],
                    "o",
                    color="white",
                    markeredgecolor="black",
                    markersize=3,
                )
            ax.locator_params(integer=True)
            ax.set_yticks(table.index, [str(layer + 1) for layer in table.index])
            ax.set_title(label, fontsize=7)
            style.label_outer(ax, "", "layer")
            ax.set_xlabel("head")
        figure.colorbar(
            image, ax=heatmaps, fraction=0.02, pad=0.01, aspect=18, label="value / layer's mean"
        )
        shared = (
            overlaps.groupby(["with", "ranking", "damping"], sort=False)["value"]
            .mean()
            .reset_index()
        )
        shared = shared.assign(ranking=shared["ranking"].map(_LABELS))
        for ax, signal in zip((left, right), _SIGNALS, strict=True):
            style.lines(ax, shared[shared["with"] == signal], "damping", "value", "ranking")
            ax.axhline(overlaps["chance"].iloc[0], color="#999999", linewidth=0.8)
            limits = (0, 1.05 * overlaps["k"].iloc[0])
            ax.set(title=f"shared with {signal} alone", xlabel="damping factor d", ylim=limits)
        left.set_ylabel("chosen heads shared,\nmean over layers")
        style.shared_legend(figure, [left])
        return figure


class HeadBench(Kind):
    """All rankings: how far they agree, and the scores of runs that tune what they choose."""

    explanation = (
        "left: Kendall's tau over a layer's heads, mean over the layers; gray: as small as between unrelated rankings;"
        " right: dots: seeds, bars: 95 % t-intervals of their means; band: that of random heads; without warm steps,"
        " gradient, ablation and fisher are those of a randomly initialized task head"
    )
    reads_runs = runs_are_optional = True

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the rows of two panels.

        `panel` correlation: one row per task and pair of methods that tune selected heads: the rank
        correlation of their rankings, mean over the layers (`value`), and the `noise` that 95 % of
        unrelated rankings of as many heads and layers stay below. `panel` score: one row per
        finished run: its `score` and the `metric`.
        """
        for task in request.spec.tasks:
            configs = {method: request.config(task, method) for method in request.spec.methods}
            ranked = {
                method: head_selection.rank(config, request.resources)
                for method, config in configs.items()
                if needs_heads(config) and not config.heads.given
            }
            for first, second in combinations(ranked, 2):
                keys = {"task": task, "method": first, "other": second, "panel": "correlation"}
                yield {**keys, **rank_correlation(ranked[first], ranked[second])}
        for _, run in request.runs():
            keys = {
                "task": run["task"],
                "method": run["method"],
                "panel": "score",
                "seed": run["seed"],
            }
            yield {**keys, "score": run[run["report"]], "metric": run["metric"]}

    def draw(self, data: style.Frame) -> Figure:
        """Draw two panels per task, a line per ranking; methods without one stand below."""
        tasks = list(data.groupby("task", sort=False))
        height = 1.1 + 0.2 * len({*data["method"], *data["other"].dropna()})
        figure = Figure(figsize=(style.WIDE, height * len(tasks) + 0.7), layout="constrained")
        axes = figure.subplots(len(tasks), 2, squeeze=False, sharey="row", width_ratios=[1.15, 1])
        for (left, right), (task, panel) in zip(axes, tasks, strict=True):
            pairs, runs = panel[panel["panel"] == "correlation"], panel[panel["panel"] == "score"]
            ranked = list(dict.fromkeys([*pairs["method"], *pairs["other"]]))
            methods = list(dict.fromkeys([*ranked, *runs["method"]]))
            labels = [label_of("methods", method) for method in methods]
            _draw_correlations(left, pairs, ranked)
            left.set_xticks(
                range(len(ranked) - 1), labels[: len(ranked) - 1], rotation=45, ha="right"
            )
            left.set_yticks(range(len(methods)), labels)
            title = label_of("tasks", task) if len(tasks) > 1 else ""
            left.set(xlim=(-0.5, len(ranked) - 1.5), ylim=(len(methods) - 0.5, -0.5), title=title)
            _draw_scores(right, runs, methods)
        return figure


def rank_correlation(ranking: list[Ranked], other: list[Ranked]) -> dict[str, float]:
    """Correlate two rankings in each layer that neither ranks all equal, and average."""
    heads = len(ranking[0].values)
    pairs = zip(ranking, other, strict=True)
    taus = pd.Series(
        [kendalltau(own.preferences, others.preferences).statistic for own, others in pairs]
    )
    variance = 2 * (2 * heads + 5) / (9 * heads * (heads - 1))
    noise = float(norm.ppf(0.975)) * (variance / max(1, taus.count())) ** 0.5
    return {"value": float(taus.mean()), "noise": noise}


def _draw_correlations(ax: Axes, pairs: style.Frame, ranked: list[str]) -> None:
    table = pairs.pivot(index="other", columns="method", values="value").reindex(
        index=ranked, columns=ranked
    )
    ax.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        is_noise = abs(value) <= pairs["noise"].iloc[0]
        color = "#888888" if is_noise else "white" if value > 0.7 or value < -0.5 else "black"
        text = "" if np.isnan(value) else f"{value:.2f}".replace("0.", ".")
        ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)


def _draw_scores(ax: Axes, runs: style.Frame, methods: list[str]) -> None:
    ax.grid(axis="y", color="#eeeeee")
    ax.set_xlabel("no finished runs" if runs.empty else f"{runs['metric'].iloc[0]} [%]")
    for method, group in runs.groupby("method"):
        values, line = 100 * group["score"].to_numpy(), methods.index(method)
        ax.plot(values, [line] * len(values), "o", markersize=2.5, color="#666666")
        ax.plot(values.mean(), line, "D", color="#0072B2")
        if interval := mean_interval([values]):
            ax.plot(interval, [line, line], "-", color="#0072B2")
            if method == "hifi-random":
                ax.axvspan(*interval, color="#dddddd", linewidth=0, zorder=0)
