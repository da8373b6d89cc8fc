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

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.config.run_config import Score
from hifi_cli.config.sources import train_arguments
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.reports import pairs as run_pairs
from hifi_cli.reports import predictions, published
from hifi_cli.reports.claim_spec import (
    Claim,
    ClaimsFile,
    DifferenceClaim,
    NumberClaim,
    by_names,
    columns_of,
    figure_of,
    methods_of,
    tasks_of,
    unmet,
)
from hifi_cli.reports.pairs import COUNTED, Pairs
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.table import DASH, MissingRuns, TableCell, TableHeading, TableRow, VerdictTable
from hifi_cli.reports.table_spec import check_names, shots_of
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, Groups, mean_interval, seeds_needed, shows_above, t_quantile
from hifi_cli.wording import counted_noun

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
Values = dict[str, dict[Any, float]]  # by task and repetition
MOST_SEEDS = 100  # an estimate above this number is not printed
FULL_FT = "full-ft"  # the reference of the times of training
RULE = (
    "reproduced: the 95 % interval of our effect is inside what is required, and the sign-flip test agrees; not reproduced: it"
    " is outside of what is possible if the claim is true (a difference: without half of the published one); each claim is"
    " decided for itself at the 5 % level"
)


@dataclass(frozen=True)
class Region:
    """The effects that a claim requires, and those that are possible if it is true; both exclude their bounds."""

    required: tuple[float, float]
    possible: tuple[float, float]


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: None where it is not printed or cannot be read.
        half_width: of its 95 % interval, from the printed standard deviations; None where there are none.
        doubts: why it does not carry the claim by itself.
    """

    value: float | None = None
    half_width: float | None = None
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison or measured number.

    Attributes:
        values: by task and repetition; empty: nothing is known yet.
        runs: of the values, or their repetitions.
        tasks: that must have numbers before there is a verdict.
        exact: whether each number is certain: it does not vary with the seed.
        is_ratio: whether the values are ratios, which are averaged as logarithms.
        pairs: the runs that are compared.
        reason: why there is no verdict, although there may be numbers.
        effect: mean over tasks, or of exact numbers the one farthest from what is claimed; None: nothing is known.
        interval: 95 % interval of the mean, or the range of exact numbers.
    """

    label: str
    values: Values
    runs: frozenset[Any] = frozenset()
    tasks: Sequence[str] = ()
    exact: bool = False
    is_ratio: bool = False
    pairs: Pairs | None = None
    reason: str = ""
    notes: Sequence[str] = ()
    published: Published = Published()
    region: Region = Region((-inf, inf), (-inf, inf))
    verdict: Verdict = "not run"
    effect: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def groups(self) -> Groups:
        return [list(values.values()) for values in self.values.values() if values]


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        finding: the one that decides: of the comparisons with the claim's verdict, that with the smallest effect.
        missing: the runs, figures and costs without which there is no verdict, or a less certain one.
        reason: why it is undecided or not run.
    """

    name: str
    claim: Claim
    verdict: Verdict
    findings: list[Finding]
    reason: str = ""
    missing: list[MissingRuns] = field(default_factory=list)

    @property
    def finding(self) -> Finding:
        known = [finding for finding in self.findings if finding.effect is not None]
        return min([each for each in known if each.verdict == self.verdict] or known or self.findings, key=_distance)

    @property
    def unit(self) -> str:
        return self.claim.unit if isinstance(self.claim, NumberClaim) else "points"

    @property
    def runs(self) -> int:
        return len({run for finding in self.findings for run in finding.runs})


def _distance(finding: Finding) -> float:
    """Return how far an effect is inside the region that supports the claim."""
    (low, high), effect = finding.region.required, finding.effect or 0.0
    return min(effect - low, high - effect)


@dataclass(frozen=True)
class Context:
    """Where a claim's numbers are looked for; names are those of finished runs.

    Attributes:
        words: the backbone and protocol as the claims file has them, for commands.
        arguments: the directories as options of a command that is printed.
    """

    study: Study
    protocol: str
    backbone: str
    shots: str
    tasks: Sequence[str]
    seeds: Sequence[int]
    score: Score | None
    counted: Collection[str]
    words: tuple[str, str]
    arguments: Sequence[str]

    def finished(self, methods: Sequence[str]) -> pd.DataFrame:
        """Return the finished runs of some methods on the claim's tasks."""
        runs = self.study.runs
        runs = runs[runs["method"].isin(methods) & runs["task"].isin(self.tasks)]
        return run_pairs.of_setting(runs, protocol=self.protocol, backbone=self.backbone, shots=self.shots)

    def usable(self, methods: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
        """Return those with their protocol's settings, and notes on the others."""
        runs = self.finished(methods)
        runs = runs.assign(changed=[run_pairs.changed(self.study, path) for path in runs["path"]])
        others = Counter(runs[runs["changed"] != ""][["method", "task", "changed"]].itertuples(index=False, name=None))
        notes = [
            f"{counted_noun(count, 'run')} of {label_of('methods', method)} on {label_of('tasks', task)} left out, whose"
            f" settings are not the protocol's: {changed}"
            for (method, task, changed), count in others.items()
        ]
        return runs[runs["changed"] == ""], notes

    def missing_runs(self, methods: Iterable[str]) -> list[MissingRuns]:
        """Return the runs that are not finished, and their commands; one holds all tasks with the same seeds."""
        missing = []
        for method in dict.fromkeys(methods):
            runs = self.finished([method])
            by_seeds: dict[tuple[int, ...], list[str]] = {}
            for task in self.tasks:
                finished = {*runs["seed"][runs["task"] == task]}
                if seeds := tuple(seed for seed in self.seeds if seed not in finished):
                    by_seeds.setdefault(seeds, []).append(task)
            for seeds, tasks in by_seeds.items():
                words = [registry.task_argument(task) for task in tasks]
                arguments = train_arguments(words, [registry.argument_of("methods", method)], *self.words, seeds)
                own = shots_of(self.protocol) == self.shots
                shots = [] if own else [f"shots={'null' if self.shots == 'full' else self.shots}"]
                command = command_line(["hifi", *arguments, *self.arguments, *shots])
                missing.append(MissingRuns(method, tuple(tasks), seeds, command))
        return missing

    def command(self, *words: str) -> list[MissingRuns]:
        """Return the command that computes a figure or measures a cost."""
        return [MissingRuns("", (), (), command_line(["hifi", *words, "--protocol", self.words[1], *self.arguments]))]


def evaluate(
    file: ClaimsFile,
    study: Study,
    *,
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
    arguments: Sequence[str] = (),
) -> list[ClaimResult]:
    """Decide every claim of a file.

    Args:
        arguments: the directories as options of the commands that are printed.
    """
    named, runs = by_names(file), study.runs
    check_names("protocols", [named.protocol], {*runs["protocol"]})
    results = []
    for key, claim in named.claims.items():
        check_names("methods", methods_of(claim), {*runs["method"]})
        check_names("tasks", claim.tasks or named.tasks, {*runs["task"]})
        protocol, backbone = claim.protocol or named.protocol, claim.only_backbone or named.backbone
        words = claim.only_backbone or file.backbone, file.claims[key].protocol or file.protocol
        shots, tasks = str(claim.shots or shots_of(protocol)), tasks_of(claim, named)
        context = Context(study, protocol, backbone, shots, tasks, named.seeds, score, counted, words, arguments)
        results.append(_evaluate(key, claim, named, context))
    return results


def _evaluate(name: str, claim: Claim, file: ClaimsFile, context: Context) -> ClaimResult:
    """Decide one claim; a verdict on the reported epochs must hold for the last ones too."""
    if reason := unmet(claim, file):
        evidence = [Finding(label, {}) for label in _labels(claim)]
        return ClaimResult(name, claim, "not run", _findings(claim, file, evidence), reason)
    result = _decided(name, claim, file, context)
    if isinstance(claim, DifferenceClaim) and context.score != "last" and "reproduced" in result.verdict:
        last = _decided(name, claim, file, replace(context, score="last"))
        if last.verdict != result.verdict:
            reason = f"{result.verdict} by the reported epochs, {last.verdict} by the last ones"
            return replace(result, verdict="undecided", reason=reason)
    return result


def _decided(name: str, claim: Claim, file: ClaimsFile, context: Context) -> ClaimResult:
    """Decide one claim by one score of its runs."""
    if isinstance(claim, DifferenceClaim):
        evidence = [entry for pair in _pairs(claim) for entry in _of_methods(claim, *pair, context)]
        missing = context.missing_runs(methods_of(claim))
    else:
        entry, missing = _of_figure(claim, context) if claim.figure else _of_measure(claim, context)
        evidence = [entry]
    findings = _findings(claim, file, evidence)
    verdicts = [finding.verdict for finding in findings]
    order: tuple[Verdict, ...] = ("not reproduced", "not run", "undecided", "reproduced")
    verdict = next(verdict for verdict in order if verdict in verdicts)
    reason = next((finding.reason for finding in findings if finding.reason), "")
    if verdict == "not run" and {*verdicts} != {"not run"}:
        verdict, reason = "undecided", f"{verdicts.count('not run')} of {len(findings)} comparisons not run"
    elif verdict == "undecided" and not reason:
        more = [_more_seeds(finding, len(findings)) for finding in findings if finding.verdict == "undecided"]
        known = [number for number in more if number is not None]
        is_known = len(known) == len(more)
        reason = f"about {counted_noun(max(known), 'more seed')}" if is_known else f"more than {MOST_SEEDS} more seeds"
    return ClaimResult(name, claim, verdict, findings, reason if verdict == "undecided" else "", missing)


def _pairs(claim: DifferenceClaim) -> list[tuple[str, str]]:
    return [(first, second) for first in claim.first for second in claim.second]


def _labels(claim: Claim) -> list[str]:
    if isinstance(claim, NumberClaim):
        return [""]
    return [f"{label_of('methods', first)} above {label_of('methods', second)}" for first, second in _pairs(claim)]


# Numbers of runs, figures and measured costs


def _of_methods(claim: DifferenceClaim, first: str, second: str, context: Context) -> list[Finding]:
    """Return the differences of two methods; with `every_task` one entry per task."""
    runs, notes = context.usable([first, second])
    pairs = run_pairs.pair(
        context.study, runs, first, second, tasks=context.tasks, score=context.score, counted=context.counted
    )
    tasks, frame = [*context.tasks], pairs.frame
    for task, of_task in frame.groupby("task"):
        mean = float(of_task[["score_first", "score_second"]].to_numpy().mean())
        compared = runs[runs["path"].isin([*of_task["path_first"], *of_task["path_second"]])]
        reason = predictions.at_chance(context.study, compared, mean)
        if reason is None:
            notes.append(f"{label_of('tasks', task)}: no predictions to say whether it is at chance")
        elif reason:
            tasks.remove(task)
            notes.append(f"{label_of('tasks', task)} decides nothing: {reason}")
    differences = {task: seeds for task, seeds in pairs.by_task.items() if task in tasks}
    label, notes = f"{pairs.labels[0]} above {pairs.labels[1]}", [*notes, *pairs.notes]
    reason = "" if tasks else "every task is at chance"
    kept = frame[frame["task"].isin(tasks)]
    run_paths = frozenset([*kept["path_first"], *kept["path_second"]])
    whole = Finding(label, differences, run_paths, tasks, pairs=pairs, reason=reason, notes=notes)
    if not claim.every_task or not tasks:
        return [whole]
    return [
        replace(whole, label=f"{label} on {label_of('tasks', task)}", values={task: differences.get(task, {})}, tasks=[task])
        for task in tasks
    ]


def figure_csv(results_dir: Path, name: str, words: Sequence[str]) -> pd.DataFrame | None:
    """Return the CSV of a figure by name, with the words (protocol, backbone) that `hifi figure` was given, if there is one.

    A figure that was computed with keys of its own, such as limit=32, has another name.
    """
    path = figure_spec.csv_path(name_of(name), results_dir, list(words))
    return pd.read_csv(path) if path.is_file() else None


def _of_figure(claim: NumberClaim, context: Context) -> tuple[Finding, list[MissingRuns]]:
    figure, name = figure_of(claim, context.protocol), str(claim.figure)
    other_backbone = [context.backbone] if context.backbone != figure["backbone"] else []
    frame = figure_csv(context.study.directory, name, [context.protocol, *other_backbone])
    if frame is None and context.protocol == figure["own_protocol"]:
        frame = figure_csv(context.study.directory, name, other_backbone)
    if frame is None:
        reads_runs = figure["kind"] in ("sweep", "features")
        words = [*(["--backbone", context.words[0]] if other_backbone else []), *(["--train"] if reads_runs else [])]
        return Finding(name, {}, exact=claim.every), context.command("figure", name, *words)
    values = _reduced(frame, claim, claim.rows)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
        values = {
            task: {
                key: number / others[task][key] if claim.compare == "ratio" else number - others[task][key]
                for key, number in numbers.items()
                if key in others.get(task, {})
            }
            for task, numbers in values.items()
        }
    has_seeds = "seed" in frame and frame["seed"].nunique() > 1
    evidence = Finding(
        name,
        {task: numbers for task, numbers in values.items() if numbers},
        frozenset((task, key) for task, numbers in values.items() for key in numbers),
        exact=claim.every,
        is_ratio=bool(claim.second_rows) and claim.compare == "ratio",
        reason="" if has_seeds else "a single seed",
        notes=[f"read from a figure, whose numbers are not those of --score {context.score}"] if context.score else [],
    )
    return evidence, []


def _reduced(frame: pd.DataFrame, claim: NumberClaim, rows: dict[str, Any]) -> Values:
    """Return one number per task and repetition from the chosen rows of a figure's CSV; none where a value has no row."""
    if missing := {*claim.per, *rows, claim.column} - {*frame.columns}:
        raise UsageError(f"{claim.figure}: the figure's CSV has no column '{min(missing)}' (it has {', '.join(frame.columns)})")
    if not pd.api.types.is_numeric_dtype(frame[claim.column]):
        raise UsageError(f"{claim.figure}: column '{claim.column}' of the figure's CSV holds texts; a claim is about a number")
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[frame[column].between(accepted.get("min", -inf), accepted.get("max", inf))]
            continue
        accepted = accepted if isinstance(accepted, list) else [accepted]
        is_complete = {*accepted} <= {*frame[column]}
        frame = frame[frame[column].isin(accepted if is_complete else [])]
    values: Values = {}
    for (task, *keys), numbers in frame.groupby(["task", *claim.per])[claim.column]:
        reduced = {"mean": numbers.mean(), "last": numbers.iloc[-1], "rise": numbers.mean() - numbers.min()}
        values.setdefault(str(task), {})[tuple(keys)] = claim.scale * float(reduced[claim.take])
    return values


def _of_measure(claim: NumberClaim, context: Context) -> tuple[Finding, list[MissingRuns]]:
    measure, method = str(claim.measure), str(claim.method)
    label = f"{measure} of {label_of('methods', method)}"
    if measure == "trained-percent":
        runs, notes = context.usable([method])
        numbers = sorted({*(100 * runs["trainable_backbone"] / runs["total"])})
        missing = [] if numbers else replace(context, seeds=context.seeds[:1]).missing_runs([method])[:1]
        values = {"": dict(enumerate(numbers))} if numbers else {}
        return Finding(label, values, frozenset(runs["path"]), exact=True, notes=notes), missing
    other = claim.second_method or FULL_FT
    runs, notes = context.usable([method, other])
    runs = runs.assign(time=runs["time_s"].astype(float) / runs["epochs"].astype(float)).dropna(subset="time")
    usual = runs[runs["method"] == other].groupby(["task", "device"])["time"].mean()
    ours = runs[runs["method"] == method].join(usual.rename("usual"), on=["task", "device"], how="inner")
    times: Values = {}
    for run in ours.itertuples():
        times.setdefault(run.task, {})[run.seed] = run.time / run.usual
    missing = [] if times else context.missing_runs([method, other])
    return Finding(label, times, frozenset(runs["path"]), is_ratio=True, notes=notes), missing


# Verdicts


def _findings(claim: Claim, file: ClaimsFile, evidence: Sequence[Finding]) -> list[Finding]:
    findings = []
    for number, entry in enumerate(evidence):
        effect = Published(claim.stated) if isinstance(claim, NumberClaim) else Published()
        if isinstance(claim, DifferenceClaim) and claim.published:
            first, second = (entry.pairs.first, entry.pairs.second) if entry.pairs else _pairs(claim)[number]
            backbone = claim.only_backbone or file.backbone
            effect = published_effect(claim, first, second, [*entry.values] or entry.tasks, backbone)
        region = region_of(claim, effect.value, file.margin)
        findings.append(find(entry, effect, region, comparisons=len(evidence)))
    return findings


def region_of(claim: Claim, effect: float | None, margin: float) -> Region:
    """Return the regions of a claim.

    Args:
        effect: the published one.
        margin: of a claim without bounds and a margin of its own whose published effect is not known.
    """
    if isinstance(claim, DifferenceClaim) and claim.at_least is None and claim.at_most is None:
        half = effect / 2 if effect and effect > 0 else margin
        return Region((0.0, inf), (claim.margin or half, inf))
    low = -inf if claim.at_least is None else claim.at_least
    high = inf if claim.at_most is None else claim.at_most
    return Region((low, high), (claim.margin if claim.margin and low > -inf else low, high))


def find(entry: Finding, effect: Published, region: Region, *, comparisons: int = 1) -> Finding:
    """Decide one comparison or number.

    Args:
        effect: the published one.
        comparisons: number of comparisons of the claim, one of which is enough to contradict it.
    """
    entry, groups = replace(entry, published=effect, region=region), entry.groups
    if not groups:
        return replace(entry, verdict="undecided") if entry.reason else entry
    if entry.exact:
        numbers, (low, high) = [value for values in groups for value in values], region.required
        worst = max(numbers, key=lambda number: max(low - number, number - high))
        verdict: Verdict = "reproduced" if low <= worst <= high else "not reproduced"
        interval = (min(numbers), max(numbers)) if len(numbers) > 1 else None
        return replace(entry, verdict="undecided" if entry.reason else verdict, effect=worst, interval=interval)
    as_logs = entry.is_ratio and min(map(min, groups)) > 0
    if as_logs:
        groups, region = [[log(value) for value in values] for values in groups], _logs(region)
    mean = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval([np.asarray(values, dtype=np.float64) for values in groups])
    verdict, reason = decide(groups, region, comparisons=comparisons), entry.reason
    known = sum(bool(entry.values.get(task)) for task in entry.tasks)
    if not reason and known < len(entry.tasks):
        reason = f"{known} of {len(entry.tasks)} tasks"
    elif not reason and entry.pairs and any(map(entry.pairs.diverges_more, _higher_sides(verdict, mean, region))):
        reason = "the method that is ahead diverged more often"
    elif not reason and interval is None:
        reason = "a task has one seed"
    if as_logs:
        mean, interval = exp(mean), (exp(interval[0]), exp(interval[1])) if interval else None
    return replace(entry, verdict="undecided" if reason else verdict, effect=mean, interval=interval, reason=reason)


def decide(groups: Groups, region: Region, *, comparisons: int = 1) -> Verdict:
    """Return the verdict of the differences of several tasks."""
    negated, each = [[-value for value in values] for values in groups], LEVEL / comparisons
    low, high = region.possible
    if (low > -inf and shows_above(negated, -low, each)) or (high < inf and shows_above(groups, high, each)):
        return "not reproduced"
    low, high = region.required
    if (low == -inf or shows_above(groups, low)) and (high == inf or shows_above(negated, -high)):
        return "reproduced"
    return "undecided"


def _logs(region: Region) -> Region:
    ends = [log(end) if end > 0 else -inf for end in (*region.required, *region.possible)]
    return Region((ends[0], ends[1]), (ends[2], ends[3]))


def _higher_sides(verdict: Verdict, effect: float, region: Region) -> list[int]:
    """Return the sides of a comparison (0: first, 1: second) whose scores a verdict requires to be high."""
    if verdict == "not reproduced":
        return [1 if effect < region.possible[0] else 0]
    low, high = region.required
    return [side for side, bounded in enumerate((low > -inf, high < inf)) if bounded and verdict == "reproduced"]


def _more_seeds(finding: Finding, comparisons: int) -> int | None:
    """Return how many more seeds per task would decide a comparison if the mean stays as it is; None: too many."""
    groups, region, effect = finding.groups, finding.region, finding.effect or 0.0
    is_required = region.required[0] < effect < region.required[1]
    bounds, level = (region.required, LEVEL) if is_required else (region.possible, LEVEL / comparisons)
    seeds = seeds_needed(groups, min(bounds, key=lambda bound: abs(bound - effect)), level=level)
    return max(1, seeds - min(map(len, groups))) if seeds is not None and seeds <= MOST_SEEDS else None


# Published numbers


def published_effect(claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str) -> Published:
    """Return the published difference of two methods over exactly the compared tasks, and whether it carries the claim."""
    _, table = published.load(str(claim.published))
    asked = [column for task, column in columns_of(claim).items() if not tasks or task in tasks]
    cells = {column: (table.mean(first, column), table.mean(second, column)) for column in asked}
    differences = {
        column: own - other for column, (own, other) in cells.items() if isinstance(own, float) and isinstance(other, float)
    }
    if not differences:
        return Published(doubts=["the published cells cannot be read"])
    value, half = float(np.mean([*differences.values()])), _half_width(table, first, second, [*differences])
    doubts = [f"of {table.backbone}"] if table.backbone != backbone else []
    doubts += [f"on the {table.split}"] if table.split and table.split != "validation" else []
    if value <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    elif half is None:
        doubts.append("no standard deviations are printed")
    elif half >= abs(value):
        doubts.append("less than its own error from the printed standard deviations")
    for row in (first, second):
        notes = [published.average_note(table, row)] if published.check_average(table, row).verdict == "mismatch" else []
        notes += [
            note for column in differences for note in published.cell_notes(table, row, column) if "illegible" not in note
        ]
        doubts += [f"possible misprint, {label_of('methods', row)}: {note}" for note in notes]
    return Published(value, half, doubts)


def _half_width(table: PublishedTable, first: str, second: str, columns: list[str]) -> float | None:
    """Return half the 95 % interval of a published mean difference.

    The seeds of the two methods are taken as unpaired, since no paper prints paired differences. A row without standard
    deviations is given those of the other row.
    """
    rows = [[table.deviation(row, column) for column in columns] for row in (first, second)]
    known = [row for row in rows if all(isinstance(value, float) for value in row)]
    if not known or not table.seeds or table.seeds < 2:
        return None
    variances = np.square(np.array([known[0], known[-1]], dtype=float)) / table.seeds / len(columns) ** 2
    degrees = variances.sum() ** 2 / (variances**2).sum() * (table.seeds - 1)
    return t_quantile(float(degrees), 1 - LEVEL / 2) * float(variances.sum() ** 0.5)


# The table of verdicts


def build(file: ClaimsFile, results: Sequence[ClaimResult]) -> VerdictTable:
    """Build the table of a file's claims; a footnote of each row holds the claim's text. Claims without runs are one line."""
    counts = Counter(result.verdict for result in results)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    unmet_claims: dict[str, list[str]] = {}
    for result in results:
        if result.verdict == "not run" and result.reason:
            unmet_claims.setdefault(result.reason, []).append(result.name)
    headings = [TableHeading(label) for label in ("Verdict", "Ours", "Interval", "Published", "Required", "Runs")]
    return VerdictTable(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        headings=headings,
        rows=[_row(result) for result in results],
        corner="Claim",
        notes=[RULE, *(f"not decided, because {reason}: {', '.join(names)}" for reason, names in unmet_claims.items())],
        missing=list({missing.command: missing for result in results for missing in result.missing}.values()),
    )


def _row(result: ClaimResult) -> TableRow:
    finding = result.finding
    effect = TableCell() if finding.effect is None else TableCell(finding.effect, text=_number(result, finding.effect))
    low, high = (None if abs(end) == inf else end for end in finding.region.required)
    cells = (
        TableCell(text=verdict_text(result)),
        effect,
        TableCell(text=_span(result, finding) or DASH, value=finding.interval),
        TableCell(finding.published.value, text=_published(result, finding)),
        TableCell(text=_required(low, high), value=[low, high]),
        TableCell(float(result.runs), text=str(result.runs)),
    )
    return TableRow(result.name, cells, method=result.name, verdict=result.verdict, notes=(". ".join(_note(result)),))


def verdict_text(result: ClaimResult) -> str:
    """Return the verdict in words, with what an undecided claim requires."""
    return f"undecided ({result.reason})" if result.verdict == "undecided" else result.verdict


def sentence(result: ClaimResult) -> str:
    """Return verdict, claim and numbers in one sentence."""
    claim, finding = result.claim, result.finding
    ours = [f"ours {_number(result, finding.effect)} {_span(result, finding)}".strip()] if finding.effect is not None else []
    printed = [f"published {_published(result, finding)}"] if finding.published.value is not None else []
    numbers = f": {', '.join([*ours, *printed])} {result.unit}" if ours or printed else ""
    return f"{verdict_text(result)}: {claim.text.rstrip('.')} ({claim.where}){numbers}"


def _note(result: ClaimResult) -> list[str]:
    """Return everything that a reader must know about a claim, as sentences."""
    claim, findings = result.claim, result.findings
    where = f"{claim.where}; {claim.only_backbone}" if claim.only_backbone else claim.where
    sentences = [f"{claim.text.rstrip('.')} ({where})", claim.note.rstrip(".")]
    known = dict.fromkeys(task for finding in findings for task, values in finding.values.items() if values and task)
    sentences += [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []
    has_interval = isinstance(claim, NumberClaim) and result.finding.interval and not claim.every
    if isinstance(claim, NumberClaim) and has_interval and claim.figure and claim.per != ["seed"]:
        sentences.append(f"the interval is over {' and '.join(claim.per)}s")
    if len(findings) > 1 and result.verdict != "not run":
        sentences.append("; ".join(_comparison(result, finding) for finding in findings))
    sentences += [f"published: {'; '.join(finding.published.doubts)}" for finding in findings if finding.published.doubts]
    for finding in findings:
        low, possible = finding.region.required[0], finding.region.possible[0]
        if finding.interval and low < finding.interval[0] and finding.interval[1] < possible:
            sentences.append(f"there is a difference, but smaller than {_number(result, possible)} {result.unit}")
        sentences += finding.notes
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(sentences) if text]


def _comparison(result: ClaimResult, finding: Finding) -> str:
    parts = [f"published {_published(result, finding)}"] if finding.published.value is not None else []
    if finding.effect is not None:
        parts.append(f"ours {_number(result, finding.effect)} {_span(result, finding)}".strip())
    return f"{finding.label}: {', '.join([*parts, finding.verdict])}"


def _published(result: ClaimResult, finding: Finding) -> str:
    effect = finding.published
    if effect.value is None:
        return DASH
    return _number(result, effect.value) + (f" ±{effect.half_width:.2f}" if effect.half_width is not None else "")


def _span(result: ClaimResult, finding: Finding) -> str:
    return f"[{', '.join(_number(result, end) for end in finding.interval)}]" if finding.interval else ""


def _number(result: ClaimResult, value: float) -> str:
    """Return a difference in points with its sign, and any other number with four digits."""
    return f"{value:+.2f}" if result.unit == "points" else f"{value:.4g}"


def _required(low: float | None, high: float | None) -> str:
    if low is None:
        return f"<= {high:g}"
    return f"> {low:g}" if high is None else f"{low:g} to {high:g}"
