"""Tests over rows, against scipy and a bootstrap written out by hand."""

import numpy as np
import pytest
from scipy import stats

from hifi_cli.row_tests import bootstrap_difference, mcnemar_p


@pytest.mark.parametrize(
    ("only_first", "only_second"), [(0, 0), (1, 0), (0, 6), (5, 5), (3, 11), (40, 60), (700, 600)]
)
def test_mcnemar_is_a_binomial_test_of_the_discordant_rows(only_first, only_second):
    expected = 1.0
    if only_first + only_second:
        expected = stats.binomtest(only_first, only_first + only_second, 0.5).pvalue
    assert mcnemar_p(only_first, only_second) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_p(only_first, only_second) == mcnemar_p(only_second, only_first)


def mean_of(values):
    return lambda row_counts: row_counts @ values / row_counts.sum(axis=1)


def test_one_pair_is_scipys_bootstrap_of_the_paired_rows():
    generator = np.random.default_rng(3)
    first, second = (generator.random(120) < share for share in (0.7, 0.6))
    found = bootstrap_difference([mean_of(first)], [mean_of(second)], 120, replicates=20_000)
    differences = first.astype(float) - second
    assert found.difference == pytest.approx(differences.mean())
    expected = stats.bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=20_000, rng=generator
    )
    assert found.interval == pytest.approx([*expected.confidence_interval], abs=0.005)
    not_above = (expected.bootstrap_distribution <= 0).mean()
    assert found.p == pytest.approx(2 * not_above, abs=0.01)


def test_several_pairs_are_a_bootstrap_of_rows_and_of_pairs_written_out_by_hand():
    """The pairs differ much from one another, so that draws of rows alone would be far too narrow."""
    generator = np.random.default_rng(5)
    shares = [0.9, 0.6, 0.8, 0.5]
    first = [generator.random(50) < share for share in shares]
    second = [generator.random(50) < 0.6 for _ in shares]
    values = []
    for _ in range(4000):
        rows = generator.choice(50, 50)
        pairs = generator.choice(4, 4)
        differences = [first[at][rows].mean() - second[at][rows].mean() for at in pairs]
        values.append(np.mean(differences))
    scores, others = ([mean_of(values) for values in side] for side in (first, second))
    found = bootstrap_difference(scores, others, 50, replicates=4000)
    assert found.interval == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)
    assert found.p == pytest.approx(2 * np.mean(np.array(values) <= 0), abs=0.06)
    spread_of_pairs = np.std([a.mean() - b.mean() for a, b in zip(first, second, strict=True)])
    assert found.interval[1] - found.interval[0] > 2 * spread_of_pairs / 2


def test_draws_repeat():
    generator = np.random.default_rng(1)
    first, second = ([mean_of(generator.random(30)) for _ in range(3)] for _ in range(2))
    found = bootstrap_difference(first, second, 30)
    assert bootstrap_difference(first, second, 30) == found
    assert bootstrap_difference(first, second, 30, seed=1) != found


def test_equal_models_have_p_1():
    drawn = []
    score = mean_of(np.arange(10.0))
    same = [lambda counts: drawn.extend(counts.sum(axis=1)) or score(counts)]
    found = bootstrap_difference(same, same, 10)
    # Each draw has as many rows as there are.
    assert {*drawn} == {10}
    assert (found.difference, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)


def test_the_smallest_p_is_that_of_both_signs():
    low, high = [mean_of(np.arange(10.0))], [mean_of(np.arange(10.0) + 5)]
    for first, second in ((low, high), (high, low)):
        assert bootstrap_difference(first, second, 10).p == 2 / 2001
