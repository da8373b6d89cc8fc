"""Failure rates: intervals, and a test of whether two methods fail equally often."""

from collections.abc import Sequence
from dataclasses import dataclass

from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.statistics import LEVEL


@dataclass(frozen=True)
class Failures:
    """How many runs of a method failed: collapsed (they have a score) or diverged (they have none)."""

    collapsed: int
    diverged: int
    runs: int

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> "Failures":
        """Count the failures among some runs."""
        flags = [record.flags for record in records]
        diverged = sum("diverged" in names for names in flags)
        return cls(sum("collapsed" in names for names in flags), diverged, len(flags))

    def __add__(self, other: "Failures") -> "Failures":
        return Failures(self.collapsed + other.collapsed, self.diverged + other.diverged, self.runs + other.runs)

    @property
    def failed(self) -> int:
        return self.collapsed + self.diverged

    def diverges_more(self, other: "Failures") -> bool:
        """Return whether a larger fraction of these runs diverged."""
        return self.diverged * other.runs > other.diverged * self.runs

    @property
    def values(self) -> dict[str, object]:
        """The counts, and the 95 % interval of the rate as fractions of 1, for programs."""
        interval = rate_interval(self.failed, self.runs) if self.runs else None
        return {"collapsed": self.collapsed, "diverged": self.diverged, "runs": self.runs, "rate_interval": interval}

    def __str__(self) -> str:
        """Return the count with the 95 % interval of the rate: `1 of 8 (2 to 47 %)`."""
        if not self.runs:
            return "no run"
        low, high = rate_interval(self.failed, self.runs)
        return f"{self.failed} of {self.runs} ({100 * low:.0f} to {100 * high:.0f} %)"


def rate_interval(count: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's interval of a rate."""
    from scipy.stats import binomtest

    interval = binomtest(count, total).proportion_ci(1 - level, method="wilson")
    return max(0.0, float(interval.low)), min(1.0, float(interval.high))


def equal_rates_p(first: Failures, second: Failures) -> float:
    """Return the two-sided p of Fisher's exact test that both methods fail equally often."""
    from scipy.stats import fisher_exact

    table = [[side.failed, side.runs - side.failed] for side in (first, second)]
    return float(fisher_exact(table).pvalue)
