"""Verdicts: whether a claim is reproduced by our own results.

How a claim is decided (docs/claims.md):

- Runs decide it that have the settings of a protocol under which methods train what the paper's
  train, on tasks of the paper's own table that are not at chance. The published effect is that on
  the same tasks.
- A claim is reproduced where the interval of our effect lies inside what the claim requires, and
  not reproduced where it lies outside of what is possible if the claim is true: for "higher",
  where it excludes half of the published difference.
- A claim is about all of its tasks: it is undecided until each of them has runs.
- The interval is the 95 % t-interval of the mean over tasks, which are fixed; the exact sign-flip
  test must agree. Ratios are averaged, and their interval is computed, as logarithms.
- A claim of several comparisons is reproduced where every one is (no correction is needed), and
  not reproduced where one is not, at the level divided by their number.
- A verdict must hold for the scores of the last epoch too, and one seed decides nothing.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import exp, inf, log
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.registry import label_of, name_of
from hifi_cli.config.run_config import Score
from hifi_cli.config.sources import run_name
from hifi_cli.errors import UsageError, first_of
from hifi_cli.files import command_line
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
from hifi_cli.reports.pairs import COUNTED, Pairs, of_setting, pair, with_changes
from hifi_cli.reports.render import Table
from hifi_cli.reports.table_spec import check_names, load_published, shots_of
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, Groups, mean_interval, shows_above
from hifi_cli.tasks.metrics import METRICS

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
    "reproduced: the 95 % interval of our effect is inside what is required, and the sign-flip test"
    " agrees; not reproduced: it is outside of what is possible if the claim is true (a difference:"
    " without half of the published one); each claim is decided for itself at the 5 % level"
)


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison of methods or number of a figure.

    Attributes:
        values: by task, one for each seed or other repetition; empty: nothing is known yet.
        tasks: that must have values before there is a verdict.
        runs: what was counted: paths, or repetitions of a figure.
        diverged: numbers of diverged runs of the two methods.
        reason: why there is no verdict, although there may be values.
        published: the published effect.
        doubts: why the published effect does not carry the claim by itself.
        effect: mean over tasks.
        interval: its 95 % interval.
    """

    label: str
    values: dict[str, list[float]]
    tasks: Sequence[str] = ()
    runs: frozenset[Any] = frozenset()
    diverged: tuple[int, int] = (0, 0)
    reason: str = ""
    notes: Sequence[str] = ()
    published: float | None = None
    doubts: Sequence[str] = ()
    verdict: Verdict = "not run"
    effect: float | None = None
    interval: Bounds | None = None


def evaluate(
    file: ClaimsFile,
    study: Study,
    *,
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
    grid: Sequence[str] = (),
    place: Sequence[str] = (),
) -> Table:
    """Decide every claim of a file: a table of verdicts, with a note on each claim that says it in words.

    Args:
        grid: the words of the command that trains the claims' runs.
        place: the directories as options of the commands that are printed.
    """

    @cache
    def runs_of(protocol: str, backbone: str) -> pd.DataFrame:
        shots = shots_of(protocol)
        return with_changes(
            study, of_setting(study.runs, protocol=protocol, backbone=backbone, shots=shots)
        )

    rows, notes, lacking, figures = [], [], [], []
    not_run: dict[str, list[str]] = {}  # by reason
    for name, claim in file.claims.items():
        check_names("methods", methods_of(claim), study.names("method"))
        check_names("tasks", claim.tasks or file.tasks, study.names("task"))
        protocol = run_name("protocols", claim.protocol or file.protocol)
        backbone = run_name("backbones", claim.only_backbone or file.backbone)
        findings, reason = [Finding(name, {})], unmet(claim, file)
        verdict: Verdict = "not run"
        if not reason and isinstance(claim, DifferenceClaim):
            runs, tasks = runs_of(protocol, backbone), tasks_of(claim, file)
            runs = runs[runs["task"].isin(tasks)]
            findings = _differences(claim, file, study, runs, score, counted)
            verdict, reason = conclude(findings)
            last, _ = conclude(_differences(claim, file, study, runs, "last", counted))
            if "reproduced" in verdict and last != verdict:
                verdict, reason = (
                    "undecided",
                    f"{verdict} by the reported epochs, {last} by the last ones",
                )
            finished = {*zip(runs["method"], runs["task"], runs["seed"], strict=True)}
            lacking += [name] if {*product(methods_of(claim), tasks, file.seeds)} - finished else []
        elif not reason and isinstance(claim, NumberClaim):
            findings, command = _number_of_figure(claim, study, protocol, backbone)
            verdict, reason = conclude(findings)
            figures += [f"figure: {command_line([*command, *place])}"] if command else []
        rows.append(_row(name, claim, verdict, reason, findings))
        if verdict == "not run" and len(file.claims) > 1:
            not_run.setdefault(reason, []).append(name)
        else:
            notes.append(f"{name}: {'. '.join(_sentences(claim, file, verdict, reason, findings))}")
    counts = Counter(row["verdict"] for row in rows)
    verdicts = ", ".join(f"{counts[word]} {word}" for word in get_args(Verdict))
    missing = [f"runs of {first_of(lacking)}: {command_line(grid)}"] if lacking else []
    return Table(
        title=f"{file.description} (protocol {file.protocol}, backbone {file.backbone}): {verdicts}",
        frame=pd.DataFrame(rows),
        headings=HEADINGS,
        corner="Claim",
        formats={"runs": ".0f"},
        notes=[
            *notes,
            *(
                f"not run{f' ({why})' * bool(why)}: {', '.join(names)}"
                for why, names in not_run.items()
            ),
            RULE,
        ],
        missing=[*missing, *dict.fromkeys(figures)],
    )


# Numbers of runs and figures


def _differences(
    claim: DifferenceClaim,
    file: ClaimsFile,
    study: Study,
    runs: pd.DataFrame,
    score: Score | None,
    counted: Collection[str],
) -> list[Finding]:
    """Decide every comparison of a claim, by one score of its runs."""
    counted = {*counted} - {"changed"}
    all_pairs = [
        pair(runs, *methods, score=score, counted=counted)
        for methods in product(claim.first, claim.second)
    ]
    entries = [entry for pairs in all_pairs for entry in _of_pairs(claim, file, study, pairs)]
    level = LEVEL / len(entries)
    return [find(entry, *bounds(claim, entry.published, file.margin), level) for entry in entries]


def _of_pairs(
    claim: DifferenceClaim, file: ClaimsFile, study: Study, pairs: Pairs
) -> list[Finding]:
    """The differences of two methods; with `every_task` one finding per task."""
    tasks, notes = [*tasks_of(claim, file)], []
    for task, of_task in pairs.frame.groupby("task"):
        label, reason = label_of("tasks", str(task)), _at_chance(study, of_task)
        if reason is None:
            notes.append(f"{label}: no predictions to say whether it is at chance")
        elif reason:
            tasks.remove(str(task))
            notes.append(f"{label} decides nothing: {reason}")
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
        compared, backbone = [*whole.values] or tasks, claim.only_backbone or file.backbone
        value, doubts = published_effect(claim, pairs.first, pairs.second, compared, backbone)
        whole = replace(whole, published=value, doubts=doubts)
    if not claim.every_task or not tasks:
        return [whole]
    return [
        replace(
            whole,
            label=f"{whole.label} on {label_of('tasks', task)}",
            values={key: values for key, values in whole.values.items() if key == task},
            tasks=[task],
        )
        for task in tasks
    ]


def _at_chance(study: Study, pairs: pd.DataFrame) -> str | None:
    """Why a task decides nothing about two methods' pairs of runs; empty: it may decide; None: not known.

    The rule: their mean score is less than 3 points or less than two standard errors over the
    examples above the best score of one class for every example (of accuracy: the majority class).
    """
    run = pairs.iloc[0]
    metric = run["metric_first"]
    stored = (
        study.predictions(run["path_first"]) if metric in METRICS and metric != "f1_micro" else None
    )
    if stored is None:
        return None
    words = registry.load("tasks", run["task"]).get("labels", [])
    labels = np.array(
        [words.index(label) if isinstance(label, str) else label for label in stored["label"]],
        dtype=float,
    )
    constant = max(
        METRICS[metric](labels, np.full_like(labels, label)) for label in np.unique(labels)
    )
    error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(
        labels
    ) ** -0.5  # of a correlation of 0
    mean = float(pairs[["score_first", "score_second"]].to_numpy().mean())
    if mean - 100 * constant >= max(CHANCE_POINTS, 200 * error):
        return ""
    return f"its mean score of {mean:.1f} is not clearly above {100 * constant:.1f}, which one class for every example has"


def _number_of_figure(
    claim: NumberClaim, study: Study, protocol: str, backbone: str
) -> tuple[list[Finding], list[str]]:
    """Decide the number that a figure's CSV has, or return the command that computes the figure."""
    figure = figure_spec.load(claim.figure, protocol=protocol)
    other = [backbone] if backbone != figure.backbone else []
    is_own = protocol == figure_spec.load(claim.figure).protocol
    # as the command line named protocol and backbone or not
    changes = [[protocol, *other], *([other] if is_own else [])]
    paths = [
        figure_spec.csv_path(name_of(claim.figure), study.directory, words) for words in changes
    ]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        words = ["--backbone", backbone] if other else []
        return [Finding(claim.figure, {})], [
            "hifi",
            "figure",
            claim.figure,
            *words,
            "--protocol",
            protocol,
        ]
    frame = pd.read_csv(path)
    numbers = _reduced(frame, claim, claim.rows)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
        numbers = (numbers / others if claim.compare == "ratio" else numbers - others).dropna()
    has_seeds = "seed" in frame and frame["seed"].nunique() > 1
    entry = Finding(
        claim.figure,
        {str(task): [*values] for task, values in numbers.groupby(level="task")},
        runs=frozenset(numbers.index),
        reason="" if has_seeds else "a single seed",
        published=claim.stated,
    )
    return [find(entry, *bounds(claim), is_ratio=claim.is_ratio)], []


def _reduced(frame: pd.DataFrame, claim: NumberClaim, rows: dict[str, Any]) -> pd.Series:
    """One number per task and repetition from the chosen rows of a figure's CSV; none where a value has no row."""
    if missing := {*claim.per, *rows, claim.column} - {*frame.columns}:
        raise UsageError(
            f"{claim.figure}: the figure's CSV has no column '{min(missing)}' (it has {', '.join(frame.columns)})"
        )
    for column, accepted in rows.items():
        if isinstance(accepted, dict):
            frame = frame[
                frame[column].between(accepted.get("min", -inf), accepted.get("max", inf))
            ]
        else:
            values = accepted if isinstance(accepted, list) else [accepted]
            frame = frame[frame[column].isin(values if {*values} <= {*frame[column]} else [])]
    numbers = frame.groupby(["task", *claim.per])[claim.column]
    reduced = {
        "mean": numbers.mean,
        "last": numbers.last,
        "max": numbers.max,
        "rise": lambda: numbers.mean() - numbers.min(),
    }
    return claim.scale * reduced[claim.take]()


# Verdicts


def bounds(claim: Claim, effect: float | None = None, margin: float = 0.0) -> tuple[Bounds, Bounds]:
    """What a claim requires of our effect, and which effects are possible if it is true.

    Args:
        effect: the published one.
        margin: the smallest difference that counts where the claim has no bounds and no margin, and none is published.
    """
    if isinstance(claim, DifferenceClaim) and claim.at_least is None and claim.at_most is None:
        half = effect / 2 if effect and effect > 0 else margin
        return (0.0, inf), (claim.margin or half, inf)
    low = -inf if claim.at_least is None else claim.at_least
    high = inf if claim.at_most is None else claim.at_most
    return (low, high), (claim.margin if claim.margin and low > -inf else low, high)


def find(
    entry: Finding,
    required: Bounds,
    possible: Bounds,
    level: float = LEVEL,
    *,
    is_ratio: bool = False,
) -> Finding:
    """Decide one comparison or number.

    Args:
        level: at which it is not reproduced.
    """
    groups, reason = [*entry.values.values()], entry.reason
    if not groups:
        return replace(entry, verdict="undecided" if reason else "not run")
    as_logs = is_ratio and min(map(min, groups)) > 0
    if as_logs:
        groups = [[log(value) for value in values] for values in groups]
        required, possible = (
            (log(low) if low > 0 else -inf, log(high) if high < inf else inf)
            for low, high in (required, possible)
        )
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval([np.array(values) for values in groups])
    verdict = decide(groups, required, possible, level)
    # whose high scores the verdict requires
    ahead = 0 if (verdict == "reproduced") == (required[0] > -inf) else 1
    if not reason and len(groups) < len(entry.tasks):
        reason = f"{len(groups)} of {len(entry.tasks)} tasks"
    elif (
        not reason and verdict != "undecided" and entry.diverged[ahead] > entry.diverged[1 - ahead]
    ):
        reason = "the method that is ahead diverged more often"
    elif not reason and interval is None:
        reason = "a task has one seed"
    elif not reason and verdict == "undecided":
        reason = "interval too wide"
    if as_logs:
        effect, interval = exp(effect), (exp(interval[0]), exp(interval[1])) if interval else None
    return replace(
        entry,
        verdict="undecided" if reason else verdict,
        effect=effect,
        interval=interval,
        reason=reason,
    )


def decide(groups: Groups, required: Bounds, possible: Bounds, level: float = LEVEL) -> Verdict:
    """The verdict of the differences of several tasks."""
    negated = [[-value for value in values] for values in groups]

    def shows_outside(low: float, high: float) -> bool:
        return (low > -inf and shows_above(negated, -low, level)) or (
            high < inf and shows_above(groups, high, level)
        )

    def shows_inside(low: float, high: float) -> bool:
        return (low == -inf or shows_above(groups, low)) and (
            high == inf or shows_above(negated, -high)
        )

    return (
        "not reproduced"
        if shows_outside(*possible)
        else "reproduced"
        if shows_inside(*required)
        else "undecided"
    )


def conclude(findings: Sequence[Finding]) -> tuple[Verdict, str]:
    """The verdict on a claim, and why it is undecided: reproduced if every comparison is, not reproduced if one is not."""
    counts = Counter(finding.verdict for finding in findings)
    if counts["not reproduced"]:
        return "not reproduced", ""
    if counts["not run"] and len(counts) > 1:
        return "undecided", f"{counts['not run']} of {len(findings)} comparisons not run"
    verdict: Verdict = (
        "not run" if counts["not run"] else "undecided" if counts["undecided"] else "reproduced"
    )
    return verdict, next((finding.reason for finding in findings if finding.reason), "")


def _inside(number: float, bounds: Bounds) -> float:
    """How far a number is inside bounds; negative: outside."""
    return min(number - bounds[0], bounds[1] - number)


# Published numbers


def published_effect(
    claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str
) -> tuple[float | None, list[str]]:
    """The published difference of two methods over exactly the compared tasks, and why it may not count."""
    _, table = load_published(str(claim.published))
    asked = [column for task, column in columns_of(claim).items() if not tasks or task in tasks]
    cells = {column: (table.mean(first, column), table.mean(second, column)) for column in asked}
    differences = {
        column: own - other
        for column, (own, other) in cells.items()
        if isinstance(own, float) and isinstance(other, float)
    }
    if not differences:
        return None, ["the published cells cannot be read"]
    value = float(np.mean([*differences.values()]))
    doubts = [f"of {table.backbone}"] if table.backbone != backbone else []
    doubts += [f"on the {table.split}"] if table.split and table.split != "validation" else []
    if value <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    for row in (first, second):
        notes = [
            note
            for column, note in table.rows[row].cell_notes.items()
            if column in (*differences, "average")
        ]
        doubts += [f"possible misprint, {label_of('methods', row)}: {note}" for note in notes]
    return value, doubts


# What the table of verdicts shows


def _row(
    name: str, claim: Claim, verdict: Verdict, reason: str, findings: list[Finding]
) -> dict[str, Any]:
    """A row of the table: of several comparisons, one with the claim's verdict and the smallest effect."""
    finding = decisive(findings, verdict, claim)
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
        "shown_ours": _ours(finding, claim) or None,
        "shown_published": None if finding.published is None else _number(finding.published, claim),
        "required": f"<= {at_most:g}" if at_least == -inf else required,
    }


def decisive(findings: Sequence[Finding], verdict: Verdict, claim: Claim) -> Finding:
    """Of several comparisons the one with the claim's verdict and the smallest effect."""
    required, _ = bounds(claim)
    known = [finding for finding in findings if finding.effect is not None]
    of_verdict = [finding for finding in known if finding.verdict == verdict]
    return min(
        of_verdict or known or findings, key=lambda each: _inside(each.effect or 0.0, required)
    )


def _sentences(
    claim: Claim, file: ClaimsFile, verdict: Verdict, reason: str, findings: list[Finding]
) -> list[str]:
    """Everything that a reader must know about a claim."""
    where = f"{claim.where}; {claim.only_backbone}" if claim.only_backbone else claim.where
    sentences = [f"{claim.text.rstrip('.')} ({where})", claim.note.rstrip(".")]
    sentences += [f"{verdict}: {reason}"] if reason else []
    known = dict.fromkeys(task for finding in findings for task in finding.values)
    sentences += [f"on {', '.join(label_of('tasks', task) for task in known)}"] if known else []
    if len(findings) > 1 and verdict != "not run":
        ours = [
            f"{each.label}: {_ours(each, claim)} {each.verdict}".replace("  ", " ")
            for each in findings
        ]
        sentences.append("; ".join(ours))
    doubts = dict.fromkeys(doubt for finding in findings for doubt in finding.doubts)
    sentences += [f"published: {'; '.join(doubts)}"] if doubts else []
    for finding in findings:
        (required, _), (possible, _) = bounds(claim, finding.published, file.margin)
        if finding.interval and required < finding.interval[0] and finding.interval[1] < possible:
            sentences.append(
                f"there is a difference, but smaller than {_number(possible, claim)} {claim.unit}"
            )
        sentences += finding.notes
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
