"""Rankings of heads against one another: their rank correlations, and the scores of runs that tune the heads they choose."""

from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import kendalltau, norm, spearmanr

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.heads import select as head_selection
from hifi_cli.heads.ranking import Ranked, rank_heads
from hifi_cli.methods.base import needs_heads
from hifi_cli.statistics import mean_interval

RUNS_ARE_OPTIONAL = True  # the correlations need none, and each score stands for itself
cells = FigureRequest.cell_per_seed
_NAMES = {"kendall": "Kendall's tau", "spearman": "Spearman's rho"}


class Settings(ConfigModel):
    """How rankings are compared."""

    correlation: Literal["kendall", "spearman"] = "kendall"
    """Kendall's tau-b or Spearman's rho of two rankings of a layer's heads."""


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the rows of two panels; `method` and `label` say which row of the picture they belong to.

    `panel` correlation: one row per task and pair of methods that tune selected heads: the rank correlation of their rankings,
    mean over the layers (`value`), and the `noise` that 95 % of unrelated rankings of as many heads and layers stay below.
    `panel` score: one row per task, method and finished run: its `score` and the `metric`.
    """
    spec, kind, rows = request.spec, request.settings.correlation, []
    required = request.cells()
    finished = [run for cell in required if (run := request.run(cell)) is not None]
    for task in spec.tasks:
        ranked, labels = _rankings(request, task), _labels(request, task)
        for first, second in combinations(ranked, 2):
            keys = {"task": task, "method": first, "label": labels[first]}
            keys |= {"other": second, "other_label": labels[second], "panel": "correlation"}
            rows.append({**keys, **rank_correlation(ranked[first], ranked[second], kind)})
        for run in finished:
            if run["task"] == task and run["status"] == "done":
                keys = {"task": task, "method": run["method"], "label": labels[run["method"]], "panel": "score"}
                rows.append({**keys, "seed": run["seed"], "score": run[run["report"]], "metric": run["metric"]})
    config = request.config(spec.tasks[0])
    request.notes += [
        f"left: {_NAMES[kind]} over a layer's heads, mean over the layers; gray: as small as between unrelated rankings",
        f"right: k = {config.heads.k}; dots: seeds, bars: 95 % t-intervals of their means; band: that of random heads",
    ]
    if not config.scoring.warm_steps:
        loss = "the loss of a randomly initialized task head (scoring.warm_steps=0)"
        request.notes.append(f"gradient, ablation and fisher: {loss}")
    if missing := len(required) - len(finished):
        how = "--print shows their commands, --train trains them"
        request.notes.append(f"{missing} of {len(required)} runs are missing: {how}")
    if not_done := sum(run["status"] != "done" for run in finished):
        request.notes.append(f"{not_done} runs ended without a score and are left out")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw one row of panels per task; both panels of a row have one line per ranking, methods without one stand below."""
    tasks = list(data["task"].unique())
    correlations, scores = data[data["panel"] == "correlation"], data[data["panel"] == "score"]
    height = 1.1 + 0.2 * len({*data["label"], *correlations["other_label"]})
    figure = Figure(figsize=(style.WIDE, height * len(tasks) + 0.7), layout="constrained")
    axes = figure.subplots(len(tasks), 2, squeeze=False, sharey="row", width_ratios=[1.15, 1])
    for (left, right), task in zip(axes, tasks, strict=True):
        pairs, runs = correlations[correlations["task"] == task], scores[scores["task"] == task]
        ranked = list(dict.fromkeys([*pairs["label"], *pairs["other_label"]]))
        lines = list(dict.fromkeys([*ranked, *runs["label"]]))
        _matrix(left, pairs, ranked)
        _scores(right, runs, lines)
        left.set_yticks(range(len(lines)), lines)
        left.set_ylim(len(lines) - 0.5, -0.5)
        left.set_title(style.panel_title(record, task))
    return figure


def rank_correlation(ranking: list[Ranked], other: list[Ranked], kind: str) -> dict[str, float]:
    """Correlate two rankings within each layer and average; a layer in which one ranks all heads equal has no correlation."""
    heads = len(ranking[0].values)
    correlate = kendalltau if kind == "kendall" else spearmanr
    values = [
        correlate(own.preferences, others.preferences).statistic
        for own, others in zip(ranking, other, strict=True)
        if np.ptp(own.values) > 0 and np.ptp(others.values) > 0
    ]
    variance = 2 * (2 * heads + 5) / (9 * heads * (heads - 1)) if kind == "kendall" else 1 / (heads - 1)
    noise = float(norm.ppf(0.975)) * (variance / max(1, len(values))) ** 0.5
    return {"value": float(np.mean(values)) if values else float("nan"), "noise": noise}


def _rankings(request: FigureRequest, task: str) -> dict[str, list[Ranked]]:
    """The ranking of each layer's heads by every method that tunes selected heads."""
    rankings = {}
    for method in request.spec.methods:
        config = request.config(task, method)
        if needs_heads(config) and not config.heads.given:
            scores, _ = head_selection.scores(config, request.resources)
            importance = head_selection.importance(config, request.resources)
            how = config.heads.selection_arguments(config.seed)
            arguments = {key: value for key, value in how.items() if key not in ("strategy", "k")}
            measured = importance.array if importance else None
            arrays = scores.richness_array, scores.correlation_array
            rankings[method] = rank_heads(*arrays, **arguments, measured=measured)
    return rankings


def _labels(request: FigureRequest, task: str) -> dict[str, str]:
    """The name of its ranking for a method that is the only one with it; the method's label for all others."""
    configs = {method: request.config(task, method) for method in request.spec.methods}
    ranks = {method: config.heads.rank for method, config in configs.items() if needs_heads(config)}
    unique = {method: rank for method, rank in ranks.items() if list(ranks.values()).count(rank) == 1}
    return {method: unique.get(method) or label_of("methods", method) for method in configs}


def _matrix(ax: Axes, pairs: style.Frame, ranked: list[str]) -> None:
    table = pairs.pivot(index="other_label", columns="label", values="value").reindex(index=ranked, columns=ranked)
    ax.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto", interpolation="nearest")
    noise = float(pairs["noise"].iloc[0]) if len(pairs) else 0.0
    for row, column in np.argwhere(np.tri(len(ranked), k=-1)).tolist():
        value = table.iloc[row, column]
        text = "-" if np.isnan(value) else f"{value:.2f}".replace("-", style.MINUS).replace("0.", ".")
        color = "#888888" if abs(value) <= noise else "white" if value > 0.7 or value < -0.5 else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    ax.set_xticks(range(len(ranked) - 1), ranked[:-1], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(ranked) - 1.5)
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)


def _scores(ax: Axes, runs: style.Frame, lines: list[str]) -> None:
    ax.tick_params(axis="y", labelleft=False)
    if runs.empty:
        ax.set_xticks([])
        ax.text(0.5, 0.5, "no finished runs", transform=ax.transAxes, ha="center", va="center", color="#666666")
        return
    for label, group in runs.groupby("label"):
        values, line = 100 * group["score"].to_numpy(), lines.index(str(label))
        interval = mean_interval([values])
        ax.plot(values, np.full(len(values), line), "o", markersize=2.5, color="#666666", markeredgewidth=0, zorder=3.5)
        if interval:
            ax.plot(interval, [line, line], color="#0072B2", linewidth=1.2, zorder=3)
            if label == "random":
                ax.axvspan(*interval, color="#dddddd", linewidth=0, zorder=0)
        ax.plot(values.mean(), line, "D", color="#0072B2", zorder=4)
    ax.grid(axis="y", color="#eeeeee", zorder=1)
    ax.set_axisbelow(True)
    ax.set_xlabel(f"{runs['metric'].iloc[0]} [%]")
