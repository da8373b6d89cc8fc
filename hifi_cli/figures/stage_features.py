"""How far the features move within stage 1 and from stage 1 to stage 2 of two-stage methods (EH-FT, section 2.3)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.figures import features, style
from hifi_cli.figures.figure import FigureRequest, StopAfterStage1, train
from hifi_cli.grids.cells import GridCell

READS_WEIGHTS = True  # of its finished runs
_PAIRS = {
    "pretrained-stage1": "#dce6f0",
    "stage1-stage2": "#6f9fc8",
    "pretrained-stage2": "#28527a",
}
_HEIGHT = 0.27  # of a bar; methods are 1 apart


class Settings(features.Settings):
    """Which examples are used, and what the paper prints."""

    published: dict[str, float] = {}
    """The printed distance between the stages, by method."""


def cells(request: FigureRequest) -> list[GridCell]:
    """Return a run for every task, method and seed.

    Raises:
        UsageError: a method has one stage.
    """
    required = request.cell_per_seed()
    for cell in required:
        if cell.config.stage1 is None:
            raise UsageError(f"method {cell.config.method} has one stage; this figure is for EH-FT and LP-FT")
    return required


def compute(request: FigureRequest) -> pd.DataFrame:
    """Compute the features' L2 distances, mean and standard deviation over training examples, three rows per run.

    The model of stage 2 is the run's own. Runs do not store the model of stage 1: its steps are trained again, with the run's
    seed.
    """
    rows = []
    for cell, examples, pad, pretrained in features.with_pretrained_features(request):
        config = cell.config
        stage1 = train(config, request.resources, StopAfterStage1())
        states = {
            "pretrained": pretrained,
            "stage1": features.features(stage1.encoder, examples, pad),
            "stage2": features.features_of_run(cell, request, examples, pad),
        }
        for pair in _PAIRS:
            first, second = pair.split("-")
            distances = np.linalg.norm(states[second] - states[first], axis=1)
            printed = request.settings.published.get(config.method) if pair == "stage1-stage2" else None
            rows.append(
                {
                    "task": config.task,
                    "method": config.method,
                    "label": label_of("methods", config.method),
                    "seed": config.seed,
                    "examples": len(examples),
                    "pair": pair,
                    "mean": distances.mean(),
                    "std": distances.std(),
                    "published": printed,
                }
            )
    request.notes.append(f"stage 2: the model of the reported epoch; {request.over_seeds}")
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw three bars per method with their numbers, mean over seeds of the mean distance, and what the paper prints."""
    tasks = list(data["task"].unique())
    figure, axes = style.task_grid(tasks, height=1.0 + 0.72 * data["method"].nunique())
    for ax, task in zip(axes, tasks, strict=True):
        panel = data[data["task"] == task]
        for number, (pair, color) in enumerate(_PAIRS.items()):
            distances = panel[panel["pair"] == pair].groupby("method", sort=False)["mean"]
            places = np.arange(len(distances)) + _HEIGHT * (number - 1)
            label = pair.replace("-", " to ").replace("stage", "stage ")
            style.bars(ax, places, distances, height=_HEIGHT, color=color, label=label)
        methods = panel.groupby("method", sort=False)[["label", "published"]].first()
        printed = [f"\n(paper: {number:g})" if number == number else "" for number in methods["published"]]
        ax.set_yticks(range(len(methods)), methods["label"] + printed)
        ax.invert_yaxis()
        ax.margins(x=0.15)
        ax.set_title(style.panel_title(record, task))
        ax.set_xlabel("$L_2$ distance of the features")
        ax.legend(fontsize=6)
    return figure
