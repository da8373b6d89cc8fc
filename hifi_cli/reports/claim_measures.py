"""Numbers that decide claims, from the CSVs of figures and times of runs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.reports.claim_spec import PropertyClaim
from hifi_cli.reports.run_records import RunRecord

_REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": lambda numbers: numbers.mean(),
    "min": lambda numbers: numbers.min(),
    "max": lambda numbers: numbers.max(),
    "first": lambda numbers: numbers.iloc[0],
    "last": lambda numbers: numbers.iloc[-1],
    "rise": lambda numbers: numbers.mean() - numbers.min(),
}
FULL_FT = "full-ft"  # the reference for times
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


def relative_times(records: Sequence[RunRecord], method: str) -> Values:
    """Return the time per epoch of a method's runs relative to Full-FT's mean on the same task and device, by task and seed."""
    times: dict[tuple[str, str, str], dict[int, float]] = {}
    for result in (record.result for record in records):
        if result.time_s and result.epochs:
            place = (result.method, result.task, result.provenance.device)
            times.setdefault(place, {})[result.seed] = result.time_s / result.epochs.total
    return {
        task: {(seed,): seconds / fmean(full.values()) for seed, seconds in of_seeds.items()}
        for (name, task, device), of_seeds in times.items()
        if name == method and (full := times.get((FULL_FT, task, device)))
    }
