"""Correlation r_hh' between the heads of a layer under several settings (HiFi, figures 4 and 8 to 11)."""

import numpy as np

from hifi_cli.analysis import variants
from hifi_cli.analysis.base import FigureRequest, Points, Row


class Settings(variants.VariantSettings):
    """Which settings are compared."""


def compute(asked: FigureRequest) -> Points:
    """r_hh' and its share of the layer's largest, one row per task, setting, layer and pair of heads."""
    rows: list[Row] = []
    for task in asked.spec.tasks:
        for variant in asked.settings.variants:
            found = variants.scores(asked, task, variant, asked.settings.warm_steps)["correlation"]
            for (layer, head, other), value in np.ndenumerate(found):
                place = {"task": task, "setting": variant, "layer": layer, "head": head, "other": other}
                rows.append({**place, "correlation": value, "normalized": value / found[layer].max()})
    return Points(rows, [variants.note(asked.settings), "divided by each layer's largest value: one colour scale for all"])
