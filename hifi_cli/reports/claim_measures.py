"""Numbers that decide claims, from the CSVs of figures and from measured costs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.records.cost_files import ResultCosts, TrainingCosts
from hifi_cli.reports.claim_spec import PropertyClaim
from hifi_cli.reports.cost_table import FULL_FT, Costs

_REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": lambda numbers: numbers.mean(),
    "min": lambda numbers: numbers.min(),
    "max": lambda numbers: numbers.max(),
    "first": lambda numbers: numbers.iloc[0],
    "last": lambda numbers: numbers.iloc[-1],
    "rise": lambda numbers: numbers.mean() - numbers.min(),
}
Values = dict[str, dict[Any, float]]  # by task and repetition


def cells_of(frame: Any, per: Sequence[str], x: str, y: str) -> dict[tuple[str, Any], dict[float, float]]:
    """Return the mean of `y` by task and repetition, and by `x`."""
    _check_columns(frame, [*per, x, y], y)
    cells: dict[tuple[str, Any], dict[float, float]] = {}
    for (task, *keys, value), number in frame.groupby(["task", *per, x])[y].mean().items():
        cells.setdefault((str(task), tuple(keys)), {})[float(value)] = float(number)
    return cells


def reduced(frame: Any, claim: PropertyClaim, rows: Mapping[str, Any]) -> Values:
    """Return one number per task and repetition from the chosen rows of a figure's CSV."""
    _check_columns(frame, [*claim.per, *rows, claim.column], claim.column)
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[frame[column].between(accepted.get("min", -float("inf")), accepted.get("max", float("inf")))]
        else:
            frame = frame[frame[column].isin(accepted if isinstance(accepted, list) else [accepted])]
    values: Values = {}
    for (task, *keys), numbers in frame.groupby(["task", *claim.per])[claim.column]:
        values.setdefault(str(task), {})[tuple(keys)] = float(_REDUCTIONS[claim.take](numbers))
    return values


def _check_columns(frame: Any, columns: Sequence[str], number: str) -> None:
    """Raise UsageError for a column that a figure's CSV does not have, or a number that is text."""
    known = [*frame.columns]
    for column in columns:
        if column not in known:
            raise UsageError(
                f"the figure's CSV has no column '{column}' (it has {', '.join(known)}); if an older version computed it,"
                " hifi figure NAME --force computes it again"
            )
    if frame[number].dtype.kind not in "biuf":
        raise UsageError(f"column '{number}' of the figure's CSV holds texts; a claim is about a number")


def stored_measure(measure: str, method: str, directory: Path, *, protocol: str, backbone: str) -> tuple[list[float], str]:
    """Return a stored cost (a time: of each round; nothing: it was not measured), and the table that measures it."""
    where = {"protocol": protocol, "backbone": backbone}
    if measure in ("step-time", "scoring-percent"):
        training = TrainingCosts.config_of(method, **where)
        stored = _stored(TrainingCosts, lambda gpu: TrainingCosts.path_of(training, FULL_FT, directory, gpu))
        return _training_cost(measure, stored) if stored else [], "cost"
    config = ResultCosts.config_of(method, **where)
    result = _stored(ResultCosts, lambda gpu: ResultCosts.path_of(config, directory, gpu))
    return _result_cost(measure, result) if result else [], "hifi-1"


def _stored(kind: type[Costs], path_of: Callable[[str | None], Path]) -> Costs | None:
    """Read stored costs: those measured on a CPU, or else those on any GPU, whose name is a part of the file's name."""
    path = path_of(None)
    if path.is_file():
        return kind.read(path)
    others = ((other, kind.read(other)) for other in sorted(path.parent.glob(f"{path.stem.rpartition('-')[0]}-*.json")))
    return next((costs for other, costs in others if path_of(costs.provenance.device) == other), None)


def _training_cost(measure: str, costs: TrainingCosts) -> list[float]:
    return costs.step_ratio_rounds or [costs.step_ratio] if measure == "step-time" else [100 * costs.scoring_fraction]


def _result_cost(measure: str, costs: ResultCosts) -> list[float]:
    return {
        "added-parameters": [float(costs.added_in_result)],
        "added-modules": [float(costs.modules_added)],
        "latency": costs.latency_rounds or [costs.latency],
        "stored-percent": [100 * costs.stored_bytes / costs.plain_bytes],
    }[measure]
