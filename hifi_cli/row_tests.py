"""Tests of a difference between two models over the rows of a data set, beside those over seeds.

`paired_tests` asks whether new seeds would show the difference again on the same rows. Here the
question is whether new rows of the same data set would. Both samples are small in practice, and a
difference may hold for one of them and not for the other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from hifi_cli.paired_tests import LEVEL, Floats

REPLICATES = 2000
# So many row counts are in memory at a time: rows times replicates.
_COUNTS_AT_A_TIME = 4_000_000
# The score of one model on each of some samples of rows: from how often each sample has each row,
# [samples, rows], to the scores, [samples].
RowScore = Callable[[Floats], Floats]


@dataclass(frozen=True)
class RowStatistics:
    """A difference over rows.

    Attributes:
        difference: the first score minus the second, mean over seeds.
        interval: 95 % percentile interval of the bootstrap.
        p: two-sided.
    """

    difference: float
    interval: tuple[float, float]
    p: float


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p of McNemar's exact test (McNemar 1947).

    Where the two models are equally good, each row that one of them alone gets right is a fair
    coin. The p is twice the probability of the smaller count or less, and 1 at most.

    Args:
        only_first: rows that the first model alone gets right.
        only_second: rows that the second model alone gets right.
    """
    discordant = only_first + only_second
    smaller = min(only_first, only_second)
    as_extreme = sum(comb(discordant, count) for count in range(smaller + 1))
    # Whole numbers are divided exactly. As floats, both would overflow from 1,024 rows on.
    return min(1.0, 2 * as_extreme / 2**discordant)


def bootstrap_difference(
    first: Sequence[RowScore],
    second: Sequence[RowScore],
    rows: int,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
) -> RowStatistics:
    """Bootstrap the difference of two scores over rows and seeds (Efron and Tibshirani 1993).

    A replicate draws as many rows as there are, with replacement: the same rows for both models
    and all seeds. It also draws as many pairs of runs as there are. Two seeds show little of the
    spread over seeds: the interval is then too narrow for new seeds.

    Args:
        first: the score of each seed's model.
        second: the same of the other model, in the same order of seeds.
        rows: number of rows.
        seed: of the draws; equal arguments give equal numbers.
        replicates: number of draws; the smallest p is 2 / (replicates + 1).
    """
    pairs = len(first)
    each_row_once = np.ones((1, rows))
    difference = _differences(first, second, each_row_once).mean()
    generator = np.random.default_rng(seed)
    drawn: list[Floats] = []
    for row_counts in _resampled_counts(rows, replicates, generator):
        differences = _differences(first, second, row_counts)
        # How often each pair of runs is drawn: drawing with replacement is a multinomial.
        pair_counts = generator.multinomial(pairs, [1 / pairs] * pairs, size=len(row_counts))
        drawn.append((differences * pair_counts).sum(axis=1) / pairs)
    values = np.concatenate(drawn)
    low, high = np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2])
    return RowStatistics(float(difference), (float(low), float(high)), _two_sided_p(values))


def _differences(
    first: Sequence[RowScore], second: Sequence[RowScore], row_counts: Floats
) -> Floats:
    """Return the first score minus the second of each replicate and pair, [replicates, pairs]."""
    columns: list[Floats] = []
    for score, other in zip(first, second, strict=True):
        columns.append(score(row_counts) - other(row_counts))
    return np.stack(columns, axis=1)


def _resampled_counts(
    rows: int, replicates: int, generator: np.random.Generator
) -> Iterator[Floats]:
    """Yield how often each replicate draws each row, [some replicates, rows], until all are done."""
    at_a_time = max(1, _COUNTS_AT_A_TIME // rows)
    for start in range(0, replicates, at_a_time):
        size = min(at_a_time, replicates - start)
        counts = np.zeros((size, rows))
        for replicate in range(size):
            drawn = generator.integers(0, rows, rows)
            counts[replicate] = np.bincount(drawn, minlength=rows)
        yield counts


def _two_sided_p(values: Floats) -> float:
    """Return twice the share of replicates on the rarer side of zero, the data themselves counted as one."""
    not_above = 1 + np.count_nonzero(values <= 0)
    not_below = 1 + np.count_nonzero(values >= 0)
    return min(1.0, 2 * min(not_above, not_below) / (len(values) + 1))
