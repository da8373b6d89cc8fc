"""What the published numbers of a claim say, and whether they carry it by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from scipy import special

from hifi_cli.config.registry import label_of
from hifi_cli.reports import published
from hifi_cli.reports.claim_evidence import contrast
from hifi_cli.reports.claim_scope import columns_of
from hifi_cli.reports.claim_spec import Claim, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.statistics import LEVEL


@dataclass(frozen=True)
class PublishedEffect:
    """The published number of one comparison or property.

    Attributes:
        value: None where it is not printed or cannot be read.
        half_width: of its 95 % interval, from the printed standard deviations; None where there are none.
        doubts: why this number does not carry the claim by itself.
        misprints: what it rests on that may be a misprint.
        columns: of the published table, whose mean it is.
    """

    value: float | None
    half_width: float | None = None
    doubts: list[str] = field(default_factory=list)
    misprints: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)


def published_effects(claim: Claim, tasks: Sequence[Sequence[str]] | None = None) -> list[PublishedEffect]:
    """Return the published effect of each comparison of a claim, in the order of the evidence.

    Args:
        tasks: the tasks that are compared, for each comparison: the published effect is over the same ones; None: all.
    """
    pairs = claim.pairs if isinstance(claim, OrderClaim) else [()]
    tasks = tasks or [[] for _ in pairs]
    match claim:
        case PropertyClaim():
            return [PublishedEffect(claim.stated)]
        case TrendClaim():
            return [_of_trend(claim, tasks[0])]
        case ComparisonClaim():
            return [_of_pair(claim, claim.first, claim.second, tasks[0])]
        case OrderClaim():
            return [_of_pair(claim, *pair, of_pair) for pair, of_pair in zip(claim.pairs, tasks, strict=True)]


def _of_pair(claim: ComparisonClaim | OrderClaim, first: str, second: str, tasks: Sequence[str]) -> PublishedEffect:
    if not claim.published:
        return PublishedEffect(None)
    _, table = published.load(claim.published)
    asked = _columns(claim, tasks)
    columns = _legible(table, asked, [first, second])
    if not columns:
        return PublishedEffect(None, doubts=["the published cells cannot be read"])
    differences = {column: _mean(table, first, column) - _mean(table, second, column) for column in columns}
    value = float(np.mean([*differences.values()]))
    half, assumed = _half_width(table, first, second, columns)
    doubts = []
    if len(columns) < len(asked):
        doubts.append(f"only {len(columns)} of {len(asked)} columns can be read")
    if value <= 0 and not (isinstance(claim, ComparisonClaim) and claim.kind == "not-worse"):
        doubts.append("the published numbers say the opposite")
    elif half is None:
        doubts.append("no standard deviations are printed")
    elif half >= abs(value):
        doubts.append(f"less than its own error from the printed standard deviations{assumed}")
    largest = max(differences, key=lambda column: abs(differences[column]))
    others = [difference for column, difference in differences.items() if column != largest]
    if value > 0 and len(others) > 1 and np.mean(others) < value / 2:
        doubts.append(f"mostly from one task: {np.mean(others):+.2f} without {column_label(largest)}")
    return PublishedEffect(value, half, doubts, _misprints(table, [first, second], columns), columns)


def _of_trend(claim: TrendClaim, tasks: Sequence[str]) -> PublishedEffect:
    if not claim.published or not claim.values:
        return PublishedEffect(None)
    _, table = published.load(claim.published)
    columns = _legible(table, _columns(claim, tasks), [*claim.values])
    if not columns:
        return PublishedEffect(None, doubts=["the published cells cannot be read"])
    means = {x: float(np.mean([_mean(table, method, column) for column in columns])) for method, x in claim.values.items()}
    doubts = [] if table.rows[next(iter(claim.values))].deviations else ["no standard deviations are printed"]
    value = contrast(means, claim.first, claim.second)
    return PublishedEffect(value, None, doubts, _misprints(table, [*claim.values], columns), columns)


def _half_width(table: PublishedTable, first: str, second: str, columns: list[str]) -> tuple[float | None, str]:
    """Return half the 95 % interval of a published mean difference, and words on standard deviations that were assumed.

    The seeds of the two methods are taken as unpaired, since no paper prints paired differences. A row without standard
    deviations is given those of the other row.
    """
    known = {name: values for name in (first, second) if (values := _deviations(table, name, columns))}
    if not known or not table.seeds or table.seeds < 2:
        return None, ""
    given = next(iter(known))
    variances = np.concatenate([np.square(known.get(name, known[given])) for name in (first, second)])
    variances = variances / table.seeds / len(columns) ** 2
    degrees = variances.sum() ** 2 / (variances**2).sum() * (table.seeds - 1)
    half = float(special.stdtrit(degrees, 1 - LEVEL / 2) * np.sqrt(variances.sum()))
    assumed = [name for name in (first, second) if name not in known]
    return half, f" ({_label(assumed[0])} has none, those of {_label(given)} are assumed)" if assumed else ""


def _misprints(table: PublishedTable, rows: list[str], columns: list[str]) -> list[str]:
    """Name the misprints in the rows that a claim rests on."""
    notes = []
    for row in rows:
        average = published.check_average(table, row)
        suspicious = [
            f"{column} {note}"
            for column in columns
            for note in published.cell_notes(table, row, column)
            if "illegible" not in note
        ]
        if average.verdict == "mismatch":
            suspicious.insert(0, f"average {published.average_note(table, row)}")
        if suspicious:
            notes.append(f"{_label(row)}: {'; '.join(suspicious)}")
    return notes


def _columns(claim: ComparisonClaim | OrderClaim | TrendClaim, tasks: Sequence[str]) -> list[str]:
    return [column for task, column in columns_of(claim).items() if not tasks or task in tasks]


def _legible(table: PublishedTable, columns: list[str], rows: list[str]) -> list[str]:
    return [column for column in columns if all(isinstance(table.mean(row, column), float) for row in rows)]


def _mean(table: PublishedTable, row: str, column: str) -> float:
    return cast("float", table.mean(row, column))


def _deviations(table: PublishedTable, row: str, columns: list[str]) -> list[float] | None:
    values = [table.deviation(row, column) for column in columns]
    return [value for value in values if isinstance(value, float)] if all(isinstance(v, float) for v in values) else None


def column_label(column: str) -> str:
    """Return the label of a published column: its task's, and which of MNLI's validation splits."""
    task, dash, split = column.partition("-")
    return label_of("tasks", task) + dash + split


def _label(method: str) -> str:
    return label_of("methods", method)
