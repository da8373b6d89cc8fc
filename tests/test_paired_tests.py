"""What paired differences allow to conclude: exact p, interval, Holm, and how often a false difference is claimed."""

import itertools

import numpy as np
import pytest
from scipy import stats

from hifi_cli.paired_tests import (
    LEVEL,
    holm,
    mean_interval,
    paired_statistics,
    repetition_limit,
    seeds_needed,
    seeds_that_reach,
    shows_above,
    sign_flip_p,
)


def brute_force_p(differences):
    """Two-sided p by going through every pattern of signs: how often the mean over tasks is as far from zero as it is."""
    shares = [value / (len(differences) * len(task)) for task in differences for value in task]
    patterns = np.array(list(itertools.product((1, -1), repeat=len(shares))))
    return float(np.mean(np.abs(patterns @ shares) >= abs(sum(shares)) - 1e-9))


RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    "differences",
    [
        [[1.0, 2.0, 3.0, 4.0, 5.0]],
        [[0.1, 0.1, 0.1, 0.1, 0.1, 0.1]],
        [[0.3, 0.1 + 0.2, -0.3, 0.5]],  # a tie but for rounding
        [[0.0, 1.0, -2.0, 3.0, 4.0, 0.0, 2.5]],
        [[3.0, -1.0, -2.0, 0.5]],  # 3 = 1 + 2: sums tie, not only values
        [[0.1, -0.7, 0.7, -0.1, 0.8]],  # sums tie, and their whole steps do not
        [
            [1.0, 2.0, 3.0],
            [1.0, -1.5],
        ],  # a third here and a half there weigh as they do in the mean
        [[0.0, 0.0], [1.8, -1.8, 3.6]],
        [list(RNG.normal(0.5, 1, 12))],
        [list(RNG.normal(0.5, 1, 3)) for _ in range(4)],
        [[-1.0, -40.0, 0.5, 0.7, 0.2, 3.0, -0.1]],
    ],
)
def test_p_is_that_of_all_sign_patterns(differences):
    comparison = paired_statistics(differences)
    assert comparison.p == pytest.approx(brute_force_p(differences))
    assert paired_statistics([[-value for value in task] for task in differences]).p == comparison.p


def test_p_of_many_pairs_is_that_of_the_binomial():
    for count, positive in ((36, 25), (60, 20)):
        assert sign_flip_p([2.5] * positive + [-2.5] * (count - positive)) == pytest.approx(
            stats.binomtest(positive, count).pvalue
        )
    assert sign_flip_p([0.1] * 100) == pytest.approx(2.0**-99)


def test_no_difference_at_all_shows_nothing():
    comparison = paired_statistics([[0.0, 0.0, 0.0]])
    assert (comparison.p, comparison.interval) == (1.0, (0.0, 0.0))
    assert not comparison.excludes_zero


def test_the_interval_of_one_task_is_students():
    # Student's sleep data as paired differences (R's t.test: 0.7001142 to 2.4598858, mean 1.58)
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    comparison = paired_statistics([sleep])
    assert comparison.mean == pytest.approx(1.58)
    assert comparison.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_the_interval_of_two_tasks_is_welchs():
    first, second = [4.0, 6.0, 5.0, 9.0], [1.0, 2.0, 1.5]
    # by hand: variances of the means 14/3/4 = 1.166667 and 0.25/3 = 0.083333, degrees of freedom 1.25^2 / 0.457176 = 3.41772
    half = stats.t.ppf(0.975, 1.25**2 / ((14 / 12) ** 2 / 3 + (1 / 12) ** 2 / 2)) * 1.25**0.5 / 2
    comparison = paired_statistics([first, second])
    assert comparison.interval == pytest.approx((3.75 - half, 3.75 + half))
    # A task counts the same with more seeds.
    assert comparison.mean == 3.75 == pytest.approx(comparison.terms.sum())


def test_equal_differences_give_an_interval_without_width_and_single_pairs_give_none():
    comparison = paired_statistics([[100 * (0.625 - 0.5)] * 8])
    assert (
        comparison.interval == (12.5, 12.5) and comparison.excludes_zero and comparison.p == 2 / 256
    )
    assert paired_statistics([[1.0, 1.0], [2.0, 2.0, 2.0]]).interval == (1.5, 1.5)
    assert paired_statistics([[1.0, 2.0], [3.0]]).interval is None


@pytest.mark.parametrize(("tasks", "seeds"), [(9, 4), (4, 3)])
def test_the_interval_covers_the_mean_over_tasks_of_unlike_spread(tasks, seeds):
    rng = np.random.default_rng(tasks)
    effects, spreads = np.linspace(-3, 5, tasks), np.resize([0.3, 1.0, 3.0], tasks)
    draws = effects[:, None] + spreads[:, None] * rng.normal(size=(1000, tasks, seeds))
    hits = [low < 1.0 < high for low, high in (mean_interval([*draw]) for draw in draws)]
    assert 0.93 <= np.mean(hits) <= 0.975


EFFECTS = {
    "none on any task": np.zeros(9),
    "cancel, one task against eight": np.array([4.0] + [-0.5] * 8),
    "cancel in pairs": np.array([3.0, -3.0, 2.0, -2.0, 1.0, -1.0, 0.3, -0.3, 0.0]),
    "a little skewed": np.array([1.0, 0.5, 0.5] + [-1 / 3] * 6),
}


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("spread", ["alike", "unlike"])
def test_a_false_difference_is_claimed_in_one_case_of_twenty_at_most(name, spread):
    """Nine tasks, four seeds, no difference on average over these tasks: what `hifi compare` calls better is an error."""
    rng = np.random.default_rng(11)
    scale = np.ones(9) if spread == "alike" else np.resize([0.2, 1.0, 3.0], 9)
    draws = EFFECTS[name][:, None] + scale[:, None] * rng.normal(size=(300, 9, 4))
    intervals = [mean_interval([*draw]) for draw in draws]
    claimed = [
        low * high > 0 and paired_statistics(draw).p < LEVEL
        for (low, high), draw in zip(intervals, draws, strict=True)
    ]
    assert np.mean(claimed) <= 0.06  # 0.05 and what 300 draws may add


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    # An order that is not its own inverse.
    assert holm([0.03, 0.01, 0.015]) == pytest.approx([0.03, 0.03, 0.03])
    assert holm([0.03, 0.001, 0.01]) == pytest.approx([0.03, 0.003, 0.02])
    assert holm([0.7, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_a_mean_is_above_a_bound_if_interval_and_test_say_so():
    seven = [5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6]
    assert shows_above([seven], 4.9)
    assert not shows_above([seven], 5.7) and not shows_above([seven], 5.3)
    # Five pairs have a p of 1/16 at best, and here the interval is above the bound.
    assert mean_interval([seven[:5]])[0] > 4.9 and not shows_above([seven[:5]], 4.9)


VALUES = [0.4, -0.3, 1.1, 0.2, 0.6, -0.1, 0.9, 0.35]


def test_the_seeds_needed_have_a_power_of_80_percent():
    seeds = seeds_needed([VALUES])
    effect = np.mean(VALUES) / (np.std(VALUES, ddof=1) / seeds**0.5)
    power = stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, effect)
    assert 0.78 < power < 0.9
    assert seeds_needed([[1.0]]) is None and seeds_needed([[0.001, -1.0, 1.0]]) is None
    assert seeds_needed([[1.0, 1.1] * 4]) is None  # six, and there are eight
    # The t-test alone would do with two seeds; the sign-flip test needs six pairs.
    assert seeds_needed([[10.0, 10.1]]) == 6
    assert seeds_needed([[10.0, 10.1], [10.0, 10.1]]) == 3
    # One of the tasks has more seeds than that.
    assert seeds_needed([[10.0, 10.1] * 4, [10.0, 10.1]]) is None


def test_the_seeds_needed_of_two_tasks_have_the_degrees_of_both():
    """The equation by hand: n seeds of each of two tasks have 2 (n - 1) degrees of freedom."""
    tasks = [[0.8, 1.8], [1.3, 0.3]]

    def is_enough(seeds):
        degrees = 2 * (seeds - 1)
        quantiles = stats.t.ppf(0.975, degrees) + stats.t.ppf(0.8, degrees)
        error = sum(np.var(task, ddof=1) / seeds for task in tasks) ** 0.5 / 2
        return np.mean(tasks) >= quantiles * error

    assert [is_enough(seeds) for seeds in (2, 3, 4)] == [False, False, True]
    assert seeds_needed(tasks) == 4


@pytest.mark.parametrize(
    ("level", "tasks", "seeds"), [(0.05, 1, 6), (0.05, 2, 3), (0.05, 9, 2), (0.025, 1, 7)]
)
def test_the_smallest_number_of_seeds_reaches_the_level(level, tasks, seeds):
    """An interval needs two seeds, however many tasks there are."""
    assert seeds_that_reach(level, tasks) == seeds
    assert 2.0 ** (1 - seeds * tasks) < level


def test_the_limit_of_a_repetition_is_that_of_two_seeds():
    """By hand: of one task Student's interval; of equal tasks their number divides it, and degrees add up."""
    scores = [1.0, 2.0, 4.0, 5.0]
    deviation = np.std(scores, ddof=1) * 2**0.5
    one = repetition_limit([scores])
    assert one == pytest.approx(stats.t.ppf(0.975, 3) * deviation)
    two = repetition_limit([scores, scores])
    assert two == pytest.approx(stats.t.ppf(0.975, 6) * deviation / 2**0.5)
    assert repetition_limit([[3.0, 3.0]]) == 0.0
    assert repetition_limit([[3.0]]) is repetition_limit([]) is None
