"""What paired differences allow to conclude: interval, signed-rank test, correction for several comparisons."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.05
FEW = 10  # pairs below which a bootstrap interval is too narrow to be taken at its word


@dataclass(frozen=True)
class Evidence:
    """Paired differences, summed up.

    Attributes:
        pairs: how many.
        mean: of the differences, in their unit.
        interval: 95 % bootstrap interval of the mean (BCa); None for fewer than three pairs or equal differences.
        p: of Wilcoxon's signed-rank test, two-sided; 1 where every difference is zero.
        smallest_p: that the test can give for so many pairs (zero differences do not count).
    """

    pairs: int
    mean: float
    interval: tuple[float, float] | None
    p: float
    smallest_p: float


def evidence(differences: Sequence[float], *, resamples: int = 9999) -> Evidence:
    """Sum up paired differences; the same differences give the same result, bit for bit.

    Raises:
        ValueError: there are none.
    """
    if not differences:
        raise ValueError("no pairs")
    values = np.asarray(differences, dtype=np.float64)
    other_than_zero = int(np.count_nonzero(values))
    return Evidence(
        pairs=len(values),
        mean=float(values.mean()),
        interval=_interval(values, resamples),
        p=_signed_rank(values) if other_than_zero else 1.0,
        smallest_p=smallest_p(other_than_zero),
    )


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p of the signed-rank test: all signs equal, 2 of 2^n cases. Five pairs give 0.0625."""
    return min(1.0, 2.0 ** (1 - pairs))


def pairs_needed(comparisons: int = 1, level: float = LEVEL) -> int:
    """The fewest pairs with which the smallest p, after Holm's correction, is below `level`."""
    return next(pairs for pairs in range(1, 100) if comparisons * smallest_p(pairs) < level)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given; scipy has Benjamini's only."""
    corrected = [1.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = largest
    return corrected


def _interval(values: NDArray[np.float64], resamples: int) -> tuple[float, float] | None:
    if len(values) < 3 or np.ptp(values) < 1e-12:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a degenerate resample is told by the nan it gives
        found = stats.bootstrap((values,), np.mean, n_resamples=resamples, method="BCa", rng=np.random.default_rng(0))
    low, high = map(float, found.confidence_interval)
    return (low, high) if np.isfinite([low, high]).all() else None


def _signed_rank(values: NDArray[np.float64]) -> float:
    rounded = values.round(9)  # 0.1 + 0.2 and 0.3 are a tie; with few pairs scipy then goes through all signs
    return float(stats.wilcoxon(rounded).pvalue)
