"""Score against one configuration key, from finished runs (HiFi, figure 6, left: k; EH-FT, figure 6: stage 1's fraction)."""

from typing import Any

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable, Row
from hifi_cli.analysis.required_runs import RequiredRun, required_run
from hifi_cli.config.base import ConfigModel, flatten
from hifi_cli.grids.cells import refuse_own_keys
from hifi_cli.methods.base import implementation_of

READS_RESULTS_ONLY = True  # needs neither data nor weights


class Settings(ConfigModel):
    """What is varied."""

    key: str
    """A configuration key."""
    values: list[float]
    """Values of the key; each makes a variant of the run, as in a grid, except the run's own value."""
    keep_stage2: bool = False
    """Whether the value is the ratio of stage 1's epochs to stage 2's. Stage 2 has as many epochs then as a run without stage
    1 (EH-FT, figure 6 b); otherwise both stages together have the run's epochs (figure 6 a)."""


def required_runs(request: FigureRequest) -> list[RequiredRun]:
    """Return a run for every task, method, value and seed.

    Raises:
        UsageError: the command line sets the key that varies.
    """
    refuse_own_keys(request.overrides, [request.settings.key], "this figure")
    return [run for _, run in _runs_by_value(request)]


def compute(request: FigureRequest) -> FigureTable:
    """Collect the score of every run, one row each."""
    rows: list[Row] = []
    for value, run in _runs_by_value(request):
        result = run.result()
        rows.append(
            {
                "task": run.config.task,
                "method": run.config.method,
                "key": request.settings.key,
                "x": value,
                "seed": run.config.seed,
                "score": result.score(),
                "metric": result.primary_metric,
                "epochs": run.config.epochs,
                "trained_share": result.params.trainable_backbone / result.params.total,
            }
        )
    return FigureTable(rows, [request.over_seeds])


def _runs_by_value(request: FigureRequest) -> list[tuple[float, RequiredRun]]:
    return [
        (value, required_run(request, task, method, seed, _varied_keys(request, task, method, value)))
        for task in request.spec.tasks
        for method in request.spec.methods
        for value in request.settings.values
        for seed in request.spec.seeds
    ]


def _varied_keys(request: FigureRequest, task: str, method: str, value: float) -> dict[str, Any]:
    key, config = request.settings.key, request.config(task, method)
    if request.settings.keep_stage2:
        keys = {key: round(value / (1 + value), 6), "epochs": round(config.epochs * (1 + value))}
    else:
        keys = {key: int(value) if value == int(value) else value}
    defaults = implementation_of(config.method).Settings().model_dump(mode="json")
    configured = flatten({**config.model_dump(mode="json"), "settings": {**defaults, **config.settings}})
    return {key: changed for key, changed in keys.items() if configured.get(key) != changed}
