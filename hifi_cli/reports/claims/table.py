"""The table of claims with their verdicts."""

from collections.abc import Collection, Sequence
from functools import cache
from math import inf
from typing import Any, get_args

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.config.sources import stored_name
from hifi_cli.files import command_line
from hifi_cli.records.study import Study
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.claims.decide import (
    Finding,
    SmallestSeeds,
    Verdict,
    bounds,
    findings_of_differences,
    findings_of_measures,
    lacks_runs,
    most_telling,
    number_of_figure,
    smallest_seeds,
    verdict_of_claim,
)
from hifi_cli.reports.claims.spec import (
    Claim,
    ClaimsFile,
    DifferenceClaim,
    NumberClaim,
    methods_of,
    why_undecidable,
)
from hifi_cli.reports.comparable import INCLUDED_BY_DEFAULT, scored, select_runs, with_exclusions
from hifi_cli.reports.render import Table
from hifi_cli.reports.table_spec import check_names, shots_of
from hifi_cli.text import abbreviate

HEADINGS = {
    "verdict": "Verdict",
    "shown_ours": "Ours",
    "shown_published": "Published",
    "required": "Holds if",
    "runs": "Runs used",
}
RULE = (
    "reproduced: the whole 95 % interval of our number meets the condition of `Holds if`, and the"
    " sign-flip test agrees; not reproduced: it excludes half of the published difference, or every"
    " number that a true claim allows; undecided: neither; each claim is decided at the 5 % level"
)


def _note_on_seeds(numbers: dict[str, SmallestSeeds]) -> list[str]:
    """The smallest numbers of seeds of all claims, those that share them together."""
    groups: dict[SmallestSeeds, list[str]] = {}
    for key, seeds in numbers.items():
        if seeds.to_reproduce is not None:
            groups.setdefault(seeds, []).append(key)
    words = [
        f"{seeds.to_reproduce} and {seeds.to_refute} for {', '.join(keys)}"
        for seeds, keys in groups.items()
    ]
    if not words:
        return []
    return [
        "the smallest number of seeds that can reproduce and that can refute a claim, where no task is at"
        f" chance: {'; '.join(words)}"
    ]


def evaluate(
    name: str,
    file: ClaimsFile,
    study: Study,
    *,
    score: EpochChoice | None = None,
    included: Collection[str] = INCLUDED_BY_DEFAULT,
    given: Sequence[str] = (),
    place: Sequence[str] = (),
) -> Table:
    """Decide every claim of a file: a table of verdicts, with a note on each claim that says it in words.

    Args:
        name: of the file, as the command line takes it.
        given: protocol and backbone as options of the command that trains the claims' runs.
        place: the directories as options of the commands that are printed.
    """
    included = {*included} - {"changed"}

    @cache
    def runs_of(
        protocol: str, backbone: str, score: EpochChoice | None, metric: str | None
    ) -> pd.DataFrame:
        runs = select_runs(
            study.runs, protocol=protocol, backbone=backbone, shots=shots_of(protocol)
        )
        return with_exclusions(scored(study, runs, score, metric), included)

    rows, notes, lacking, figures = [], [], [], []
    not_run: dict[str, list[str]] = {}  # by reason
    seeds: dict[str, SmallestSeeds] = {}
    for key, claim in file.claims.items():
        check_names("methods", methods_of(claim), study.names("method"))
        check_names("tasks", claim.tasks or file.tasks, study.names("task"))
        protocol = stored_name("protocols", claim.protocol or file.protocol)
        backbone = stored_name("backbones", claim.only_backbone or file.backbone)
        findings = [Finding(key, {}, reason=why_undecidable(claim, file))]
        if not findings[0].reason and isinstance(claim, NumberClaim) and claim.figure:
            findings, command = number_of_figure(claim, study, protocol, backbone)
            figures += [f"figure: {command_line([*command, *place])}"] if command else []
        elif not findings[0].reason:
            runs = runs_of(protocol, backbone, score, claim.metric)
            findings = (
                findings_of_differences(claim, file, study, runs, included)
                if isinstance(claim, DifferenceClaim)
                else findings_of_measures(claim, file, runs)
            )
            lacking += [key] if lacks_runs(claim, file, runs) else []
        verdict, reason = verdict_of_claim(findings)
        # a difference of scores must be there in the last epochs too; predictions are of one epoch
        if "reproduced" in verdict and isinstance(claim, DifferenceClaim):
            epoch = score if claim.metric in MEASURES else "last"
            of_last = runs_of(protocol, backbone, epoch, claim.metric)
            last, _ = verdict_of_claim(
                findings_of_differences(claim, file, study, of_last, included)
            )
            if last != verdict:
                reason = f"{verdict} by the reported epochs, {last} by the last ones"
                verdict = "undecided"
        seeds[key] = smallest_seeds(claim, file)
        rows.append(_row(key, claim, verdict, reason, findings, seeds[key]))
        sentences = _sentences(claim, verdict, reason, findings)
        if verdict == "not run" and len(file.claims) > 1:
            not_run.setdefault(reason, []).append(key)
        else:  # of several claims the text, what a reader must know besides, the reason and the tasks
            told = (True, claim.note, reason, any(each.values for each in findings))
            known = None if len(file.claims) == 1 else sum(map(bool, told))
            notes.append(f"{key}: {'. '.join(sentences[:known])}")
    if notes and len(file.claims) > 1:
        notes.append(f"more about one of them: hifi claims {name}/{next(iter(file.claims))}")
    for why, keys in not_run.items():
        notes.append(f"not run{f' ({why})' if why else ''}: {', '.join(keys)}")
    notes += _note_on_seeds(seeds)
    found = [row["verdict"] for row in rows]
    verdicts = ", ".join(
        f"{found.count(word)} {word}" for word in get_args(Verdict) if word in found
    )
    is_decided = {*found} != {"not run"}
    grid_name = name if registry.is_yaml_path(name) else f"claims-{name}"
    grid = ["hifi", "grid", grid_name, *given, *place]
    missing = [f"runs of {abbreviate(lacking)}: {command_line(grid)}"] if lacking else []
    return Table(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        frame=pd.DataFrame(
            [row for row in rows if row["verdict"] != "not run" or len(rows) == 1],
            columns=[*rows[0]],
        ),
        headings=HEADINGS,
        index_title="Claim",
        formats={"runs": ".0f"},
        notes=[*notes, RULE] if is_decided else notes,
        missing=[*missing, *dict.fromkeys(figures)],
        own_texts=frozenset(row["label"] for row in rows),
    )


# What the table of verdicts shows


def _row(
    name: str,
    claim: Claim,
    verdict: Verdict,
    reason: str,
    findings: list[Finding],
    seeds: SmallestSeeds,
) -> dict[str, Any]:
    """A row of the table: of several comparisons, one with the claim's verdict and the smallest effect."""
    finding = most_telling(findings, verdict)
    (low, high), ((at_least, at_most), _) = finding.interval or (None, None), bounds(claim)
    required = f"> {at_least:g}" if at_most == inf else f"{at_least:g} to {at_most:g}"
    return {
        "label": name,
        "source": "runs",
        "verdict": verdict,
        "reason": reason,
        "ours": finding.effect,
        "low": low,
        "high": high,
        "published": finding.published,
        "runs": len(frozenset().union(*(each.runs for each in findings))),
        "seeds_to_reproduce": seeds.to_reproduce,
        "seeds_to_refute": seeds.to_refute,
        "shown_ours": _ours(finding, claim) or None,
        "shown_published": None if finding.published is None else _number(finding.published, claim),
        "required": f"<= {at_most:g}" if at_least == -inf else required,
    }


def _sentences(claim: Claim, verdict: Verdict, reason: str, findings: list[Finding]) -> list[str]:
    """Everything that a reader must know about a claim."""
    where = f"{claim.where}; {claim.only_backbone}" if claim.only_backbone else claim.where
    sentences = [f"{claim.text.rstrip('.')} ({where})", claim.note.rstrip(".")]
    sentences += [f"{verdict}: {reason}"] if reason else []
    known = dict.fromkeys(task for finding in findings for task in finding.values)
    sentences += [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []
    if len(findings) > 1 and verdict != "not run":
        ours = [f"{each.label}: {_ours(each, claim)} {each.verdict}" for each in findings]
        sentences.append("; ".join(ours).replace("  ", " "))
    doubts = dict.fromkeys(doubt for finding in findings for doubt in finding.doubts)
    sentences += [f"published: {'; '.join(doubts)}"] if doubts else []
    sentences += [note for finding in findings for note in finding.notes]
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(sentences) if text]


def _ours(finding: Finding, claim: Claim) -> str:
    ends = (
        f" [{', '.join(_number(end, claim) for end in finding.interval)}]"
        if finding.interval
        else ""
    )
    return "" if finding.effect is None else _number(finding.effect, claim) + ends


def _number(value: float, claim: Claim) -> str:
    """A difference in points with its sign, and any other number with four digits."""
    return f"{value:+.2f}" if claim.unit == "points" else f"{value:.4g}"
