"""From finished runs to the verdict on a claim."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, Literal

import numpy as np
import pandas as pd

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.paired_tests import LEVEL, Groups, mean_interval, shows_above
from hifi_cli.records.study import Study
from hifi_cli.reports.claims.spec import (
    Claim,
    ClaimsFile,
    DifferenceClaim,
    NumberClaim,
    columns_of,
    methods_of,
    tasks_of,
)
from hifi_cli.reports.comparable import notes_on
from hifi_cli.reports.compare import pair
from hifi_cli.reports.table_spec import load_published
from hifi_cli.tasks.metrics import METRICS

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]
Bounds = tuple[float, float]
CHANCE_POINTS = 3.0


# The smallest number of seeds


@dataclass(frozen=True)
class SmallestSeeds:
    """With how many seeds per task a claim can be decided at all, if every task counts and every difference has one sign.

    Attributes:
        to_reproduce: every comparison is shown at the whole level; None: the number is not of runs with seeds.
        to_refute: one comparison is shown at the level divided by their number.
    """

    to_reproduce: int | None
    to_refute: int | None


def smallest_seeds(claim: Claim, file: ClaimsFile) -> SmallestSeeds:
    """Return the smallest numbers of seeds that can reproduce and that can refute a claim."""
    if isinstance(claim, NumberClaim) and claim.figure:
        if "seed" not in claim.per:
            return SmallestSeeds(None, None)
        figure = figure_spec.load(claim.figure, protocol=claim.protocol or file.protocol)
        comparisons, tasks = 1, len(figure.tasks)
    elif isinstance(claim, NumberClaim):
        comparisons, tasks = len(claim.methods), len(tasks_of(claim, file))
    else:
        comparisons, tasks = len(claim.first) * len(claim.second), len(tasks_of(claim, file))
        if claim.every_task:
            comparisons, tasks = comparisons * tasks, 1
    if not tasks:
        return SmallestSeeds(None, None)
    return SmallestSeeds(
        to_reproduce=_seeds_that_reach(LEVEL, tasks),
        to_refute=_seeds_that_reach(LEVEL / comparisons, tasks),
    )


def _seeds_that_reach(level: float, tasks: int) -> int:
    """The smallest number of seeds with which the sign-flip test of the mean over tasks can have a p below a level."""
    # an interval needs two seeds
    seeds = 2
    while 2.0 ** (1 - seeds * tasks) >= level:
        seeds += 1
    return seeds


# Findings and verdicts


@dataclass(frozen=True)
class Finding:
    """What our results say about one comparison of methods or number of a figure.

    Attributes:
        values: by task, one for each seed or other repetition; empty: nothing is known yet.
        tasks: that must have values before there is a verdict.
        runs: what was counted: paths, or repetitions of a figure.
        reason: why there is no verdict, although there may be values; or what a verdict means.
        published: the published effect.
        doubts: why the published effect does not carry the claim by itself.
        effect: mean over tasks.
        interval: its 95 % interval.
    """

    label: str
    values: dict[str, list[float]]
    tasks: Sequence[str] = ()
    runs: frozenset[Any] = frozenset()
    reason: str = ""
    notes: Sequence[str] = ()
    published: float | None = None
    doubts: Sequence[str] = ()
    verdict: Verdict = "not run"
    effect: float | None = None
    interval: Bounds | None = None


# Numbers of runs and figures


def findings_of_differences(
    claim: DifferenceClaim,
    file: ClaimsFile,
    study: Study,
    runs: pd.DataFrame,
    included: Collection[str],
) -> list[Finding]:
    """Decide every comparison of a claim, with `every_task` one for each task."""
    runs, entries = runs[runs["task"].isin(tasks_of(claim, file))], list[Finding]()
    backbone = claim.only_backbone or file.backbone
    for first, second in product(claim.first, claim.second):
        pairs = pair(runs, first, second, included=included, metric=claim.metric)
        at_chance = {
            str(task): "" if claim.metric else _at_chance(study, of_task)
            for task, of_task in pairs.frame.groupby("task")
        }
        notes = [
            f"{label_of('tasks', task)} decides nothing: {why}"
            for task, why in at_chance.items()
            if why
        ]
        tasks = [task for task in tasks_of(claim, file) if not at_chance.get(task)]
        frame = pairs.frame[pairs.frame["task"].isin(tasks)]
        for part in [[task] for task in tasks] if claim.every_task and tasks else [tasks]:
            values = {task: values for task, values in pairs.by_task.items() if task in part}
            where = f" on {label_of('tasks', part[0])}" if claim.every_task and tasks else ""
            published, doubts = (
                published_effect(claim, first, second, [*values] or part, backbone)
                if claim.published
                else (None, [])
            )
            entries.append(
                Finding(
                    label=f"{pairs.labels[0]} above {pairs.labels[1]}{where}",
                    values=values,
                    tasks=part,
                    runs=frozenset([*frame["path_first"], *frame["path_second"]]),
                    reason=pairs.doubt if tasks else "every task is at chance",
                    notes=[*notes, *pairs.notes],
                    published=published,
                    doubts=doubts,
                )
            )
    level = LEVEL / len(entries)
    return [
        decide_comparison(entry, *bounds(claim, entry.published, file.margin), level)
        for entry in entries
    ]


def lacks_runs(claim: Claim, file: ClaimsFile, runs: pd.DataFrame) -> bool:
    """Whether a run that a claim asks for is not finished."""
    finished = {*zip(runs["method"], runs["task"], runs["seed"], strict=True)}
    return bool({*product(methods_of(claim), tasks_of(claim, file), file.seeds)} - finished)


def findings_of_measures(claim: NumberClaim, file: ClaimsFile, runs: pd.DataFrame) -> list[Finding]:
    """Decide the measure of the predictions of every method of a claim."""
    tasks = tasks_of(claim, file)
    runs = runs[runs["task"].isin(tasks)]
    level = LEVEL / len(claim.methods)
    findings = []
    for method in claim.methods:
        of_method = runs[runs["method"] == method]
        label = label_of("methods", method)
        notes = [
            f"{label} on {label_of('tasks', task)}: {text}"
            for (_, task), texts in notes_on(of_method).items()
            for text in texts
        ]
        used = of_method[of_method["excluded_because"] == ""].dropna(subset="score")
        values = {str(task): [*group] for task, group in used.groupby("task")["score"]}
        entry = Finding(
            label, values, tasks, frozenset(used["path"]), notes=notes, published=claim.stated
        )
        findings.append(decide_comparison(entry, *bounds(claim), level))
    return findings


def _at_chance(study: Study, pairs: pd.DataFrame) -> str:
    """Why a task decides nothing about two methods' pairs of runs; empty: it may decide, as where no prediction is stored.

    The rule: their mean score is less than 3 points or less than two standard errors over the
    examples above the best score of one class for every example (of accuracy: the majority class).
    Where F1 is the score, the accuracy of what is stored counts: one class has an F1 of 81 on MRPC.
    """
    run = pairs.iloc[0]
    metric, stored = run["metric_first"], study.usable_predictions(run["path_first"])
    name, mean = "score", float(pairs[["score_first", "score_second"]].to_numpy().mean())
    takes_labels = metric in METRICS and METRICS[metric].needs == "labels"
    if stored is None or not takes_labels or metric == "f1_micro":
        return ""
    if metric == "f1":
        paths = [*pairs["path_first"], *pairs["path_second"]]
        predicted = [
            table for path in paths if (table := study.usable_predictions(path)) is not None
        ]
        is_correct = pd.concat(predicted).eval("label == prediction")
        metric = name = "accuracy"
        mean = 100 * float(is_correct.mean())
    words = registry.load("tasks", run["task"]).get("labels", [])
    numbers = stored["label"].map(lambda label: words.index(label) if label in words else label)
    labels = numbers.to_numpy(dtype=float)
    score: Any = METRICS[metric].function
    constant = max(score(labels, np.full_like(labels, label)) for label in np.unique(labels))
    # of a correlation of 0 the second
    error = (constant * (1 - constant) / len(labels)) ** 0.5 or len(labels) ** -0.5
    if mean - 100 * constant >= max(CHANCE_POINTS, 200 * error):
        return ""
    return f"its mean {name} of {mean:.1f} is not clearly above {100 * constant:.1f}, which one class for every example has"


def number_of_figure(
    claim: NumberClaim, study: Study, protocol: str, backbone: str
) -> tuple[list[Finding], list[str]]:
    """Decide the number that a figure's CSV has, or return the command that computes the figure."""
    figure = figure_spec.load(claim.figure, protocol=protocol, backbone=backbone)
    path = figure.csv(study.directory)
    if not path.is_file():
        is_usual = backbone == figure_spec.load(claim.figure, protocol=protocol).backbone
        words = [*([] if is_usual else ["--backbone", backbone]), "--protocol", protocol]
        return [Finding(claim.figure, {})], ["hifi", "figure", claim.figure, *words]
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
    return [decide_comparison(entry, *bounds(claim), is_ratio=claim.is_ratio)], []


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
    return claim.scale * numbers.agg(claim.take)


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


def decide_comparison(
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
        is_ratio: averaged and decided as logarithms.
    """
    groups, reason = [np.array(values) for values in entry.values.values()], entry.reason
    if not groups:
        return replace(entry, verdict="undecided" if reason else "not run")
    if is_ratio:
        groups = [np.log(np.maximum(values, 1e-9)) for values in groups]
        with np.errstate(divide="ignore"):  # the logarithm of no lower bound
            required, possible = np.log(np.maximum([required, possible], 0)).tolist()
    effect = float(np.mean([np.mean(values) for values in groups]))
    interval = mean_interval(groups)
    if not reason and len(groups) < len(entry.tasks):
        reason = f"{len(groups)} of {len(entry.tasks)} tasks"
    elif not reason and interval is None:
        reason = "a task has one seed"
    verdict = "undecided" if reason else verdict_of_interval(groups, required, possible, level)
    if verdict == "undecided":
        reason = reason or _why_undecided(groups, required, possible, level)
    elif verdict == "not reproduced" and interval and interval[0] > required[0] > -inf:
        reason = f"there is a difference, but smaller than {possible[0]:.3g}"
    if is_ratio:
        effect, *interval = np.exp([effect, *(interval or ())]).tolist()
    return replace(
        entry,
        verdict=verdict,
        effect=effect,
        interval=interval,
        reason=reason,
    )


def verdict_of_interval(
    groups: Groups, required: Bounds, possible: Bounds, level: float = LEVEL
) -> Verdict:
    """The verdict of the differences of several tasks."""
    negated = [[-value for value in values] for values in groups]
    is_below = possible[0] > -inf and shows_above(negated, -possible[0], level)
    if is_below or (possible[1] < inf and shows_above(groups, possible[1], level)):
        return "not reproduced"
    is_above = required[0] == -inf or shows_above(groups, required[0])
    is_inside = is_above and (required[1] == inf or shows_above(negated, -required[1]))
    return "reproduced" if is_inside else "undecided"


def _why_undecided(groups: Groups, required: Bounds, possible: Bounds, level: float) -> str:
    """Which of the two that must agree shows nothing."""
    if 2.0 ** (1 - sum(map(len, groups))) >= LEVEL:  # the smallest p
        return "too few seeds for the sign-flip test"
    low, high = mean_interval(groups) or (-inf, inf)
    least, most = mean_interval(groups, level) or (-inf, inf)
    is_inside = required[0] < low and high < required[1]
    if is_inside or most < possible[0] or least > possible[1]:
        return "the sign-flip test does not agree with the interval"
    return "interval too wide"


def verdict_of_claim(findings: Sequence[Finding]) -> tuple[Verdict, str]:
    """The verdict on a claim, and why: reproduced if every comparison is, not reproduced if one is not."""
    verdicts = [finding.verdict for finding in findings]
    not_run = verdicts.count("not run")
    if 0 < not_run < len(findings) and "not reproduced" not in verdicts:
        return "undecided", f"{not_run} of {len(findings)} comparisons not run"
    order: list[Verdict] = ["not reproduced", "not run", "undecided", "reproduced"]
    verdict = min(verdicts, key=order.index)
    return verdict, next((each.reason for each in findings if each.verdict == verdict), "")


# Published numbers


def published_effect(
    claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str
) -> tuple[float | None, list[str]]:
    """The published difference of two methods over exactly the compared tasks, and why it may not count."""
    table = load_published(str(claim.published))[1]
    differences = {}
    for task, column in columns_of(str(claim.published)).items():
        own, other = table.mean(first, column), table.mean(second, column)
        if isinstance(own, float) and isinstance(other, float) and (not tasks or task in tasks):
            differences[column] = own - other
    if len(differences) < max(1, len(tasks)):
        return None, ["the published cells cannot all be read"]
    value = float(np.mean([*differences.values()]))
    doubts = [f"of {table.backbone}"] if table.backbone != backbone else []
    doubts += [f"on the {table.split}"] if table.split and table.split != "validation" else []
    if value <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    doubts += [
        f"possible misprint, {label_of('methods', row)}: {note}"
        for row in (first, second)
        for column, note in table.rows[row].cell_notes.items()
        if column in (*differences, "average")
    ]
    return value, doubts


def most_telling(findings: Sequence[Finding], verdict: Verdict) -> Finding:
    """Of several comparisons the one with the claim's verdict and the smallest effect."""
    known = [finding for finding in findings if finding.effect is not None]
    of_verdict = [finding for finding in known if finding.verdict == verdict]
    return min(of_verdict or known or findings, key=lambda each: each.effect or 0.0)
