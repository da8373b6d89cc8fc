"""Verdicts: whether a claim holds in our own results.

How a claim is decided, fixed before any result was seen (docs/claims.md):

- A region of effects supports the claim, and a region is possible if the claim is true. A claim is supported where the
  interval of our effect lies inside the first, contradicted where it lies outside of the second, and undecided otherwise.
  Effects between the two regions are too small to matter either way.
- A claim is about all of its tasks: it is undecided until each of them has runs.
- The interval is the 95 % t-interval of the mean over tasks, which are fixed; the exact sign-flip test must agree.
- A claim of several comparisons is supported where every one is (no correction is needed), and contradicted where one is, at
  the level divided by their number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Literal, cast

import numpy as np

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.files import command_line, digest
from hifi_cli.records.claim_looks import ClaimLooks
from hifi_cli.reports.claim_evidence import ClaimContext, Evidence, evidence, methods_of
from hifi_cli.reports.claim_published import PublishedEffect, published_effects
from hifi_cli.reports.claim_spec import Claim, ClaimsFile, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.statistics import LEVEL, mean_interval, seeds_needed, shows_above
from hifi_cli.reports.table import MissingRuns
from hifi_cli.reports.table_spec import check_names

Verdict = Literal["supported", "contradicted", "undecided", "not run"]
MOST_SEEDS = 100  # an estimate above this number is not printed


@dataclass(frozen=True)
class Region:
    """The effects that support a claim, and those that are possible if it is true; both exclude their bounds."""

    supported: tuple[float, float]
    possible: tuple[float, float]


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison or property of a claim.

    Attributes:
        effect: mean over tasks, or of an exact property the number farthest from what is claimed; None: nothing is known.
        interval: 95 % interval of the mean, or the range of an exact property.
        more_seeds: estimated seeds per task that a decision still requires; None: not known, or too many.
        reason: why it is undecided, where the numbers alone do not say it.
    """

    evidence: Evidence
    published: PublishedEffect
    region: Region
    verdict: Verdict
    effect: float | None = None
    interval: tuple[float, float] | None = None
    more_seeds: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        finding: the one that decides: the smallest effect of several comparisons.
        missing: the runs, figures and costs without which there is no verdict, or a less certain one.
        look: which of several declared looks gave the verdict.
    """

    name: str
    claim: Claim
    verdict: Verdict
    finding: Finding
    findings: list[Finding]
    runs: int
    missing: list[MissingRuns] = field(default_factory=list)
    look: str = ""

    @property
    def unit(self) -> str:
        return self.claim.unit if isinstance(self.claim, TrendClaim | PropertyClaim) else "points"

    @property
    def more_seeds(self) -> int | None:
        """Estimated further seeds per task; None: not known, or too many."""
        numbers = [finding.more_seeds for finding in self.findings if finding.verdict == "undecided"]
        known = [number for number in numbers if number is not None]
        return max(known) if known and len(known) == len(numbers) else None


def evaluate(
    file: ClaimsFile, results: Results, *, name: str = "", score: Score | None = None, counted: frozenset[str] = COUNTED
) -> list[ClaimResult]:
    """Decide every claim of a file.

    Args:
        name: of the file; the verdicts of its declared looks are used, if there were any. They are about the runs' own scores
            and the claims as they were at the looks: with another `score` or `counted`, or for a changed claim, they are not.
    """
    known = results.names
    for claim in file.claims.values():
        check_names("methods", methods_of(claim), known["methods"])
        check_names("tasks", claim.tasks or file.tasks, known["tasks"])
        check_names("protocols", [claim.protocol or file.protocol], known["protocols"])
    decided = [
        evaluate_claim(key, claim, file, ClaimContext.of(claim, file, results, score, counted))
        for key, claim in file.claims.items()
    ]
    path = ClaimLooks.path_of(results.directory, Path(name).stem, file.protocol, file.backbone)
    if not name or score or counted != COUNTED or not path.is_file():
        return decided
    looks, is_own = ClaimLooks.read(path), registry.is_file(name)
    words = ["grid", "GRID.yaml" if is_own else f"claims-{name}", "--until-decided", "--max-seeds", str(looks.declared[-1])]
    words += ["--backbone", file.backbone, "--protocol", file.protocol, *results.arguments]
    remark = f"  # GRID.yaml: your grid with claims: {name}" if is_own else ""
    next_look = MissingRuns("", (), (), command_line(["hifi", *words]) + remark)
    digests = {key: claim_digest(claim, file) for key, claim in file.claims.items()}
    return apply_look_verdicts(decided, looks, digests, next_look)


def claim_digest(claim: Claim, file: ClaimsFile) -> str:
    """Return a digest of everything that decides a claim: not of its texts."""
    content = claim.model_dump(mode="json", exclude={"text", "where", "note"})
    return digest([content, claim.tasks or file.tasks, claim.protocol or file.protocol, file.backbone, file.margin])


def apply_look_verdicts(
    results: Sequence[ClaimResult], looks: ClaimLooks, digests: Mapping[str, str], next_look: MissingRuns
) -> list[ClaimResult]:
    """Return the results with the verdicts of the declared looks, whose levels allow to look several times.

    Args:
        digests: of the claims as they are now.
        next_look: the command for a claim that is undecided while looks are left; other runs change no verdict of a look.
    """
    decided = []
    for result in results:
        if result.name in looks.verdicts and looks.claims.get(result.name) == digests[result.name]:
            verdict, number = looks.verdicts[result.name]
            is_open = verdict == "undecided" and number < len(looks.declared)
            look = f"look {number} of {len(looks.declared)}"
            result = replace(result, verdict=cast("Verdict", verdict), look=look, missing=[next_look] if is_open else [])
        decided.append(result)
    return decided


def evaluate_claim(name: str, claim: Claim, file: ClaimsFile, context: ClaimContext, *, level: float = LEVEL) -> ClaimResult:
    """Decide one claim in a context.

    Args:
        level: error rate of the decision; smaller where results are looked at repeatedly.
    """
    all_evidence, published = evidence(claim, context), published_effects(claim)
    findings = [
        decide_comparison(entry, effect, region_of(claim, effect, file.margin), level=level, comparisons=len(all_evidence))
        for entry, effect in zip(all_evidence, published, strict=True)
    ]
    verdicts = {finding.verdict for finding in findings}
    order: tuple[Verdict, ...] = ("contradicted", "not run", "undecided", "supported")
    verdict = next(verdict for verdict in order if verdict in verdicts)
    if verdict == "not run" and verdicts != {"not run"}:
        verdict = "undecided"
    known = [finding for finding in findings if finding.effect is not None]
    deciding = min(known, key=_distance) if known else findings[0]
    result = ClaimResult(
        name, claim, verdict, deciding, findings, sum(entry.runs for entry in all_evidence), _unique(all_evidence)
    )
    has_one_seed = any(finding.effect is not None and finding.interval is None for finding in findings)
    if verdict == "undecided" and not result.missing and (more_seeds := 1 if has_one_seed else result.more_seeds):
        result.missing.extend(_more_runs(claim, context, more_seeds))
    return result


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


def decide_comparison(
    entry: Evidence, published: PublishedEffect, region: Region, *, level: float = LEVEL, comparisons: int = 1
) -> Finding:
    """Decide one comparison or property.

    Args:
        comparisons: number of comparisons of the claim, one of which is enough to contradict it.
    """
    groups = entry.groups
    if not groups:
        return Finding(entry, published, region, "not run")
    if entry.exact:
        return _find_exact(entry, published, region)
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval([np.asarray(values, dtype=np.float64) for values in groups], level)
    verdict, reason = decide(groups, region, level=level, comparisons=comparisons), ""
    for side in _higher_sides(verdict, effect, region):
        if entry.failures and entry.failures[side].diverges_more(entry.failures[1 - side]):
            verdict, reason = "undecided", f"{entry.sides[side]} diverged more often, and a diverged run has no score"
    if missing := len(entry.tasks) - len(entry.tasks_with_values):
        verdict, reason = "undecided", f"{missing} of its {len(entry.tasks)} tasks have no runs to compare"
    more = None
    if verdict == "undecided" and not reason:
        seeds = [seeds_needed(groups, bound) for bound in _targets(effect, region)]
        known = [number for number in seeds if number is not None and number <= MOST_SEEDS]
        more = max(1, min(known) - min(map(len, groups))) if known else None
    return Finding(entry, published, region, verdict, effect, interval, more, reason)


def decide(groups: Sequence[Sequence[float]], region: Region, *, level: float = LEVEL, comparisons: int = 1) -> Verdict:
    """Return the verdict of the differences of several tasks."""
    low, high = region.supported
    negated = [[-value for value in values] for values in groups]
    if (low == -inf or shows_above(groups, low, level)) and (high == inf or shows_above(negated, -high, level)):
        return "supported"
    low, high = region.possible
    level /= comparisons
    if (low > -inf and shows_above(negated, -low, level)) or (high < inf and shows_above(groups, high, level)):
        return "contradicted"
    return "undecided"


def _find_exact(entry: Evidence, published: PublishedEffect, region: Region) -> Finding:
    numbers = [value for values in entry.groups for value in values]
    low, high = region.supported
    outside = {number: max(low - number, number - high) for number in numbers}
    worst = max(numbers, key=lambda number: outside[number])
    verdict: Verdict = "supported" if low <= worst <= high else "contradicted"
    interval = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    return Finding(entry, published, region, verdict, worst, interval)


def _targets(effect: float, region: Region) -> list[float]:
    """Return the bounds that the interval can still exclude, given where the effect is."""
    inside = [*region.supported] if region.supported[0] < effect < region.supported[1] else []
    outside = [*region.possible] if not region.possible[0] < effect < region.possible[1] else []
    return [min(bounds, key=lambda bound: abs(bound - effect)) for bounds in (inside, outside) if bounds]


def _higher_sides(verdict: Verdict, effect: float, region: Region) -> list[int]:
    """Return the sides of a comparison (0: first, 1: second) whose scores a verdict requires to be high."""
    if verdict == "contradicted":
        return [1 if effect < region.possible[0] else 0]
    low, high = region.supported
    return [side for side, bounded in enumerate((low > -inf, high < inf)) if bounded and verdict == "supported"]


def _distance(finding: Finding) -> float:
    """Return how far an effect is inside the region that supports the claim; the smallest of several decides."""
    effect = finding.effect if finding.effect is not None else 0.0
    low, high = finding.region.supported
    return min(effect - low, high - effect)


def _same(low: float, high: float) -> Region:
    return Region((low, high), (low, high))


def _unique(all_evidence: Sequence[Evidence]) -> list[MissingRuns]:
    return [*{missing.command: missing for entry in all_evidence for missing in entry.missing}.values()]


def _more_runs(claim: Claim, context: ClaimContext, number: int) -> list[MissingRuns]:
    """Return the commands that add so many seeds."""
    if methods := methods_of(claim):
        used = sorted({record.result.seed for record in context.records(methods)} | set(context.seeds))
        return context.missing(methods, [*used, *range(used[-1] + 1, used[-1] + 1 + number)])
    figure = claim.figure if isinstance(claim, TrendClaim | PropertyClaim) and "seed" in claim.per else None
    return [context.figure_command(figure, more_seeds=number)] if figure else []
