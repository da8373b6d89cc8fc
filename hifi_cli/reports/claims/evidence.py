"""Evidence about a claim, from runs, stored predictions and figures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hifi_cli.config import figure_spec, registry
from hifi_cli.config.registry import label_of
from hifi_cli.errors import HifiError, UsageError
from hifi_cli.paired_tests import Floats
from hifi_cli.records.figure_runs import read_numbers
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
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.pairs import Pairs, pair
from hifi_cli.reports.table_spec import AVERAGE, load_published
from hifi_cli.tasks.metrics import METRICS

# A task is at chance where the mean score of its runs exceeds that of the best constant prediction by
# less than this many points.
CHANCE_POINTS = 3.0


class PublishedEffect(NamedTuple):
    """The printed numbers of a paper about a comparison.

    Attributes:
        effect: the published difference or number; None: there is none, or it cannot be read.
        doubts: why it does not carry the claim by itself.
    """

    effect: float | None = None
    doubts: Sequence[str] = ()


# Nothing is published about the comparison.
NO_EFFECT = PublishedEffect()


@dataclass(frozen=True)
class Evidence:
    """Our evidence on one comparison of methods, or on one number.

    Attributes:
        label: what readers call the comparison.
        values: by task, one for each seed or other repetition; empty: nothing is known yet.
        tasks: those that must have values before there is a verdict.
        runs: what was counted: paths, or repetitions of a figure.
        reason: why there can be no verdict, although there may be values; empty: there can be one.
        notes: what a reader must know of single runs and tasks.
        published: what the paper prints.
    """

    label: str
    values: Mapping[str, Sequence[float]]
    tasks: Sequence[str] = ()
    runs: frozenset[Any] = frozenset()
    reason: str = ""
    notes: Sequence[str] = ()
    published: PublishedEffect = NO_EFFECT


def lacks_runs(claim: Claim, file: ClaimsFile, runs: ComparableRuns) -> bool:
    """Return whether a run that a claim asks for is not finished.

    Args:
        claim: asks for its methods on its tasks.
        file: has the seeds, and the tasks of a claim that names none.
        runs: those of the claim's protocol and backbone.
    """
    frame = runs.frame
    finished = set(zip(frame["method"], frame["task"], frame["seed"], strict=True))
    asked = set(product(methods_of(claim), tasks_of(claim, file), file.seeds))
    return not asked <= finished


def evidence_of_runs(claim: Claim, file: ClaimsFile, runs: ComparableRuns) -> list[Evidence]:
    """Return the evidence on every comparison or method of a claim about runs.

    Args:
        claim: the claim; its metric is what the runs are scored by.
        file: its file.
        runs: those of the claim's protocol and backbone.
    """
    if isinstance(claim, DifferenceClaim):
        return _evidence_of_differences(claim, file, runs)
    return _evidence_of_measures(claim, file, runs)


# --- differences of two methods


def _evidence_of_differences(
    claim: DifferenceClaim, file: ClaimsFile, runs: ComparableRuns
) -> list[Evidence]:
    """Return the evidence on every comparison of a claim; with `every_task` one for each task."""
    runs = runs.of_tasks(tasks_of(claim, file))
    compared = [pair(runs, *names) for names in product(claim.first, claim.second)]
    # Chance is judged by the primary metric alone.
    why_not_decided: dict[str, str] = {}
    if claim.metric is None:
        why_not_decided = _tasks_at_chance(runs.study, compared)
    evidence: list[Evidence] = []
    for pairs in compared:
        evidence += _evidence_of_pairs(claim, file, pairs, why_not_decided)
    return evidence


def _evidence_of_pairs(
    claim: DifferenceClaim, file: ClaimsFile, pairs: Pairs, why_not_decided: Mapping[str, str]
) -> list[Evidence]:
    """Return the evidence of the pairs of two methods: one of all tasks, or one for each.

    Args:
        claim: that the comparison belongs to.
        file: its file.
        pairs: the paired runs.
        why_not_decided: by task, why it decides nothing about the claim; without those that may.
    """
    notes = []
    for task, why in why_not_decided.items():
        notes.append(f"{label_of('tasks', task)} decides nothing: {why}")
    notes += pairs.notes
    tasks = [task for task in tasks_of(claim, file) if task not in why_not_decided]
    label = f"{pairs.labels[0]} above {pairs.labels[1]}"
    backbone = claim.only_backbone or file.backbone
    # Where no task can decide, one comparison without values says so.
    if not claim.every_task or not tasks:
        return [_evidence_on_tasks(claim, pairs, tasks, label, notes, backbone)]
    evidence = []
    for task in tasks:
        on_task = f"{label} on {label_of('tasks', task)}"
        evidence.append(_evidence_on_tasks(claim, pairs, [task], on_task, notes, backbone))
    return evidence


def _evidence_on_tasks(
    claim: DifferenceClaim,
    pairs: Pairs,
    tasks: Sequence[str],
    label: str,
    notes: Sequence[str],
    backbone: str,
) -> Evidence:
    """Return the evidence of the pairs of two methods on some tasks.

    Args:
        claim: that the comparison belongs to.
        pairs: the paired runs.
        tasks: those that may decide; empty: every task is at chance.
        label: what readers call the comparison.
        notes: what a reader must know of its runs and tasks.
        backbone: that of the runs.
    """
    values = {}
    for task, differences in pairs.by_task.items():
        if task in tasks:
            values[task] = differences
    used = pairs.frame[pairs.frame["task"].isin(tasks)]
    reason = pairs.doubt
    if not tasks:
        reason = "every task is at chance"
    # The published effect is that over the same tasks as ours. Where no run is finished yet, it is that
    # over the tasks that are asked about.
    compared = [*values] or tasks
    return Evidence(
        label=label,
        values=values,
        tasks=tasks,
        runs=frozenset([*used["path_first"], *used["path_second"]]),
        reason=reason,
        notes=notes,
        published=published_effect(claim, pairs.first, pairs.second, compared, backbone),
    )


def published_effect(
    claim: DifferenceClaim, first: str, second: str, tasks: Sequence[str], backbone: str
) -> PublishedEffect:
    """Return the published difference of two methods over exactly the compared tasks.

    Args:
        claim: it names the published table; without one, nothing is published.
        first: the method that is claimed to be better.
        second: the method that it is compared with.
        tasks: those that are compared; empty: all of the published table.
        backbone: that of our runs.
    """
    if not claim.published:
        return NO_EFFECT
    table = load_published(claim.published).table
    differences = {}
    for task, column in columns_of(claim.published).items():
        own = table.mean(first, column)
        other = table.mean(second, column)
        is_asked = not tasks or task in tasks
        # A cell is empty where nothing is printed, or where our copy cannot be read.
        if is_asked and isinstance(own, float) and isinstance(other, float):
            differences[column] = own - other
    # The effect is of exactly the compared tasks, or it is not known.
    if len(differences) < max(1, len(tasks)):
        return PublishedEffect(None, ["the published cells cannot all be read"])
    effect = float(np.mean([*differences.values()]))
    doubts = []
    if table.backbone != backbone:
        doubts.append(f"of {table.backbone}")
    if table.split and table.split != "validation":
        doubts.append(f"on the {table.split}")
    if effect <= 0 and claim.at_least is None:
        doubts.append("the published numbers say the opposite")
    for row in (first, second):
        for column, note in table.rows[row].cell_notes.items():
            # A wrong average makes doubtful which of the row's cells is wrong.
            if column in differences or column == AVERAGE:
                doubts.append(f"possible misprint, {label_of('methods', row)}: {note}")
    return PublishedEffect(effect, doubts)


# --- scores at chance


def _tasks_at_chance(study: Study, compared: Sequence[Pairs]) -> dict[str, str]:
    """Return the tasks that decide nothing about a claim, each with a sentence that says why.

    All comparisons of a claim are judged by the same runs, so that they are about the same tasks.

    Args:
        study: where the runs come from.
        compared: the pairs of runs of every comparison of the claim.
    """
    sides = []
    for pairs in compared:
        for side in ("first", "second"):
            columns = {f"{name}_{side}": name for name in ("path", "metric", "points")}
            sides.append(pairs.frame[["task", *columns]].rename(columns=columns))
    runs = pd.concat(sides).drop_duplicates("path")
    why_not_decided = {}
    for task, of_task in runs.groupby("task"):
        why = _why_at_chance(study, of_task)
        if why:
            why_not_decided[str(task)] = why
    return why_not_decided


def _why_at_chance(study: Study, runs: pd.DataFrame) -> str:
    """Return a sentence that says why a task at chance decides nothing; empty: it may decide.

    A task is at chance if the mean score of its runs exceeds that of the best constant prediction (of
    accuracy: the majority-class baseline) by less than `CHANCE_POINTS`, or by less than two standard
    errors over the examples. A task without stored predictions may decide, and so may one whose rows
    have several labels, and one whose YAML is not here.

    Args:
        study: where the runs come from.
        runs: of one task, all that the claim compares; columns `task`, `path`, `metric`, `points`.
    """
    # All runs of the task have the same rows: the labels of one of them are those of all.
    run = runs.iloc[0]
    stored = study.usable_predictions(run["path"])
    if stored is None or not _can_be_constant(run["metric"], stored):
        return ""
    labels = _labels_as_numbers(run["task"], stored)
    if labels is None:
        return ""
    judged = _score_to_judge(study, runs)
    constant = _best_constant_score(judged.metric, labels)
    # Two standard errors, in points.
    two_errors = 200 * _standard_error(constant, len(labels))
    if judged.mean - 100 * constant >= max(CHANCE_POINTS, two_errors):
        return ""
    return (
        f"its mean {judged.name} of {judged.mean:.1f} is not clearly above {100 * constant:.1f},"
        " which one class for every example has"
    )


class _JudgedScore(NamedTuple):
    """The score by which the runs of a task are judged to be at chance or not.

    Attributes:
        name: in messages.
        mean: over the runs, in percent.
        metric: of the constant predictions that it is compared with.
    """

    name: str
    mean: float
    metric: str


def _score_to_judge(study: Study, runs: pd.DataFrame) -> _JudgedScore:
    """Return the score of a task's runs that is compared with constant predictions.

    It is that of the runs themselves, and the accuracy in place of an F1: on MRPC a constant
    prediction has an F1 of 81.

    Args:
        study: where the runs come from.
        runs: as `_why_at_chance` takes them.
    """
    metric = runs["metric"].iloc[0]
    if metric == "f1":
        return _JudgedScore("accuracy", _mean_accuracy(study, [*runs["path"]]), "accuracy")
    return _JudgedScore("score", float(runs["points"].mean()), metric)


def _can_be_constant(metric: str, stored: pd.DataFrame) -> bool:
    """Return whether a metric can be computed of one label that is predicted for every example.

    Where a row may have several labels, a constant prediction is a set of them, and there are too
    many sets to try. Micro F1 is the usual score of such rows.

    Args:
        metric: its name.
        stored: predictions, with the column `label`.
    """
    takes_labels = metric in METRICS and METRICS[metric].needs == "labels"
    if not takes_labels or metric == "f1_micro":
        return False
    return not any(isinstance(label, list) for label in stored["label"])


def _mean_accuracy(study: Study, paths: Sequence[str]) -> float:
    """Return the accuracy of the stored predictions of some runs, all examples together, in percent."""
    tables = []
    for path in paths:
        table = study.usable_predictions(path)
        if table is not None:
            tables.append(table)
    is_correct = pd.concat(tables).eval("label == prediction")
    return 100 * float(is_correct.mean())


def _labels_as_numbers(task: str, stored: pd.DataFrame) -> Floats | None:
    """Return the correct labels of stored predictions, [examples]; a class is its index.

    None: the task's YAML, which has the order of the classes, is not here.
    """
    try:
        words = registry.load("tasks", task).get("labels", [])
    except HifiError:
        return None
    numbers = [words.index(label) if label in words else label for label in stored["label"]]
    return np.array(numbers, dtype=np.float64)


def _best_constant_score(metric: str, labels: Floats) -> float:
    """Return the best score, a fraction of 1, of one label for every example."""
    function: Any = METRICS[metric].function
    scores = [function(labels, np.full_like(labels, label)) for label in np.unique(labels)]
    return float(max(scores))


def _standard_error(score: float, examples: int) -> float:
    """Return the standard error of a score over the examples, a fraction of 1."""
    variance = score * (1 - score) / examples
    if variance == 0:
        # A correlation of 0 has no standard error of this form: 1 / sqrt(n) is that of a correlation
        # where there is none.
        return float(examples**-0.5)
    return float(variance**0.5)


# --- measures of predictions


def _evidence_of_measures(
    claim: NumberClaim, file: ClaimsFile, runs: ComparableRuns
) -> list[Evidence]:
    """Return the evidence on the measure of the predictions of every method of a claim."""
    tasks = tasks_of(claim, file)
    runs = runs.of_tasks(tasks)
    evidence = []
    for method in claim.methods:
        of_method = runs.of_rows([method])
        used = of_method.usable.dropna(subset="points")
        evidence.append(
            Evidence(
                label=label_of("methods", method),
                values={str(task): [*values] for task, values in used.groupby("task")["points"]},
                tasks=tasks,
                runs=frozenset(used["path"]),
                notes=of_method.notes_in_words(),
                published=PublishedEffect(claim.stated),
            )
        )
    return evidence


# --- numbers of figures


def command_of_figure(claim: NumberClaim, study: Study, protocol: str, backbone: str) -> list[str]:
    """Return the command that computes a claim's figure; empty: its CSV is there.

    Args:
        claim: it names the figure.
        study: its directory has the figures.
        protocol: of the claim's runs.
        backbone: of the claim's runs.
    """
    figure = figure_spec.load(claim.figure, protocol=protocol, backbone=backbone)
    if figure.csv(study.directory).is_file():
        return []
    command = ["hifi", "figure", claim.figure]
    usual = figure_spec.load(claim.figure, protocol=protocol).backbone
    if backbone != usual:
        command += ["--backbone", registry.argument_of(backbone)]
    return [*command, "--protocol", registry.argument_of(protocol)]


def evidence_of_figure(
    claim: NumberClaim, study: Study, protocol: str, backbone: str, tasks: Collection[str]
) -> list[Evidence]:
    """Return the evidence on the number that a figure's CSV has; without values if there is no CSV.

    Args:
        claim: it names the figure, and the rows and column of its CSV.
        study: its directory has the figures.
        protocol: of the claim's runs.
        backbone: of the claim's runs.
        tasks: those that are asked about; empty: all of the figure.
    """
    figure = figure_spec.load(claim.figure, protocol=protocol, backbone=backbone)
    path = figure.csv(study.directory)
    if not path.is_file():
        return [Evidence(claim.figure, {})]
    frame = read_numbers(path)
    if tasks:
        frame = frame[frame["task"].isin(tasks)]
    numbers = _reduced(frame, claim, claim.rows)
    if claim.second_rows:
        others = _reduced(frame, claim, claim.second_rows)
        is_ratio = claim.compare == "ratio"
        numbers = numbers / others if is_ratio else numbers - others
        # A repetition counts where both numbers have it.
        numbers = numbers.dropna()
    # A number of one seed may be another one with the next.
    reason = "a single seed"
    if "seed" in frame and frame["seed"].nunique() > 1:
        reason = ""
    return [
        Evidence(
            label=claim.figure,
            values={str(task): [*values] for task, values in numbers.groupby(level="task")},
            runs=frozenset(numbers.index),
            reason=reason,
            published=PublishedEffect(claim.stated),
        )
    ]


def _reduced(frame: pd.DataFrame, claim: NumberClaim, rows: dict[str, Any]) -> pd.Series:
    """Return one number per task and repetition from the chosen rows of a figure's CSV.

    There is none where an accepted value has no row.

    Args:
        frame: the CSV.
        claim: column, scale, and what the rows of a repetition are reduced to.
        rows: accepted values by column.
    """
    missing = {*claim.per, *rows, claim.column} - {*frame.columns}
    if missing:
        known = ", ".join(frame.columns)
        raise UsageError(
            f"{claim.figure}: the figure's CSV has no column '{min(missing)}' (it has {known})"
        )
    for column, accepted in rows.items():
        frame = frame[_is_accepted(frame[column], accepted)]
    numbers = frame.groupby(["task", *claim.per])[claim.column]
    return claim.scale * numbers.agg(claim.take)


def _is_accepted(column: pd.Series, accepted: Any) -> pd.Series:
    """Return whether each value of a column is accepted.

    Args:
        column: of a figure's CSV.
        accepted: a value, a list of values of which all must be there, or `{min: , max: }`.
    """
    if isinstance(accepted, dict):
        return column.between(accepted.get("min", -inf), accepted.get("max", inf))
    values = [accepted]
    if isinstance(accepted, list):
        values = accepted
    # All of the values must be there: a mean over some of them would be another number.
    if not set(values) <= set(column):
        values = []
    return column.isin(values)
