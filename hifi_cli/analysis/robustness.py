"""How far the scores and the chosen heads agree between settings, in numbers (HiFi, section 5.1)."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from hifi_cli.analysis import variants
from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.scoring.head_choice import choose_heads


class Settings(variants.VariantSettings):
    """Which settings are compared with the first of them."""


def compute(asked: FigureRequest) -> Points:
    """Agreement with the first setting, one row per task, setting, layer and measure.

    Measures: `richness`, Spearman's rank correlation of I_h; `correlation`, that of r_hh' over pairs of heads; `chosen`,
    the share of the k chosen heads that both settings choose; `chance` is what a random choice would share.
    """
    rows: list[Row] = []
    first, *others = asked.settings.variants
    for task in asked.spec.tasks:
        config = asked.config(task)
        choosing = config.heads.selection_arguments(config.seed)
        standard = variants.scores(asked, task, first, asked.settings.warm_steps)
        kept = choose_heads(standard["richness"], standard["correlation"], **choosing).heads
        chance = config.heads.k / standard["num_heads"]
        for variant in others:
            found = variants.scores(asked, task, variant, asked.settings.warm_steps)
            chosen = choose_heads(found["richness"], found["correlation"], **choosing).heads
            for layer in range(found["num_layers"]):
                for measure, value in _agreement(standard, found, layer).items():
                    rows.append(_row(task, variant, layer, measure, value))
                if kept[layer]:
                    shared = len(set(kept[layer]) & set(chosen[layer])) / len(kept[layer])
                    rows.append({**_row(task, variant, layer, "chosen", shared), "chance": chance})
    return Points(rows, [variants.note(asked.settings)])


def _agreement(one: dict[str, Any], other: dict[str, Any], layer: int) -> dict[str, float]:
    pairs = np.triu_indices(one["num_heads"], 1)
    return {
        "richness": float(spearmanr(one["richness"][layer], other["richness"][layer]).statistic),
        "correlation": float(spearmanr(one["correlation"][layer][pairs], other["correlation"][layer][pairs]).statistic),
    }


def _row(task: str, variant: str, layer: int, measure: str, value: float) -> Row:
    return {"task": task, "setting": variant, "layer": layer, "measure": measure, "value": value, "chance": None}
