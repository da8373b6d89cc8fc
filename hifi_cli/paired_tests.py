"""Statistics of paired differences: interval of the mean over tasks, exact test, Holm's correction, seeds needed.

Interval and test are about these tasks and new seeds: the tasks are fixed, each with its own mean difference, and the seeds
within a task are the sample. Differences of several tasks are therefore never pooled as if they were repetitions of the same
measurement. A claim about other tasks needs the spread over tasks, however many seeds there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
Floats = NDArray[np.float64]
Groups = Sequence[Sequence[float] | Floats]  # of each task, one number per seed


@dataclass(frozen=True)
class PairedStatistics:
    """Statistics of the paired differences of two methods.

    Attributes:
        terms: of each pair its difference as a part of the mean, which is their sum.
        mean: over tasks, of each task's mean difference over seeds.
        interval: 95 % t-interval of the mean; None where a task has a single pair, which shows no spread over seeds. Its
            ends are equal where the differences do not vary within any task.
    """

    terms: Floats
    mean: float
    interval: tuple[float, float] | None

    @property
    def p(self) -> float:
        """Of the sign-flip test, two-sided; 1 where every difference is zero."""
        return sign_flip_p(self.terms)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain zero; true where there is no interval."""
        return self.interval is None or self.interval[0] * self.interval[1] > 0


def paired_statistics(differences: Groups, level: float = LEVEL) -> PairedStatistics:
    """Compute the statistics of the paired differences of several tasks: of each, one per seed.

    Args:
        level: 1 minus the coverage of the interval.
    """
    tasks = [np.asarray(values, dtype=np.float64).round(9) for values in differences]
    mean = float(np.mean([values.mean() for values in tasks]))
    terms = [values / (len(tasks) * len(values)) for values in tasks]
    return PairedStatistics(np.concatenate(terms), mean, mean_interval(tasks, level))


def sign_flip_p(terms: Sequence[float] | Floats, *, resolution: int = 1 << 17) -> float:
    """Return the two-sided p of the sum of `terms` among the sums with every pattern of signs, all equally likely.

    Exact where the differences are symmetric about zero on every task. Where tasks differ but cancel out, the patterns
    spread wider than the mean does, and p is too large rather than too small. A zero changes no sum and so does not change p.

    The 2^n patterns are counted by dynamic programming over whole numbers of `1 / resolution` of the sum of magnitudes.
    Sums that rounding could make equal count as equal, so that p is never too small.
    """
    values = np.asarray(terms, dtype=np.float64)
    magnitude = np.abs(values).sum() or 1.0
    steps = np.rint(values / magnitude * resolution).astype(np.int64)
    positive = np.ones(1)  # the probability of each sum of the steps whose sign is +
    for step in np.sort(np.abs(steps)):
        positive = (np.pad(positive, (0, step)) + np.pad(positive, (step, 0))) / 2
    # each of two sums is off by half a step per difference at most
    reached = abs(int(steps.sum())) - len(steps)
    if reached <= 0:
        return 1.0
    return min(1.0, 2 * float(positive[: (len(positive) - 1 - reached) // 2 + 1].sum()))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values by Holm's step-down method, in the order given; scipy has only Benjamini's."""
    order = np.argsort(ps, kind="stable")
    corrected = np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1))
    return [min(1.0, float(p)) for p in corrected[np.argsort(order)]]


def mean_interval(tasks: Groups, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the t-interval of the mean over tasks, with Welch and Satterthwaite's degrees of freedom (one task: Student's).

    Args:
        tasks: of each task, one value per seed.
        level: 1 minus the coverage.
    """
    if min(map(len, tasks), default=0) < 2:
        return None
    mean = float(np.mean([np.mean(values) for values in tasks]))
    variances = np.array([np.var(values, ddof=1) / len(values) for values in tasks])
    variances[variances < 1e-15] = 0.0  # rounding errors of equal differences
    if not variances.any():
        return mean, mean
    task_degrees = np.array([len(values) - 1 for values in tasks])
    degrees = variances.sum() ** 2 / (variances**2 / task_degrees).sum()
    half = _t_quantile(degrees, 1 - level / 2) * np.sqrt(variances.sum() / len(tasks) ** 2)
    return mean - float(half), mean + float(half)


def shows_above(tasks: Groups, bound: float, level: float = LEVEL) -> bool:
    """Whether interval and sign-flip test both show that the mean over tasks is above `bound`; each is two-sided."""
    shifted = paired_statistics([np.asarray(task) - bound for task in tasks], level)
    return shifted.interval is not None and shifted.interval[0] > 0 and shifted.p < level


def seeds_needed(tasks: Groups, *, level: float = LEVEL, power: float = 0.8) -> int | None:
    """Return the smallest number of seeds per task with which the mean would be shown to differ from zero.

    Mean and variances are taken as measured; the power is that of the two-sided t-test, in its usual approximation.

    Returns:
        None: more than 200, no more than there are, or a task has one seed.
    """
    if min(map(len, tasks), default=0) < 2:
        return None
    distance = abs(np.mean([np.mean(task) for task in tasks]))
    seeds = np.arange(2, 201)
    deviations = np.sqrt(sum(np.var(task, ddof=1) for task in tasks) / seeds) / len(tasks)
    degrees = len(tasks) * (seeds - 1)
    quantiles = _t_quantile(degrees, 1 - level / 2) + _t_quantile(degrees, power)
    can_show = 2.0 ** (1 - len(tasks) * seeds) < level  # the smallest p
    enough = seeds[(distance >= quantiles * deviations) & can_show]
    return int(enough[0]) if len(enough) and enough[0] > max(map(len, tasks)) else None


def _t_quantile(degrees: Any, p: float) -> Any:
    """Quantile of Student's distribution."""
    from scipy.special import stdtrit  # most tables need none, and scipy a tenth of a second

    return stdtrit(degrees, p)
