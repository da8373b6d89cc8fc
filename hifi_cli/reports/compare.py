"""Pairs of two methods' runs, and `hifi compare`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import floor, log2

import numpy as np
import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.paired_tests import LEVEL, PairedStatistics, holm, paired_statistics, seeds_needed
from hifi_cli.records.study import Study
from hifi_cli.reports.calibration import CHURN, MEASURES
from hifi_cli.reports.comparable import (
    CONDITIONS,
    INCLUDED_BY_DEFAULT,
    differences,
    note_on_epochs,
    note_on_variants,
    notes_on,
    required_conditions,
    scored,
    with_exclusions,
)
from hifi_cli.reports.render import Table
from hifi_cli.reports.row_differences import row_table
from hifi_cli.tasks.metrics import is_lower_better
from hifi_cli.text import counted_noun


@dataclass(frozen=True)
class Pairs:
    """The runs of two methods with the same task and seed.

    Attributes:
        frame: a row a pair, sorted: `task`, `seed`, the `difference` in points, and `score` in percent, `metric` and `path` of
            each run, with the endings `_first` and `_second`.
        is_better: whether the first method is ahead.
        doubt: why the method that is ahead is not called better: more of its runs diverged; empty: it may be.
        notes: what was left out, and why.
    """

    first: str
    second: str
    frame: pd.DataFrame
    is_better: bool
    doubt: str
    notes: list[str]

    @property
    def labels(self) -> tuple[str, str]:
        return label_of("methods", self.first), label_of("methods", self.second)

    @property
    def by_task(self) -> dict[str, list[float]]:
        """The differences of each task, by seed."""
        return {str(task): [*pairs["difference"]] for task, pairs in self.frame.groupby("task")}


def pair(
    runs: pd.DataFrame,
    first: str,
    second: str,
    *,
    included: Collection[str] = INCLUDED_BY_DEFAULT,
    metric: str | None = None,
) -> Pairs:
    """Pair two methods' runs by task and seed, where they agree in everything that a comparison requires.

    Args:
        runs: from `with_exclusions` and `scored`.
        metric: what their score is; None: each run's primary metric.
    """
    runs = runs[runs["method"].isin([first, second])]
    usable = runs[runs["excluded_because"] == ""]
    sides = usable[["task", "seed", "method", "metric", "path", "score"]]
    both = sides[sides["method"] == first].merge(
        sides[sides["method"] == second], on=["task", "seed"], suffixes=("_first", "_second")
    )
    both = both.assign(difference=both["score_first"] - both["score_second"])
    both = both.dropna(subset="difference").sort_values(["task", "seed"])
    unpaired = len(usable) - 2 * len(both)
    labels = label_of("methods", first), label_of("methods", second)
    notes = [
        f"{label_of('methods', method)} on {label_of('tasks', task)}: {note}"
        for (method, task), texts in notes_on(runs).items()
        for note in texts
    ]
    run_at = usable.set_index("path")[[*CONDITIONS, "own_epochs"]].to_dict("index")
    paths = zip(both["path_first"], both["path_second"], strict=True)
    both["differing"] = [", ".join(differences(run_at[a], run_at[b])) for a, b in paths]
    required = required_conditions(CONDITIONS, included)
    agree = [
        not differences(run_at[a], run_at[b], required)
        for a, b in zip(both["path_first"], both["path_second"], strict=True)
    ]
    is_unequal = (both["metric_first"] != both["metric_second"]) | ~np.array(agree, dtype=bool)
    for (task, differing), same in both[both["differing"] != ""].groupby(["task", "differing"]):
        note = f"{labels[0]} and {labels[1]} differ in {differing}"
        is_left_out = is_unequal[same.index].all()
        flag = "draws" if differing.startswith("random draws") else "unequal"
        note = (
            f"left out: {note}; --include {flag} compares them"
            if is_left_out
            else f"compared although {note}"
        )
        notes.append(f"{label_of('tasks', task)}: {note}")
    both = both[~is_unequal]
    if unpaired:
        partner = f"a partner{f' with {metric}' if metric else ''} (same task and seed)"
        notes.append(f"{' and '.join(labels)}: {counted_noun(unpaired, 'run')} without {partner}")
    has_diverged = runs["status"] != "done"
    diverged = [
        int((has_diverged & (runs["method"] == method)).sum()) for method in (first, second)
    ]
    is_higher = both.groupby("task")["difference"].mean().mean() > 0
    is_better = bool(is_higher != is_lower_better(metric))  # of which the lowest is the best
    ahead = 0 if is_better else 1
    doubt = (
        f"{labels[ahead]} is ahead, but {counted_noun(diverged[ahead], 'run')} of it diverged,"
        f" {diverged[1 - ahead]} of {labels[1 - ahead]}: these have no score"
    )
    is_doubtful = len(both) > 0 and diverged[ahead] > diverged[1 - ahead]
    return Pairs(first, second, both, is_better, doubt if is_doubtful else "", notes)


# What may be concluded from pairs

HEADINGS = {
    "verdict": "Verdict",
    "mean": "Difference",
    "interval": "95 % interval",
    "p_holm": "p (Holm)",
}
NUMBERS = (
    "difference: mean over tasks of each task's mean over seeds; 95 % t-interval and exact sign-flip test, about"
    " these tasks and new seeds"
)


def compare(
    study: Study,
    runs: pd.DataFrame,
    names: Sequence[str],
    *,
    by: str = "method",
    score: EpochChoice | None = None,
    metric: str | None = None,
    included: Collection[str] = INCLUDED_BY_DEFAULT,
    over_rows: bool = False,
) -> list[Table]:
    """Compare the first method with each of the others: a table of verdicts and one of differences per task.

    Args:
        over_rows: whether a third table says if a difference holds for new rows of the data.
        runs: rows of `Study.runs`, of one table.
        by: `backbone`: the names are those of backbones, and the runs those of one method.
        score, metric: see `scored`.

    Raises:
        MissingError: no comparison has a pair.
        UsageError: the metric is churn.
    """
    if metric == "churn":
        raise UsageError(CHURN)
    runs = runs[runs[by].isin(names)]
    compared = with_exclusions(scored(study, runs, score, metric), included)
    if by == "backbone":  # they are told apart as methods are, and have weights of their own
        compared = compared.assign(method=compared["backbone"], weights="")
    found = [
        pair(compared, names[0], other, included=included, metric=metric) for other in names[1:]
    ]
    all_pairs = [pairs for pairs in found if len(pairs.frame)]
    what = f"usable run with {metric}" if metric else "usable run"
    lacking = [
        f"{pairs.first} and {pairs.second} share no task and seed with a {what}: {'; '.join(pairs.notes)}"
        for pairs in found
        if pairs.frame.empty
    ]
    if not all_pairs:
        raise MissingError("; ".join(lacking) or f"{names[0]} has no method to be compared with")
    statistics = [paired_statistics([*pairs.by_task.values()]) for pairs in all_pairs]
    corrected = holm([numbers.p for numbers in statistics])
    rows, notes = (
        [],
        [f"{metric}: {MEASURES[metric]}; lower is better"] if metric in MEASURES else [],
    )
    digits = 3 if metric in MEASURES else 2
    for pairs, numbers, p in zip(all_pairs, statistics, corrected, strict=True):
        word, why = verdict(pairs, numbers, p, level=LEVEL / len(all_pairs))
        low, high = numbers.interval or (None, None)
        rows.append(
            {
                "method": pairs.second,
                "label": pairs.labels[1],
                "source": "runs",
                "verdict": word,
                "mean": numbers.mean,
                "low": low,
                "high": high,
                "interval": numbers.interval and f"[{low:+.{digits}f}, {high:+.{digits}f}]",
                "p_holm": p,
                "pairs": len(numbers.terms),
            }
        )
        notes += [f"{pairs.labels[1]}: {why}"] if why else []
    notes += note_on_epochs(compared)
    notes += [NUMBERS, *lacking, *(note for pairs in all_pairs for note in pairs.notes)]
    run = next(runs.itertuples())
    notes = [*_merged(notes), *note_on_variants(study, run.protocol, run.backbone, {*runs["task"]})]
    constant = f"method {run.method}" if by == "backbone" else f"backbone {run.backbone}"
    shots = "" if run.shots is None else f", {run.shots}-shot"
    title = f"{label_of('methods', names[0])} minus each other {by}"
    table = Table(
        f"{title}, in {metric or 'points'} (protocol {run.protocol}, {constant}{shots})",
        pd.DataFrame(rows),
        HEADINGS,
        "Compared with",
        {"mean": f"+z.{digits}f", "p_holm": ".3g"},
        notes=notes,
    )
    means = {pairs.second: pairs.frame.groupby("task")["difference"].mean() for pairs in all_pairs}
    per_task = pd.DataFrame(means).sort_index().reset_index(names="method")
    labels = [label_of("tasks", task) for task in per_task["method"]]
    per_task = per_task.assign(label=labels, source="runs")
    headings = {pairs.second: pairs.labels[1] for pairs in all_pairs}
    formats = dict.fromkeys(headings, f"+z.{digits}f")
    tables = [table, Table(f"{title}, per task", per_task, headings, "Task", formats)]
    if over_rows:
        frames = {pairs.labels[1]: pairs.frame for pairs in all_pairs}
        tables.append(row_table(study, all_pairs[0].labels[0], frames, score=score, metric=metric))
    return tables


def verdict(
    pairs: Pairs, statistics: PairedStatistics, p: float, *, level: float
) -> tuple[str, str]:
    """What can be concluded from one comparison: a word about the first method, and what else a reader must know.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and any distribution of
    symmetric differences, the interval says how large the difference may be.

    Args:
        p: after Holm's correction.
        level: of one comparison among all.
    """
    differing = np.count_nonzero(statistics.terms)
    # the smallest p: two of all patterns of signs; Holm's correction asks less than `level` of most
    if p >= LEVEL and 2.0 ** (1 - differing) >= level:
        found = f"{differing} of {counted_noun(len(statistics.terms), 'pair')} of runs differ"
        rule = f"p < {LEVEL:g} takes at least {floor(2 - log2(level))}"
        why = f"{found}, and {rule}: train more seeds"
        disagreement = _disagreement(statistics, p)
        return "no conclusion", f"{disagreement}; {why}" if disagreement else why
    if p >= LEVEL or not statistics.excludes_zero:
        needed = seeds_needed([*pairs.by_task.values()], level=level)
        seeds = f"; about {needed} seeds would show one as large as now" if needed else ""
        why = f"no difference shown is not equality{seeds}"
        disagreement = _disagreement(statistics, p)
        return "no difference shown", f"{disagreement}; {why}" if disagreement else why
    if pairs.doubt:
        return "no conclusion", pairs.doubt
    return "better" if pairs.is_better else "worse", ""


def _disagreement(statistics: PairedStatistics, p: float) -> str:
    """Which of interval and test shows a difference where only one of them does; empty where they agree.

    Args:
        p: of the sign-flip test, after Holm's correction.
    """
    if statistics.interval is None:
        return ""
    shown_by_test = p < LEVEL
    if statistics.excludes_zero and not shown_by_test:
        return f"the interval excludes 0, but the sign-flip test has p = {p:.2g}"
    if shown_by_test and not statistics.excludes_zero:
        return f"the sign-flip test has p = {p:.2g}, but the interval includes 0"
    return ""


def _merged(notes: Sequence[str]) -> list[str]:
    """Notes that say the same about several methods or tasks as one: `BitFit on RTE, LoRA on RTE: 1 run left out`."""
    subjects: dict[str, list[str]] = {}
    for note in notes:
        subject, _, text = note.partition(": ")
        subjects.setdefault(text or note, []).append(subject)
    return [
        text if text in of_text else f"{', '.join(dict.fromkeys(of_text))}: {text}"
        for text, of_text in subjects.items()
    ]
