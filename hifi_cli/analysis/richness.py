"""Information richness I_h of every head under several settings (HiFi, figure 3)."""

from hifi_cli.analysis import variants
from hifi_cli.analysis.base import FigureRequest, Points, Row


class Settings(variants.VariantSettings):
    """Which settings are compared."""


def compute(asked: FigureRequest) -> Points:
    """Mean and standard deviation of I_h over the samples, one row per task, setting, layer and head."""
    rows: list[Row] = []
    for task in asked.spec.tasks:
        for variant in asked.settings.variants:
            found = variants.scores(asked, task, variant, asked.settings.warm_steps)
            for layer, (means, deviations) in enumerate(zip(found["richness"], found["richness_std"], strict=True)):
                for head, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
                    place = {"task": task, "setting": variant, "layer": layer, "head": head}
                    rows.append({**place, "mean": mean, "std": deviation})
    return Points(rows, [variants.note(asked.settings)])
