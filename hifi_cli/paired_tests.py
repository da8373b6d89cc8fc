"""Statistics of paired differences: interval of the mean over tasks, exact test, seeds needed.

Interval and test are about these tasks and new seeds: the tasks are fixed, each with its own mean
difference, and the seeds within a task are the sample. Differences of several tasks are therefore
never pooled as if they were repetitions of the same measurement. A claim about other tasks needs
the spread over tasks, however many seeds there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
Floats = NDArray[np.float64]
# One number per seed, for each task.
Groups = Sequence[Sequence[float] | Floats]
# Variances below are rounding errors of equal differences.
_NO_VARIANCE = 1e-15
# The sign-flip test counts the sum of magnitudes in so many steps.
_STEPS = 1 << 17
# The probability with which a difference is to be shown.
_POWER = 0.8


@dataclass(frozen=True)
class PairedStatistics:
    """Statistics of the paired differences of two methods.

    Attributes:
        terms: each pair's difference as a part of the mean, which is the sum of the terms, [pairs].
        mean: over tasks, of each task's mean difference over seeds.
        interval: 95 % t-interval of the mean; None where a task has a single pair, which shows no
            spread over seeds. Its ends are equal where the differences do not vary within any task.
    """

    terms: Floats
    mean: float
    interval: tuple[float, float] | None

    @property
    def p(self) -> float:
        """Two-sided p of the sign-flip test; 1 where every difference is zero."""
        return sign_flip_p(self.terms)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain zero; true where there is no interval."""
        if self.interval is None:
            return True
        low, high = self.interval
        return low * high > 0


def paired_statistics(differences: Groups, level: float = LEVEL) -> PairedStatistics:
    """Compute the statistics of the paired differences of several tasks.

    Args:
        differences: of each task, one per seed.
        level: 1 minus the coverage of the interval.
    """
    # Beyond nine digits a difference is rounding: equal scores have a difference of exactly 0.
    tasks = [np.asarray(values, dtype=np.float64).round(9) for values in differences]
    mean = float(np.mean([values.mean() for values in tasks]))
    # Each task counts the same, however many seeds it has.
    terms = [values / (len(tasks) * len(values)) for values in tasks]
    return PairedStatistics(np.concatenate(terms), mean, mean_interval(tasks, level))


def sign_flip_p(terms: Sequence[float] | Floats) -> float:
    """Return the two-sided p of a sum among the sums with every pattern of signs, all equally likely.

    The test is exact where the differences are symmetric about zero on every task. Where tasks
    differ but cancel out, the patterns spread wider than the mean does, and p is too large rather
    than too small. A zero changes no sum and so does not change p.

    The 2^n patterns are counted by dynamic programming over whole steps. Sums that rounding could
    make equal count as equal, so that p is never too small.

    Args:
        terms: parts of the sum, [pairs].
    """
    values = np.asarray(terms, dtype=np.float64)
    magnitude = np.abs(values).sum() or 1.0
    steps = np.rint(values / magnitude * _STEPS).astype(np.int64)
    # `positive[n]` is the probability that the differences with the sign + have n steps together.
    # Each difference adds its steps to them with probability 1/2.
    positive = np.ones(1)
    # Ascending, so that the array stays short for as long as possible.
    for step in np.sort(np.abs(steps)):
        with_minus = np.pad(positive, (0, step))
        with_plus = np.pad(positive, (step, 0))
        positive = (with_minus + with_plus) / 2
    # Rounding to whole steps moves a sum by half a step per difference at most. Our own sum and the
    # one that it is compared with may both be off, so a sum counts from `reached` on.
    reached = abs(int(steps.sum())) - len(steps)
    if reached <= 0:
        return 1.0
    # A sum of s has (total + s) / 2 positive steps. The sums of `-reached` and below are one side,
    # and the other side is its mirror image.
    total = len(positive) - 1
    last = (total - reached) // 2
    one_sided = float(positive[: last + 1].sum())
    return min(1.0, 2 * one_sided)


def smallest_p(pairs: Any) -> Any:
    """Return the smallest p that the sign-flip test can have: all differences have one sign.

    Two of the 2^n patterns of signs are then as extreme.

    Args:
        pairs: how many differences are not zero, one number or an array.
    """
    return 2.0 ** (1 - pairs)


def smallest_number_of_pairs(level: float) -> int:
    """Return how many differing pairs the sign-flip test needs for a p below a level."""
    return floor(2 - log2(level))


def seeds_that_reach(level: float, tasks: int) -> int:
    """Return the smallest number of seeds with which the test of a mean over tasks can be below a level."""
    # An interval needs two seeds.
    return max(2, ceil(smallest_number_of_pairs(level) / tasks))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values by Holm's step-down method (1979), in the order given.

    The smallest is multiplied by their number, the next by one less, and so on; none becomes smaller
    than the one before it. scipy has only Benjamini's corrections.
    """
    ascending = np.argsort(ps, kind="stable")
    factors = np.arange(len(ps), 0, -1)
    corrected = np.maximum.accumulate(np.array(ps)[ascending] * factors)
    # The argsort of a permutation is its inverse, which puts the values back into the given order.
    as_given = corrected[np.argsort(ascending)]
    return [min(1.0, float(p)) for p in as_given]


def mean_interval(tasks: Groups, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the t-interval of the mean over tasks.

    The degrees of freedom are those of Welch and Satterthwaite; of one task, Student's.

    Args:
        tasks: of each task, one value per seed.
        level: 1 minus the coverage.

    Returns:
        None: a task has one seed, or there is no task.
    """
    if min(map(len, tasks), default=0) < 2:
        return None
    mean = float(np.mean([np.mean(values) for values in tasks]))
    # The variance of each task's mean over seeds.
    variances = np.array([np.var(values, ddof=1) / len(values) for values in tasks])
    variances[variances < _NO_VARIANCE] = 0.0
    if not variances.any():
        return mean, mean
    task_degrees = np.array([len(values) - 1 for values in tasks])
    degrees = _degrees(variances, task_degrees)
    # The tasks are fixed and their seeds independent, so the mean of the tasks has the sum of their
    # variances, divided by the squared number of tasks.
    error = np.sqrt(variances.sum() / len(tasks) ** 2)
    half = float(_t_quantile(degrees, 1 - level / 2) * error)
    return mean - half, mean + half


def shows_above(tasks: Groups, bound: float, level: float = LEVEL) -> bool:
    """Return whether interval and sign-flip test both show that the mean over tasks is above a bound.

    Args:
        tasks: of each task, one value per seed.
        bound: the value that the mean must exceed.
        level: of each of the two, which are two-sided.
    """
    shifted = paired_statistics([np.asarray(task) - bound for task in tasks], level)
    if shifted.interval is None:
        return False
    low, _ = shifted.interval
    return low > 0 and shifted.p < level


def seeds_needed(tasks: Groups, *, level: float = LEVEL) -> int | None:
    """Return the smallest number of seeds per task that would show that the mean differs from zero.

    Mean and variances are taken as measured. A true difference of that size would be shown with a
    probability of 80 %: the power of the two-sided t-test, in its usual approximation.

    Args:
        tasks: of each task, one value per seed.
        level: of the test.

    Returns:
        None: more than 200, no more than there are, a task has one seed, or the mean is zero, which
            no number of seeds would show to differ from zero.
    """
    if min(map(len, tasks), default=0) < 2:
        return None
    # Beyond nine digits a mean is rounding.
    distance = round(abs(float(np.mean([np.mean(task) for task in tasks]))), 9)
    if not distance:
        return None
    # Every array below has one entry for each number of seeds that is tried.
    seeds = np.arange(2, 201)
    # Standard errors of the mean over tasks.
    errors = np.sqrt(sum(np.var(task, ddof=1) for task in tasks) / seeds) / len(tasks)
    degrees = len(tasks) * (seeds - 1)
    # The t-test shows a true difference of this many standard errors with the wanted power.
    quantiles = _t_quantile(degrees, 1 - level / 2) + _t_quantile(degrees, _POWER)
    # The sign-flip test must agree.
    can_agree = smallest_p(len(tasks) * seeds) < level
    enough = seeds[(distance >= quantiles * errors) & can_agree]
    if not len(enough):
        return None
    needed = int(enough[0])
    there_are = max(map(len, tasks))
    return needed if needed > there_are else None


def repetition_limit(tasks: Groups) -> float | None:
    """Return the largest mean shift over tasks that repeated runs may have, one run per task.

    A run that is repeated with its own seed differs from the first one at most as another seed
    does. The mean of such differences is beyond the limit with a probability of 5 %.

    Args:
        tasks: of each task, the scores of several seeds.

    Returns:
        None: a task has one seed, which shows no spread, or there is no task.
    """
    if min(map(len, tasks), default=0) < 2:
        return None
    # The difference of two runs has twice the variance of one.
    variances = np.array([2 * np.var(values, ddof=1) for values in tasks])
    variances[variances < _NO_VARIANCE] = 0.0
    if not variances.any():
        return 0.0
    task_degrees = np.array([len(values) - 1 for values in tasks])
    error = np.sqrt(variances.sum()) / len(tasks)
    return float(_t_quantile(_degrees(variances, task_degrees), 1 - LEVEL / 2) * error)


def _degrees(variances: Floats, task_degrees: Any) -> float:
    """Degrees of freedom of Welch and Satterthwaite.

    Args:
        variances: of each task's part of a sum, [tasks].
        task_degrees: of each variance, [tasks].
    """
    return float(variances.sum() ** 2 / (variances**2 / task_degrees).sum())


def _t_quantile(degrees: Any, p: float) -> Any:
    """Quantile of Student's distribution.

    Args:
        degrees: of freedom, one number or an array.
        p: the probability below the quantile.
    """
    # Most tables need none, and scipy takes a tenth of a second to load.
    from scipy.special import stdtrit

    return stdtrit(degrees, p)
