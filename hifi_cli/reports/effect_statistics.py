"""Further statistics of two methods' scores: robust means, equivalence, detectable effects, probability of improvement."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from hifi_cli.reports.statistics import LEVEL, Floats, variance_of_mean

Groups = Sequence[Sequence[float]]  # of each task, one number per seed


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t-tests (Schuirmann 1987) that a mean difference is within a margin.

    Attributes:
        p: the larger of both one-sided p, None without a margin; equivalence is shown where it is below the level.
        smallest_margin: at which equivalence would be shown at the 5 % level: the farther end of the 90 % interval.
    """

    p: float | None
    smallest_margin: float


def equivalence(differences: Groups, margin: float | None = None, level: float = LEVEL) -> Equivalence | None:
    """Test whether the mean over tasks is within plus and minus `margin`; None where a task has one pair."""
    tasks = _arrays(differences)
    if not tasks or min(map(len, tasks)) < 2:
        return None
    mean = float(np.mean([task.mean() for task in tasks]))
    variance, degrees = variance_of_mean(tasks)
    error = variance**0.5
    smallest = abs(mean) + float(special.stdtrit(degrees, 1 - level)) * error
    if margin is None:
        return Equivalence(None, smallest)
    distance = margin - abs(mean)
    p = float(special.stdtr(degrees, -distance / error)) if error else float(distance <= 0)
    return Equivalence(p, smallest)


def detectable_effect(differences: Groups, *, power: float = 0.8, level: float = LEVEL) -> float | None:
    """Return the mean difference that as many pairs of this spread would show with a probability of `power`.

    The two-sided t-test, with a non-central t approximated by a shifted one.

    Returns:
        None where a task has one pair.
    """
    tasks = _arrays(differences)
    if not tasks or min(map(len, tasks)) < 2:
        return None
    variance, degrees = variance_of_mean(tasks)
    return float((special.stdtrit(degrees, 1 - level / 2) + special.stdtrit(degrees, power)) * variance**0.5)


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values (Agarwal et al. 2021), which outliers do not move."""
    from scipy.stats import trim_mean

    return float(trim_mean(np.asarray(values, dtype=np.float64), 0.25))


def probability_of_improvement(first: Groups, second: Groups) -> float:
    """Return the probability that a run of the first method beats one of the second, mean over tasks; ties count half.

    Mann and Whitney's U over the number of pairs (Agarwal et al. 2021); the runs need not be paired.
    """
    from scipy.stats import mannwhitneyu

    return float(
        np.mean(
            [
                mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs))
                for ours, theirs in zip(first, second, strict=True)
            ]
        )
    )


def improvement_interval(first: Groups, second: Groups, *, level: float = LEVEL) -> tuple[float, float]:
    """Return the score interval of the probability of improvement, for new seeds (Newcombe 2006, method 5).

    It does not shrink to a point where every run of one method beats every run of the other, as a bootstrap of few seeds does.
    All tasks are given the variance at their common mean, which is at least the mean of their variances.
    """
    from scipy.optimize import brentq

    estimate = probability_of_improvement(first, second)
    sizes = [(len(ours), len(theirs)) for ours, theirs in zip(first, second, strict=True)]
    squared_quantile = float(special.ndtri(1 - level / 2)) ** 2

    def excess(probability: float) -> float:
        """Return how far a probability is from the estimate: positive outside of the interval."""
        p = probability
        both = (1 - p) / (2 - p) + p / (1 + p)  # of Hanley and McNeil's variance: two pairs that share a run
        variance = sum(p * (1 - p) * (1 + ((ours + theirs) / 2 - 1) * both) / (ours * theirs) for ours, theirs in sizes)
        return (p - estimate) ** 2 - squared_quantile * variance / len(sizes) ** 2

    tiny = 1e-9
    low = float(brentq(excess, 0, estimate - tiny)) if estimate > tiny else 0.0
    high = float(brentq(excess, estimate + tiny, 1)) if estimate < 1 - tiny else 1.0
    return low, high


def _arrays(groups: Groups) -> list[Floats]:
    return [np.asarray(values, dtype=np.float64) for values in groups]
