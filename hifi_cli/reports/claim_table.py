"""The table of claims and verdicts, in the form that every format prints."""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import get_args

from hifi_cli.config.registry import label_of
from hifi_cli.reports import published
from hifi_cli.reports.claim_spec import ClaimsFile, ComparisonClaim, OrderClaim, PropertyClaim, TrendClaim
from hifi_cli.reports.claims import MOST_SEEDS, ClaimResult, Finding, Region, Verdict
from hifi_cli.reports.proportions import equal_rates_p
from hifi_cli.reports.table import DASH, Table, TableCell, TableHeading, TableRow
from hifi_cli.wording import counted_noun

RULE = (
    "reproduced: the 95 % interval of our effect (mean over the tasks, new seeds) is inside what is required, and the sign-flip"
    " test agrees; not reproduced: it is outside of what is possible if the claim is true (a difference: without half of the"
    " published one); numbers that no seed changes have their range instead of an interval; each claim is decided for itself at"
    " the 5 % level"
)
_HEADINGS = (
    *(TableHeading(label) for label in ("Verdict", "Ours", "Interval", "Published")),
    TableHeading("Reproduced if", name="required"),
    TableHeading("Not reproduced if", name="not_reproduced"),
    *(TableHeading(label) for label in ("Unit", "Runs")),
)


def build(file: ClaimsFile, results: Sequence[ClaimResult]) -> Table:
    """Build the table of a file's claims; a footnote of each row holds the claim's text."""
    counts = Counter(result.verdict for result in results)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    return Table(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        headings=[*_HEADINGS],
        rows=[_row(result, file.backbone) for result in results],
        corner="Claim",
        notes=[RULE, *_unmet_notes(results), *_split_notes(file, results)],
        missing=list(dict.fromkeys(missing for result in results for missing in result.missing)),
    )


def verdict_text(result: ClaimResult) -> str:
    """Return the verdict in words, with what an undecided claim requires."""
    if result.verdict != "undecided":
        return result.verdict
    if result.reason:
        return "undecided (the last epochs differ)"
    absent = sum(finding.verdict == "not run" for finding in result.findings)
    if absent:
        return f"undecided ({absent} of {len(result.findings)} comparisons not run)"
    if not any(finding.effect is not None for finding in result.findings):
        return "undecided (at chance)"
    if any("single seed" in finding.reason for finding in result.findings):
        return "undecided (a single seed)"
    for finding in result.findings:
        tasks, known = finding.evidence.tasks, finding.evidence.tasks_with_values
        if len(known) < len(tasks):
            return f"undecided ({len(known)} of {len(tasks)} tasks)"
    if any(finding.reason for finding in result.findings):
        return "undecided (failed runs)"
    if result.finding.interval is None:
        return "undecided (a task has one seed)"
    if isinstance(result.claim, PropertyClaim) and result.claim.measure:
        return "undecided (within the noise of the measurement)"
    more = result.more_seeds
    seeds = "about " + counted_noun(more, "more seed") if more else f"more than {MOST_SEEDS} more seeds"
    return f"undecided ({seeds})"


def _row(result: ClaimResult, backbone: str) -> TableRow:
    finding = result.finding
    effect = TableCell() if finding.effect is None else TableCell(finding.effect, text=_number(result, finding.effect))
    cells = (
        TableCell(text=verdict_text(result)),
        effect,
        TableCell(text=_span(result, finding) or DASH, value=finding.interval),
        TableCell(finding.published.value, text=_published(result, finding)),
        TableCell(text=_required(finding.region), value=_bounds(finding.region.required)),
        TableCell(text=_rejected(finding.region), value=_bounds(finding.region.possible)),
        TableCell(text=result.unit or "number"),
        TableCell(float(result.runs), text=str(result.runs)),
    )
    return TableRow(result.name, cells, method=result.name, verdict=result.verdict, notes=(_note(result, backbone),))


def _unmet_notes(results: Sequence[ClaimResult]) -> list[str]:
    """Return one line for each reason why no run can decide claims, with the claims."""
    claims: dict[str, list[str]] = {}
    for result in results:
        if result.reason and result.verdict == "not run":
            claims.setdefault(result.reason, []).append(result.name)
    return [f"not decided, because {reason}: {', '.join(names)}" for reason, names in claims.items()]


def _note(result: ClaimResult, backbone: str) -> str:
    """Return everything that a reader must know about a claim, in one footnote."""
    claim, findings = result.claim, result.findings
    only = f"; {claim.only_backbone}" if claim.only_backbone not in (None, backbone) else ""
    sentences = [f"{claim.text.rstrip('.')} ({claim.where}{only})", claim.note, *_tasks(findings), *_repetitions(result)]
    if result.reason and result.verdict == "not run":
        return ". ".join(filter(None, sentences))  # the reason is below the table, once for all claims
    if len(findings) > 1:
        sentences.append("; ".join(_comparison(result, finding) for finding in findings))
    elif doubts := findings[0].published.doubts:
        sentences.append(f"published: {'; '.join(doubts)}")
    misprints = list(dict.fromkeys(text for finding in findings for text in finding.published.misprints))
    sentences += [f"rests on possible misprints: {'; '.join(misprints)}"] if misprints else []
    sentences += [result.reason, *(finding.reason or _interval_without_test(finding) for finding in findings)]
    sentences += [_small_effect(result, finding) for finding in findings if finding.is_small]
    sentences += [text for finding in findings for text in _failures(finding)]
    sentences += [note for finding in findings for note in finding.evidence.notes]
    return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in dict.fromkeys(sentences) if sentence)


def _comparison(result: ClaimResult, finding: Finding) -> str:
    doubts = f" ({', '.join(finding.published.doubts)})" if finding.published.doubts else ""
    parts = [f"published {_published(result, finding)}{doubts}"] if finding.published.value is not None else []
    if finding.effect is not None:
        span = _span(result, finding)
        parts.append(f"ours {_number(result, finding.effect)}{f' ({span})' if span else ''}")
    return f"{finding.evidence.label}: {', '.join([*parts, finding.verdict])}"


def _tasks(findings: Sequence[Finding]) -> list[str]:
    """Return the tasks whose runs are the claim's numbers; the published number is over the same ones."""
    known = list(dict.fromkeys(task for finding in findings for task in finding.evidence.tasks_with_values))
    return [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []


def _repetitions(result: ClaimResult) -> list[str]:
    """Say what an interval is over, where it is not over seeds."""
    claim = result.claim
    if isinstance(claim, PropertyClaim) and claim.measure and not result.finding.evidence.exact:
        return ["the interval is over rounds of one measurement"]
    if not isinstance(claim, TrendClaim | PropertyClaim) or not claim.figure or "seed" in claim.per:
        return []
    return [] if isinstance(claim, PropertyClaim) and claim.every else [f"the interval is over {' and '.join(claim.per)}s"]


def _interval_without_test(finding: Finding) -> str:
    """Say where the interval is inside what is required, but the sign-flip test does not agree."""
    low, high = finding.region.required
    if finding.verdict != "undecided" or not finding.interval or not low <= finding.interval[0] <= finding.interval[1] <= high:
        return ""
    return "the interval is inside what is required, but the sign-flip test does not agree"


def _small_effect(result: ClaimResult, finding: Finding) -> str:
    """Say that there is the claimed difference, but smaller than the smallest that counts."""
    margin = f"{_number(result, finding.region.possible[0])} {result.unit}"
    half = " (half the published effect)" if finding.published.value and not result.claim.margin else ""
    return f"there is a difference, but smaller than {margin}{half}: its whole interval is below"


def _failures(finding: Finding) -> list[str]:
    """Return both sides' failed runs with intervals, and the test of equal rates; nothing where no run failed."""
    if not finding.evidence.failures or not any(side.failed for side in finding.evidence.failures):
        return []
    first, second = finding.evidence.failures
    labels = finding.evidence.sides
    tested = f"; p = {equal_rates_p(first, second):.3g} (Fisher's exact test)" if first.runs and second.runs else ""
    return [f"collapsed or diverged runs, with 95 % interval of the rate, {labels[0]}: {first}, {labels[1]}: {second}{tested}"]


def _split_notes(file: ClaimsFile, results: Sequence[ClaimResult]) -> list[str]:
    """Say where published scores are of another split or encoder than ours."""
    tables = {
        (result.claim.published, result.claim.only_backbone or file.backbone)
        for result in results
        if isinstance(result.claim, ComparisonClaim | OrderClaim) and result.claim.published and result.finding.evidence.values
    }
    notes = []
    for name, backbone in sorted(tables):
        _, table = published.load(name)
        differing = [f"of {table.backbone}"] if table.backbone != backbone else []
        differing += [f"on the {table.split}"] if table.split and table.split != "validation" else []
        if differing:
            notes.append(f"table {table.number}'s published scores are {' '.join(differing)}, ours of {backbone}")
    return notes


def _published(result: ClaimResult, finding: Finding) -> str:
    published_effect = finding.published
    if published_effect.value is None:
        return DASH
    half = published_effect.half_width
    return _number(result, published_effect.value) + (f" ±{half:.2f}" if half is not None else "")


def _span(result: ClaimResult, finding: Finding) -> str:
    return " to ".join(_number(result, end) for end in finding.interval) if finding.interval else ""


def _number(result: ClaimResult, value: float) -> str:
    """Return a difference in points with its sign, and any other number with four digits."""
    return f"{value:+.2f}" if result.unit == "points" else f"{value:.4g}"


def _bounds(ends: tuple[float, float]) -> list[float | None]:
    """Return the ends of a region; None: no bound."""
    return [None if abs(end) == inf else end for end in ends]


def _required(region: Region) -> str:
    low, high = region.required
    if low == -inf:
        return f"<= {high:g}"
    return f"> {low:.3g}" if high == inf else f"{low:.3g} to {high:.3g}"


def _rejected(region: Region) -> str:
    low, high = region.possible
    if low == -inf:
        return f"> {high:g}"
    return f"< {low:.3g}" if high == inf else f"outside {low:.3g} to {high:.3g}"
