"""Comparisons of methods, paired over seeds within tasks, with a sentence on what can be concluded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hifi_cli.config.choices import Score
from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError
from hifi_cli.reports import run_filter
from hifi_cli.reports.effect_statistics import equivalence
from hifi_cli.reports.proportions import Failures, equal_rates_p
from hifi_cli.reports.run_pairs import PairedRuns, paired
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.statistics import LEVEL, PairedStatistics, holm, paired_statistics, pairs_needed, smallest_p
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow, signed_cell
from hifi_cli.wording import counted_noun

VerdictWord = Literal["better", "worse", "no difference shown", "no conclusion", "depends on collapsed runs"]

NUMBERS = (
    "Mean: mean over tasks of each task's mean over seeds; 95 % interval: t-interval from the spread over seeds within each"
    " task; p: exact two-sided sign-flip test of the mean; all of them are about these tasks and new seeds;"
    " Collapsed, Failed: runs of the first / of the other method, Failed with Wilson's 95 % interval of the rate"
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two methods, when others are compared at the same time.

    Attributes:
        corrected_p: p after Holm's correction.
        other_ps: uncorrected p of the other comparisons.
    """

    pairs: PairedRuns
    statistics: PairedStatistics
    corrected_p: float
    other_ps: list[float]


@dataclass(frozen=True)
class Conclusion:
    """What a comparison allows to conclude.

    Attributes:
        word: about the first method, for programs.
        sentence: for readers.
    """

    word: VerdictWord
    sentence: str


def compare(
    records: Sequence[RunRecord],
    methods: Sequence[str],
    *,
    tasks: Sequence[str],
    score: Score | None,
    counted: frozenset[str],
    margin: float | None = None,
) -> tuple[Table, list[Comparison]]:
    """Compare the first method with each of the others, correct for their number, and say what can be concluded.

    Args:
        margin: if given, say whether the methods are shown to be equal up to so many points.

    Raises:
        MissingError: a comparison has no pair.
    """

    def pairs_of(counted: frozenset[str]) -> list[PairedRuns]:
        return [paired(records, methods[0], other, tasks=tasks, score=score, counted=counted) for other in methods[1:]]

    with_collapsed, without_collapsed = pairs_of(counted | {"collapsed"}), pairs_of(counted - {"collapsed"})
    chosen = with_collapsed if "collapsed" in counted else without_collapsed
    for pairs in chosen:
        if not pairs.differences:
            reason = f": {'; '.join(pairs.notes)}" if pairs.notes else "; make them with hifi train"
            raise MissingError(f"{pairs.first} and {pairs.second} share no task and seed with a usable run{reason}")
    tasks = sorted({task for pairs in chosen for task in pairs.differences})
    headings = [
        TableHeading("Verdict"),
        *(TableHeading(label_of("tasks", task), 2, name=task) for task in tasks),
        TableHeading("Mean", 2),
        TableHeading("SD over tasks", 2, name="std_over_tasks"),
    ]
    headings += [
        TableHeading("95 % interval", name="interval"),
        TableHeading("Pairs", 0),
        TableHeading("p", 4),
        TableHeading("p (Holm)", 4, name="p_holm"),
        TableHeading("Collapsed"),
        TableHeading("Failed"),
    ]
    all_comparisons, sound_comparisons = compare_pairs(with_collapsed), compare_pairs(without_collapsed)
    rows, sentences, comparisons = [], [], compare_pairs(chosen)
    for number, main in enumerate(comparisons):
        collapsed = with_collapsed[number].collapsed
        failures = _failures(main.pairs, records, counted)
        if any(collapsed):
            conclusion = _both_verdicts(all_comparisons[number], sound_comparisons[number], collapsed, failures)
        else:
            conclusion = verdict(main, failures)
        rows.append(_row(main, collapsed, failures, tasks, conclusion.word))
        compared = f"{' and '.join(main.pairs.labels)} {_tasks_and_seeds(main.pairs)}"
        sentences.append(f"{compared}: {conclusion.sentence}{_difference_between_tasks(main)}")
        sentences += _equivalence(main, margin) + _failure_test(main, failures)
    few = "" if records[0].shots == "full" else f", {records[0].shots}-shot"
    left_out = dict.fromkeys(note for pairs in chosen for note in pairs.notes)
    setting = f"protocol {records[0].result.protocol}, backbone {records[0].result.backbone}{few}"
    table = Table(
        title=f"{label_of('methods', methods[0])} minus each other method, in points ({setting})",
        headings=headings,
        rows=rows,
        corner="Minus",
        notes=[*sentences, NUMBERS, *_caveats(records, score), *left_out],
    )
    return table, comparisons


def _failures(pairs: PairedRuns, records: Sequence[RunRecord], counted: frozenset[str]) -> tuple[Failures, Failures]:
    """Count the failed runs of both methods on the tasks that are compared, runs without a partner included."""
    runs = [record for record in records if record.method_and_task[1] in pairs.runs]
    first, second = (
        run_filter.failures([record for record in runs if record.method_and_task[0] == name], counted)
        for name in (pairs.first, pairs.second)
    )
    return first, second


def _failure_test(comparison: Comparison, failures: tuple[Failures, Failures]) -> list[str]:
    """Return a sentence that compares how often runs of both methods failed; nothing where none did."""
    if not any(side.failed for side in failures):
        return []
    p, labels = equal_rates_p(*failures), comparison.pairs.labels
    conclusion = "one method fails more often" if p < LEVEL else "no difference in how often they fail is shown"
    counts = " and ".join(f"{label} {side}" for label, side in zip(labels, failures, strict=True))
    return [
        f"runs that collapsed or diverged, with 95 % interval of the rate: {counts}; {conclusion} (Fisher's exact test,"
        f" p = {p:.3g})"
    ]


def _equivalence(comparison: Comparison, margin: float | None) -> list[str]:
    """Return a sentence on equality up to a margin; nothing without one."""
    if margin is None:
        return []
    result = equivalence(comparison.pairs.groups, margin)
    labels = " and ".join(comparison.pairs.labels)
    if result is None or result.p is None:
        return [f"{labels}: equality up to {margin:g} points cannot be tested: a task has one pair"]
    shown = "are equal up to" if result.p < LEVEL else "are not shown to be equal up to"
    return [
        f"{labels} {shown} {margin:g} points (two one-sided t-tests, p = {result.p:.3g}; shown for a margin of"
        f" {result.smallest_margin:.2f} or more)"
    ]


def compare_pairs(all_pairs: Sequence[PairedRuns]) -> list[Comparison]:
    """Make several comparisons at once, corrected for their number."""
    statistics = [paired_statistics(pairs.groups) for pairs in all_pairs]
    ps = [comparison.p for comparison in statistics]
    corrected = holm(ps)
    return [
        Comparison(pairs, statistics[number], corrected[number], ps[:number] + ps[number + 1 :])
        for number, pairs in enumerate(all_pairs)
    ]


def verdict(comparison: Comparison, failures: tuple[Failures, Failures]) -> Conclusion:
    """Say what can be concluded from one comparison, and what cannot.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and any distribution of
    symmetric differences, the interval says how large the difference may be.
    """
    statistics, corrected_p = comparison.statistics, comparison.corrected_p
    after_holm = " after Holm's correction" if comparison.other_ps else ""
    smallest = holm([smallest_p(statistics.differing), *comparison.other_ps])[0]
    if smallest >= LEVEL:
        pairs = counted_noun(statistics.pairs, "pair")
        differing = "" if statistics.differing == statistics.pairs else f", of which {statistics.differing} differ,"
        return Conclusion(
            "no conclusion",
            f"no conclusion about which is better: with {pairs}{differing} this test cannot reach p < {LEVEL:g}"
            f" (smallest possible p: {smallest:.3g}{after_holm}); at least"
            f" {pairs_needed(comparison.other_ps)} pairs that differ are required",
        )
    p = f"p = {corrected_p:.3g}{after_holm}"
    if corrected_p >= LEVEL or not statistics.excludes_zero:
        reason = p if corrected_p >= LEVEL else f"{p}, but the interval contains 0"
        disagree = statistics.p >= LEVEL and _has_width(statistics) and statistics.excludes_zero
        more = ", which does not contain 0: another test could show a difference" if disagree else ""
        interval = f"{_interval(statistics)}{more}"
        sentence = f"this test shows no difference ({reason}), which does not mean that they are equal; {interval}"
        return Conclusion("no difference shown", sentence)
    return _better(comparison, failures, f"by {abs(statistics.mean):.2f} points on average ({_interval(statistics)}, {p})")


def _better(comparison: Comparison, failures: tuple[Failures, Failures], size: str) -> Conclusion:
    """Return the verdict for the method with the higher scores, unless it diverged more often than the other."""
    methods = list(zip(comparison.pairs.labels, failures, strict=True))
    (label, runs), (other_label, others_runs) = methods if comparison.statistics.mean > 0 else methods[::-1]
    if runs.diverges_more(others_runs):
        return Conclusion(
            "no conclusion",
            f"no conclusion: {label} is ahead {size}, but {runs.diverged} of its {runs.runs} runs diverged, compared with"
            f" {others_runs.diverged} of {others_runs.runs} of {other_label}, and a diverged run has no score",
        )
    several = len(comparison.pairs.differences) > 1
    scope, others = ("these tasks", "encoders") if several else ("this task", "tasks, encoders")
    sentence = f"{label} is better on {scope} {size}; this says nothing about other {others} or settings"
    return Conclusion("better" if comparison.statistics.mean > 0 else "worse", sentence)


def _both_verdicts(
    everything: Comparison, sound: Comparison, collapsed: tuple[int, int], failures: tuple[Failures, Failures]
) -> Conclusion:
    """Return the verdicts with and without the pairs that have a collapsed run: the two may differ."""
    labels = everything.pairs.labels
    sound_pairs = f"{counted_noun(sound.statistics.pairs, 'pair')} on {counted_noun(len(sound.pairs.differences), 'task')}"
    conclusions = verdict(everything, failures), verdict(sound, failures)
    same = conclusions[0].word == conclusions[1].word
    return Conclusion(
        conclusions[0].word if same else "depends on collapsed runs",
        f"{collapsed[0]} of {labels[0]}'s and {collapsed[1]} of {labels[1]}'s {everything.statistics.pairs} runs collapsed."
        f" With them: {conclusions[0].sentence}. Without them ({sound_pairs}): {conclusions[1].sentence}",
    )


def _interval(statistics: PairedStatistics) -> str:
    if statistics.interval is None:
        return "no interval: a task with one pair has no spread over seeds"
    if not _has_width(statistics):
        return "all differences within a task are equal, so the interval has zero width"
    return f"95 % interval of the mean difference {_span(statistics)} points"


def _span(statistics: PairedStatistics) -> str | None:
    if statistics.interval is None:
        return None
    return f"{statistics.interval[0]:+.2f} to {statistics.interval[1]:+.2f}" if _has_width(statistics) else "zero width"


def _has_width(statistics: PairedStatistics) -> bool:
    return statistics.interval is not None and statistics.interval[0] < statistics.interval[1]


def _row(
    comparison: Comparison,
    collapsed: tuple[int, int],
    failures: tuple[Failures, Failures],
    tasks: list[str],
    verdict: VerdictWord,
) -> TableRow:
    statistics, differences = comparison.statistics, comparison.pairs.differences
    means = [list(differences.get(task, {}).values()) for task in tasks]
    cells = [signed_cell(sum(values) / len(values)) if values else TableCell() for values in means]
    numbers = [
        TableCell(statistics.spread),
        TableCell(text=_span(statistics), value=statistics.interval),
        TableCell(float(statistics.pairs)),
        _p_cell(statistics.p),
        _p_cell(comparison.corrected_p),
    ]
    return TableRow(
        comparison.pairs.labels[1],
        (
            TableCell(text=verdict),
            *cells,
            signed_cell(statistics.mean),
            *numbers,
            TableCell(text=f"{collapsed[0]} / {collapsed[1]}", value=collapsed),
            TableCell(text=" / ".join(map(str, failures)), value=[side.values for side in failures]),
        ),
        method=comparison.pairs.second,
        verdict=verdict,
    )


def _p_cell(p: float) -> TableCell:
    return TableCell(p, text="< 0.0001" if p < 0.0001 else None)


def _tasks_and_seeds(pairs: PairedRuns) -> str:
    tasks = [label_of("tasks", task) for task in pairs.differences]
    seeds = len({seed for differences in pairs.differences.values() for seed in differences})
    return f"on {', '.join(tasks)} ({counted_noun(len(tasks), 'task')}, {counted_noun(seeds, 'seed')})"


def _difference_between_tasks(comparison: Comparison) -> str:
    """Say how far the tasks differ, and what follows for other tasks; empty for one task."""
    interval = comparison.statistics.over_tasks
    if interval is None:
        return ""
    differences = comparison.pairs.differences
    means = {label_of("tasks", task): sum(seeds.values()) / len(seeds) for task, seeds in differences.items()}
    low, high = min(means, key=lambda task: means[task]), max(means, key=lambda task: means[task])
    conclusion = "" if interval[0] * interval[1] > 0 else ": no difference is shown for other tasks"
    return (
        f"; the mean difference per task is between {means[low]:+.2f} ({low}) and {means[high]:+.2f} ({high}); if these were a"
        f" random sample of tasks, the 95 % interval would be {interval[0]:+.2f} to {interval[1]:+.2f} points{conclusion}"
    )


def _caveats(records: Sequence[RunRecord], score: Score | None) -> list[str]:
    """Name what makes the scores of both methods too high."""
    chosen = {(score or record.result.report, record.result.selection) for record in records}
    if not any(name == "max" or (name == "best" and selection == "validation") for name, selection in chosen):
        return []
    return ["the epoch was chosen on the reported split, so all scores are slightly too high; --score last avoids this"]
