"""PageRank's iterations and time against the damping factor d (HiFi, figure 6, right)."""

import time

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.config.base import ConfigModel
from hifi_cli.errors import UsageError
from hifi_cli.runs import head_selection
from hifi_cli.scoring.ranking import RANKINGS


class Settings(ConfigModel):
    """What is timed."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]
    """Values of PageRank's damping factor d."""
    repeats: int = 20
    """Repetitions of each timing; the shortest one counts."""


def compute(request: FigureRequest) -> FigureTable:
    """Measure iterations to convergence and seconds, one row per task, damping factor and layer.

    Raises:
        UsageError: the ranking is not a PageRank.
    """
    pageranks = [name for name in RANKINGS if name.startswith("pagerank")]
    ranking = request.config(request.spec.tasks[0]).heads.rank
    if ranking not in pageranks:
        raise UsageError(f"heads.rank={ranking} has no damping factor; this figure requires one of {', '.join(pageranks)}")
    rows: list[Row] = []
    for task in request.spec.tasks:
        config = request.config(task)
        scores, _ = head_selection.scores(config, request.resources)
        rank, epsilon = RANKINGS[config.heads.rank], config.heads.epsilon
        for damping in request.settings.dampings:
            for layer in range(scores.num_layers):
                richness, correlation = scores.richness_array[layer], scores.correlation_array[layer]
                seconds = []
                for _ in range(request.settings.repeats):
                    start = time.perf_counter()
                    ranked = rank(richness, correlation, damping, epsilon)
                    seconds.append(time.perf_counter() - start)
                keys = {"task": task, "damping": damping, "layer": layer}
                rows.append({**keys, "iterations": ranked.iterations, "seconds": min(seconds)})
    heads = request.config(request.spec.tasks[0]).heads
    return FigureTable(rows, [f"ranking {heads.rank}, epsilon {heads.epsilon:g}; time of one layer, the shortest of several"])
