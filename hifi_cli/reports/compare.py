"""`hifi compare`: one method with others, paired over tasks and seeds, or two runs by their predictions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.reports import pairs as run_pairs
from hifi_cli.reports import predictions
from hifi_cli.reports.pairs import COUNTED, Pairs
from hifi_cli.reports.table import TableCell, TableHeading, TableRow, VerdictTable, signed_cell
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.study import Study
from hifi_cli.statistics import (
    LEVEL,
    RESAMPLES,
    PairedStatistics,
    bootstrap_interval,
    equivalence,
    holm,
    paired_statistics,
    pairs_needed,
    seeds_needed,
    smallest_p,
)
from hifi_cli.tasks.metrics import METRICS
from hifi_cli.wording import counted_noun

VerdictWord = Literal["better", "worse", "no difference shown", "no conclusion", "depends on collapsed runs"]
NUMBERS = (
    "difference: mean over tasks of each task's mean over seeds, in points; 95 % t-interval and exact sign-flip test, about"
    " these tasks and new seeds"
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two methods, when others are compared at the same time.

    Attributes:
        corrected_p: p after Holm's correction.
        other_ps: uncorrected p of the other comparisons.
    """

    pairs: Pairs
    statistics: PairedStatistics
    corrected_p: float
    other_ps: list[float]


def compare(
    study: Study,
    runs: pd.DataFrame,
    methods: Sequence[str],
    *,
    tasks: Sequence[str] = (),
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
    margin: float | None = None,
    details: bool = False,
) -> list[VerdictTable]:
    """Compare the first method with each of the others: verdicts, differences per task, and further numbers with `details`.

    Args:
        runs: rows of `Study.runs`, of one setting.
        margin: if given, say whether the methods are shown to be equal up to so many points.

    Raises:
        MissingError: a comparison has no pair.
    """
    first, others = methods[0], methods[1:]
    all_pairs = [run_pairs.pair(study, runs, first, other, tasks=tasks, score=score, counted=counted) for other in others]
    for pairs in all_pairs:
        if pairs.frame.empty:
            reason = f": {'; '.join(pairs.notes)}" if pairs.notes else "; make them with hifi train"
            raise MissingError(f"{pairs.first} and {pairs.second} share no task and seed with a usable run{reason}")
    comparisons = _corrected(all_pairs)
    sound = _corrected([_without_collapsed(pairs) for pairs in all_pairs])
    verdicts = [_verdict_both_ways(*both) for both in zip(comparisons, sound, strict=True)]
    title = f"{label_of('methods', first)} minus each other method"
    table = VerdictTable(
        title=f"{title}, in points ({_setting(runs)})",
        headings=[
            TableHeading("Verdict"),
            TableHeading("Difference", name="mean"),
            TableHeading("95 % interval", name="interval"),
            TableHeading("p" if len(others) == 1 else "p (Holm)", name="p_holm"),
        ],
        rows=[_row(comparison, word) for comparison, (word, _) in zip(comparisons, verdicts, strict=True)],
        corner="Minus",
        notes=[
            *(sentence for _, sentence in verdicts),
            *(_equality(pairs, margin) for pairs in all_pairs if margin is not None),
            NUMBERS,
            *_caveats(study, runs, score),
            *dict.fromkeys(note for pairs in all_pairs for note in pairs.notes),
        ],
    )
    tables = [table, _per_task(title, all_pairs)]
    return [*tables, _details(title, comparisons)] if details else tables


def _setting(runs: pd.DataFrame) -> str:
    run = next(runs.itertuples())
    few = f", {run.shots:.0f}-shot" if pd.notna(run.shots) else ""
    return f"protocol {run.protocol}, backbone {run.backbone}{few}"


def _without_collapsed(pairs: Pairs) -> Pairs:
    frame = pairs.frame
    return replace(pairs, frame=frame[~frame["collapsed_first"] & ~frame["collapsed_second"]])


def _corrected(all_pairs: Sequence[Pairs]) -> list[Comparison]:
    """Make several comparisons at once, corrected for their number."""
    statistics = [paired_statistics(pairs.groups) for pairs in all_pairs]
    ps = [comparison.p for comparison in statistics]
    corrected = holm(ps)
    return [
        Comparison(pairs, statistics[number], corrected[number], ps[:number] + ps[number + 1 :])
        for number, pairs in enumerate(all_pairs)
    ]


def _verdict_both_ways(everything: Comparison, sound: Comparison) -> tuple[VerdictWord, str]:
    """Return the verdicts with and without the pairs that have a collapsed run: the two may differ."""
    pairs = everything.pairs
    collapsed = int(pairs.frame["collapsed_first"].sum()), int(pairs.frame["collapsed_second"].sum())
    word, sentence = verdict(everything)
    if not any(collapsed):
        return word, sentence
    other_word, other = verdict(sound)
    counts = " and ".join(f"{count} of {label}'s" for count, label in zip(collapsed, pairs.labels, strict=True))
    same = word == other_word
    return (
        word if same else "depends on collapsed runs",
        f"{counts} {everything.statistics.pairs} runs collapsed. With them: {sentence}. Without them: {other}",
    )


def verdict(comparison: Comparison) -> tuple[VerdictWord, str]:
    """Say what can be concluded from one comparison: a word about the first method, and a sentence.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and any distribution of
    symmetric differences, the interval says how large the difference may be.
    """
    statistics, pairs, p = comparison.statistics, comparison.pairs, comparison.corrected_p
    labels = " and ".join(pairs.labels)
    runs = f"{counted_noun(pairs.frame['task'].nunique(), 'task')}, {counted_noun(pairs.frame['seed'].nunique(), 'seed')}"
    numbers = f"{statistics.mean:+.2f} {_interval(statistics.interval)}, p = {p:.3g}; {runs}"
    smallest = holm([smallest_p(statistics.differing), *comparison.other_ps])[0]
    if smallest >= LEVEL:
        counts = f"{counted_noun(statistics.pairs, 'pair')}, {statistics.differing} of which differ,"
        pairs_for_p = pairs_needed(comparison.other_ps)
        return "no conclusion", (
            f"{labels}: no conclusion, {counts} cannot reach p < {LEVEL:g} (smallest: {smallest:.3g}); {pairs_for_p} are needed"
        )
    if p >= LEVEL or not statistics.excludes_zero:
        seeds = seeds_needed(pairs.groups, 0.0, level=LEVEL / (1 + len(comparison.other_ps)))
        needed = f"; to show this difference, about {counted_noun(seeds, 'seed')} are needed" if seeds else ""
        return "no difference shown", f"{labels}: no difference shown ({numbers}), which is not equality{needed}"
    ahead = 0 if statistics.mean > 0 else 1
    better, worse = pairs.labels[ahead], pairs.labels[1 - ahead]
    if pairs.diverges_more(ahead):
        diverged = f"{pairs.diverged[ahead]} of its {pairs.finished[ahead]} runs diverged"
        others = f"{pairs.diverged[1 - ahead]} of {pairs.finished[1 - ahead]} of {worse}"
        return "no conclusion", (f"no conclusion: {better} is ahead ({numbers}), but {diverged}, {others}: these have no score")
    return ("better" if ahead == 0 else "worse"), f"{better} is better than {worse} ({numbers})"


def _interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "[no interval: a task has one pair]"
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"


def _row(comparison: Comparison, word: VerdictWord) -> TableRow:
    interval = comparison.statistics.interval
    return TableRow(
        comparison.pairs.labels[1],
        (
            TableCell(text=word),
            signed_cell(comparison.statistics.mean),
            TableCell(text=_interval(interval) if interval else None, value=interval),
            _p_cell(comparison.corrected_p),
        ),
        method=comparison.pairs.second,
        verdict=word,
    )


def _p_cell(p: float) -> TableCell:
    return TableCell(p, text="< 0.0001" if p < 0.0001 else f"{p:.4f}")


def _per_task(title: str, all_pairs: Sequence[Pairs]) -> VerdictTable:
    """Build the table of differences per task, a column per other method."""
    by_method = [pairs.by_task for pairs in all_pairs]
    rows = []
    for task in sorted({task for tasks in by_method for task in tasks}):
        values = [list(tasks[task].values()) if task in tasks else [] for tasks in by_method]
        cells = tuple(signed_cell(sum(seeds) / len(seeds)) if seeds else TableCell() for seeds in values)
        rows.append(TableRow(label_of("tasks", task), cells, method=task))
    headings = [TableHeading(pairs.labels[1], 2, name=pairs.second) for pairs in all_pairs]
    return VerdictTable(f"{title}, per task", headings, rows, corner="Task")


def _details(title: str, comparisons: Sequence[Comparison]) -> VerdictTable:
    rows = []
    for comparison in comparisons:
        statistics, groups = comparison.statistics, comparison.pairs.groups
        equal = equivalence(groups)
        cells = (
            TableCell(float(statistics.pairs)),
            TableCell(statistics.spread),
            _p_cell(statistics.p),
            TableCell(equal[1] if equal else None),
            TableCell(seeds_needed(groups, 0.0)),
        )
        rows.append(TableRow(comparison.pairs.labels[1], cells, method=comparison.pairs.second))
    headings = [
        TableHeading("Pairs", 0),
        TableHeading("SD over tasks", 2, name="std_over_tasks"),
        TableHeading("p (single)", name="p"),
        TableHeading("Equal within", 2),
        TableHeading("Seeds needed", 0),
    ]
    notes = [
        "equal within: the smallest margin at which two one-sided t-tests show equality; seeds needed: per task, for 80 % power"
        " to show this difference"
    ]
    return VerdictTable(f"{title}, details", headings, rows, "Minus", notes)


def _equality(pairs: Pairs, margin: float) -> str:
    """Return a sentence on equality up to a margin."""
    result, labels = equivalence(pairs.groups, margin), " and ".join(pairs.labels)
    if result is None or result[0] is None:
        return f"{labels}: equality within {margin:g} points cannot be tested, a task has one pair"
    shown = "equal" if result[0] < LEVEL else "not shown to be equal"
    return f"{labels} are {shown} within {margin:g} points (two one-sided t-tests, p = {result[0]:.3g})"


def _caveats(study: Study, runs: pd.DataFrame, score: Score | None) -> list[str]:
    """Name what makes the scores of both methods too high, and the runs that are not looked at."""
    notes = []
    chosen = {(score or report, selection) for report, selection in zip(runs["report"], runs["selection"], strict=True)}
    if any(name == "max" or (name == "best" and selection == "validation") for name, selection in chosen):
        notes.append(
            "the epoch was chosen on the reported split, so all scores are slightly too high; --score last avoids this"
        )
    same = ["protocol", "backbone", "method"]
    variants = study.runs[study.runs["variant"].notna()].merge(runs[same].drop_duplicates(), on=same)
    if len(variants):
        notes.append(f"{counted_noun(len(variants), 'run')} of searches and other variants left out")
    return notes


def of_runs(first: RunDirectory, second: RunDirectory) -> VerdictTable:
    """Compare two runs of one task by their predictions.

    Raises:
        MissingError: a run has no predictions.
        UsageError: the runs cannot be compared.
    """
    results = first.read_result(), second.read_result()
    task, metric = results[0].task, results[0].primary_metric
    if task != results[1].task:
        raise UsageError(f"the runs are of different tasks, {task} and {results[1].task}; compare runs of one task")
    for key in ("data", "split", "primary_metric"):
        if getattr(results[0], key) != getattr(results[1], key):
            raise UsageError(f"the runs differ in {key.replace('_', ' ')}; compare runs of the same data")
    if metric not in METRICS:
        raise UsageError(f"{task}: {metric} cannot be computed from single predictions")
    rows = [pd.DataFrame([row.model_dump() for row in run.read_predictions()]) for run in (first, second)]
    if not rows[0][["id", "label"]].equals(rows[1][["id", "label"]]):
        raise UsageError(f"{first.path} and {second.path} predict different examples; train one of them again")
    labels, ours = predictions.as_numbers(rows[0], first.path, task)
    _, theirs = predictions.as_numbers(rows[1], second.path, task)
    scores = [100 * METRICS[metric](labels, side) for side in (ours, theirs)]
    low, high = bootstrap_interval(METRICS[metric], labels, ours, theirs)
    shown = [TableRow(str(run.path), (TableCell(score),)) for run, score in zip((first, second), scores, strict=True)]
    notes = [
        f"first minus second: {scores[0] - scores[1]:+.2f} points {_interval((100 * low, 100 * high))} (95 % interval, paired"
        f" bootstrap of {len(labels):,} examples, {RESAMPLES:,} draws)",
        "about these two trained models and new examples; another seed may give another result",
    ]
    title = f"Two runs of {label_of('tasks', task)}, {metric} of the stored predictions"
    return VerdictTable(title, [TableHeading("Score", 2)], shown, "Run", notes)
