"""Correlation r_hh' between the heads of a layer under several settings (HiFi, figures 4 and 8 to 11)."""

import numpy as np

from hifi_cli.analysis import scoring_variants
from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row

Settings = scoring_variants.VariantSettings


def compute(request: FigureRequest) -> FigureTable:
    """Compute r_hh' and its ratio to the layer's largest, one row per task, setting, layer and pair of heads."""
    rows: list[Row] = []
    for task in request.spec.tasks:
        for variant in request.settings.variants:
            correlation = scoring_variants.head_scores(request, task, variant).correlation_array
            for (layer, head, other), value in np.ndenumerate(correlation):
                keys = {"task": task, "setting": variant, "layer": layer, "head": head, "other": other}
                rows.append({**keys, "correlation": value, "normalized": value / correlation[layer].max()})
    notes = [scoring_variants.note(request.settings), "divided by each layer's largest value: one color scale for all"]
    return FigureTable(rows, notes)
