"""What decides which heads are chosen: every ranking next to the others, and their overlaps against the damping factor."""

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.config.base import ConfigModel
from hifi_cli.runs import head_selection
from hifi_cli.scoring.ranking import RANKINGS, Array, Ranked, check_k

PAGERANKS = ("pagerank-literal", "pagerank", "pagerank-personalized")
SIGNALS = ("richness", "correlation")


class Settings(ConfigModel):
    """What is compared."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]
    """Values of PageRank's damping factor d at which the selections are compared."""


def compute(request: FigureRequest) -> FigureTable:
    """Compute the rows of two panels.

    `panel` values: one row per task, layer, ranking and head: its `value` relative to the layer's mean, its `rank` from 1,
    whether it is `chosen`. `panel` overlap: one row per task, layer, damping factor, PageRank and the signal that it is
    compared `with`: how many of the k chosen heads they share (`value`), and how many by `chance`.
    """
    rows: list[Row] = []
    for task in request.spec.tasks:
        config = request.config(task)
        k, epsilon = config.heads.k, config.heads.epsilon
        scores, _ = head_selection.scores(config, request.resources)
        check_k(k, scores.num_heads)
        for layer in range(scores.num_layers):
            richness, correlation = scores.richness_array[layer], scores.correlation_array[layer]
            keys = {"task": task, "layer": layer}
            for name in (*SIGNALS, *PAGERANKS):
                ranked = RANKINGS[name](richness, correlation, config.heads.damping, epsilon)
                rows += [{**keys, "panel": "values", "ranking": name, **row} for row in value_rows(ranked, k)]
            for damping in request.settings.dampings:
                overlaps = overlap_rows(richness, correlation, damping, epsilon, k)
                rows += [{**keys, "panel": "overlap", "damping": damping, **row} for row in overlaps]
    heads = request.config(request.spec.tasks[0]).heads
    return FigureTable(rows, [f"the top k = {heads.k} heads of a layer are chosen; heatmaps at d = {heads.damping:g}"])


def value_rows(ranked: Ranked, k: int) -> list[Row]:
    """One row per head: its value relative to the mean over the heads, its rank from 1, and whether it is chosen."""
    relative = ranked.values / ranked.values.mean()
    ranks = {head: number for number, head in enumerate(ranked.order, 1)}
    chosen = ranked.top(k)
    return [
        {"head": head, "value": float(value), "rank": ranks[head], "chosen": head in chosen}
        for head, value in enumerate(relative)
    ]


def overlap_rows(richness: Array, correlation: Array, damping: float, epsilon: float, k: int) -> list[Row]:
    """Compare the heads that each PageRank chooses with those of one signal alone; equal values are ordered by rounding."""

    def chosen(name: str) -> set[int]:
        return set(RANKINGS[name](richness, correlation, damping, epsilon).top(k))

    chance = k * k / len(richness)
    return [
        {"ranking": name, "with": signal, "value": len(chosen(name) & chosen(signal)), "k": k, "chance": chance}
        for name in PAGERANKS
        for signal in SIGNALS
    ]
