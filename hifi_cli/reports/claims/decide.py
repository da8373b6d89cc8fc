"""From evidence to the verdict on a claim."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hifi_cli.paired_tests import LEVEL, Groups, mean_interval, shows_above, smallest_p
from hifi_cli.reports.claims.evidence import Evidence
from hifi_cli.reports.claims.spec import Claim, DifferenceClaim, NumberClaim

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Condition:
    """When a claim is reproduced, and when it is refuted; anything between leaves it undecided.

    Attributes:
        reproduced_within: the bounds within which our effect must be shown to lie.
        refuted_outside: the bounds outside of which our effect must be shown to lie. They are
            narrower than the others by the claim's margin: a difference that is shown, but shown to
            be smaller than the margin, refutes the claim.
        is_ratio: the effect is a ratio; it is averaged and decided as a logarithm.
    """

    reproduced_within: Bounds
    refuted_outside: Bounds
    is_ratio: bool = False


@dataclass(frozen=True)
class Finding:
    """The decision on one comparison of methods, or on one number.

    Attributes:
        evidence: what it was decided from.
        verdict: of this comparison alone.
        reason: why there is no verdict, or what it means; empty: nothing need be said.
        effect: mean over tasks; None: nothing is known.
        interval: its 95 % interval; None: a task has one seed.
    """

    evidence: Evidence
    verdict: Verdict
    reason: str = ""
    effect: float | None = None
    interval: Bounds | None = None


# --- conditions


def condition_of(
    claim: Claim, published: float | None = None, default_margin: float = 0.0
) -> Condition:
    """Return what a claim requires of our effect.

    Args:
        claim: its bounds and margin.
        published: the published effect; None: not known.
        default_margin: the smallest difference that counts, where the claim has neither bounds nor
            margin and no difference is published.
    """
    if isinstance(claim, DifferenceClaim) and not claim.has_bounds:
        return _condition_of_being_above(claim, published, default_margin)
    return _condition_of_bounds(claim)


def _condition_of_being_above(
    claim: DifferenceClaim, published: float | None, default_margin: float
) -> Condition:
    """Return what is required of a difference that is claimed to be above 0.

    It is refuted where it is shown to be below the claim's margin, or else below half of the
    published difference, or else below the default margin.
    """
    refuted_below = default_margin
    if published and published > 0:
        refuted_below = published / 2
    if claim.margin:
        refuted_below = claim.margin
    return Condition((0.0, inf), (refuted_below, inf))


def _condition_of_bounds(claim: Claim) -> Condition:
    """Return what is required of an effect that is claimed to lie within bounds of the claim's own.

    Without a margin, one bound serves both: above it the claim is reproduced, below it refuted. With
    one, an effect that is shown to lie between bound and margin is there, but too small, and refutes
    the claim.
    """
    low = -inf if claim.at_least is None else claim.at_least
    high = inf if claim.at_most is None else claim.at_most
    refuted_below = low
    if claim.margin and low > -inf:
        refuted_below = claim.margin
    is_ratio = isinstance(claim, NumberClaim) and claim.is_ratio
    return Condition((low, high), (refuted_below, high), is_ratio)


# --- one comparison


def decide_comparison(evidence: Evidence, condition: Condition, level: float = LEVEL) -> Finding:
    """Decide one comparison or number.

    Args:
        evidence: values of each task.
        condition: what is required.
        level: at which it is not reproduced.
    """
    if not evidence.values:
        verdict: Verdict = "undecided" if evidence.reason else "not run"
        return Finding(evidence, verdict, evidence.reason)
    groups = [np.array(values) for values in evidence.values.values()]
    # The same condition, on the scale of the groups.
    of_groups = condition
    if condition.is_ratio:
        groups = [_logarithms(values) for values in groups]
        of_groups = _condition_of_logarithms(condition)
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval(groups)
    # Values that can decide nothing, such as those of one seed, get no verdict whatever they are.
    verdict = "undecided"
    reason = _lack_of_evidence(evidence, interval)
    if not reason:
        verdict = verdict_of_values(groups, of_groups, level)
        low, _ = of_groups.reproduced_within
        if verdict == "undecided":
            reason = _why_undecided(groups, of_groups, level)
        # The interval lies above the bound that reproduces the claim, and yet it is refuted, by its
        # margin: the reader sees an effect and must be told why it is not enough.
        elif verdict == "not reproduced" and interval and interval[0] > low > -inf:
            margin, _ = condition.refuted_outside
            reason = f"there is a difference, but smaller than {margin:.3g}"
    if condition.is_ratio:
        effect, interval = _exponentials(effect, interval)
    return Finding(evidence, verdict, reason, effect, interval)


def _logarithms(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of ratios, [repetitions]; a ratio of 0 counts as 1e-9, to be finite."""
    logarithms: NDArray[np.float64] = np.log(np.maximum(ratios, 1e-9))
    return logarithms


def _condition_of_logarithms(condition: Condition) -> Condition:
    """Return what a condition on ratios requires of their logarithms."""
    return Condition(
        reproduced_within=_logarithms_of_bounds(condition.reproduced_within),
        refuted_outside=_logarithms_of_bounds(condition.refuted_outside),
    )


def _logarithms_of_bounds(bounds: Bounds) -> Bounds:
    """Return the logarithms of two bounds; no lower bound, and one of 0, is minus infinity."""
    with np.errstate(divide="ignore"):
        low, high = np.log(np.maximum(bounds, 0)).tolist()
    return low, high


def _exponentials(effect: float, interval: Bounds | None) -> tuple[float, Bounds | None]:
    """Return effect and interval of logarithms as those of ratios."""
    if interval is None:
        return float(np.exp(effect)), None
    ratio, low, high = np.exp([effect, *interval]).tolist()
    return ratio, (low, high)


def _lack_of_evidence(evidence: Evidence, interval: Bounds | None) -> str:
    """Return what is lacking for any verdict, whatever the values are; empty: nothing is."""
    if evidence.reason:
        return evidence.reason
    if len(evidence.values) < len(evidence.tasks):
        return f"{len(evidence.values)} of {len(evidence.tasks)} tasks"
    if interval is None:
        return "a task has one seed"
    return ""


def verdict_of_values(groups: Groups, condition: Condition, level: float = LEVEL) -> Verdict:
    """Return the verdict of the values of several tasks.

    Args:
        groups: of each task, one value per seed.
        condition: of the mean over tasks, on the scale of the values.
        level: at which the claim is refuted.
    """
    # `shows_above` tests one direction only: a mean is below a bound if its negative is above the
    # negative bound.
    negated = [[-value for value in values] for values in groups]
    low, high = condition.refuted_outside
    is_too_low = low > -inf and shows_above(negated, -low, level)
    is_too_high = high < inf and shows_above(groups, high, level)
    if is_too_low or is_too_high:
        return "not reproduced"
    # A bound that is not there is always kept.
    low, high = condition.reproduced_within
    keeps_low = low == -inf or shows_above(groups, low)
    keeps_high = high == inf or shows_above(negated, -high)
    if keeps_low and keeps_high:
        return "reproduced"
    return "undecided"


def _why_undecided(groups: Groups, condition: Condition, level: float) -> str:
    """Return why neither verdict follows: interval and sign-flip test must agree on it.

    The arguments are those of `verdict_of_values`.
    """
    # All values may lie on one side of the bound.
    repetitions = sum(map(len, groups))
    if smallest_p(repetitions) >= LEVEL:
        return "too few seeds for the sign-flip test"
    # Each side is judged by the interval of its own level.
    low, high = condition.reproduced_within
    start, end = mean_interval(groups) or (-inf, inf)
    is_inside = low < start and end < high
    low, high = condition.refuted_outside
    start, end = mean_interval(groups, level) or (-inf, inf)
    is_outside = end < low or start > high
    if is_inside or is_outside:
        return "the sign-flip test does not agree with the interval"
    return "interval too wide"


# --- a claim of several comparisons


def decide_comparisons(
    claim: Claim, evidence: Sequence[Evidence], default_margin: float
) -> list[Finding]:
    """Decide every comparison of a claim.

    A single comparison refutes the claim, so each is refuted at the level divided by their number
    (Bonferroni). All must hold to reproduce it, so that side needs no correction.

    Args:
        claim: what is required.
        evidence: on each comparison.
        default_margin: the smallest difference that counts, where nothing else says it.
    """
    level = LEVEL
    # A figure holds one number, which is a single comparison: the level stays whole.
    if not (isinstance(claim, NumberClaim) and claim.figure):
        level = LEVEL / len(evidence)
    findings = []
    for each in evidence:
        published = None
        if isinstance(claim, DifferenceClaim):
            published = each.published.effect
        condition = condition_of(claim, published, default_margin)
        findings.append(decide_comparison(each, condition, level))
    return findings


@dataclass(frozen=True)
class Decision:
    """The decision on a claim.

    Attributes:
        verdict: on the claim.
        reason: why there is no verdict, or what it means; empty: nothing need be said.
        telling: the comparison whose numbers are printed for the claim.
    """

    verdict: Verdict
    reason: str
    telling: Finding


def decide_claim(findings: Sequence[Finding]) -> Decision:
    """Decide a claim by its comparisons.

    It is reproduced if every comparison is, and not reproduced if one is not.
    """
    verdicts = [finding.verdict for finding in findings]
    not_run = verdicts.count("not run")
    if 0 < not_run < len(findings) and "not reproduced" not in verdicts:
        were_run = [finding for finding in findings if finding.verdict != "not run"]
        reason = f"{not_run} of {len(findings)} comparisons not run"
        return Decision("undecided", reason, _with_smallest_effect(were_run))
    # The claim gets the worst verdict of its comparisons.
    from_the_worst: list[Verdict] = ["not reproduced", "not run", "undecided", "reproduced"]
    verdict = min(verdicts, key=from_the_worst.index)
    of_verdict = [finding for finding in findings if finding.verdict == verdict]
    # The reason is that of the comparison which is printed: each may have another one.
    telling = _with_smallest_effect(of_verdict)
    return Decision(verdict, telling.reason, telling)


def _with_smallest_effect(findings: Sequence[Finding]) -> Finding:
    """Return the comparison with the smallest effect; the first one where no effect is known."""

    def effect(finding: Finding) -> float:
        return inf if finding.effect is None else finding.effect

    return min(findings, key=effect)
