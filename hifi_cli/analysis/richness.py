"""Information richness I_h of every head under several settings (HiFi, figure 3)."""

from hifi_cli.analysis import scoring_variants
from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row

Settings = scoring_variants.VariantSettings


def compute(request: FigureRequest) -> FigureTable:
    """Compute mean and standard deviation of I_h over the samples, one row per task, setting, layer and head."""
    rows: list[Row] = []
    for task in request.spec.tasks:
        for variant in request.settings.variants:
            scores = scoring_variants.head_scores(request, task, variant)
            for layer, (means, deviations) in enumerate(zip(scores.richness_array, scores.richness_std_array, strict=True)):
                for head, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
                    keys = {"task": task, "setting": variant, "layer": layer, "head": head}
                    rows.append({**keys, "mean": mean, "std": deviation})
    return FigureTable(rows, [scoring_variants.note(request.settings)])
