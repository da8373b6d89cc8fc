"""Score against one configuration key, from finished runs (HiFi, figure 6, left: k; EH-FT, figure 6: stage 1's share)."""

from typing import Any

from hifi_cli.analysis.base import FigureRequest, Points, Row
from hifi_cli.analysis.required_runs import Need, need
from hifi_cli.config.run_config import ConfigModel


class Settings(ConfigModel):
    """What is varied.

    Attributes:
        key: a configuration key.
        values: those it takes; each makes a variant of the run, as in a grid.
        keep_stage2: the value is stage 1's epochs as a share of stage 2's, whose number stays as it is without stage 1
            (EH-FT, figure 6 b); otherwise both stages share the run's epochs (figure 6 a).
    """

    key: str
    values: list[float]
    keep_stage2: bool = False


def needs(asked: FigureRequest) -> list[Need]:
    """A run for every task, method, value and seed."""
    return [one for _, _, _, one in _cells(asked)]


def compute(asked: FigureRequest) -> Points:
    """The score of every run, one row each."""
    rows: list[Row] = []
    for task, method, value, one in _cells(asked):
        results = one.results()
        rows.append(
            {
                "task": task,
                "method": method,
                "key": asked.settings.key,
                "x": value,
                "seed": one.config.seed,
                "score": results["scores"][results["report"]],
                "metric": results["primary_metric"],
                "epochs": one.config.epochs,
                "trained_share": results["params"]["trainable_backbone"] / results["params"]["total"],
            }
        )
    return Points(rows, [asked.over_seeds])


def _cells(asked: FigureRequest) -> list[tuple[str, str, float, Need]]:
    cells = []
    for task in asked.spec.tasks:
        for method in asked.spec.methods:
            for value in asked.settings.values:
                varied = _keys(asked, task, method, value)
                cells += [(task, method, value, need(asked, task, method, seed, varied)) for seed in asked.spec.seeds]
    return cells


def _keys(asked: FigureRequest, task: str, method: str, value: float) -> dict[str, Any]:
    key = asked.settings.key
    if not asked.settings.keep_stage2:
        return {key: int(value) if value == int(value) else value}
    epochs = asked.config(task, method).epochs
    return {key: round(value / (1 + value), 6), "epochs": round(epochs * (1 + value))}
