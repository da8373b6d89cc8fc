"""How far the scores and the chosen heads agree between settings, in numbers (HiFi, section 5.1)."""

import numpy as np
from scipy.stats import spearmanr

from hifi_cli.analysis import scoring_variants
from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.records.head_files import HeadScores
from hifi_cli.scoring.ranking import choose_heads

Settings = scoring_variants.VariantSettings


def compute(request: FigureRequest) -> FigureTable:
    """Compute the agreement with the first setting, one row per task, setting, layer and measure.

    Measures: `richness`, Spearman's rank correlation of I_h; `correlation`, that of r_hh' over pairs of heads; `chosen`,
    the fraction of the k chosen heads that both settings choose; `chance` is the expected fraction for a random choice.
    """
    rows: list[Row] = []
    first, *others = request.settings.variants
    for task in request.spec.tasks:
        config = request.config(task)
        arguments = config.heads.selection_arguments(config.seed)
        scores = scoring_variants.head_scores(request, task, first)
        heads = choose_heads(scores.richness_array, scores.correlation_array, **arguments).heads
        chance = config.heads.k / scores.num_heads
        for variant in others:
            other_scores = scoring_variants.head_scores(request, task, variant)
            other_heads = choose_heads(other_scores.richness_array, other_scores.correlation_array, **arguments).heads
            for layer in range(scores.num_layers):
                keys = {"task": task, "setting": variant, "layer": layer}
                for measure, value in _agreement(scores, other_scores, layer).items():
                    rows.append({**keys, "measure": measure, "value": value, "chance": None})
                if heads[layer]:
                    shared = len(set(heads[layer]) & set(other_heads[layer])) / len(heads[layer])
                    rows.append({**keys, "measure": "chosen", "value": shared, "chance": chance})
    return FigureTable(rows, [scoring_variants.note(request.settings)])


def _agreement(scores: HeadScores, others: HeadScores, layer: int) -> dict[str, float]:
    pairs = np.triu_indices(scores.num_heads, 1)
    return {
        "richness": float(spearmanr(scores.richness_array[layer], others.richness_array[layer]).statistic),
        "correlation": float(
            spearmanr(scores.correlation_array[layer][pairs], others.correlation_array[layer][pairs]).statistic
        ),
    }
