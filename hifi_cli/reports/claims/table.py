"""The table of claims with their verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import get_args

from hifi_cli.config import registry
from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import stored_name
from hifi_cli.records.stored import command_for_new_runs, results_dir_option
from hifi_cli.records.study import Study
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.claims.decide import (
    Decision,
    Finding,
    Verdict,
    condition_of,
    decide_claim,
    decide_comparisons,
)
from hifi_cli.reports.claims.evidence import (
    Evidence,
    command_of_figure,
    evidence_of_figure,
    evidence_of_runs,
    lacks_runs,
)
from hifi_cli.reports.claims.seeds import SmallestSeeds, smallest_seeds
from hifi_cli.reports.claims.spec import (
    Claim,
    ClaimsFile,
    DifferenceClaim,
    NumberClaim,
    methods_of,
    why_undecidable,
)
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.table import Cell, Column, Row, Table, interval_columns, value_column
from hifi_cli.reports.table_runs import select_runs
from hifi_cli.reports.table_spec import check_names, shots_of
from hifi_cli.text import abbreviate, command_line, format_number

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


class RunsOfClaims:
    """The runs that claims ask for; each selection is judged and scored once.

    One is made for all claims of a file, several of which ask for the same runs.

    Attributes:
        study: all runs.
        options: which epoch's score is meant, and which runs count. Runs with other settings than
            the protocol's never decide a claim.
    """

    def __init__(self, study: Study, options: ReportOptions) -> None:
        self.study = study
        self.options = replace(options, included=options.included - {"changed"})
        self._judged: dict[tuple[str | None, ...], ComparableRuns] = {}

    def of(
        self, protocol: str, backbone: str, metric: str | None, epoch_choice: EpochChoice | None
    ) -> ComparableRuns:
        """Return the runs of a protocol and backbone, with their scores.

        Args:
            protocol: as finished runs have it.
            backbone: as finished runs have it.
            metric: what they are scored by; None: each run's primary metric.
            epoch_choice: the epoch of the score; None: the one that each run's protocol reports.
        """
        key = (protocol, backbone, metric, epoch_choice)
        # Runs take long to judge.
        if key not in self._judged:
            runs = select_runs(
                self.study.runs, protocol=protocol, backbone=backbone, shots=shots_of(protocol)
            )
            options = replace(self.options, epoch_choice=epoch_choice)
            self._judged[key] = ComparableRuns.of(self.study, runs, options, metric=metric)
        return self._judged[key]


@dataclass(frozen=True)
class AskedClaim:
    """A claim that is to be decided.

    Attributes:
        name: of the claim in its file.
        claim: what it says.
        file: its file, which has what the claim leaves open.
    """

    name: str
    claim: Claim
    file: ClaimsFile

    @property
    def protocol(self) -> str:
        """Protocol of the runs that decide it, as finished runs have it."""
        return stored_name("protocols", self.claim.protocol or self.file.protocol)

    @property
    def backbone(self) -> str:
        """Backbone of these runs, as finished runs have it."""
        return stored_name("backbones", self.claim.only_backbone or self.file.backbone)

    def decided(
        self,
        findings: Sequence[Finding],
        decision: Decision,
        *,
        epochs: str = "",
        lacks_runs: bool = False,
        command_of_figure: Sequence[str] = (),
    ) -> "DecidedClaim":
        """Return the claim with its verdict; the arguments are the attributes of `DecidedClaim`."""
        seeds = smallest_seeds(self.claim, self.file)
        return DecidedClaim(
            self.name, self.claim, findings, decision, seeds, epochs, lacks_runs, command_of_figure
        )


@dataclass(frozen=True)
class DecidedClaim:
    """A claim with its verdict.

    Attributes:
        name: of the claim in its file.
        claim: what it says.
        findings: on each comparison.
        decision: on the claim.
        seeds: with how many seeds it can be decided at all.
        epochs: those of the scores that the findings are about; empty: they are about no scores.
        lacks_runs: whether a run that it asks for is not finished.
        command_of_figure: computes the figure that it asks for; empty: the figure is there.
    """

    name: str
    claim: Claim
    findings: Sequence[Finding]
    decision: Decision
    seeds: SmallestSeeds
    epochs: str
    lacks_runs: bool
    command_of_figure: Sequence[str]


def table_of_verdicts(
    name: str,
    file: ClaimsFile,
    study: Study,
    options: ReportOptions,
    *,
    given: Sequence[str],
    data_option: Sequence[str],
) -> Table:
    """Decide every claim of a file.

    Args:
        name: of the file, as the command line takes it.
        file: the claims.
        study: all runs.
        options: which epoch's score is meant, and which runs count.
        given: tasks, protocol and backbone as options of commands about these claims.
        data_option: `--data-dir` of the commands that are printed; empty: they have none.

    Returns:
        A table of verdicts, with a note on each claim that says it in words.
    """
    runs = RunsOfClaims(study, options)
    decided = [_decided(AskedClaim(key, claim, file), runs) for key, claim in file.claims.items()]
    # A claim that was not run has no row beside others; a note names it.
    shown = decided
    if len(decided) > 1:
        shown = [each for each in decided if each.decision.verdict != "not run"]
    notes = _notes(name, decided, [*given, *results_dir_option(study.directory)])
    is_any_decided = any(each.decision.verdict != "not run" for each in decided)
    if is_any_decided:
        notes.append(RULE)
    backbone = stored_name("backbones", file.backbone)
    conditions = f"(protocol {file.protocol_name}, backbone {backbone})"
    return Table(
        title=f"{file.description} {conditions}: {_count_of_verdicts(decided)}",
        rows=[_row(each) for each in shown],
        headings=HEADINGS,
        columns=_columns(),
        index_title="Claim",
        names_column="",
        formats={"runs": ".0f"},
        notes=notes,
        missing=_missing(name, decided, given, data_option, study.directory),
        own_texts=frozenset(file.claims),
    )


# --- decisions


def _decided(asked: AskedClaim, runs: RunsOfClaims) -> DecidedClaim:
    """Return a claim with its verdict.

    Raises:
        UsageError: it names a method or task that is not known here.
    """
    claim = asked.claim
    study = runs.study
    check_names("methods", methods_of(claim), study.names("method"))
    check_names("tasks", claim.tasks or asked.file.tasks, study.names("task"))
    undecidable = why_undecidable(claim, asked.file)
    if undecidable:
        findings = [Finding(Evidence(asked.name, {}), "not run", undecidable)]
        return asked.decided(findings, decide_claim(findings))
    if isinstance(claim, NumberClaim) and claim.figure:
        return _decided_by_figure(asked, claim, study)
    return _decided_by_runs(asked, runs)


def _decided_by_figure(asked: AskedClaim, claim: NumberClaim, study: Study) -> DecidedClaim:
    """Return a claim with the verdict on the number that a figure's CSV has.

    Args:
        asked: the claim and its file.
        claim: the claim, which names the figure.
        study: its directory has the figures.
    """
    command = command_of_figure(claim, study, asked.protocol, asked.backbone)
    tasks = asked.file.only_tasks
    evidence = evidence_of_figure(claim, study, asked.protocol, asked.backbone, tasks)
    findings = decide_comparisons(claim, evidence, asked.file.margin)
    return asked.decided(findings, decide_claim(findings), command_of_figure=command)


def _decided_by_runs(asked: AskedClaim, runs: RunsOfClaims) -> DecidedClaim:
    """Return a claim about scores or predictions with the verdict of finished runs."""
    claim = asked.claim
    epoch_choice = runs.options.epoch_choice
    comparable = runs.of(asked.protocol, asked.backbone, claim.metric, epoch_choice)
    findings = _findings(asked, comparable)
    decision = decide_claim(findings)
    epochs = ""
    # Predictions are stored of one epoch only, so that measures of them have no other score.
    if isinstance(claim, DifferenceClaim) and claim.metric not in MEASURES:
        epochs = comparable.shown_epochs
        decision = _held_against_last(asked, decision, runs, epochs)
    lacks_some = lacks_runs(claim, asked.file, comparable)
    return asked.decided(findings, decision, epochs=epochs, lacks_runs=lacks_some)


def _held_against_last(
    asked: AskedClaim, decision: Decision, runs: RunsOfClaims, epochs: str
) -> Decision:
    """Return the decision on a claim: undecided where the last epochs give another verdict.

    The two then disagree by the choice of the epoch: the best one may be chosen on the rows that are
    scored, which favours methods that vary more.

    Args:
        asked: the claim and its file.
        decision: by the scores that tables show.
        runs: those that claims ask for.
        epochs: of the scores that tables show, in words.
    """
    if decision.verdict not in ("reproduced", "not reproduced"):
        return decision
    of_last = runs.of(asked.protocol, asked.backbone, asked.claim.metric, "last")
    last = decide_claim(_findings(asked, of_last)).verdict
    if last == decision.verdict:
        return decision
    reason = f"{decision.verdict} by the {epochs}, {last} by the last epoch"
    return replace(decision, verdict="undecided", reason=reason)


def _findings(asked: AskedClaim, runs: ComparableRuns) -> list[Finding]:
    """Return the decision on each comparison of a claim, by the runs of its protocol and backbone."""
    evidence = evidence_of_runs(asked.claim, asked.file, runs)
    return decide_comparisons(asked.claim, evidence, asked.file.margin)


# --- what the table of verdicts shows


def _count_of_verdicts(decided: Sequence[DecidedClaim]) -> str:
    """Return how many claims have each verdict: `3 reproduced, 1 undecided`."""
    found = [each.decision.verdict for each in decided]
    return ", ".join(f"{found.count(word)} {word}" for word in get_args(Verdict) if word in found)


def _columns() -> list[Column]:
    """Return the columns of CSV and JSON: numbers first, then the texts that readers see."""
    return [
        value_column("verdict"),
        value_column("reason"),
        value_column("ours"),
        *interval_columns("ours"),
        value_column("published"),
        value_column("runs"),
        value_column("seeds_to_reproduce"),
        value_column("seeds_to_refute"),
        value_column("shown_ours"),
        value_column("shown_published"),
        value_column("required"),
    ]


def _row(decided: DecidedClaim) -> Row:
    """Return a row of the table: of several comparisons, the one that tells most about the verdict."""
    claim = decided.claim
    finding = decided.decision.telling
    published = finding.evidence.published.effect
    runs: frozenset[object] = frozenset()
    for each in decided.findings:
        runs |= each.evidence.runs
    cells = {
        "verdict": Cell(decided.decision.verdict),
        "reason": Cell(decided.decision.reason),
        "ours": Cell(finding.effect, interval=finding.interval),
        "published": Cell(published),
        "runs": Cell(len(runs)),
        "seeds_to_reproduce": Cell(decided.seeds.to_reproduce),
        "seeds_to_refute": Cell(decided.seeds.to_refute),
        "shown_ours": Cell(_ours(finding, claim) or None),
        "shown_published": Cell(None if published is None else _number(published, claim)),
        "required": Cell(_required(claim)),
    }
    return Row(decided.name, decided.name, "runs", cells)


def _required(claim: Claim) -> str:
    """Return the bounds of our effect: `> 0`, `<= 2` or `-1 to 1`."""
    low, high = condition_of(claim).reproduced_within
    if low == -inf:
        return f"<= {high:g}"
    if high == inf:
        return f"> {low:g}"
    return f"{low:g} to {high:g}"


def _ours(finding: Finding, claim: Claim) -> str:
    """Return our effect with its interval; empty: it is not known."""
    if finding.effect is None:
        return ""
    effect = _number(finding.effect, claim)
    if finding.interval is None:
        return effect
    low, high = finding.interval
    return f"{effect} [{_number(low, claim)}, {_number(high, claim)}]"


def _number(value: float, claim: Claim) -> str:
    """Return a difference in points with its sign, and any other number with four digits."""
    return format_number(value, "+.2f" if claim.unit == "points" else ".4g")


def _missing(
    name: str,
    decided: Sequence[DecidedClaim],
    given: Sequence[str],
    data_option: Sequence[str],
    directory: Path,
) -> list[str]:
    """Return the commands that make the runs and figures that claims lack.

    Args:
        name: of the file, as the command line takes it.
        decided: all claims of the file.
        given: protocol and backbone as options.
        data_option: `--data-dir` with its value; empty: none.
        directory: that of the runs.
    """
    missing = []
    lacking = [each.name for each in decided if each.lacks_runs]
    if lacking:
        grid = name if registry.is_yaml_path(name) else f"claims-{name}"
        command = command_for_new_runs(["hifi", "grid", grid, *given], directory, data_option)
        missing.append(f"runs of {abbreviate(lacking)}: {command}")
    for each in decided:
        if each.command_of_figure:
            place = [*results_dir_option(directory), *data_option]
            command = command_line([*each.command_of_figure, *place])
            text = f"figure: {command}"
            # Several claims may ask for one figure.
            if text not in missing:
                missing.append(text)
    return missing


# --- what is said about claims


def _notes(name: str, decided: Sequence[DecidedClaim], options: Sequence[str]) -> list[str]:
    """Return the notes below the table: one on each claim, those that were not run together.

    Args:
        name: of the file, as the command line takes it.
        decided: all claims of the file.
        options: those of the command that prints one of these claims from the same runs.
    """
    if len(decided) == 1:
        (only,) = decided
        sentences = [*_main_sentences(only), *_details(only)]
        return [f"{only.name}: {_joined(sentences)}", *_notes_on_seeds(decided)]
    notes = []
    not_run: dict[str, list[str]] = {}
    for each in decided:
        if each.decision.verdict == "not run":
            not_run.setdefault(each.decision.reason, []).append(each.name)
        else:
            notes.append(f"{each.name}: {_joined(_main_sentences(each))}")
    if notes:
        command = command_line(["hifi", "claims", f"{name}/{decided[0].name}", *options])
        notes.append(f"more about one of them: {command}")
    for why, names in not_run.items():
        because = f" ({why})" if why else ""
        notes.append(f"not run{because}: {', '.join(names)}")
    return notes + _notes_on_seeds(decided)


def _notes_on_seeds(decided: Sequence[DecidedClaim]) -> list[str]:
    """Return a note on the smallest numbers of seeds of all claims, those that share them together."""
    names_with: dict[SmallestSeeds, list[str]] = {}
    for each in decided:
        if each.seeds.to_reproduce is not None:
            names_with.setdefault(each.seeds, []).append(each.name)
    texts = []
    for seeds, names in names_with.items():
        texts.append(f"{seeds.to_reproduce} and {seeds.to_refute} for {', '.join(names)}")
    if not texts:
        return []
    return [
        "the smallest number of seeds that can reproduce and that can refute a claim, where no task is at"
        f" chance: {'; '.join(texts)}"
    ]


def _main_sentences(decided: DecidedClaim) -> list[str]:
    """Return the text of a claim, what a reader must know besides, the reason and the tasks."""
    claim = decided.claim
    where = claim.where
    if claim.only_backbone:
        where += f"; {claim.only_backbone}"
    sentences = [f"{claim.text.rstrip('.')} ({where})"]
    if claim.note:
        sentences.append(claim.note.rstrip("."))
    if decided.decision.reason:
        sentences.append(f"{decided.decision.verdict}: {decided.decision.reason}")
    tasks: dict[str, None] = {}
    for finding in decided.findings:
        tasks |= dict.fromkeys(finding.evidence.values)
    if tasks:
        labels = [label_of("tasks", task) for task in tasks]
        sentences.append(f"on {', '.join(labels)}")
    return sentences


def _details(decided: DecidedClaim) -> list[str]:
    """Return every comparison of a claim, doubts about the published numbers, and notes on runs."""
    sentences = []
    if len(decided.findings) > 1 and decided.decision.verdict != "not run":
        texts = []
        for finding in decided.findings:
            words = [_ours(finding, decided.claim), finding.verdict]
            said = " ".join(word for word in words if word)
            texts.append(f"{finding.evidence.label}: {said}")
        by_epochs = f"by the {decided.epochs}: " if decided.epochs else ""
        sentences.append(by_epochs + "; ".join(texts))
    doubts: dict[str, None] = {}
    for finding in decided.findings:
        doubts |= dict.fromkeys(finding.evidence.published.doubts)
    if doubts:
        sentences.append(f"published: {'; '.join(doubts)}")
    for finding in decided.findings:
        sentences += finding.evidence.notes
    return sentences


def _joined(sentences: Sequence[str]) -> str:
    """Return different sentences after one another, each with a capital letter."""
    capitalized = [text[:1].upper() + text[1:] for text in dict.fromkeys(sentences)]
    return ". ".join(capitalized)
