"""What drives the choice of heads: every ranking side by side, and their overlaps over the damping factor."""

import numpy as np

from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.config.run_config import ConfigModel
from hifi_cli.runs import head_selection
from hifi_cli.scoring.ranking import RANKINGS, Array, Ranked

READINGS = ("pagerank-literal", "pagerank", "pagerank-personalized")
ALONE = ("richness", "correlation")


class Settings(ConfigModel):
    """`dampings`: values of d at which the choices are compared."""

    dampings: list[float] = [round(0.05 * number, 2) for number in range(1, 20)]


def compute(asked: FigureRequest) -> Points:
    """Two panels in one table.

    `panel` values: one row per task, layer, ranking and head: its `value` relative to the layer's mean, its `rank` from 1,
    whether it is `chosen`. `panel` overlap: one row per task, layer, damping, ranking and the signal it is compared `with`
    alone: how many of the k chosen heads they share (`value`), and how many by `chance`.
    """
    rows: list[Row] = []
    for task in asked.spec.tasks:
        config = asked.config(task)
        found, _ = head_selection.scores(config, asked.resources)
        for layer in range(found["num_layers"]):
            richness, correlation = (np.array(found[key][layer]) for key in ("richness", "correlation"))
            place = {"task": task, "layer": layer}
            how = (config.heads.damping, config.heads.epsilon)
            for name in (*ALONE, *READINGS):
                ranked = RANKINGS[name](richness, correlation, *how)
                rows += _values({**place, "panel": "values", "ranking": name}, ranked, config.heads.k)
            for damping in asked.settings.dampings:
                how = (damping, config.heads.epsilon)
                rows += _overlaps({**place, "panel": "overlap", "damping": damping}, richness, correlation, how, config.heads.k)
    heads = asked.config(asked.spec.tasks[0]).heads
    return Points(rows, [f"the top k = {heads.k} heads of a layer are chosen; maps at d = {heads.damping:g}"])


def _values(place: Row, ranked: Ranked, k: int) -> list[Row]:
    relative = ranked.values / ranked.values.mean()
    ranks = {head: number for number, head in enumerate(ranked.order, 1)}
    chosen = ranked.top(k)
    return [
        {**place, "head": head, "value": float(value), "rank": ranks[head], "chosen": head in chosen}
        for head, value in enumerate(relative)
    ]


def _overlaps(place: Row, richness: Array, correlation: Array, how: tuple[float, float], k: int) -> list[Row]:
    """Choices of every reading beside those of one signal alone; a flat reading follows rounding noise."""
    alone = {name: set(RANKINGS[name](richness, correlation, *how).top(k)) for name in ALONE}
    rows = []
    for name in READINGS:
        chosen = set(RANKINGS[name](richness, correlation, *how).top(k))
        for signal, heads in alone.items():
            shared = len(chosen & heads)
            expected = {"k": k, "chance": k * k / len(richness)}
            rows.append({**place, "ranking": name, "with": signal, "value": shared, **expected})
    return rows
