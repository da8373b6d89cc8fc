"""Verdicts: whether a claim holds in our own results.

How a claim is decided (docs/claims.md; when the rules were fixed and what changed later: docs/laptop-study.md):

- A region of effects supports the claim, and a region is possible if the claim is true. A claim is supported where the
  interval of our effect lies inside the first, contradicted where it lies outside of the second, and undecided otherwise.
  Effects between the two regions are too small to matter either way.
- A claim is about all of its tasks: it is undecided until each of them has runs.
- The interval is the 95 % t-interval of the mean over tasks, which are fixed; the exact sign-flip test must agree. Ratios are
  averaged, and their interval is computed, as logarithms.
- A claim of several comparisons is supported where every one is (no correction is needed), and contradicted where one is, at
  the level divided by their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from pathlib import Path
from typing import Literal, cast

import numpy as np

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.files import command_line, digest
from hifi_cli.records.claim_looks import ClaimLooks, LooksAtClaim
from hifi_cli.reports.claim_evidence import ClaimContext, Evidence, evidence
from hifi_cli.reports.claim_names import by_names
from hifi_cli.reports.claim_published import PublishedEffect, published_effects
from hifi_cli.reports.claim_spec import (
    Claim,
    ClaimsFile,
    ComparisonClaim,
    OrderClaim,
    PropertyClaim,
    TrendClaim,
    is_about_scores,
    methods_of,
)
from hifi_cli.reports.run_filter import COUNTED
from hifi_cli.reports.run_records import Results
from hifi_cli.reports.sequential import level_at
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
        more_to_support, more_to_contradict: estimated seeds per task that each verdict still requires; None: it is not in
            sight, or requires too many.
        reason: why it is undecided, where the numbers alone do not say it.
    """

    evidence: Evidence
    published: PublishedEffect
    region: Region
    verdict: Verdict
    effect: float | None = None
    interval: tuple[float, float] | None = None
    more_to_support: int | None = None
    more_to_contradict: int | None = None
    reason: str = ""

    @property
    def is_small(self) -> bool:
        """Whether the effect supports the claim, and its whole interval is below the smallest effect that counts."""
        return self.verdict == "supported" and self.interval is not None and self.interval[1] < self.region.possible[0]


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        finding: the one that decides: of the comparisons with the claim's verdict, that with the smallest effect.
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
        """Estimated further seeds per task: until every comparison is supported, or one is contradicted; None: too many."""
        undecided = [finding for finding in self.findings if finding.verdict == "undecided"]
        to_support = [finding.more_to_support for finding in undecided if finding.more_to_support]
        to_contradict = [finding.more_to_contradict for finding in undecided if finding.more_to_contradict]
        all_supported = [max(to_support)] if to_support and len(to_support) == len(undecided) else []
        return min([*all_supported, *to_contradict], default=None)


def evaluate(
    file: ClaimsFile, results: Results, *, name: str = "", score: Score | None = None, counted: frozenset[str] = COUNTED
) -> list[ClaimResult]:
    """Decide every claim of a file.

    Args:
        name: of the file; the verdicts of its declared looks are used, if there were any. They are about the runs' own scores
            and the claims as they were at the looks: with another `score` or `counted`, or for a changed claim, they are not.
    """
    file, known = by_names(file), results.names
    for claim in file.claims.values():
        check_names("methods", methods_of(claim), known["methods"])
        check_names("tasks", claim.tasks or file.tasks, known["tasks"])
        check_names("protocols", [claim.protocol or file.protocol], known["protocols"])
    path = ClaimLooks.path_of(results.directory, Path(name).stem, file.protocol, file.backbone)
    has_looks = bool(name) and not score and counted == COUNTED
    looks = ClaimLooks.read(path) if has_looks and path.is_file() else None
    declared = looks.declared if looks else []
    next_look = _next_look(name, file, results, looks)
    decided = []
    for key, claim in file.claims.items():
        context = ClaimContext.of(claim, file, results, score, counted)
        result = evaluate_claim(key, claim, file, context)
        taken = looks.claims.get(key) if looks else None
        is_changed = taken is not None and taken.digest != claim_digest(claim, file)
        if looks and is_about_scores(claim):
            result = _at_look(result, looks, None if is_changed else taken, file, context)
        if taken and not is_changed:
            is_open = not taken.is_decided and len(taken.looks) < len(declared)
            result = replace(result, missing=[next_look] if is_open else [])
        elif result.verdict == "undecided" and not result.missing and not is_changed:  # the grid refuses a changed claim
            more = [next_look] if has_looks and is_about_scores(claim) else _more_runs(result, context)
            result = replace(result, missing=more)
        decided.append(result)
    return decided


def _next_look(name: str, file: ClaimsFile, results: Results, looks: ClaimLooks | None) -> MissingRuns:
    """Return the command that adds seeds to a file's claims; it corrects for the looks at them, which single runs do not."""
    is_own = registry.is_file(name)
    words = ["grid", "GRID.yaml" if is_own else f"claims-{name}", "--until-decided"]
    words += ["--max-seeds", str(looks.declared[-1])] if looks else []
    words += ["--backbone", results.backbone_argument(file.backbone)]
    words += ["--protocol", registry.argument_of("protocols", file.protocol), *results.arguments]
    remark = f"  # GRID.yaml: your grid with claims: {name}" if is_own else ""
    return MissingRuns("", (), (), command_line(["hifi", *words]) + remark)


def claim_digest(claim: Claim, file: ClaimsFile) -> str:
    """Return a digest of everything that decides a claim: not of its texts."""
    content = claim.model_dump(mode="json", exclude={"text", "where", "note"})
    return digest([content, claim.tasks or file.tasks, claim.protocol or file.protocol, file.backbone, file.margin])


def _at_look(
    result: ClaimResult, looks: ClaimLooks, taken: LooksAtClaim | None, file: ClaimsFile, context: ClaimContext
) -> ClaimResult:
    """Return a result at the level of a declared look: of the claim's last one, with its verdict, or of the last one at others.

    The latter is for a claim without looks whose seeds other claims' looks may have added: 5 % would hold for one look only.

    Args:
        taken: the looks at this claim as it is now.
    """
    if not taken and not _has_added_seeds(result, file):
        return result
    number = len(taken.looks) if taken else max(len(others.looks) for others in looks.claims.values())
    result = evaluate_claim(result.name, result.claim, file, context, level=level_at(looks.declared, number))
    look = f"look {number} of {len(looks.declared)} at {100 * looks.levels[number - 1]:.2g} %"
    if not taken:
        return replace(result, look=f"with seeds of {look}")
    return replace(result, verdict=cast("Verdict", taken.looks[-1].verdict), look=look)


def _has_added_seeds(result: ClaimResult, file: ClaimsFile) -> bool:
    """Whether a claim compares other seeds than the file's own."""
    return any({*seeds} - {*file.seeds} for finding in result.findings for seeds in finding.evidence.values.values())


def one_look(comparisons: int) -> float:
    """Return the level of each of several comparisons, one of which is enough, where results are looked at once."""
    return LEVEL / comparisons


def evaluate_claim(
    name: str, claim: Claim, file: ClaimsFile, context: ClaimContext, *, level: Callable[[int], float] = one_look
) -> ClaimResult:
    """Decide one claim in a context.

    Args:
        level: error rate of a decision by number of comparisons; smaller where results are looked at repeatedly.
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


def decide_comparison(
    entry: Evidence,
    published: PublishedEffect,
    region: Region,
    *,
    level: Callable[[int], float] = one_look,
    comparisons: int = 1,
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
    shown_region = region
    as_logs = entry.is_ratio and min(map(min, groups)) > 0
    if as_logs:
        groups, region = [[log(value) for value in values] for values in groups], _logs(region)
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval([np.asarray(values, dtype=np.float64) for values in groups], level(1))
    verdict, reason = decide(groups, region, level=level, comparisons=comparisons), ""
    for side in _higher_sides(verdict, effect, region):
        if entry.failures and entry.failures[side].diverges_more(entry.failures[1 - side]):
            verdict, reason = "undecided", f"{entry.sides[side]} diverged more often, and a diverged run has no score"
    if missing := len(entry.tasks) - len(entry.tasks_with_values):
        verdict, reason = "undecided", f"{missing} of its {len(entry.tasks)} tasks have no runs to compare"
    to_support = to_contradict = None
    if verdict == "undecided" and not reason:
        if region.supported[0] < effect < region.supported[1]:
            to_support = _more_seeds(groups, region.supported, effect, one_look(1))
        if not region.possible[0] < effect < region.possible[1]:
            to_contradict = _more_seeds(groups, region.possible, effect, one_look(comparisons))
    if as_logs:
        effect, interval = exp(effect), (exp(interval[0]), exp(interval[1])) if interval else None
    return Finding(entry, published, shown_region, verdict, effect, interval, to_support, to_contradict, reason)


def decide(
    groups: Sequence[Sequence[float]], region: Region, *, level: Callable[[int], float] = one_look, comparisons: int = 1
) -> Verdict:
    """Return the verdict of the differences of several tasks."""
    low, high = region.supported
    negated = [[-value for value in values] for values in groups]
    one = level(1)
    if (low == -inf or shows_above(groups, low, one)) and (high == inf or shows_above(negated, -high, one)):
        return "supported"
    low, high = region.possible
    each = level(comparisons)
    if (low > -inf and shows_above(negated, -low, each)) or (high < inf and shows_above(groups, high, each)):
        return "contradicted"
    return "undecided"


def _more_seeds(groups: Sequence[Sequence[float]], bounds: tuple[float, float], effect: float, level: float) -> int | None:
    """Return how many more seeds per task would show that the mean is on its side of the nearest bound; None: too many."""
    seeds = seeds_needed(groups, min(bounds, key=lambda bound: abs(bound - effect)), level=level)
    return max(1, seeds - min(map(len, groups))) if seeds is not None and seeds <= MOST_SEEDS else None


def _logs(region: Region) -> Region:
    ends = [log(end) if end > 0 else -inf for end in (*region.supported, *region.possible)]
    return Region((ends[0], ends[1]), (ends[2], ends[3]))


def _find_exact(entry: Evidence, published: PublishedEffect, region: Region) -> Finding:
    numbers = [value for values in entry.groups for value in values]
    low, high = region.supported
    outside = {number: max(low - number, number - high) for number in numbers}
    worst = max(numbers, key=lambda number: outside[number])
    verdict: Verdict = "supported" if low <= worst <= high else "contradicted"
    interval = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    return Finding(entry, published, region, verdict, worst, interval)


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


def _more_runs(result: ClaimResult, context: ClaimContext) -> list[MissingRuns]:
    """Return the commands that add the seeds which a verdict is estimated to require."""
    has_one_seed = any(finding.effect is not None and finding.interval is None for finding in result.findings)
    claim, number = result.claim, 1 if has_one_seed else result.more_seeds
    if not number:
        return []
    if methods := methods_of(claim):
        used = sorted({record.result.seed for record in context.records(methods)} | set(context.seeds))
        return context.missing(methods, [*used, *range(used[-1] + 1, used[-1] + 1 + number)])
    figure = claim.figure if isinstance(claim, TrendClaim | PropertyClaim) and "seed" in claim.per else None
    return [context.figure_command(figure, more_seeds=number)] if figure else []
