"""Rankings of heads: PageRank's damping factor (HiFi, figure 6), what decides, and all compared."""

import timeit
from functools import partial
from itertools import combinations, product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import kendalltau, norm

from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Kind
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import RANKINGS, Ranked, check_k, rank_heads
from hifi_cli.methods.base import needs_heads
from hifi_cli.statistics import mean_interval

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

    explanation = "time: the shortest of {repeats}; lines: mean over layers, shades: from minimum to maximum"
    dampings: list[float] = _DAMPINGS
    """Values of PageRank's damping factor d."""
    repeats: int = 20
    """Repetitions of each timing; the shortest one counts."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Measure iterations to convergence and seconds, by task, damping factor and layer."""
        rows = []
        for task in request.spec.tasks:
            config = request.config(task)
            how = config.heads
            if not how.rank.startswith("pagerank"):
                raise UsageError(f"heads.rank={how.rank} has no damping factor; this figure is for pagerank")
            scores = request.head_scores(config)
            for damping, (layer, (richness, correlation)) in product(
                self.dampings, enumerate(zip(*scores.arrays, strict=True))
            ):
                rank = partial(RANKINGS[how.rank], richness, correlation, damping, how.epsilon)
                seconds = min(timeit.repeat(rank, number=1, repeat=self.repeats))
                keys = {"task": task, "damping": damping, "layer": layer}
                rows.append({**keys, "iterations": rank().iterations, "seconds": seconds})
        return pd.DataFrame(rows)

    def draw(self, data: style.Frame) -> Figure:
        """Draw iterations and milliseconds by d, a line per task."""
        measured = pd.DataFrame(
            {
                "task": data["task"].map(lambda task: label_of("tasks", task)),
                "damping": data["damping"],
                "iterations": data["iterations"],
                "time of one layer [ms]": 1e3 * data["seconds"],
            }
        ).melt(["task", "damping"], var_name="panel")
        by = ["panel", "task", "damping"]
        over_layers = measured.groupby(by, sort=False)["value"].agg(["mean", "min", "max"]).reset_index()
        labels = ("damping factor d", "")
        return style.line_panels(over_layers, "damping", "mean", by="task", band=("min", "max"), labels=labels)[0]


class HeadRanking(Kind):
    """What decides which heads are chosen: rankings side by side, overlaps by damping factor."""

    explanation = (
        "dots: chosen heads, the top k of a layer; where a heatmap has one color, the values give no basis for a"
        " choice, and PageRank as printed orders heads by rounding noise; gray lines: a random choice"
    )
    dampings: list[float] = _DAMPINGS
    """Values of PageRank's damping factor d at which the selections are compared."""

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the rows of two panels.

        `panel` values: one row per task, layer, ranking and head: its `value` relative to the
        layer's mean, its `rank` from 1, whether it is `chosen`. `panel` overlap: one row per task,
        layer, damping factor, PageRank and the signal that it is compared `with`: how many of the k
        chosen heads they share (`value`), and how many by `chance`.
        """
        rows = []
        for task in request.spec.tasks:
            config = request.config(task)
            how, scores = config.heads, request.head_scores(config)
            heads = len(scores.richness[0])
            check_k(how.k, heads)
            for layer, arrays in enumerate(zip(*scores.arrays, strict=True)):
                keys = {"task": task, "layer": layer}
                for name in _LABELS:
                    ranked = RANKINGS[name](*arrays, how.damping, how.epsilon)
                    ranks = np.argsort(ranked.order) + 1
                    for head, value in enumerate(ranked.values / ranked.values.mean()):
                        result = {
                            "value": value,
                            "rank": ranks[head],
                            "chosen": ranks[head] <= how.k,
                        }
                        rows.append({**keys, "panel": "values", "ranking": name, "head": head, **result})
                for damping in self.dampings:
                    top = {name: {*RANKINGS[name](*arrays, damping, how.epsilon).top(how.k)} for name in _LABELS}
                    for name, signal in product(_PAGERANKS, _SIGNALS):
                        pair = {
                            "panel": "overlap",
                            "damping": damping,
                            "ranking": name,
                            "with": signal,
                        }
                        chance = how.k**2 / heads
                        rows.append(
                            {
                                **keys,
                                **pair,
                                "value": len(top[name] & top[signal]),
                                "k": how.k,
                                "chance": chance,
                            }
                        )
        return pd.DataFrame(rows)

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
            image = ax.imshow(table, vmin=1 - extent, vmax=1 + extent, aspect="auto", interpolation="nearest")
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
        figure.colorbar(image, ax=heatmaps, fraction=0.02, pad=0.01, aspect=18, label="value / layer's mean")
        shared = overlaps.groupby(["with", "ranking", "damping"], sort=False)["value"].mean().reset_index()
        shared = shared.assign(ranking=shared["ranking"].map(_LABELS))
        for ax, signal in zip((left, right), _SIGNALS, strict=True):
            style.lines(ax, shared[shared["with"] == signal], "damping", "value", "ranking")
            ax.axhline(overlaps["chance"].iloc[0], color="#999999", linewidth=0.8)
            ax.set(
                title=f"shared with {signal} alone",
                xlabel="damping factor d",
                ylim=(0, 1.05 * overlaps["k"].iloc[0]),
            )
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

    def compute(self, request: FigureRequest) -> pd.DataFrame:
        """Compute the rows of two panels.

        `panel` correlation: one row per task and pair of methods that tune selected heads: the rank
        correlation of their rankings, mean over the layers (`value`), and the `noise` that 95 % of
        unrelated rankings of as many heads and layers stay below. `panel` score: one row per
        finished run: its `score` and the `metric`.
        """
        rows = []
        for task in request.spec.tasks:
            rankings = {}
            for method in request.spec.methods:
                config = request.config(task, method)
                if needs_heads(config) and not config.heads.given:
                    scores, how = (
                        request.head_scores(config),
                        config.heads.selection_arguments(config.seed),
                    )
                    measured = head_selection.importance(config, request.resources)
                    rankings[method] = rank_heads(
                        *scores.arrays,
                        **{key: value for key, value in how.items() if key not in ("strategy", "k")},
                        measured=measured,
                    )
            for first, second in combinations(rankings, 2):
                keys = {"task": task, "method": first, "other": second, "panel": "correlation"}
                rows.append({**keys, **rank_correlation(rankings[first], rankings[second])})
        for _, run in request.runs():
            keys = {
                "task": run["task"],
                "method": run["method"],
                "panel": "score",
                "seed": run["seed"],
            }
            rows.append({**keys, "score": run[run["report"]], "metric": run["metric"]})
        return pd.DataFrame(rows)

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
            left.set_xticks(range(len(ranked) - 1), labels[: len(ranked) - 1], rotation=45, ha="right")
            left.set_yticks(range(len(methods)), labels)
            left.set(xlim=(-0.5, len(ranked) - 1.5), ylim=(len(methods) - 0.5, -0.5))
            left.set_title(label_of("tasks", task) if len(tasks) > 1 else "")
            if runs.empty:
                right.set_xlabel("no finished runs")
            else:
                _draw_scores(right, runs, methods)
        return figure


def rank_correlation(ranking: list[Ranked], other: list[Ranked]) -> dict[str, float]:
    """Correlate two rankings in each layer that neither ranks all equal, and average."""
    heads = len(ranking[0].values)
    pairs = zip(ranking, other, strict=True)
    taus = [kendalltau(own.preferences, others.preferences).statistic for own, others in pairs]
    values = [float(tau) for tau in taus if not np.isnan(tau)]
    variance = 2 * (2 * heads + 5) / (9 * heads * (heads - 1))
    noise = float(norm.ppf(0.975)) * (variance / max(1, len(values))) ** 0.5
    return {"value": sum(values) / len(values) if values else np.nan, "noise": noise}


def _draw_correlations(ax: Axes, pairs: style.Frame, ranked: list[str]) -> None:
    table = pairs.pivot(index="other", columns="method", values="value").reindex(index=ranked, columns=ranked)
    ax.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto", interpolation="nearest")
    for row, column in np.argwhere(table.notna().to_numpy()).tolist():
        value = table.iloc[row, column]
        is_noise = abs(value) <= pairs["noise"].iloc[0]
        color = "#888888" if is_noise else "white" if value > 0.7 or value < -0.5 else "black"
        ax.text(
            column,
            row,
            f"{value:.2f}".replace("0.", "."),
            ha="center",
            va="center",
            fontsize=6,
            color=color,
        )


def _draw_scores(ax: Axes, runs: style.Frame, methods: list[str]) -> None:
    ax.grid(axis="y", color="#eeeeee")
    ax.set_xlabel(f"{runs['metric'].iloc[0]} [%]")
    for method, group in runs.groupby("method"):
        values, line = 100 * group["score"].to_numpy(), methods.index(method)
        ax.plot(values, [line] * len(values), "o", markersize=2.5, color="#666666")
        ax.plot(values.mean(), line, "D", color="#0072B2")
        if interval := mean_interval([values]):
            ax.plot(interval, [line, line], "-", color="#0072B2")
            if method == "hifi-random":
                ax.axvspan(*interval, color="#dddddd", linewidth=0, zorder=0)
