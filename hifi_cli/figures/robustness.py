"""How far the scores and the chosen heads agree between settings, in numbers (HiFi, section 5.1)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.figures import richness, style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.heads.ranking import choose_heads

Settings = richness.Settings
_TITLES = {
    "richness": "rank correlation of $I_h$",
    "correlation": "rank correlation of $r_{h,h'}$",
    "chosen": "fraction of chosen heads shared",
}


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the agreement with the first setting, one row per task, setting, layer and measure.

    Measures: `richness`, Spearman's rank correlation of I_h; `correlation`, that of r_hh' over pairs of heads; `chosen`,
    the fraction of the k chosen heads that both settings choose; `chance` is the expected fraction for a random choice.
    """
    rows = []
    for task in request.spec.tasks:
        config = request.config(task)
        arguments = config.heads.selection_arguments(config.seed)
        scores = {name: richness.head_scores(request, task, name) for name in request.settings.variants}
        chosen = {
            name: choose_heads(some.richness_array, some.correlation_array, **arguments).heads for name, some in scores.items()
        }
        first, *others = scores
        pairs = np.triu_indices(scores[first].num_heads, 1)
        for other in others:
            for layer, heads in enumerate(chosen[first]):
                ranked, correlated = (
                    spearmanr(*([array[layer] for array in arrays])).statistic
                    for arrays in (
                        [scores[name].richness_array for name in (first, other)],
                        [scores[name].correlation_array[:, *pairs] for name in (first, other)],
                    )
                )
                keys = {"task": task, "setting": other, "layer": layer}
                rows.append({**keys, "measure": "richness", "value": ranked, "chance": None})
                rows.append({**keys, "measure": "correlation", "value": correlated, "chance": None})
                if heads:
                    shared = len({*heads} & {*chosen[other][layer]}) / len(heads)
                    chance = config.heads.k / scores[first].num_heads
                    rows.append({**keys, "measure": "chosen", "value": shared, "chance": chance})
    richness.add_note(request)
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw the agreement with ST per layer and, to the right, its mean over layers; a panel per measure."""
    tasks = list(data["task"].unique())
    figure, axes = style.grid(len(tasks) * len(_TITLES), columns=len(_TITLES), height=2.2, sharey=True)
    layers = list(range(1, int(data["layer"].max()) + 2))
    labelled, mean_position = layers[:: 1 + len(layers) // 13], layers[-1] + 1.2
    panels = [(task, measure) for task in tasks for measure in _TITLES]
    for ax, (task, measure) in zip(axes, panels, strict=True):
        panel = data[(data["task"] == task) & (data["measure"] == measure)]
        for number, (setting, points) in enumerate(panel.groupby("setting", sort=False)):
            ax.plot(points["layer"] + 1, points["value"], label=setting, **style.line(number))
            ax.plot(mean_position, points["value"].mean(), **style.line(number))
        if measure == "chosen":
            style.mark_chance(ax, panel["chance"].iloc[0])
        ax.set_title(style.panel_title(record, task, _TITLES[measure]))
        ax.set_xticks([*labelled, mean_position], [*map(str, labelled), "mean"])
        ax.set_ylim(min(-0.05, data["value"].min() - 0.05), 1.05)
    style.label_outer(axes, "layer", "agreement with ST")
    style.shared_legend(figure, axes)
    return figure
