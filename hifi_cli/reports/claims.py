"""Verdicts: whether a claim is reproduced by our own results.

How a claim is decided (docs/claims.md):

- Runs decide it that have the settings of a protocol under which methods train what the paper's train, on tasks of the paper's
  own table that are not at chance. The published effect is that on the same tasks.
- A claim is reproduced where the interval of our effect lies inside what the claim requires, and not reproduced where it lies
  outside of what is possible if the claim is true: for "higher", where it excludes half of the published difference.
- A claim is about all of its tasks: it is undecided until each of them has runs.
- The interval is the 95 % t-interval of the mean over tasks, which are fixed; the exact sign-flip test must agree. Ratios are
  averaged, and their interval is computed, as logarithms.
- A claim of several comparisons is reproduced where every one is (no correction is needed), and not reproduced where one is
  not, at the level divided by their number.
- A verdict must hold for the scores of the last epoch too, and one seed decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import Literal

import numpy as np

from hifi_cli.config.choices import Score
from hifi_cli.reports.claim_evidence import ClaimContext, Evidence, evidence
from hifi_cli.reports.claim_names import by_names
from hifi_cli.reports.claim_published import PublishedEffect, published_effects
from hifi_cli.reports.claim_scope import unmet
from hifi_cli.reports.claim_spec import (
    Claim,
    ClaimsFile,
    ComparisonClaim,
    OrderClaim,
    PropertyClaim,
    TrendClaim,
    methods_of,
)
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.statistics import LEVEL, mean_interval, seeds_needed, shows_above
from hifi_cli.reports.table import MissingRuns
from hifi_cli.reports.table_spec import check_names

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
MOST_SEEDS = 100  # an estimate above this number is not printed


@dataclass(frozen=True)
class Region:
    """The effects that a claim requires, and those that are possible if it is true; both exclude their bounds."""

    required: tuple[float, float]
    possible: tuple[float, float]


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison or property of a claim.

    Attributes:
        effect: mean over tasks, or of an exact property the number farthest from what is claimed; None: nothing is known.
        interval: 95 % interval of the mean, or the range of an exact property.
        more_to_reproduce, more_to_reject: estimated seeds per task that each verdict still requires; None: it is not in
            sight, or requires too many.
        reason: why it is undecided, where the numbers alone do not say it.
    """

    evidence: Evidence
    published: PublishedEffect
    region: Region
    verdict: Verdict
    effect: float | None = None
    interval: tuple[float, float] | None = None
    more_to_reproduce: int | None = None
    more_to_reject: int | None = None
    reason: str = ""

    @property
    def is_small(self) -> bool:
        """Whether there is the claimed difference, but its whole interval is below the smallest one that counts."""
        return (
            self.interval is not None
            and self.region.required[0] < self.interval[0] <= self.interval[1] < self.region.possible[0]
        )


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        finding: the one that decides: of the comparisons with the claim's verdict, that with the smallest effect.
        missing: the runs, figures and costs without which there is no verdict, or a less certain one.
        reason: why none of the findings decides it.
    """

    name: str
    claim: Claim
    verdict: Verdict
    finding: Finding
    findings: list[Finding]
    runs: int
    missing: list[MissingRuns] = field(default_factory=list)
    reason: str = ""

    @property
    def unit(self) -> str:
        return self.claim.unit if isinstance(self.claim, TrendClaim | PropertyClaim) else "points"

    @property
    def more_seeds(self) -> int | None:
        """Estimated further seeds per task: until every comparison is reproduced, or one is not; None: too many."""
        undecided = [finding for finding in self.findings if finding.verdict == "undecided"]
        to_reproduce = [finding.more_to_reproduce for finding in undecided if finding.more_to_reproduce]
        to_reject = [finding.more_to_reject for finding in undecided if finding.more_to_reject]
        all_reproduced = [max(to_reproduce)] if to_reproduce and len(to_reproduce) == len(undecided) else []
        return min([*all_reproduced, *to_reject], default=None)


def evaluate(
    file: ClaimsFile, results: Results, *, score: Score | None = None, counted: frozenset[str] = COUNTED
) -> list[ClaimResult]:
    """Decide every claim of a file."""
    file, known = by_names(file), results.names
    for claim in file.claims.values():
        check_names("methods", methods_of(claim), known["methods"])
        check_names("tasks", claim.tasks or file.tasks, known["tasks"])
        check_names("protocols", [claim.protocol or file.protocol], known["protocols"])
    decided = []
    for key, claim in file.claims.items():
        context = ClaimContext.of(claim, file, results, score, counted)
        result = evaluate_claim(key, claim, file, context)
        if result.verdict == "undecided" and not result.missing:
            result = replace(result, missing=_more_runs(result, context))
        decided.append(result)
    return decided


def evaluate_claim(name: str, claim: Claim, file: ClaimsFile, context: ClaimContext) -> ClaimResult:
    """Decide one claim in a context; a verdict on the reported epochs must hold for the last ones too."""
    if reason := unmet(claim, file):
        nothing = Evidence("", {}, frozenset())
        findings = [
            Finding(nothing, effect, region_of(claim, effect, file.margin), "not run") for effect in published_effects(claim)
        ]
        return ClaimResult(name, claim, "not run", findings[0], findings, 0, reason=reason)
    result = _evaluate(name, claim, file, context)
    is_about_epochs = bool(methods_of(claim)) and not isinstance(claim, PropertyClaim)
    if is_about_epochs and context.score != "last" and result.verdict in ("reproduced", "not reproduced"):
        last = _evaluate(name, claim, file, replace(context, score="last"))
        if last.verdict != result.verdict:
            reason = f"{result.verdict} by the reported epochs, {last.verdict} by the last ones"
            return replace(result, verdict="undecided", reason=reason)
    return result


def _evaluate(name: str, claim: Claim, file: ClaimsFile, context: ClaimContext) -> ClaimResult:
    """Decide one claim by one score of its runs."""
    all_evidence = evidence(claim, context)
    published = published_effects(claim, [entry.tasks_with_values or entry.tasks for entry in all_evidence])
    findings = [
        decide_comparison(entry, effect, region_of(claim, effect, file.margin), comparisons=len(all_evidence))
        for entry, effect in zip(all_evidence, published, strict=True)
    ]
    verdicts = {finding.verdict for finding in findings}
    order: tuple[Verdict, ...] = ("not reproduced", "not run", "undecided", "reproduced")
    verdict = next(verdict for verdict in order if verdict in verdicts)
    if verdict == "not run" and verdicts != {"not run"}:
        verdict = "undecided"
    known = [finding for finding in findings if finding.effect is not None]
    deciding = min([finding for finding in known if finding.verdict == verdict] or known, key=_distance, default=findings[0])
    runs = {run for entry in all_evidence for run in entry.runs}
    missing = {missing.command: missing for entry in all_evidence for missing in entry.missing}
    return ClaimResult(name, claim, verdict, deciding, findings, len(runs), [*missing.values()])


def region_of(claim: Claim, published: PublishedEffect, margin: float) -> Region:
    """Return the regions of a claim.

    Args:
        margin: of a claim without a margin of its own whose published effect is not known.
    """
    match claim:
        case ComparisonClaim(kind="not-worse"):
            return _same(-(claim.margin or margin), inf)
        case ComparisonClaim() | OrderClaim():
            half = published.value / 2 if published.value and published.value > 0 else margin
            return Region((0.0, inf), (claim.margin or half, inf))
        case TrendClaim(expected="higher"):
            return Region((0.0, inf), (claim.margin or margin, inf))
        case TrendClaim(expected="not-lower"):
            return _same(-(claim.margin or margin), inf)
        case TrendClaim():
            return _same(-(claim.margin or margin), claim.margin or margin)
        case PropertyClaim():
            return _same(-inf if claim.at_least is None else claim.at_least, inf if claim.at_most is None else claim.at_most)


def decide_comparison(entry: Evidence, published: PublishedEffect, region: Region, *, comparisons: int = 1) -> Finding:
    """Decide one comparison or property.

    Args:
        comparisons: number of comparisons of the claim, one of which is enough to contradict it.
    """
    groups = entry.groups
    if not groups:
        return Finding(entry, published, region, "undecided" if entry.reason else "not run", reason=entry.reason)
    if entry.exact:
        return _find_exact(entry, published, region)
    shown_region = region
    as_logs = entry.is_ratio and min(map(min, groups)) > 0
    if as_logs:
        groups, region = [[log(value) for value in values] for values in groups], _logs(region)
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval([np.asarray(values, dtype=np.float64) for values in groups])
    verdict, reason = decide(groups, region, comparisons=comparisons), ""
    for side in _higher_sides(verdict, effect, region):
        if entry.failures and entry.failures[side].diverges_more(entry.failures[1 - side]):
            verdict, reason = "undecided", f"{entry.sides[side]} diverged more often, and a diverged run has no score"
    if missing := len(entry.tasks) - len(entry.tasks_with_values):
        verdict, reason = "undecided", f"{missing} of its {len(entry.tasks)} tasks have no runs to compare"
    if entry.reason:
        verdict, reason = "undecided", entry.reason
    to_reproduce = to_reject = None
    if verdict == "undecided" and not reason:
        if region.required[0] < effect < region.required[1]:
            to_reproduce = _more_seeds(groups, region.required, effect, LEVEL)
        if not region.possible[0] < effect < region.possible[1]:
            to_reject = _more_seeds(groups, region.possible, effect, LEVEL / comparisons)
    if as_logs:
        effect, interval = exp(effect), (exp(interval[0]), exp(interval[1])) if interval else None
    return Finding(entry, published, shown_region, verdict, effect, interval, to_reproduce, to_reject, reason)


def decide(groups: Sequence[Sequence[float]], region: Region, *, comparisons: int = 1) -> Verdict:
    """Return the verdict of the differences of several tasks."""
    negated, each = [[-value for value in values] for values in groups], LEVEL / comparisons
    low, high = region.possible
    if (low > -inf and shows_above(negated, -low, each)) or (high < inf and shows_above(groups, high, each)):
        return "not reproduced"
    low, high = region.required
    if (low == -inf or shows_above(groups, low)) and (high == inf or shows_above(negated, -high)):
        return "reproduced"
    return "undecided"


def _more_seeds(groups: Sequence[Sequence[float]], bounds: tuple[float, float], effect: float, level: float) -> int | None:
    """Return how many more seeds per task would show that the mean is on its side of the nearest bound; None: too many."""
    seeds = seeds_needed(groups, min(bounds, key=lambda bound: abs(bound - effect)), level=level)
    return max(1, seeds - min(map(len, groups))) if seeds is not None and seeds <= MOST_SEEDS else None


def _logs(region: Region) -> Region:
    ends = [log(end) if end > 0 else -inf for end in (*region.required, *region.possible)]
    return Region((ends[0], ends[1]), (ends[2], ends[3]))


def _find_exact(entry: Evidence, published: PublishedEffect, region: Region) -> Finding:
    numbers = [value for values in entry.groups for value in values]
    low, high = region.required
    outside = {number: max(low - number, number - high) for number in numbers}
    worst = max(numbers, key=lambda number: outside[number])
    verdict: Verdict = "reproduced" if low <= worst <= high else "not reproduced"
    verdict = "undecided" if entry.reason else verdict
    interval = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    return Finding(entry, published, region, verdict, worst, interval, reason=entry.reason)


def _higher_sides(verdict: Verdict, effect: float, region: Region) -> list[int]:
    """Return the sides of a comparison (0: first, 1: second) whose scores a verdict requires to be high."""
    if verdict == "not reproduced":
        return [1 if effect < region.possible[0] else 0]
    low, high = region.required
    return [side for side, bounded in enumerate((low > -inf, high < inf)) if bounded and verdict == "reproduced"]


def _distance(finding: Finding) -> float:
    """Return how far an effect is inside the region that supports the claim; the smallest of several decides."""
    effect = finding.effect if finding.effect is not None else 0.0
    low, high = finding.region.required
    return min(effect - low, high - effect)


def _same(low: float, high: float) -> Region:
    return Region((low, high), (low, high))


def _more_runs(result: ClaimResult, context: ClaimContext) -> list[MissingRuns]:
    """Return the commands that add the seeds which a verdict is estimated to require."""
    has_one_seed = any(finding.effect is not None and finding.interval is None for finding in result.findings)
    claim, number = result.claim, 1 if has_one_seed else result.more_seeds
    if not number:
        return []
    if methods := methods_of(claim):
        open_tasks = {task for finding in result.findings for task in finding.evidence.tasks}  # not those at chance
        context = replace(context, tasks=[task for task in context.tasks if task in open_tasks])
        used = sorted({record.result.seed for record in context.records(methods)} | set(context.seeds))
        return context.missing(methods, [*used, *range(used[-1] + 1, used[-1] + 1 + number)])
    figure = claim.figure if isinstance(claim, TrendClaim | PropertyClaim) and "seed" in claim.per else None
    return [context.figure_command(figure, more_seeds=number)] if figure else []
