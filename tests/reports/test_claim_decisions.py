"""How a claim is decided: intervals, regions, estimates of further seeds."""

from math import inf

import numpy as np
import pytest
from scipy import stats

from hifi_cli.paired_tests import LEVEL
from hifi_cli.reports.claims.decide import (
    Condition,
    Finding,
    condition_of,
    decide_claim,
    decide_comparison,
    verdict_of_values,
)
from hifi_cli.reports.claims.evidence import Evidence
from hifi_cli.reports.claims.spec import DifferenceClaim

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


@pytest.mark.slow
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
    assert decide_claim(findings).telling is findings[0]
    # If several have the verdict, it is the one with the smallest effect.
    lower = finding([-1.0 + value for value in values["bitfit"]])
    assert lower.verdict == "not reproduced"
    assert decide_claim([*findings, lower]).telling is lower


@pytest.mark.parametrize(
    ("keys", "published", "within", "outside"),
    [
        ({}, None, (0.0, inf), (0.4, inf)),
        ({}, 3.0, (0.0, inf), (1.5, inf)),  # half of the published difference
        ({}, -3.0, (0.0, inf), (0.4, inf)),  # the paper's numbers say the opposite
        ({"margin": 1.0}, 3.0, (0.0, inf), (1.0, inf)),
        ({"at_least": -0.5}, 3.0, (-0.5, inf), (-0.5, inf)),
        ({"at_least": 0.0, "margin": 2.0}, None, (0.0, inf), (2.0, inf)),
        ({"at_most": 1.0, "margin": 2.0}, None, (-inf, 1.0), (-inf, 1.0)),
        ({"at_least": -1.0, "at_most": 1.0}, None, (-1.0, 1.0), (-1.0, 1.0)),
    ],
)
def test_a_claim_requires_what_its_bounds_and_the_paper_say(keys, published, within, outside):
    methods = {"first": ["bitfit"], "second": ["full-ft"]}
    claim = DifferenceClaim(kind="difference", text="t", where="w", **methods, **keys)
    condition = condition_of(claim, published, 0.4)
    assert (condition.reproduced_within, condition.refuted_outside) == (within, outside)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["reproduced", "reproduced"], ("reproduced", "0")),
        (["reproduced", "undecided"], ("undecided", "1")),
        (["undecided", "not reproduced"], ("not reproduced", "1")),
        (["not run", "not reproduced"], ("not reproduced", "1")),
        (["reproduced", "not run"], ("undecided", "1 of 2 comparisons not run")),
        (["undecided", "not run"], ("undecided", "1 of 2 comparisons not run")),
        (["not run", "not run"], ("not run", "0")),
    ],
)
def test_a_claim_has_the_worst_verdict_of_its_comparisons(verdicts, expected):
    findings = [Finding(Evidence("", {}), each, str(at)) for at, each in enumerate(verdicts)]
    decision = decide_claim(findings)
    assert (decision.verdict, decision.reason) == expected


def test_a_small_ratio_is_itself_and_a_task_without_values_leaves_a_claim_undecided():
    found = finding([0.01, 0.04], (0.0, 2.0), (0.0, 2.0), is_ratio=True)
    assert found.effect == pytest.approx(0.02)
    half = decide_comparison(Evidence("", {"rte": [9.0] * 9}, ["rte", "cola"]), SUPERIOR)
    assert (half.verdict, half.reason) == ("undecided", "1 of 2 tasks")


def test_the_reason_is_that_of_the_printed_comparison():
    wide = [9.0, -3.0, 4.0, -1.0, 5.0, 2.0]
    findings = [finding([9.0, 9.1, 9.2]), finding(wide)]
    assert [each.verdict for each in findings] == ["undecided", "undecided"]
    decision = decide_claim(findings)
    assert decision.telling is findings[1] and decision.reason == "interval too wide"


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
