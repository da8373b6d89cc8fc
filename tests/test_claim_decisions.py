"""How a claim is decided: intervals, regions, estimates of further seeds."""

from math import inf

import numpy as np
import pytest
from scipy import stats

from hifi_cli.reports.claims import ClaimResult, Finding, Published, Region, decide, find
from hifi_cli.statistics import seeds_needed

SUPERIOR, NOT_WORSE, EQUAL = Region((0, inf), (0.5, inf)), Region((-1, inf), (-1, inf)), Region((-1, 1), (-1, 1))


@pytest.mark.parametrize(
    ("region", "mean", "verdict"),
    [
        (SUPERIOR, 0.9, "reproduced"),
        (SUPERIOR, 0.25, "undecided"),  # the interval, 0.25 +- 0.38, holds 0 and the margin
        (SUPERIOR, 0.0, "not reproduced"),
        (SUPERIOR, 0.1, "not reproduced"),  # whatever is below the margin
        (SUPERIOR, -2.0, "not reproduced"),
        (NOT_WORSE, -0.4, "reproduced"),
        (NOT_WORSE, -1.1, "undecided"),
        (NOT_WORSE, -1.6, "not reproduced"),
        (EQUAL, 0.3, "reproduced"),
        (EQUAL, 0.9, "undecided"),
        (EQUAL, 1.8, "not reproduced"),
        (EQUAL, -1.8, "not reproduced"),
    ],
)
def test_the_verdict_follows_from_the_interval(region, mean, verdict):
    deviations = 0.55 * stats.norm.ppf((np.arange(10) + 0.5) / 10)
    assert decide([(mean + deviations).tolist()], region) == verdict


def test_a_superior_method_is_rarely_rejected_and_an_equal_one_rarely_reproduced():
    rng = np.random.default_rng(0)
    for truth, wrong in ((0.0, "reproduced"), (0.5, "not reproduced")):
        groups = truth + rng.standard_t(4, size=(1500, 3, 4))
        errors = np.mean([decide(group.tolist(), SUPERIOR) == wrong for group in groups])
        assert errors <= 0.025 + 3 * (0.025 * 0.975 / 1500) ** 0.5


def test_seeds_needed_are_those_of_the_t_tests_power():
    values = stats.norm.ppf((np.arange(40) + 0.5) / 40)
    values = 0.8 + (values - values.mean()) / values.std(ddof=1)

    def power(seeds):
        critical = stats.t.ppf(0.975, seeds - 1)
        return stats.nct.sf(critical, seeds - 1, 0.8 * seeds**0.5)

    exact = next(seeds for seeds in range(2, 50) if power(seeds) >= 0.8)
    assert exact == 15  # as in tables of power for d = 0.8
    assert abs(seeds_needed([values.tolist()], 0.0) - exact) <= 1
    assert seeds_needed([[1.0], [2.0, 3.0]], 0.0) is None and seeds_needed([[0.001, -0.001]], 0.0, highest=50) is None


def test_the_printed_comparison_is_one_that_decides():
    """One comparison is not reproduced, by a small, certain difference; another is lower and undecided."""
    values = {"bitfit": [0.05, -0.1, 0.0, 0.1, -0.05, 0.02, -0.01], "lora": [-4.0, 3.5, -3.0, 2.9, 2.0, -4.0, 0.9]}
    region = Region((0.0, inf), (2.0, inf))
    findings = [
        find(Finding(name, {"rte": dict(enumerate(numbers))}), Published(), region, comparisons=2)
        for name, numbers in values.items()
    ]
    assert [finding.verdict for finding in findings] == ["not reproduced", "undecided"]
    assert findings[1].effect < findings[0].effect
    assert ClaimResult("", None, "not reproduced", findings).finding.label == "bitfit"


def test_several_comparisons_are_rejected_at_their_share_of_the_level():
    region = Region((0.0, inf), (0.5, inf))
    entry = Finding("", {"rte": dict(enumerate([-1.0, -1.3, -0.2, -1.6, -0.4, 0.2, -0.8]))})
    assert find(entry, Published(), region).verdict == "not reproduced"
    assert find(entry, Published(), region, comparisons=20).verdict == "undecided"


def test_ratios_are_averaged_as_logarithms():
    region = Region((-inf, 1.0), (-inf, 1.0))
    finding = find(Finding("", {"cb": dict(enumerate([0.25, 4.0, 0.5, 2.0, 1.0]))}, is_ratio=True), Published(), region)
    assert finding.effect == pytest.approx(1.0) and finding.interval[0] == pytest.approx(1 / finding.interval[1])
    assert find(Finding("", {"cb": {0: 0.0, 1: 1.0}}, is_ratio=True), Published(), region).effect == 0.5
