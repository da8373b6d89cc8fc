"""`hifi compare`: what pairs of runs say about two methods, or about two backbones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.paired_tests import (
    LEVEL,
    PairedStatistics,
    holm,
    paired_statistics,
    seeds_needed,
    smallest_number_of_pairs,
    smallest_p,
)
from hifi_cli.records.study import Study
from hifi_cli.reports.calibration import CHURN, MEASURES
from hifi_cli.reports.comparable import ComparableRuns, RowKey, is_of_held_out_rows, note_on_epochs
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.pairs import Pairs, pair
from hifi_cli.reports.row_differences import row_table
from hifi_cli.reports.table import Cell, Row, Table, interval_columns, value_column
from hifi_cli.reports.table_runs import note_on_variants, table_keys
from hifi_cli.text import counted_noun, format_interval

HEADINGS = {
    "verdict": "Verdict",
    "mean": "Difference",
    "interval": "95 % interval",
    "p_holm": "p (Holm)",
}
# Runs that predict one class have learnt nothing that a score could compare.
COLLAPSED = (
    "every run collapsed to one class, so that no method is ahead, and more seeds do not help: train longer,"
    " or change the learning rate"
)
# An interval without width next to p = 1 must not be read as equality that was shown.
NO_WIDTH = "an interval without width does not show equality: equal scores have no spread"
# One seed decides nothing, in claims and in the report too, on however many tasks it was trained.
ONE_SEED = "a task has one pair of runs alone, which shows no spread over seeds: train more seeds"
# The note below every table of verdicts: what the numbers are about.
NUMBERS = (
    "difference: mean over tasks of each task's mean over seeds; 95 % t-interval and exact sign-flip test, about"
    " these tasks and new seeds"
)


@dataclass(frozen=True)
class Comparison:
    """The conclusion from the pairs of the first method with another.

    Attributes:
        pairs: the paired runs.
        statistics: of their differences.
        p: of the sign-flip test, after Holm's correction for all comparisons.
        verdict: a word about the first method: better, worse, or why neither is said.
        why: what else a reader must know; empty: nothing.
    """

    pairs: Pairs
    statistics: PairedStatistics
    p: float
    verdict: str
    why: str


def compare(
    study: Study,
    runs: pd.DataFrame,
    names: Sequence[str],
    options: ReportOptions,
    *,
    by: RowKey = "method",
    metric: str | None = None,
    over_rows: bool = False,
) -> list[Table]:
    """Compare the first method with each of the others.

    Args:
        study: where the runs come from.
        runs: rows of `Study.runs`, of one protocol, backbone and number of shots.
        names: methods or backbones, the one to compare first.
        options: which epoch's score is meant, and which runs count.
        by: what the names are. Where they are backbones, the runs are those of one method.
        metric: what is compared; None: each run's primary metric.
        over_rows: add a third table, which tests each difference over the rows of the data.

    Returns:
        A table of verdicts, one of differences per task, and one over rows if it is asked for.

    Raises:
        MissingError: no comparison has a pair.
        UsageError: the metric is churn.
    """
    if metric == "churn":
        raise UsageError(CHURN)
    chosen = runs[runs[by].isin(names)]
    # Judged together, so that a run is excluded from all comparisons or from none.
    comparable = ComparableRuns.of(study, chosen, options, row_key=by, metric=metric)
    found = [pair(comparable, names[0], other) for other in names[1:]]
    lacking = _comparisons_without_pairs(found, metric)
    comparisons = concluded([pairs for pairs in found if len(pairs.frame)])
    if not comparisons:
        raise MissingError("; ".join(lacking) or f"{names[0]} has no method to be compared with")
    # All runs share protocol and shots, and method or backbone: any of them names these.
    run = next(chosen.itertuples())
    conditions = _conditions_in_words(run, by)
    title = f"{comparisons[0].pairs.labels[0]} minus each other {by}"
    notes = _notes(comparisons, lacking, comparable.frame, metric)
    shown = {key: set(chosen[key]) for key in ("protocol", "backbone", "task")}
    shots = table_keys(chosen)["shots"].iloc[0]
    notes += note_on_variants(study, shots, **shown)
    of_verdicts = f"{title}, in {metric or 'points'} {conditions}"
    tables = [
        _table_of_verdicts(of_verdicts, comparisons, metric, notes),
        # With the conditions, as a report lists the titles of several protocols and backbones.
        _table_per_task(f"{title}, per task {conditions}", comparisons, metric),
    ]
    if over_rows:
        all_pairs = [each.pairs for each in comparisons]
        tables.append(row_table(study, all_pairs, epoch_choice=options.epoch_choice, metric=metric))
    return tables


def _conditions_in_words(run: Any, by: RowKey) -> str:
    """Return what all compared runs share with a run, a row of `Study.runs`: `(protocol hifi, backbone x)`."""
    constant = f"backbone {run.backbone}"
    if by == "backbone":
        constant = f"method {run.method}"
    shots = ""
    if run.shots is not None:
        shots = f", {run.shots}-shot"
    return f"(protocol {run.protocol}, {constant}{shots})"


def concluded(all_pairs: Sequence[Pairs]) -> list[Comparison]:
    """Return every comparison with its verdict; each p is corrected for all of them."""
    statistics = [paired_statistics([*pairs.by_task.values()]) for pairs in all_pairs]
    corrected = holm([numbers.p for numbers in statistics])
    comparisons = []
    for pairs, numbers, p in zip(all_pairs, statistics, corrected, strict=True):
        word, why = verdict(pairs, numbers, p, level=LEVEL / len(all_pairs))
        comparisons.append(Comparison(pairs, numbers, p, word, why))
    return comparisons


def _comparisons_without_pairs(found: Sequence[Pairs], metric: str | None) -> list[str]:
    """Return a sentence on each comparison that has no pair of runs."""
    usable_run = f"usable run with {metric}" if metric else "usable run"
    sentences = []
    for pairs in found:
        if pairs.frame.empty:
            names = f"{pairs.first} and {pairs.second}"
            why = "; ".join(pairs.notes)
            sentences.append(f"{names} share no task and seed with a {usable_run}: {why}")
    return sentences


def verdict(
    pairs: Pairs, statistics: PairedStatistics, p: float, *, level: float
) -> tuple[str, str]:
    """Conclude something from one comparison.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and
    any distribution of symmetric differences, the interval says how large the difference may be.

    Args:
        pairs: the paired runs.
        statistics: of their differences.
        p: of the sign-flip test, after Holm's correction.
        level: of one comparison among all.

    Returns:
        A word about the first method, and what else a reader must know.
    """
    differing = int(np.count_nonzero(statistics.terms))
    equal = []
    if not differing and statistics.interval:
        equal = [NO_WIDTH]
    if pairs.all_collapsed:
        return "no conclusion", "; ".join([COLLAPSED, *equal])
    # Pairs without a difference have no sign. Holm's correction asks its first comparison for
    # p < `level`, so that number of pairs is asked for.
    if p >= LEVEL and smallest_p(differing) >= level:
        found = f"{differing} of {counted_noun(len(statistics.terms), 'pair')} of runs differ"
        rule = f"p < {LEVEL:g} takes at least {smallest_number_of_pairs(level)}"
        advice = f"{found}, and {rule}: train more seeds"
        reasons = [*_disagreement(statistics, p), advice, *equal]
        return "no conclusion", "; ".join(reasons)
    if p >= LEVEL or not statistics.excludes_zero:
        reasons = [*_disagreement(statistics, p), "no difference shown is not equality", *equal]
        needed = seeds_needed([*pairs.by_task.values()], level=level)
        if needed:
            reasons.append(f"about {needed} seeds would show one as large as now")
        return "no difference shown", "; ".join(reasons)
    # A difference is shown, and the pairs still say why it may not be the methods'.
    if pairs.doubt:
        return "no conclusion", pairs.doubt
    if statistics.interval is None:
        return "no conclusion", ONE_SEED
    return "better" if pairs.is_better else "worse", ""


def _disagreement(statistics: PairedStatistics, p: float) -> list[str]:
    """Return a sentence on which of interval and test shows a difference, where only one of them does.

    Args:
        statistics: of the differences.
        p: of the sign-flip test, after Holm's correction.
    """
    if statistics.interval is None:
        return []
    shown_by_test = p < LEVEL
    if statistics.excludes_zero and not shown_by_test:
        return [f"the interval excludes 0, but the sign-flip test has p = {p:.2g}"]
    if shown_by_test and not statistics.excludes_zero:
        return [f"the sign-flip test has p = {p:.2g}, but the interval includes 0"]
    return []


# --- what the tables show


def _digits(metric: str | None) -> int:
    """Return the decimals of a difference; measures of predictions are small numbers."""
    return 3 if metric in MEASURES else 2


def _table_of_verdicts(
    title: str, comparisons: Sequence[Comparison], metric: str | None, notes: list[str]
) -> Table:
    """Return a row for each comparison."""
    digits = _digits(metric)
    rows = []
    for comparison in comparisons:
        numbers = comparison.statistics
        interval = None
        if numbers.interval:
            low, high = numbers.interval
            interval = format_interval(low, high, f"+.{digits}f")
        cells = {
            "verdict": Cell(comparison.verdict),
            "mean": Cell(numbers.mean, interval=numbers.interval),
            "interval": Cell(interval),
            "p_holm": Cell(comparison.p),
            "pairs": Cell(len(numbers.terms)),
        }
        rows.append(Row(comparison.pairs.second, comparison.pairs.labels[1], "runs", cells))
    return Table(
        title=title,
        rows=rows,
        headings=HEADINGS,
        columns=[
            value_column("verdict"),
            value_column("mean"),
            *interval_columns("mean"),
            value_column("interval"),
            value_column("p_holm"),
            value_column("pairs"),
        ],
        index_title="Compared with",
        formats={"mean": f"+z.{digits}f", "p_holm": ".3g"},
        notes=notes,
    )


def _table_per_task(title: str, comparisons: Sequence[Comparison], metric: str | None) -> Table:
    """Return a row for each task, a column for each comparison: the mean difference over seeds."""
    means = {
        comparison.pairs.second: comparison.pairs.frame.groupby("task")["difference"].mean()
        for comparison in comparisons
    }
    # Names in the pairs carry the file of a user's own task, which has its label.
    tasks: set[str] = set()
    for comparison in comparisons:
        tasks.update(comparison.pairs.by_task)
    rows = []
    for task in sorted(tasks):
        cells = {}
        for name, of_tasks in means.items():
            if task in of_tasks.index:
                cells[name] = Cell(float(of_tasks[task]))
        rows.append(Row(task, label_of("tasks", task), "runs", cells))
    return Table(
        title=title,
        rows=rows,
        headings={each.pairs.second: each.pairs.labels[1] for each in comparisons},
        columns=[value_column(name) for name in means],
        index_title="Task",
        formats=dict.fromkeys(means, f"+z.{_digits(metric)}f"),
    )


def _notes(
    comparisons: Sequence[Comparison],
    lacking: Sequence[str],
    runs: pd.DataFrame,
    metric: str | None,
) -> list[str]:
    """Return the notes below the table of verdicts.

    Args:
        comparisons: those of the table.
        lacking: a sentence on each comparison without pairs.
        runs: rows of `ComparableRuns.frame`, of all comparisons.
        metric: what is compared.
    """
    notes = []
    if metric in MEASURES:
        notes.append(f"{metric}: {MEASURES[metric]}; lower is better")
    for comparison in comparisons:
        if comparison.why:
            notes.append(f"{comparison.pairs.labels[1]}: {comparison.why}")
    if not is_of_held_out_rows(metric):
        notes += note_on_epochs(runs)
    notes.append(NUMBERS)
    notes += lacking
    for comparison in comparisons:
        notes += comparison.pairs.notes
    return _merged(notes)


def _merged(notes: Sequence[str]) -> list[str]:
    """Merge the notes that say the same: `BitFit on RTE, LoRA on RTE: 1 run left out`.

    A note is `SUBJECT: TEXT`, or a text alone.
    """
    subjects: dict[str, list[str]] = {}
    for note in notes:
        subject, _, text = note.partition(": ")
        subjects.setdefault(text or note, []).append(subject)
    merged = []
    for text, of_text in subjects.items():
        # A note without a colon is its own subject.
        if text in of_text:
            merged.append(text)
        else:
            merged.append(f"{', '.join(dict.fromkeys(of_text))}: {text}")
    return merged
