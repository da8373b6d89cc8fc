"""Statistics of paired differences: interval of the mean over tasks, exact test, Holm's correction, seeds needed.

Interval and test are about these tasks and new seeds: the tasks are fixed, each with its own mean difference, and the seeds
within a task are the sample. Differences of several tasks are therefore never pooled as if they were repetitions of the same
measurement. A claim about other tasks needs the spread over tasks, however many seeds there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEVEL = 0.05
Floats = NDArray[np.float64]
Groups = Sequence[Sequence[float]]  # of each task, one number per seed


@dataclass(frozen=True)
class PairedStatistics:
    """Statistics of the paired differences of two methods.

    Attributes:
        pairs: number of pairs.
        differing: pairs whose difference is not zero.
        mean: over tasks, of each task's mean difference over seeds; 0 without a pair.
        interval: 95 % t-interval of the mean; None where a task has a single pair, which shows no spread over seeds. Its
            ends are equal where the differences do not vary within any task.
        p: of the sign-flip test, two-sided; 1 where every difference is zero.
    """

    pairs: int
    differing: int
    mean: float
    interval: tuple[float, float] | None
    p: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain zero; true where there is no interval."""
        return self.interval is None or self.interval[0] * self.interval[1] > 0


def paired_statistics(differences: Groups) -> PairedStatistics:
    """Compute the statistics of the paired differences of several tasks: of each, one per seed."""
    tasks = [np.asarray(values, dtype=np.float64).round(9) for values in differences if len(values)]
    if not tasks:
        return PairedStatistics(pairs=0, differing=0, mean=0.0, interval=None, p=1.0)
    means = np.array([values.mean() for values in tasks])
    terms = np.concatenate(
        [values / (len(tasks) * len(values)) for values in tasks]
    )  # their sum is the mean
    return PairedStatistics(
        pairs=len(terms),
        differing=int(np.count_nonzero(terms)),
        mean=float(means.mean()),
        interval=mean_interval(tasks),
        p=sign_flip_p(terms),
    )


def sign_flip_p(terms: Sequence[float] | Floats, *, resolution: int = 1 << 17) -> float:
    """Return the two-sided p of the sum of `terms` among the sums with every pattern of signs, all equally likely.

    Exact where the differences are symmetric about zero on every task. Where tasks differ but cancel out, the patterns
    spread wider than the mean does, and p is too large rather than too small. A zero changes no sum and so does not change p.

    The 2^n patterns are counted by dynamic programming over whole numbers of `1 / resolution` of the sum of magnitudes.
    Sums that rounding could make equal count as equal, so that p is never too small.
    """
    values = np.asarray(terms, dtype=np.float64)
    magnitude = np.abs(values).sum()
    if magnitude == 0:
        return 1.0
    steps = np.rint(values / magnitude * resolution).astype(np.int64)
    positive = np.ones(1)  # the probability of each sum of the steps whose sign is +
    for step in np.sort(np.abs(steps[steps != 0])):
        larger = np.zeros(len(positive) + step)
        larger[:-step] = positive
        larger[step:] += positive
        positive = larger / 2
    total = len(positive) - 1
    reached = abs(int(steps.sum())) - len(
        steps
    )  # each of two sums is off by half a step per difference at most
    return (
        1.0 if reached <= 0 else min(1.0, 2 * float(positive[: (total - reached) // 2 + 1].sum()))
    )


def smallest_p(differing: int) -> float:
    """Return the smallest two-sided p of the sign-flip test: all signs equal, 2 of 2^n patterns. Five pairs give 0.0625."""
    return min(1.0, 2.0 ** (1 - differing))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values by Holm's step-down method, in the order given; scipy has only Benjamini's."""
    corrected = [1.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = largest
    return corrected


def mean_interval(tasks: Sequence[Floats], level: float = LEVEL) -> tuple[float, float] | None:
    """Return the t-interval of the mean over tasks, with Welch and Satterthwaite's degrees of freedom (one task: Student's).

    Args:
        tasks: of each task, one value per seed.
        level: 1 minus the coverage.
    """
    if not tasks or min(map(len, tasks)) < 2:
        return None
    mean = float(np.mean([values.mean() for values in tasks]))
    variance, degrees = variance_of_mean(tasks)
    if not variance:
        return mean, mean
    half = float(t_quantile(degrees, 1 - level / 2) * np.sqrt(variance))
    return mean - half, mean + half


def shows_above(tasks: Groups, bound: float, level: float = LEVEL) -> bool:
    """Whether interval and sign-flip test both show that the mean over tasks is above `bound`; each is two-sided."""
    values = [np.asarray(task, dtype=np.float64).round(9) - bound for task in tasks]
    interval = mean_interval(values, level)
    if interval is None or interval[0] <= 0:
        return False
    return (
        sign_flip_p(np.concatenate([task / (len(values) * len(task)) for task in values])) < level
    )


def seeds_needed(
    tasks: Groups, *, level: float = LEVEL, power: float = 0.8, highest: int = 200
) -> int | None:
    """Return the smallest number of seeds per task with which the mean would be shown to differ from zero.

    Mean and variances are taken as measured; the power is that of the two-sided t-test, in its usual approximation.

    Returns:
        None: more than `highest`, or no task has two seeds.
    """
    if not tasks or min(map(len, tasks)) < 2:
        return None
    distance = abs(float(np.mean([np.mean(task) for task in tasks])))
    variance = sum(float(np.var(task, ddof=1)) for task in tasks) / len(tasks) ** 2
    for seeds in range(2, highest + 1):
        degrees = len(tasks) * (seeds - 1)
        quantiles = t_quantile(degrees, 1 - level / 2) + t_quantile(degrees, power)
        if smallest_p(len(tasks) * seeds) < level and distance >= quantiles * np.sqrt(
            variance / seeds
        ):
            return seeds
    return None


def t_quantile(degrees: float, probability: float) -> float:
    """Return a quantile of Student's distribution."""
    return float(special.stdtrit(degrees, probability))


def variance_of_mean(tasks: Sequence[Floats]) -> tuple[float, float]:
    """Return the variance of the mean over tasks, and its degrees of freedom."""
    task_degrees = np.array([len(values) - 1 for values in tasks])
    variances = np.array(
        [values.var(ddof=1) / len(values) for values in tasks]
    )  # of each task's mean
    variances[variances < 1e-15] = 0.0  # rounding errors of equal differences
    if not variances.any():
        return 0.0, 1.0
    degrees = variances.sum() ** 2 / (variances**2 / task_degrees).sum()
    return float(variances.sum()) / len(tasks) ** 2, float(degrees)
