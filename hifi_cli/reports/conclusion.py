"""The conclusion of a report in words: the highest method of each task, and which differences are decided.

The verdicts are those of `compare.py`, and the sentences say no more than they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.paired_tests import (
    LEVEL,
    mean_interval,
    seeds_needed,
    smallest_number_of_pairs,
)
from hifi_cli.reports.comparable import ComparableRuns, note_on_epochs
from hifi_cli.reports.compare import Comparison, concluded
from hifi_cli.reports.pairs import Pairs, pair
from hifi_cli.tasks.metrics import heading_of, is_lower_better, within_range
from hifi_cli.text import counted_noun, format_number

NO_SCORE = "No run has a score that counts."
COLLAPSED = (
    "Every run collapsed to one class: no method is ahead, and more seeds do not help."
    " Train longer, or change the learning rate."
)
ONE_SEED = "Each method has one seed, from which nothing can be said."
RULE = (
    "decided: the 95 % interval of the difference excludes 0, and the exact sign-flip test agrees; undecided does not"
    " mean equal, and the highest mean alone decides nothing"
)
MORE_SEEDS = (
    "at least N more seeds: with fewer the test decides nothing; about N more seeds: these would show a difference as"
    " large as now"
)


@dataclass(frozen=True)
class Finding:
    """The sentences about one task, or about all tasks together.

    Attributes:
        subject: the task with its metric, or all tasks.
        sentences: in the order of the page.
    """

    subject: str
    sentences: list[str]


@dataclass(frozen=True)
class Conclusion:
    """The findings on the runs of one protocol, backbone and number of shots.

    Attributes:
        title: these three.
        findings: one for all tasks together, then one for each task.
        notes: how the findings were decided.
    """

    title: str
    findings: list[Finding]
    notes: list[str]


def conclude(title: str, runs: ComparableRuns, reference: str) -> Conclusion:
    """Return in words what some runs show.

    Args:
        title: protocol, backbone and shots of the runs.
        runs: their rows are methods.
        reference: the method that the others are compared with.
    """
    scored = runs.usable.dropna(subset="points")
    tasks = sorted(set(scored["task"]))
    if not tasks:
        return Conclusion(title, [Finding(NO_SCORE, [])], [])
    findings = []
    has_several_seeds = scored.groupby(["task", "method"]).size().gt(1).any()
    if len(tasks) > 1 and has_several_seeds:
        together = concluded(_pairs(runs, reference))
        sentences = _on_differences(together, LEVEL / max(1, len(together)), reference)
        findings.append(Finding("All tasks together, those that both methods have", sentences))
    # The differences of all tasks are tested together, because a reader looks at all of them.
    pairs_by_task = []
    for task in tasks:
        pairs_by_task += _pairs(runs.of_tasks([task]), reference)
    by_task = concluded(pairs_by_task)
    for task in tasks:
        of_task = [each for each in by_task if task in each.pairs.by_task]
        sentences = _on_scores(runs.of_tasks([task]))
        if sentences not in ([ONE_SEED], [COLLAPSED]):
            sentences += _on_differences(of_task, LEVEL / max(1, len(by_task)), reference)
        findings.append(Finding(_subject(scored, task), sentences))
    notes = [RULE]
    if by_task:
        notes += [MORE_SEEDS, _note_on_correction(len(by_task))]
    return Conclusion(title, findings, notes + note_on_epochs(scored))


def _note_on_correction(count: int) -> str:
    """Return a note on how p is corrected by task.

    Args:
        count: comparisons by task, all of which are corrected together.
    """
    among = counted_noun(count, "comparison")
    return (
        f"by task, p is corrected (Holm) for the {among} of all tasks; hifi compare --tasks NAME corrects for those of"
        " one task"
    )


def _subject(scored: pd.DataFrame, task: str) -> str:
    """Return the labels of a task and its metric, as tables head their columns."""
    metric = scored["metric"][scored["task"] == task].iloc[0]
    return f"{label_of('tasks', task)} ({heading_of(metric)})"


def _pairs(runs: ComparableRuns, reference: str) -> list[Pairs]:
    """Pair each other method with the reference; a method that shares no run with it is left out."""
    found = []
    for method in sorted(set(runs.usable["method"]) - {reference}):
        pairs = pair(runs, method, reference)
        if len(pairs.frame):
            found.append(pairs)
    return found


# --- scores


def _on_scores(runs: ComparableRuns) -> list[str]:
    """Return sentences on which method has the highest mean, where a run learnt anything.

    Args:
        runs: those of one task.
    """
    scored = runs.usable.dropna(subset="points")
    points = {str(method): [*rows["points"]] for method, rows in scored.groupby("method")}
    if scored["collapsed"].all():
        return [COLLAPSED]
    if max(map(len, points.values())) == 1:
        return [ONE_SEED]
    # Runs under other conditions than most are ranked with them in no table either.
    for method in runs.mismatches_with_majority():
        points.pop(method, None)
    means = {method: float(np.mean(values)) for method, values in points.items()}
    word = "Highest mean"
    best = max(means.values())
    if is_lower_better(scored["metric"].iloc[0]):
        word = "Lowest mean"
        best = min(means.values())
    # Equal printed numbers are equal, as in tables.
    first = [method for method, mean in means.items() if _printed(mean) == _printed(best)]
    described = [_described(runs, method, points[method]) for method in first]
    return [f"{word}: {'; '.join(described)}."]


def _described(runs: ComparableRuns, method: str, points: list[float]) -> str:
    """Return a method in words: its mean, interval and number of seeds.

    Args:
        runs: those of one task.
        method: its name.
        points: its scores.
    """
    of_method = runs.frame[runs.frame["method"] == method]
    facts = [counted_noun(len(points), "seed")]
    interval = mean_interval([points])
    if interval:
        low, high = within_range(*interval, of_method["metric"].iloc[0])
        facts.insert(0, f"95 % interval {_printed(low)} to {_printed(high)}")
    diverged = int((of_method["status"] != "done").sum())
    if diverged:
        facts.append(f"{counted_noun(diverged, 'run')} diverged")
    collapsed = int(of_method["collapsed"][of_method["excluded_because"] == ""].sum())
    if collapsed:
        facts.append(f"{counted_noun(collapsed, 'run')} collapsed to one class")
    label = runs.label_of_row(method)
    return f"{label}, {_printed(float(np.mean(points)))} ({', '.join(facts)})"


def _printed(points: float) -> str:
    """Write a score as tables print it."""
    return format_number(points, "z.1f")


# --- differences


def _on_differences(comparisons: Sequence[Comparison], level: float, reference: str) -> list[str]:
    """Return sentences on which differences are decided, and what the others lack.

    Args:
        comparisons: of other methods with the reference, of one task or of all tasks together.
        level: of one comparison among all that were corrected together.
        reference: the method that the others are compared with.
    """
    if not comparisons:
        label = label_of("methods", reference)
        return [f"No other method shares a seed with {label}, so that no difference is tested."]
    label = comparisons[0].pairs.labels[1]
    decided = []
    undecided: dict[str, list[str]] = {}
    # The methods that gain most come first.
    for comparison in sorted(comparisons, key=lambda each: -each.statistics.mean):
        if comparison.verdict in ("better", "worse"):
            decided.append(_difference_in_words(comparison))
        else:
            lacking = _lacking(comparison, level)
            undecided.setdefault(lacking, []).append(comparison.pairs.labels[0])
    sentences = ["No difference is decided."]
    if decided:
        sentences = [f"Decided: {'; '.join(decided)}."]
    if undecided:
        parts = [f"{', '.join(labels)} ({lacking})" for lacking, labels in undecided.items()]
        sentences.append(f"Undecided against {label}: {'; '.join(parts)}.")
    return sentences


def _difference_in_words(comparison: Comparison) -> str:
    """Return a decided difference with its interval in words."""
    first, second = comparison.pairs.labels
    mean = comparison.statistics.mean
    side = "above" if mean > 0 else "below"
    # Without an interval nothing is decided.
    assert comparison.statistics.interval
    low, high = comparison.statistics.interval
    ends = f"{format_number(low, '+.2f')} to {format_number(high, '+.2f')}"
    points = format_number(abs(mean), ".2f")
    return f"{first} is {points} points {side} {second} (95 % interval {ends})"


def _lacking(comparison: Comparison, level: float) -> str:
    """Return what an undecided comparison lacks: seeds, where their number is known.

    Args:
        comparison: the pairs of two methods.
        level: of one comparison among all that were corrected together.
    """
    groups = [*comparison.pairs.by_task.values()]
    if comparison.pairs.all_collapsed:
        return "every run collapsed to one class"
    if comparison.statistics.interval is None and comparison.p < LEVEL:
        return "one seed on a task shows no spread"
    if comparison.verdict == "no conclusion" and comparison.p < LEVEL:
        return comparison.why
    differing = int(np.count_nonzero(comparison.statistics.terms))
    lacking_pairs = smallest_number_of_pairs(level) - differing
    if comparison.p >= LEVEL and lacking_pairs > 0:
        # A seed adds a pair on each task.
        seeds = ceil(lacking_pairs / len(groups))
        return f"at least {counted_noun(seeds, 'more seed')}"
    needed = seeds_needed(groups, level=level)
    if needed is None:
        return "no difference shown"
    # A task may lack seeds that another one has: none of those counts as new.
    more = needed - max(map(len, groups))
    return f"about {counted_noun(more, 'more seed')}"
