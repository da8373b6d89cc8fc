"""How a claim is decided: intervals, regions, estimates of further seeds."""

from math import inf

import numpy as np
import pytest
from scipy import stats

from hifi_cli.paired_tests import LEVEL
from hifi_cli.reports.claims.decide import (
    Condition,
    decide_comparison,
    most_telling,
    verdict_of_values,
)
from hifi_cli.reports.claims.evidence import Evidence

# Within the first bounds a claim is reproduced, outside of the second ones it is refuted.
SUPERIOR = Condition((0, inf), (0.5, inf))
NOT_WORSE = Condition((-1, inf), (-1, inf))
EQUAL = Condition((-1, 1), (-1, 1))


@pytest.mark.parametrize(
    ("condition", "mean", "verdict"),
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
def test_the_verdict_follows_from_the_interval(condition, mean, verdict):
    deviations = 0.55 * stats.norm.ppf((np.arange(10) + 0.5) / 10)
    assert verdict_of_values([(mean + deviations).tolist()], condition) == verdict


def test_a_superior_method_is_rarely_rejected_and_an_equal_one_rarely_reproduced():
    rng = np.random.default_rng(0)
    for truth, wrong in ((0.0, "reproduced"), (0.5, "not reproduced")):
        groups = truth + rng.standard_t(4, size=(1500, 3, 4))
        errors = np.mean([verdict_of_values(group.tolist(), SUPERIOR) == wrong for group in groups])
        assert errors <= 0.025 + 3 * (0.025 * 0.975 / 1500) ** 0.5


def finding(
    values, reproduced_within=(0.0, inf), refuted_outside=(0.5, inf), *, is_ratio=False, **options
):
    condition = Condition(reproduced_within, refuted_outside, is_ratio)
    return decide_comparison(Evidence("", {"rte": values}), condition, **options)


def test_the_printed_comparison_is_one_that_decides():
    """One comparison is not reproduced, by a small, certain difference; another is lower and undecided."""
    values = {
        "bitfit": [0.05, -0.1, 0.0, 0.1, -0.05, 0.02, -0.01],
        "lora": [-4.0, 3.5, -3.0, 2.9, 2.0, -4.0, 0.9],
    }
    findings = [
        finding(numbers, refuted_outside=(2.0, inf), level=LEVEL / 2) for numbers in values.values()
    ]
    assert [each.verdict for each in findings] == ["not reproduced", "undecided"]
    assert findings[1].effect < findings[0].effect
    assert most_telling(findings, "not reproduced") is findings[0]


def test_several_comparisons_are_rejected_at_their_share_of_the_level():
    values = [-1.0, -1.3, -0.2, -1.6, -0.4, 0.2, -0.8]
    assert finding(values).verdict == "not reproduced"
    assert finding(values, level=LEVEL / 20).verdict == "undecided"
    assert finding([9.0, 9.1, 9.2]).reason == "too few seeds for the sign-flip test"
    wide = [9.0, -3.0, 4.0, -1.0, 5.0, 2.0]  # which could be reproduced with these six
    assert finding(wide, level=LEVEL / 3).reason == "interval too wide"


def test_an_interval_beyond_zero_that_the_sign_flips_do_not_confirm_is_told():
    values = {"cola": [15.2, 15.4, 15.6], "mrpc": [-2.4, -2.5, -2.6], "stsb": [-0.5, -0.6, -0.7]}
    found = decide_comparison(Evidence("", values, [*values]), SUPERIOR)
    assert (found.verdict, found.interval[0] > 3) == ("undecided", True)
    assert found.reason == "the sign-flip test does not agree with the interval"
