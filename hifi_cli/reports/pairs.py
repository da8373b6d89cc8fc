"""Pairs of two rows' runs: one run of each method on the same task with the same seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.paired_tests import paired_statistics
from hifi_cli.reports.calibration import MEASURES
from hifi_cli.reports.comparable import ComparableRuns, differences, flags_that_waive
from hifi_cli.tasks.metrics import is_lower_better
from hifi_cli.text import counted_noun

# The method that others are compared with where none is named: both papers ask whether a method
# reaches full fine-tuning, and at what cost.
FULL_FT = "full-ft"


@dataclass(frozen=True)
class Pairs:
    """Every run of one method beside the run of another with the same task and seed.

    Two backbones are paired in the same way.

    Attributes:
        first: the method or backbone that is compared.
        second: the one that it is compared with.
        labels: of the two, for readers.
        frame: a row a pair, sorted by task and seed. Columns: `task`, `seed`; `difference`, first
            minus second in points; and of each run `points`, `metric`, `path` and `collapsed`, with
            the endings `_first` and `_second`.
        is_better: whether the first method is ahead.
        all_collapsed: whether every paired run predicts one class for all rows, so that its score
            says nothing about its method; False where there is no pair.
        doubt: why the method that is ahead is not called better; empty: it may be.
        notes: what was left out, and why.
    """

    first: str
    second: str
    labels: tuple[str, str]
    frame: pd.DataFrame
    is_better: bool
    all_collapsed: bool
    doubt: str
    notes: list[str]

    @property
    def by_task(self) -> dict[str, list[float]]:
        """The differences of each task in points, one per seed."""
        points = {}
        for _, of_task in self.frame.groupby("task"):
            # The name in the frame carries the file of a user's own task; the group's key does not.
            points[of_task["task"].iloc[0]] = [*of_task["difference"]]
        return points


def pair(runs: ComparableRuns, first: str, second: str) -> Pairs:
    """Pair two methods' runs by task and seed.

    Only runs are paired that agree in everything that a comparison requires.

    Args:
        runs: those of the two and of others.
        first: the method or backbone that is compared.
        second: the one that it is compared with.
    """
    runs = runs.of_rows([first, second])
    labels = (runs.label_of_row(first), runs.label_of_row(second))
    joined = _joined(runs.usable, first, second)
    # Every pair has two runs; the others have no partner.
    unpaired = len(runs.usable) - 2 * len(joined)
    joined = _with_disagreement(joined, runs)
    frame = joined[joined["is_comparable"]]
    notes = [
        *runs.notes_in_words(),
        *_notes_on_disagreement(joined, labels),
        *_notes_on_unpaired(unpaired, labels, runs.metric),
    ]
    is_better = _is_ahead(frame, runs.metric)
    doubt = _doubt(runs, [first, second], labels, is_better) if len(frame) else ""
    all_collapsed = _have_all_collapsed(frame, runs.metric)
    return Pairs(first, second, labels, frame, is_better, all_collapsed, doubt, notes)


def difference_rows(pairs: Pairs) -> Iterator[dict[str, Any]]:
    """Yield the difference of the first method from the second: mean over tasks, then each task.

    Yields:
        Columns: `task`, None for the mean over tasks, which is there where there are several;
        `method`; `label` and `reference`, the labels of the two; `difference`, first minus second
        in points; `low` and `high`, the ends of its 95 % t-interval, None where a task has a single
        pair of runs; `pairs` of runs; `tasks`, their number.
    """
    by_task = pairs.by_task
    groups: dict[str | None, list[list[float]]] = {}
    if len(by_task) > 1:
        groups[None] = list(by_task.values())
    groups |= {task: [values] for task, values in by_task.items()}
    for task, points in groups.items():
        found = paired_statistics(points)
        low, high = found.interval or (None, None)
        yield {
            "task": task,
            "method": pairs.first,
            "label": pairs.labels[0],
            "reference": pairs.labels[1],
            "difference": found.mean,
            "low": low,
            "high": high,
            "pairs": len(found.terms),
            "tasks": len(points),
        }


def _joined(usable: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return every pair of usable runs with scores, comparable or not; the columns of `Pairs.frame`."""
    sides = usable[["task", "seed", "row", "metric", "path", "collapsed", "points"]]
    joined = sides[sides["row"] == first].merge(
        sides[sides["row"] == second], on=["task", "seed"], suffixes=("_first", "_second")
    )
    joined = joined.assign(difference=joined["points_first"] - joined["points_second"])
    # A run without a score is no part of a pair.
    return joined.dropna(subset="difference").sort_values(["task", "seed"])


def _with_disagreement(joined: pd.DataFrame, runs: ComparableRuns) -> pd.DataFrame:
    """Return pairs with three columns more.

    `differing` has the conditions in which the two runs differ, in words; `is_comparable` says
    whether they agree in all that a comparison requires; `flags` has what `--include` takes to
    compare them, empty where nothing does.
    """
    columns = [*runs.conditions, "own_epochs"]
    run_at = runs.usable.set_index("path")[columns].to_dict("index")
    differing = []
    is_comparable = []
    flags = []
    for two in joined.itertuples():
        run = run_at[two.path_first]
        other = run_at[two.path_second]
        conditions = differences(run, other, runs.conditions)
        differing.append(", ".join(conditions))
        has_one_metric = two.metric_first == two.metric_second
        has_required = not differences(run, other, runs.required_conditions)
        is_comparable.append(has_one_metric and has_required)
        # No flag makes one number of two metrics.
        flags.append(flags_that_waive(conditions) if has_one_metric else "")
    return joined.assign(
        differing=pd.Series(differing, joined.index, dtype=object),
        is_comparable=pd.Series(is_comparable, joined.index, dtype=bool),
        flags=pd.Series(flags, joined.index, dtype=object),
    )


def _notes_on_disagreement(joined: pd.DataFrame, labels: tuple[str, str]) -> list[str]:
    """Return notes on what paired runs differ in, and whether they are compared nevertheless."""
    notes = []
    # Pairs that differ in the same conditions share a note.
    unlike = joined[joined["differing"] != ""]
    for (task, differing), same in unlike.groupby(["task", "differing"]):
        fact = f"{labels[0]} and {labels[1]} differ in {differing}"
        if same["is_comparable"].any():
            note = f"compared although {fact}"
        else:
            note = f"left out: {fact}"
            flags = same["flags"].iloc[0]
            if flags:
                note += f"; --include {flags} compares them"
        notes.append(f"{label_of('tasks', task)}: {note}")
    return notes


def _notes_on_unpaired(count: int, labels: tuple[str, str], metric: str | None) -> list[str]:
    """Return a note on how many runs have no partner."""
    if not count:
        return []
    partner = "a partner"
    if metric:
        partner += f" with {metric}"
    runs = counted_noun(count, "run")
    return [f"{labels[0]} and {labels[1]}: {runs} without {partner} (same task and seed)"]


def _is_ahead(frame: pd.DataFrame, metric: str | None) -> bool:
    """Return whether the first method is ahead on average over tasks."""
    mean_of_tasks = frame.groupby("task")["difference"].mean().mean()
    is_higher = bool(mean_of_tasks > 0)
    if is_lower_better(metric):
        return not is_higher
    return is_higher


def _have_all_collapsed(frame: pd.DataFrame, metric: str | None) -> bool:
    """Return whether every paired run predicts one class, and the metric is of the predicted classes."""
    # Measures of probabilities, such as the calibration error, differ between collapsed runs too.
    if frame.empty or metric in MEASURES:
        return False
    return bool(frame["collapsed_first"].all() and frame["collapsed_second"].all())


def _doubt(runs: ComparableRuns, names: list[str], labels: tuple[str, str], is_better: bool) -> str:
    """Return why the method that is ahead is not called better; empty: it may be.

    A method whose bad runs diverge has no bad scores, and its mean over the others is too high.

    Args:
        runs: those of the two, diverged ones among them.
        names: the two methods or backbones.
        labels: what readers call them.
        is_better: whether the first one is ahead.
    """
    diverged = runs.frame["row"][runs.frame["status"] != "done"]
    # A diverged run has no score, so that it is in no pair; here it counts nevertheless.
    counts = [int((diverged == name).sum()) for name in names]
    ahead = 0 if is_better else 1
    behind = 1 - ahead
    if counts[ahead] <= counts[behind]:
        return ""
    of_one = counted_noun(counts[ahead], "run")
    return (
        f"{labels[ahead]} is ahead, but {of_one} of it diverged,"
        f" {counts[behind]} of {labels[behind]}: these have no score"
    )
