"""Rankings of heads against one another: their rank correlations, and the scores of runs that tune the heads they choose."""

from itertools import combinations
from typing import Literal

import numpy as np
from scipy.stats import kendalltau, norm, spearmanr

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.required_runs import run_per_seed as required_runs
from hifi_cli.config.base import ConfigModel
from hifi_cli.config.methods import method_spec
from hifi_cli.methods.base import needs_heads
from hifi_cli.runs import head_selection
from hifi_cli.scoring.ranking import Ranked, rank_heads

RUNS_ARE_OPTIONAL = True  # the correlations need none, and each score stands for itself


class Settings(ConfigModel):
    """How rankings are compared."""

    correlation: Literal["kendall", "spearman"] = "kendall"
    """Kendall's tau-b or Spearman's rho of two rankings of a layer's heads."""


def compute(request: FigureRequest) -> FigureTable:
    """Compute the rows of two panels; `method` and `label` say which row of the picture they belong to.

    `panel` correlation: one row per task and pair of methods that tune selected heads: the rank correlation of their rankings,
    mean over the layers (`value`), and the `noise` that 95 % of unrelated rankings of as many heads and layers stay below.
    `panel` score: one row per task, method and finished run: its `score` and the `metric`.
    """
    rows: list[Row] = []
    runs, not_done = required_runs(request), 0
    finished = [run for run in runs if run.is_finished]
    for task in request.spec.tasks:
        ranked = _rankings(request, task)
        labels = _labels(request, task)
        for first, second in combinations(ranked, 2):
            keys = {"task": task, "method": first, "label": labels[first], "other": second, "other_label": labels[second]}
            statistics = rank_correlation(ranked[first], ranked[second], request.settings.correlation)
            rows.append({**keys, "panel": "correlation", **statistics})
        for run in finished:
            result, method = run.result(), run.config.method
            if run.config.task != task:
                continue
            if result.status != "done":
                not_done += 1
                continue
            rows.append({"task": task, "method": method, "label": labels[method], "seed": run.config.seed, "panel": "score"})
            rows[-1] |= {"score": result.score(), "metric": result.primary_metric}
    return FigureTable(rows, _notes(request, missing=len(runs) - len(finished), of=len(runs), not_done=not_done))


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
            rankings[method] = rank_heads(scores.richness_array, scores.correlation_array, **arguments, measured=measured)
    return rankings


def _labels(request: FigureRequest, task: str) -> dict[str, str]:
    """The name of its ranking for a method that is the only one with it; the method's label for all others."""
    configs = {method: request.config(task, method) for method in request.spec.methods}
    ranks = {method: config.heads.rank for method, config in configs.items() if needs_heads(config)}
    unique = {method: rank for method, rank in ranks.items() if list(ranks.values()).count(rank) == 1}
    return {method: unique.get(method) or method_spec(method).label for method in configs}


def _notes(request: FigureRequest, *, missing: int, of: int, not_done: int) -> list[str]:
    name = {"kendall": "Kendall's tau", "spearman": "Spearman's rho"}[request.settings.correlation]
    config = request.config(request.spec.tasks[0])
    notes = [
        f"left: {name} over a layer's heads, mean over the layers; gray: as small as between unrelated rankings",
        f"right: k = {config.heads.k}; dots: seeds, bars: 95 % t-intervals of their means; band: that of random heads",
    ]
    if not config.scoring.warm_steps:
        notes.append("gradient, ablation and fisher: the loss of a randomly initialized task head (scoring.warm_steps=0)")
    if missing:
        notes.append(f"{missing} of {of} runs are missing: --print shows their commands, --train trains them")
    if not_done:
        notes.append(f"{not_done} runs ended without a score and are left out")
    return notes
