"""Ranks of several methods over tasks: Friedman's test and Nemenyi's critical difference (Demsar 2006)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hifi_cli.config.registry import label_of
from hifi_cli.reports.statistics import LEVEL
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow
from hifi_cli.wording import counted_noun


@dataclass(frozen=True)
class MethodRanks:
    """Ranks of methods over tasks; 1 is the highest score, ties share the mean of their ranks.

    Attributes:
        mean_ranks: by method, the best first.
        statistic: Friedman's chi-square, corrected for ties.
        p: of that test.
        critical_difference: two methods whose mean ranks differ by less are not shown to differ (Nemenyi).
    """

    mean_ranks: dict[str, float]
    tasks: int
    statistic: float
    p: float
    critical_difference: float

    @property
    def groups(self) -> list[list[str]]:
        """The largest groups of methods, by mean rank, of which no two are shown to differ."""
        names, ranks = list(self.mean_ranks), list(self.mean_ranks.values())
        ends = [
            max(j for j in range(i, len(names)) if ranks[j] - ranks[i] <= self.critical_difference) for i in range(len(names))
        ]
        return [names[i : end + 1] for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]


def rank_methods(scores: Mapping[str, Sequence[float]], level: float = LEVEL) -> MethodRanks | None:
    """Rank methods by their scores on the same tasks; None for fewer than three methods or two tasks."""
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    methods, tasks = list(scores), len(next(iter(scores.values())))
    if len(methods) < 3 or tasks < 2:
        return None
    ranks = np.array([rankdata([-value for value in column]) for column in zip(*scores.values(), strict=True)])
    means = dict(zip(methods, ranks.mean(axis=0).tolist(), strict=True))
    varies = bool(np.ptp(ranks, axis=1).any())
    statistic, p = friedmanchisquare(*scores.values()) if varies else (0.0, 1.0)
    quantile = studentized_range.ppf(1 - level, len(methods), np.inf) / 2**0.5
    difference = quantile * (len(methods) * (len(methods) + 1) / (6 * tasks)) ** 0.5
    return MethodRanks(
        dict(sorted(means.items(), key=lambda item: item[1])), tasks, float(statistic), float(p), float(difference)
    )


def build(ranks: MethodRanks) -> Table:
    """Build the table of mean ranks; methods that share a letter are not shown to differ."""
    letters = {
        method: "".join(chr(ord("A") + number) for number, group in enumerate(ranks.groups) if method in group)
        for method in ranks.mean_ranks
    }
    rows = [
        TableRow(
            label_of("methods", method),
            (TableCell(rank), TableCell(text=letters[method] or "-", value=list(letters[method]))),
            method=method,
        )
        for method, rank in ranks.mean_ranks.items()
    ]
    shown = "the test shows differences" if ranks.p < LEVEL else "the test shows no difference, so that letters say nothing"
    note = (
        f"Friedman's test over {counted_noun(ranks.tasks, 'task')}: chi-square {ranks.statistic:.2f}, p = {ranks.p:.3g},"
        f" {shown}; Nemenyi's critical difference of mean ranks at the 5 % level: {ranks.critical_difference:.2f}; methods"
        " that share a letter are not shown to differ. Tasks count as a sample here, and seeds only through their mean"
    )
    return Table(
        "Mean ranks over tasks (1: highest score)",
        [TableHeading("Mean rank", 2), TableHeading("Group", name="groups")],
        rows,
        notes=[note],
    )
