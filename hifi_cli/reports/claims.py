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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, inf, log
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.config.run_config import Score
from hifi_cli.config.sources import run_name
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.reports import published
from hifi_cli.reports.claim_spec import (
    Claim,
    ClaimsFile,
    DifferenceClaim,
    NumberClaim,
    columns_of,
    methods_of,
    tasks_of,
    unmet,
)
from hifi_cli.reports.pairs import COUNTED, of_setting, pair, with_changes
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.render import Table
from hifi_cli.reports.table_spec import check_names, shots_of
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, Groups, mean_interval, shows_above, t_quantile
from hifi_cli.tasks.metrics import METRICS
from hifi_cli.wording import counted_noun, first_of

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
Bounds = tuple[float, float]
CHANCE_POINTS = 3.0
HEADINGS = {
    "verdict": "Verdict",
    "shown_ours": "Ours",
    "shown_published": "Published",
    "required": "Required",
    "runs": "Runs",
}
RULE = (
    "reproduced: the 95 % interval of our effect is inside what is required, and the sign-flip test agrees; not reproduced: it"
    " is outside of what is possible if the claim is true (a difference: without half of the published one); each claim is"
    " decided for itself at the 5 % level"
)


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison or measured number.

    Attributes:
        values: by task, one for each seed or other repetition; empty: nothing is known yet.
        tasks: that must have values before there is a verdict.
        is_exact: whether each number is certain: it does not vary with the seed.
        is_ratio: whether the values are ratios, which are averaged as logarithms.
        diverged: numbers of diverged runs of the two methods.
        reason: why there is no verdict, although there may be values.
        published, error: the published effect, and half of its 95 % interval from the printed standard deviations.
        doubts: why the published effect does not carry the claim by itself.
        required, possible: the effects that the claim requires, and those that are possible if it is true.
        effect: mean over tasks, or of exact numbers the one farthest from what is claimed; None: nothing is known.
        interval: 95 % interval of the mean, or the range of exact numbers.
    """

    label: str
    values: dict[str, list[float]]
    tasks: Sequence[str] = ()
    runs: frozenset[Any] = frozenset()
    is_exact: bool = False
    is_ratio: bool = False
    diverged: tuple[int, int] = (0, 0)
    reason: str = ""
    notes: Sequence[str] = ()
    published: float | None = None
    error: float | None = None
    doubts: Sequence[str] = ()
    required: Bounds = (-inf, inf)
    possible: Bounds = (-inf, inf)
    verdict: Verdict = "not run"
    effect: float | None = None
    interval: Bounds | None = None


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        reason: why it is undecided or not run.
        missing: the command that computes the figure that decides the claim; empty: it is there, or there is none.
        lacks_runs: whether a run of its methods, tasks and seeds is not finished.
    """

    name: str
    claim: Claim
    verdict: Verdict
    findings: list[Finding]
    reason: str = ""
    missing: str = ""
    lacks_runs: bool = False

    @property
    def unit(self) -> str:
        return self.claim.unit if isinstance(self.claim, NumberClaim) else "points"

    @property
    def finding(self) -> Finding:
        """The finding that decides: of the comparisons with the claim's verdict, that with the smallest effect."""
        known = [finding for finding in self.findings if finding.effect is not None]
        of_verdict = [finding for finding in known if finding.verdict == self.verdict]
        return min(of_verdict or known or self.findings, key=lambda each: _inside(each.effect or 0.0, each.required))


@dataclass(frozen=True)
class Context:
    """Where a claim's numbers are looked for; names are those of finished runs.

    Attributes:
        runs: of the claim's protocol, backbone and shots, with what each changes.
        place: the options of a command that computes a figure.
    """

    study: Study
    runs: pd.DataFrame
    protocol: str
    backbone: str
    tasks: Sequence[str]
    score: Score | None
    counted: Collection[str]
    place: Sequence[str]

    def usable(self, methods: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
        """Return the runs of methods with their protocol's settings, and notes on the others."""
        runs = self.runs[self.runs["method"].isin(methods) & self.runs["task"].isin(self.tasks)]
        others = Counter(runs[runs["changed"] != ""][["method", "task", "changed"]].itertuples(index=False, name=None))
        notes = [
            f"{counted_noun(count, 'run')} of {label_of('methods', method)} on {label_of('tasks', task)} left out, whose"
            f" settings are not the protocol's: {changed}"
            for (method, task, changed), count in others.items()
        ]
        return runs[runs["changed"] == ""], notes


def evaluate(
    file: ClaimsFile,
    study: Study,
    *,
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
    place: Sequence[str] = (),
) -> list[ClaimResult]:
    """Decide every claim of a file.

    Args:
        place: the directories as options of the commands that are printed.
    """
    finished = study.runs
    runs_of: dict[tuple[str, str], pd.DataFrame] = {}
    results = []
    for name, claim in file.claims.items():
        check_names("methods", methods_of(claim), {*finished["method"]})
        check_names("tasks", claim.tasks or file.tasks, {*finished["task"]})
        protocol = run_name("protocols", claim.protocol or file.protocol)
        backbone = run_name("backbones", claim.only_backbone or file.backbone)
        if (protocol, backbone) not in runs_of:
            chosen = of_setting(finished, protocol=protocol, backbone=backbone, shots=shots_of(protocol))
            runs_of[protocol, backbone] = with_changes(study, chosen)
        runs, tasks = runs_of[protocol, backbone], tasks_of(claim, file)
        context = Context(study, runs, protocol, backbone, tasks, score, counted, place)
        results.append(_evaluate(name, claim, file, context))
    return results


def _evaluate(name: str, claim: Claim, file: ClaimsFile, context: Context) -> ClaimResult:
    """Decide one claim; a verdict on the reported epochs must hold for the last ones too."""
    if reason := unmet(claim, file):
        nothing = replace(context, runs=context.runs[:0], study=Study(context.study.directory / "none"))
        return replace(_decided(name, claim, file, nothing), verdict="not run", reason=reason, missing="", lacks_runs=False)
    result = _decided(name, claim, file, context)
    if isinstance(claim, DifferenceClaim) and context.score != "last" and "reproduced" in result.verdict:
        last = _decided(name, claim, file, replace(context, score="last"))
        if last.verdict != result.verdict:
            reason = f"{result.verdict} by the reported epochs, {last.verdict} by the last ones"
            return replace(result, verdict="undecided", reason=reason)
    return result


def _decided(name: str, claim: Claim, file: ClaimsFile, context: Context) -> ClaimResult:
    """Decide one claim by one score of its runs."""
    missing = ""
    if isinstance(claim, DifferenceClaim):
        pairs = [(first, second) for first in claim.first for second in claim.second]
        evidence = [entry for first, second in pairs for entry in _of_methods(claim, first, second, file, context)]
    elif claim.figure:
        entry, missing = _of_figure(claim, context)
        evidence = [entry]
    else:
        evidence = [_of_measure(claim, context)]
    findings = [find(_with_bounds(claim, entry, file.margin), LEVEL / len(evidence)) for entry in evidence]
    verdicts = [finding.verdict for finding in findings]
    order: tuple[Verdict, ...] = ("not reproduced", "not run", "undecided", "reproduced")
    verdict = next(verdict for verdict in order if verdict in verdicts)
    reason = next((finding.reason for finding in findings if finding.reason), "interval too wide")
    if verdict == "not run" and {*verdicts} != {"not run"}:
        verdict, reason = "undecided", f"{verdicts.count('not run')} of {len(findings)} comparisons not run"
    lacks_runs = _lacks_runs(claim, file.seeds, context)
    return ClaimResult(name, claim, verdict, findings, reason if verdict == "undecided" else "", missing, lacks_runs)


def _lacks_runs(claim: Claim, seeds: Sequence[int], context: Context) -> bool:
    finished = {*zip(context.runs["method"], context.runs["task"], context.runs["seed"], strict=True)}
    if isinstance(claim, NumberClaim) and claim.measure == "trained-percent":
        return claim.method not in {method for method, _, _ in finished}
    return not {*product(methods_of(claim), context.tasks, seeds)} <= finished


def _with_bounds(claim: Claim, entry: Finding, margin: float) -> Finding:
    """Return a finding with what its claim requires, and what is possible if the claim is true.

    Args:
        margin: the smallest difference that counts where the claim has no bounds and no margin, and none is published.
    """
    if isinstance(claim, DifferenceClaim) and claim.at_least is None and claim.at_most is None:
        half = entry.published / 2 if entry.published and entry.published > 0 else margin
        return replace(entry, required=(0.0, inf), possible=(claim.margin or half, inf))
    if isinstance(claim, NumberClaim):
        entry = replace(entry, published=claim.stated)
    low = -inf if claim.at_least is None else claim.at_least
    high = inf if claim.at_most is None else claim.at_most
    return replace(entry, required=(low, high), possible=(claim.margin if claim.margin and low > -inf else low, high))


# Numbers of runs, figures and measured costs


def _of_methods(claim: DifferenceClaim, first: str, second: str, file: ClaimsFile, context: Context) -> list[Finding]:
    """Return the differences of two methods; with `every_task` one finding per task."""
    runs, notes = context.usable([first, second])
    pairs = pair(runs, first, second, score=context.score, counted=context.counted)
    tasks = [*context.tasks]
    for task, of_task in pairs.frame.groupby("task"):
        reason = _at_chance(context.study, of_task)
        if reason is None:
            notes.append(f"{label_of('tasks', str(task))}: no predictions to say whether it is at chance")
        elif reason:
            tasks.remove(str(task))
            notes.append(f"{label_of('tasks', str(task))} decides nothing: {reason}")
    frame = pairs.frame[pairs.frame["task"].isin(tasks)]
    whole = Finding(
        label=f"{pairs.labels[0]} above {pairs.labels[1]}",
        values={task: values for task, values in pairs.by_task.items() if task in tasks},
        tasks=tasks,
        runs=frozenset([*frame["path_first"], *frame["path_second"]]),
        diverged=pairs.diverged,
        reason="" if tasks else "every task is at chance",
        notes=[*notes, *pairs.notes],
    )
    if claim.published:
        backbone = claim.only_backbone or file.backbone
        value, error, doubts = published_effect(claim, first, second, [*whole.values] or tasks, backbone)
        whole = replace(whole, published=value, error=error, doubts=doubts)
    if not claim.every_task or not tasks:
        return [whole]
    each = {task: {task: whole.values[task]} if task in whole.values else {} for task in tasks}
    return [
        replace(whole, label=f"{whole.label} on {label_of('tasks', task)}", values=values, tasks=[task])
        for task, values in each.items()
    ]


def _at_chance(study: Study, pairs: pd.DataFrame) -> str | None:
    """Return why a task decides nothing about two methods' pairs of runs; empty: it may decide; None: not known.

    The rule: their mean score is less than 3 points or less than two standard errors over the examples above the best score of
    one class for every example (of accuracy: the majority class).
    """
    run = pairs.iloc[0]
    metric = run["metric_first"]
    stored = study.predictions(run["path_first"]) if metric in METRICS and metric != "f1_micro" else None
    if stored is None:
        return None
    words = registry.load("tasks", run["task"]).get("labels", [])
    labels = np.array([words.index(label) if isinstance(label, str) else label for label in stored["label"]], dtype=float)
    constant = max(METRICS[metric](labels, np.full_like(labels, label)) for label in np.unique(labels))
    error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(labels) ** -0.5  # of a correlation of 0
    mean = float(pairs[["score_first", "score_second"]].to_numpy().mean())
    if mean - 100 * constant >= max(CHANCE_POINTS, 200 * error):
        return ""
    return f"its mean score of {mean:.1f} is not clearly above {100 * constant:.1f}, which one class for every example has"


def _of_figure(claim: NumberClaim, context: Context) -> tuple[Finding, str]:
    """Return the number that a figure's CSV has, or the command that computes the figure."""
    name, figure = str(claim.figure), figure_spec.load(str(claim.figure), protocol=context.protocol)
    other = [context.backbone] if context.backbone != figure.backbone else []
    is_own = context.protocol == figure_spec.load(name).protocol
    changes = [[context.protocol, *other], *([other] if is_own else [])]  # as the command line named them or not
    paths = [figure_spec.csv_path(name_of(name), context.study.directory, words) for words in changes]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        words = ["--backbone", context.backbone] if other else []
        return Finding(name, {}), command_line(["hifi", "figure", name, *words, "--protocol", context.protocol, *context.place])
    frame = pd.read_csv(path)
    numbers = _reduced(frame, claim, claim.rows)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
        numbers = (numbers / others if claim.compare == "ratio" else numbers - others).dropna()
    evidence = Finding(
        name,
        {str(task): [*values] for task, values in numbers.groupby(level="task")},
        runs=frozenset(numbers.index),
        is_exact=claim.every,
        is_ratio=bool(claim.second_rows) and claim.compare == "ratio",
        reason="" if "seed" in frame and frame["seed"].nunique() > 1 else "a single seed",
        notes=[f"read from a figure, whose numbers are not those of --score {context.score}"] if context.score else [],
    )
    return evidence, ""


def _reduced(frame: pd.DataFrame, claim: NumberClaim, rows: dict[str, Any]) -> pd.Series:
    """Return one number per task and repetition from the chosen rows of a figure's CSV; none where a value has no row."""
    if missing := {*claim.per, *rows, claim.column} - {*frame.columns}:
        raise UsageError(f"{claim.figure}: the figure's CSV has no column '{min(missing)}' (it has {', '.join(frame.columns)})")
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[frame[column].between(accepted.get("min", -inf), accepted.get("max", inf))]
        else:
            values = accepted if isinstance(accepted, list) else [accepted]
            frame = frame[frame[column].isin(values if {*values} <= {*frame[column]} else [])]
    numbers = frame.groupby(["task", *claim.per])[claim.column]
    reduced = {"mean": numbers.mean, "last": numbers.last, "rise": lambda: numbers.mean() - numbers.min()}
    return claim.scale * reduced[claim.take]()


def _of_measure(claim: NumberClaim, context: Context) -> Finding:
    """Return the percentage of trained parameters, or the time of training relative to another method's."""
    method, other = str(claim.method), claim.second_method or "full-ft"
    runs, notes = context.usable([method, other])
    runs = runs.assign(time=runs["time_s"].astype(float) / runs["epochs"].astype(float))
    usual = runs[runs["method"] == other].groupby(["task", "device"])["time"].mean()
    ours = runs[runs["method"] == method].join(usual.rename("usual"), on=["task", "device"])
    is_time = claim.measure == "time"
    numbers = (ours["time"] / ours["usual"] if is_time else 100 * ours["trainable_backbone"] / ours["total"]).dropna()
    values = {str(task): [*of_task] for task, of_task in numbers.groupby(ours["task"])}
    label = f"{claim.measure} of {label_of('methods', method)}"
    return Finding(label, values, runs=frozenset(runs["path"]), is_exact=not is_time, is_ratio=is_time, notes=notes)


# Verdicts


def find(entry: Finding, level: float = LEVEL) -> Finding:
    """Decide one comparison or number.

    Args:
        level: at which it is not reproduced.
    """
    groups, required, possible, reason = [*entry.values.values()], entry.required, entry.possible, entry.reason
    if not groups:
        return replace(entry, verdict="undecided" if reason else "not run")
    if entry.is_exact:
        numbers = [value for values in groups for value in values]
        worst = min(numbers, key=lambda number: _inside(number, required))
        verdict: Verdict = "reproduced" if _inside(worst, required) >= 0 else "not reproduced"
        interval = (min(numbers), max(numbers)) if len(numbers) > 1 else None
        return replace(entry, verdict="undecided" if reason else verdict, effect=worst, interval=interval)
    as_logs = entry.is_ratio and min(map(min, groups)) > 0
    if as_logs:
        groups = [[log(value) for value in values] for values in groups]
        required, possible = (
            (log(low) if low > 0 else -inf, log(high) if high < inf else inf) for low, high in (required, possible)
        )
    effect, interval = float(np.mean([np.mean(values) for values in groups])), mean_interval([np.array(v) for v in groups])
    verdict = decide(groups, required, possible, level)
    ahead = 0 if (verdict == "reproduced") == (required[0] > -inf) else 1  # whose high scores the verdict requires
    if not reason and len(groups) < len(entry.tasks):
        reason = f"{len(groups)} of {len(entry.tasks)} tasks"
    elif not reason and verdict != "undecided" and entry.diverged[ahead] > entry.diverged[1 - ahead]:
        reason = "the method that is ahead diverged more often"
    elif not reason and interval is None:
        reason = "a task has one seed"
    if as_logs:
        effect, interval = exp(effect), (exp(interval[0]), exp(interval[1])) if interval else None
    return replace(entry, verdict="undecided" if reason else verdict, effect=effect, interval=interval, reason=reason)


def _inside(number: float, bounds: Bounds) -> float:
    """Return how far a number is inside bounds; negative: outside."""
    return min(number - bounds[0], bounds[1] - number)


def decide(groups: Groups, required: Bounds, possible: Bounds, level: float = LEVEL) -> Verdict:
    """Return the verdict of the differences of several tasks."""
    negated = [[-value for value in values] for values in groups]

    def shows_outside(low: float, high: float) -> bool:
        return (low > -inf and shows_above(negated, -low, level)) or (high < inf and shows_above(groups, high, level))

    def shows_inside(low: float, high: float) -> bool:
        return (low == -inf or shows_above(groups, low)) and (high == inf or shows_above(negated, -high))

    return "not reproduced" if shows_outside(*possible) else "reproduced" if shows_inside(*required) else "undecided"


# Published numbers


def published_effect(
    claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str
) -> tuple[float | None, float | None, list[str]]:
    """Return the published difference of two methods over exactly the compared tasks, its error, and why it may not count."""
    _, table = published.load(str(claim.published))
    asked = [column for task, column in columns_of(claim).items() if not tasks or task in tasks]
    cells = {column: (table.mean(first, column), table.mean(second, column)) for column in asked}
    differences = {
        column: own - other for column, (own, other) in cells.items() if isinstance(own, float) and isinstance(other, float)
    }
    if not differences:
        return None, None, ["the published cells cannot be read"]
    value, error = float(np.mean([*differences.values()])), _error(table, first, second, [*differences])
    doubts = [f"of {table.backbone}"] if table.backbone != backbone else []
    doubts += [f"on the {table.split}"] if table.split and table.split != "validation" else []
    if value <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    elif error and error >= abs(value):
        doubts.append("less than its own error from the printed standard deviations")
    for row in (first, second):
        notes = [note for column, note in table.rows[row].cell_notes.items() if column in differences]
        notes += [misprint] if (misprint := table.misprint(row)) else []
        doubts += [f"possible misprint, {label_of('methods', row)}: {note}" for note in notes]
    return value, error, doubts


def _error(table: PublishedTable, first: str, second: str, columns: list[str]) -> float | None:
    """Return half the 95 % interval of a published mean difference; None where no standard deviations are printed.

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


def build(file: ClaimsFile, results: Sequence[ClaimResult], grid: Sequence[str]) -> Table:
    """Build the table of a file's claims; a note on each says it in words.

    Args:
        grid: the words of the command that trains the claims' runs.
    """
    counts = Counter(result.verdict for result in results)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
    lacking = [result.name for result in results if result.lacks_runs]
    missing = [f"runs of {first_of(lacking)}: {command_line(grid)}"] if lacking else []
    return Table(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        frame=pd.DataFrame(map(_row, results)),
        headings=HEADINGS,
        corner="Claim",
        formats={"runs": ".0f"},
        notes=[
            *(f"{result.name}: {'. '.join(_sentences(result))}" for result in results),
            RULE,
        ],
        missing=[*missing, *dict.fromkeys(f"figure: {result.missing}" for result in results if result.missing)],
    )


def _row(result: ClaimResult) -> dict[str, Any]:
    finding, (low, high) = result.finding, result.finding.interval or (None, None)
    at_least, at_most = (None if abs(end) == inf else end for end in finding.required)
    required = (
        f"<= {at_most:g}" if at_least is None else f"> {at_least:g}" if at_most is None else f"{at_least:g} to {at_most:g}"
    )
    return {
        "label": result.name,
        "source": "runs",
        "verdict": result.verdict,
        "reason": result.reason,
        "ours": finding.effect,
        "low": low,
        "high": high,
        "published": finding.published,
        "error": finding.error,
        "runs": len(frozenset().union(*(each.runs for each in result.findings))),
        "shown_ours": _ours(result, finding) or None,
        "shown_published": _published(result, finding) or None,
        "required": required,
    }


def _sentences(result: ClaimResult) -> list[str]:
    """Return everything that a reader must know about a claim."""
    claim, findings = result.claim, result.findings
    where = f"{claim.where}; {claim.only_backbone}" if claim.only_backbone else claim.where
    sentences = [f"{claim.text.rstrip('.')} ({where})", claim.note.rstrip(".")]
    sentences += [f"{result.verdict}: {result.reason}"] if result.reason else []
    known = dict.fromkeys(task for finding in findings for task in finding.values if task)
    sentences += [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []
    if len(findings) > 1 and result.verdict != "not run":
        ours = [f"{each.label}: {_ours(result, each)} {each.verdict}".replace("  ", " ") for each in findings]
        sentences.append("; ".join(ours))
    doubts = dict.fromkeys(doubt for finding in findings for doubt in finding.doubts)
    sentences += [f"published: {'; '.join(doubts)}"] if doubts else []
    for finding in findings:
        low, possible = finding.required[0], finding.possible[0]
        if finding.interval and low < finding.interval[0] and finding.interval[1] < possible:
            sentences.append(f"there is a difference, but smaller than {_number(result, possible)} {result.unit}")
        sentences += finding.notes
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(sentences) if text]


def _ours(result: ClaimResult, finding: Finding) -> str:
    ends = f" [{', '.join(_number(result, end) for end in finding.interval)}]" if finding.interval else ""
    return "" if finding.effect is None else _number(result, finding.effect) + ends


def _published(result: ClaimResult, finding: Finding) -> str:
    error = f" ±{finding.error:.2f}" if finding.error is not None else ""
    return "" if finding.published is None else _number(result, finding.published) + error


def _number(result: ClaimResult, value: float) -> str:
    """Return a difference in points with its sign, and any other number with four digits."""
    return f"{value:+.2f}" if result.unit == "points" else f"{value:.4g}"
