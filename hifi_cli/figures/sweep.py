"""Score against one configuration key, from finished runs (HiFi, figure 6, left: k; EH-FT, figure 6: stage 1's fraction)."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hifi_cli.config.base import ConfigModel, flatten
from hifi_cli.config.figure_spec import FigureRecord
from hifi_cli.config.registry import label_of
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest
from hifi_cli.grids.cells import GridCell, refuse_own_keys
from hifi_cli.methods.base import implementation_of

_X_LABELS = {
    "heads.k": "selected heads k per layer",
    "settings.stage1_fraction": "epochs of stage 1 / all epochs",
}
_KEPT_STAGE2 = "epochs of stage 1 / epochs of stage 2"


class Settings(ConfigModel):
    """What is varied."""

    key: str
    """A configuration key."""
    values: list[float]
    """Values of the key; each makes a variant of the run, as in a grid, except the run's own value."""
    keep_stage2: bool = False
    """Whether the value is the ratio of stage 1's epochs to stage 2's. Stage 2 has as many epochs then as a run without stage
    1 (EH-FT, figure 6 b); otherwise both stages together have the run's epochs (figure 6 a)."""


def cells(request: FigureRequest) -> list[GridCell]:
    """Return a run for every task, method, value and seed.

    Raises:
        UsageError: the command line sets the key that varies.
    """
    refuse_own_keys(request.overrides, [request.settings.key], "this figure")
    return [cell for _, cell in _cells_by_value(request)]


def compute(request: FigureRequest) -> pd.DataFrame:
    """Collect the score of every run, one row each."""
    rows = []
    for value, cell in _cells_by_value(request):
        run = request.run(cell)
        rows.append(
            {
                "task": run["task"],
                "method": run["method"],
                "key": request.settings.key,
                "x": value,
                "seed": run["seed"],
                "score": run[run["report"]],
                "metric": run["metric"],
                "epochs": cell.config.epochs,
                "trained_share": run["trainable_backbone"] / run["total"],
            }
        )
    request.notes.append(request.over_seeds)
    return pd.DataFrame(rows)


def draw(data: style.Frame, record: FigureRecord) -> Figure:
    """Draw mean score and standard deviation over seeds against the varied key, a panel per task, a line per method."""
    tasks, key = list(data["task"].unique()), record.settings["key"]
    figure, axes = style.task_grid(tasks, height=2.2, one=style.NARROW)
    for ax, task in zip(axes, tasks, strict=True):
        panel = data[data["task"] == task]
        for number, (method, runs) in enumerate(panel.groupby("method", sort=False)):
            scores = 100 * runs.groupby("x")["score"].agg(["mean", "std"]).fillna(0)
            spread = scores["std"] if scores["std"].any() else None
            look = {"capsize": 2, "label": label_of("methods", str(method)), **style.line(number)}
            ax.errorbar(scores.index, scores["mean"], yerr=spread, **look)
        ax.set_title(style.panel_title(record, task))
        ax.set_ylabel(f"{panel['metric'].iloc[0]} [%]")
        ax.set_xlabel(_KEPT_STAGE2 if record.settings["keep_stage2"] else _X_LABELS.get(key, key))
        if key == "heads.k":
            ax.set_xticks(sorted(panel["x"].unique()))
            if data["method"].nunique() == 1:
                _add_fraction_axis(ax, panel)
    if data["method"].nunique() > 1:
        style.shared_legend(figure, axes)
    return figure


def _cells_by_value(request: FigureRequest) -> Iterator[tuple[float, GridCell]]:
    spec = request.spec
    for task in spec.tasks:
        for method in spec.methods:
            for value in request.settings.values:
                varied = _varied_keys(request, task, method, value)
                for seed in spec.seeds:
                    yield value, request.cell(task, method, seed, varied)


def _varied_keys(request: FigureRequest, task: str, method: str, value: float) -> dict[str, Any]:
    """Return the keys that a value changes; none for the run's own value."""
    key, config = request.settings.key, request.config(task, method)
    keys = {key: int(value) if value == int(value) else value}
    if request.settings.keep_stage2:
        keys = {key: round(value / (1 + value), 6), "epochs": round(config.epochs * (1 + value))}
    defaults = implementation_of(config.method).Settings().model_dump(mode="json")
    configured = flatten({**config.model_dump(mode="json"), "settings": {**defaults, **config.settings}})
    return {key: changed for key, changed in keys.items() if configured.get(key) != changed}


def _add_fraction_axis(ax: Axes, panel: style.Frame) -> None:
    """Add a second x axis: the fraction of the model's parameters that k heads are, in percent."""
    percent = 100 * panel.groupby("x")["trained_share"].first()
    top = ax.secondary_xaxis("top")
    ticks = percent.index[:: max(1, len(percent) // 4)]
    top.set_xticks(list(ticks), [f"{percent[k]:.1f} %" for k in ticks])
    top.tick_params(labelsize=6, length=2)
    top.set_xlabel("of the model's parameters trained, without the task head", fontsize=6)
