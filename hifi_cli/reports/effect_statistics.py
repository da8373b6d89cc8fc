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
        margin: in points.
        p: the larger of both one-sided p; equivalence is shown where it is below the level.
        smallest_margin: at which equivalence would be shown at the 5 % level: the farther end of the 90 % interval.
    """

    margin: float | None
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
        return Equivalence(None, None, smallest)
    distance = margin - abs(mean)
    p = float(special.stdtr(degrees, -distance / error)) if error else float(distance <= 0)
    return Equivalence(margin, p, smallest)


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


def seed_bootstrap(first: Groups, second: Groups, *, resamples: int = 2000, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the percentile interval of the probability of improvement, with seeds resampled within tasks.

    The two methods are resampled separately.

    Returns:
        None where a method has one run on a task.
    """
    tasks = list(zip(_arrays(first), _arrays(second), strict=True))
    if not tasks or min(min(len(ours), len(theirs)) for ours, theirs in tasks) < 2:
        return None
    rng = np.random.default_rng(0)
    total = np.zeros(resamples)
    for ours, theirs in tasks:
        ours_drawn = ours[rng.integers(len(ours), size=(resamples, len(ours)))]
        theirs_drawn = theirs[rng.integers(len(theirs), size=(resamples, len(theirs)))]
        signs = np.sign(ours_drawn[:, :, None] - theirs_drawn[:, None, :])
        total += (signs.mean((1, 2)) + 1) / 2
    low, high = np.quantile(total / len(tasks), [level / 2, 1 - level / 2])
    return float(low), float(high)


def _arrays(groups: Groups) -> list[Floats]:
    return [np.asarray(values, dtype=np.float64) for values in groups]
