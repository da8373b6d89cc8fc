"""Tables of stored predictions: scores of each class, confusions of classes, and ensembles of seeds.

A run stores the predictions of the epoch that it keeps, with the logits of every class. These
tables need nothing else: no model, no data.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.errors import HifiError, MissingError
from hifi_cli.paired_tests import Floats, mean_interval
from hifi_cli.records.study import TABLE_KEYS, Study
from hifi_cli.reports.comparable import ComparableRuns, note_on_epochs
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.row_scores import indicators, score_of_rows
from hifi_cli.reports.table import (
    Cell,
    Column,
    Row,
    Table,
    interval_columns,
    own_interval_columns,
    std_column,
    value_column,
    with_notes,
)
from hifi_cli.reports.table_runs import runs_with, select_runs, setting_in_words, table_keys
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.metrics import log_probabilities
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import counted_noun, format_interval, format_number

INTERVALS = "mean over seeds, with a 95 % t-interval for new seeds"
OF_KEPT_EPOCH = "predictions of the epoch that each run keeps"
CHOSEN_ON_ROWS = "that epoch is the best one on the same rows: scores are too high"


class NeedsMore(Exception):
    """Raised where a score does not follow from stored predictions; the message says why."""


@dataclass(frozen=True)
class RunFilter:
    """The protocol, tasks, methods and seeds of the runs that are shown.

    Attributes:
        keys: `protocol`, `backbone` and `shots`; None: any.
        tasks: names; none: all; likewise `methods` and `seeds`.
    """

    keys: dict[str, str | None]
    tasks: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()


@dataclass
class EnsemblesOfTask:
    """The rows of a task's table of ensembles, one per method, and what a reader must know of them."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SeedsOfMethod:
    """The stored predictions of one method's seeds on one task.

    Attributes:
        setting: protocol, backbone and shots, in words.
        predictions: by seed; columns `label`, `prediction` and `logits`, indexed by the row's id,
            with the same rows in the same order.
        notes: what a reader must know of them.
        counts: those of the notes that count the method's runs, and name neither it nor the task.
    """

    task: TaskSpec
    task_name: str
    method: str
    setting: str
    predictions: dict[int, pd.DataFrame]
    notes: list[str]
    counts: list[str]

    @property
    def title(self) -> str:
        """Method, task, setting and number of seeds."""
        seeds = counted_noun(len(self.predictions), "seed")
        return f"{label_of('methods', self.method)} on {label_of('tasks', self.task_name)} ({self.setting}, {seeds})"


@dataclass(frozen=True)
class LeftOut:
    """A task that cannot be shown; `reason` names it and says why."""

    reason: str


def per_class(study: Study, run_filter: RunFilter, options: ReportOptions) -> list[Table]:
    """Return a table for each task and method: precision, recall and F1 of each class, in percent.

    Where nothing has or is predicted to have a class, its score is 0, as the metrics' is.

    Args:
        study: the runs.
        run_filter: which of them are shown.
        options: which of them count.

    Raises:
        MissingError: no run has predictions of classes.
    """
    tables: list[Table] = []
    shown, reasons = _with_classes(study, run_filter, options, several_per_row=True)
    for seeds in shown:
        classes = seeds.task.labels
        # [seeds, classes, 3]: precision, recall and F1.
        scores = np.stack(
            [_scores_of_classes(seeds.task, table) for table in seeds.predictions.values()]
        )
        # The mean over the classes stands below them.
        scores = np.concatenate([scores, scores.mean(axis=1, keepdims=True)], axis=1)
        # All seeds have the same rows: the first one tells how many a class has.
        first = next(iter(seeds.predictions.values()))
        rows_of_class = _indicators(seeds.task, first["label"]).sum(axis=0)
        rows: list[Row] = []
        for place, name in enumerate([*classes, "macro mean"]):
            cells: dict[str, Cell] = {}
            for column, key in enumerate(("precision", "recall", "f1")):
                cells |= _cells(key, 100 * scores[:, place, column], 100.0)
            if place < len(classes):
                cells["rows"] = Cell(float(rows_of_class[place]))
            else:
                # The line of the mean is of all rows.
                cells["rows"] = Cell(len(first))
            rows.append(Row(seeds.method, name, "runs", cells))
        headings = {"precision": "Precision", "recall": "Recall", "f1": "F1"}
        table = _table_of_classes(
            f"Scores of classes: {seeds.title}", "Class", rows, headings, seeds
        )
        tables.append(table)
    return _with_left_out(tables, reasons)


def confusion(study: Study, run_filter: RunFilter, options: ReportOptions) -> list[Table]:
    """Return a table for each task and method: how many rows of each class are predicted to have which.

    Args:
        study: the runs.
        run_filter: which of them are shown.
        options: which of them count.

    Raises:
        MissingError: no run has predictions of rows with one class each.
    """
    tables: list[Table] = []
    shown, reasons = _with_classes(study, run_filter, options, several_per_row=False)
    for seeds in shown:
        classes = seeds.task.classes
        counts: list[Floats] = []
        for table in seeds.predictions.values():
            labels = _indicators(seeds.task, table["label"])
            predicted = _indicators(seeds.task, table["prediction"])
            # [classes, classes]: the rows that have one class and are predicted to have the other.
            counts.append(labels.T @ predicted)
        of_seeds = np.stack(counts)
        rows: list[Row] = []
        for place, name in enumerate(classes):
            # Every seed has the same rows, so that the first one tells how many a class has.
            number_of_rows = float(of_seeds[0, place].sum())
            cells: dict[str, Cell] = {}
            for column, other in enumerate(classes):
                cells |= _cells(f"predicted.{other}", of_seeds[:, place, column], number_of_rows)
            cells["rows"] = Cell(number_of_rows)
            rows.append(Row(seeds.method, name, "runs", cells))
        headings = {f"predicted.{name}": name for name in classes}
        title = f"Rows by label (down) and prediction (across): {seeds.title}"
        table = _table_of_classes(title, "Label", rows, headings, seeds)
        tables.append(table)
    return _with_left_out(tables, reasons)


def ensemble(study: Study, run_filter: RunFilter, options: ReportOptions) -> list[Table]:
    """Return a table for each task: the score of the mean of the seeds' probabilities, a row per method.

    A task of numbers has the mean of the predictions in their place. Beside the ensemble stand the
    mean score of single seeds, and the lowest and highest score of the ensembles that lack one seed.

    Args:
        study: the runs.
        run_filter: which of them are shown.
        options: which of them count.

    Raises:
        MissingError: no method has two seeds with predictions.
    """
    ensembles: dict[tuple[str, str], EnsemblesOfTask] = {}
    reasons: list[str] = []
    for seeds in _seeds_of_methods(study, run_filter, options):
        if isinstance(seeds, LeftOut):
            reasons.append(seeds.reason)
            continue
        key = (seeds.task_name, seeds.setting)
        of_task = ensembles.setdefault(key, EnsemblesOfTask())
        name = f"{label_of('methods', seeds.method)} on {label_of('tasks', seeds.task_name)}"
        try:
            row = _ensemble_of(seeds)
        except NeedsMore as why:
            reasons.append(f"{name}: {why}")
            continue
        of_task.rows.append(row)
        for note in seeds.notes:
            if note in seeds.counts:
                # Several methods are rows of one table, below which all notes stand.
                of_task.notes.append(f"{name}: {note}")
            else:
                of_task.notes.append(note)
    tables = [
        _table_of_ensembles(task, setting, of_task)
        for (task, setting), of_task in ensembles.items()
        if of_task.rows
    ]
    if not tables:
        raise _nothing(study, reasons)
    return _with_left_out(tables, reasons)


TABLES: dict[str, Callable[..., list[Table]]] = {
    "per-class": per_class,
    "confusion": confusion,
    "ensemble": ensemble,
}


# --- the predictions of the runs that may be averaged


def _seeds_of_methods(
    study: Study, run_filter: RunFilter, options: ReportOptions
) -> Iterator[SeedsOfMethod | LeftOut]:
    """Yield the usable predictions of each task and method, of each protocol and backbone.

    Args:
        study: the runs.
        run_filter: which of them are shown.
        options: which of them count.

    Raises:
        MissingError: there is no such run.
    """
    runs = select_runs(study.runs, **run_filter.keys)
    runs = runs_with(runs, task=run_filter.tasks, method=run_filter.methods, seed=run_filter.seeds)
    if runs.empty:
        raise study.no_such_runs_error(
            **run_filter.keys,
            tasks=",".join(run_filter.tasks),
            methods=",".join(run_filter.methods),
            seeds=",".join(map(str, run_filter.seeds)),
        )
    words = table_keys(runs)
    for keys, group in runs.groupby([words[key] for key in TABLE_KEYS]):
        setting = setting_in_words(dict(zip(TABLE_KEYS, keys, strict=True)))
        comparable = ComparableRuns.of(study, group, options)
        yield from _of_one_setting(comparable, setting)


def _of_one_setting(runs: ComparableRuns, setting: str) -> Iterator[SeedsOfMethod | LeftOut]:
    """Yield the usable predictions of each task and method of one protocol and backbone.

    Args:
        runs: those of the setting.
        setting: protocol, backbone and shots, in words.
    """
    notes_of = runs.notes()
    for _, of_method in runs.usable.groupby(["task", "method"]):
        # The names in the frame carry the files of a user's own YAMLs; the group's keys do not.
        task_name: str = of_method["task"].iloc[0]
        method: str = of_method["method"].iloc[0]
        try:
            task = task_spec.load(task_name)
        except HifiError as error:
            # Without its YAML, nobody knows the classes.
            yield LeftOut(f"{task_name}: {error}")
            continue
        found: dict[int, pd.DataFrame] = {}
        for run in of_method.sort_values("seed").itertuples():
            table = runs.study.usable_predictions(run.path)
            if table is not None:
                found[int(run.seed)] = table.set_index("id")
        counts = notes_of.get((method, task_name), [])
        notes = [OF_KEPT_EPOCH, *counts]
        if note_on_epochs(of_method):
            notes.append(CHOSEN_ON_ROWS)
        name = label_of("methods", method)
        if len(found) < len(of_method):
            lacking = counted_noun(len(of_method) - len(found), "run")
            notes.append(f"left out: {lacking} of {name} without predictions")
        aligned = _with_equal_rows(found)
        if len(aligned) < len(found):
            differing = counted_noun(len(found) - len(aligned), "run")
            notes.append(f"left out: {differing} of {name} with predictions of other rows")
        if aligned:
            yield SeedsOfMethod(task, task_name, method, setting, aligned, notes, counts)


def _with_equal_rows(predictions: dict[int, pd.DataFrame]) -> dict[int, pd.DataFrame]:
    """Return the predictions in the order of the first seed's rows, without seeds of other rows.

    Args:
        predictions: of each seed; the index has the rows' ids, and the columns stay.
    """
    if not predictions:
        return {}
    ids = next(iter(predictions.values())).index
    return {
        seed: table.loc[ids]
        for seed, table in predictions.items()
        if len(table) == len(ids) and {*table.index} == {*ids}
    }


def _with_classes(
    study: Study, run_filter: RunFilter, options: ReportOptions, *, several_per_row: bool
) -> tuple[list[SeedsOfMethod], list[str]]:
    """Return the usable predictions of each task whose rows have classes, and method; and why others lack.

    Args:
        study: the runs.
        run_filter: which of them are shown.
        options: which of them count.
        several_per_row: whether a row may have several classes.

    Raises:
        MissingError: there are none.
    """
    shown: list[SeedsOfMethod] = []
    reasons: list[str] = []
    for seeds in _seeds_of_methods(study, run_filter, options):
        if isinstance(seeds, LeftOut):
            reasons.append(seeds.reason)
        elif seeds.task.classes or (several_per_row and seeds.task.rules.has_any_number_of_labels):
            shown.append(seeds)
        else:
            reasons.append(f"{label_of('tasks', seeds.task_name)}: its rows have no single class")
    if not shown:
        raise _nothing(study, reasons)
    return shown, reasons


def _with_left_out(tables: Sequence[Table], reasons: Sequence[str]) -> list[Table]:
    """Return tables with a note on each task or method that has none.

    Args:
        tables: at least one.
        reasons: each names what has no table and says why; several may be equal.
    """
    return with_notes(tables, [f"left out: {reason}" for reason in dict.fromkeys(reasons)])


def _nothing(study: Study, reasons: Sequence[str]) -> MissingError:
    """Return the error where no run can be shown."""
    why = "; ".join(dict.fromkeys(reasons)) or "no run has stored predictions"
    return MissingError(f"nothing to show in {study.directory}: {why}")


# --- numbers


def _indicators(task: TaskSpec, chosen: pd.Series) -> Floats:
    """Return 1 where a row has a class, [rows, classes]."""
    names = [*chosen]
    if not task.rules.has_any_number_of_labels:
        names = [[name] for name in names]
    return indicators(task.labels, names)


def _scores_of_classes(task: TaskSpec, predictions: pd.DataFrame) -> Floats:
    """Return precision, recall and F1 of each class, fractions of 1, [classes, 3]."""
    labels = _indicators(task, predictions["label"])
    predicted = _indicators(task, predictions["prediction"])
    correct = (labels * predicted).sum(axis=0)
    in_labels = labels.sum(axis=0)
    in_predictions = predicted.sum(axis=0)
    precision = correct / np.maximum(in_predictions, 1)
    recall = correct / np.maximum(in_labels, 1)
    f1 = 2 * correct / np.maximum(in_labels + in_predictions, 1)
    return np.stack([precision, recall, f1], axis=1)


def _table_of_classes(
    title: str, index_title: str, rows: list[Row], headings: dict[str, str], seeds: SeedsOfMethod
) -> Table:
    """Return a table of numbers with intervals, and the number of rows of each class.

    Args:
        title: above the table.
        index_title: what the labels of the rows are.
        rows: with the cells of `_cells`, and `rows`.
        headings: of the numbers, by key.
        seeds: what the numbers are of.
    """
    columns: list[Column] = []
    for key in headings:
        columns += [value_column(key), *own_interval_columns(key)]
    texts = {f"{key}_text": heading for key, heading in headings.items()}
    notes = [*seeds.notes]
    if len(seeds.predictions) > 1:
        notes.append(INTERVALS)
    return Table(
        title,
        rows,
        {**texts, "rows": "Rows"},
        [*columns, value_column("rows", is_count=True)],
        index_title,
        formats={"rows": ",.0f"},
        notes=notes,
    )


def _cells(key: str, of_seeds: Floats, highest: float) -> dict[str, Cell]:
    """Return a number with its interval over seeds at KEY, and as a text for readers at KEY_text.

    Args:
        key: of the number.
        of_seeds: one number per seed.
        highest: that it can be; the lowest is 0. The interval ends there.
    """
    mean = float(of_seeds.mean())
    interval = mean_interval([of_seeds])
    if interval is None:
        return {key: Cell(mean), f"{key}_text": Cell(format_number(mean, ".1f"))}
    low = max(0.0, interval[0])
    high = min(highest, interval[1])
    text = f"{format_number(mean, '.1f')} {format_interval(low, high, '.1f')}"
    return {key: Cell(mean, interval=(low, high)), f"{key}_text": Cell(text)}


def _ensemble_of(seeds: SeedsOfMethod) -> Row:
    """Return a row of the table of ensembles.

    Cells: `mean` of single seeds, `ensemble`, `without_one`: the lowest and highest ensemble without
    one seed, `gain`, in percent; `seeds`: their number.

    Raises:
        NeedsMore: there is one seed, or the primary metric needs more than the stored predictions.
    """
    task = seeds.task
    if not task.rules.predicts_numbers:
        raise NeedsMore("an ensemble needs the logits of all answers, which are not stored")
    if len(seeds.predictions) < 2:
        raise NeedsMore("an ensemble needs two seeds")
    labels = next(iter(seeds.predictions.values()))["label"]
    outputs = np.stack([_outputs(task, table) for table in seeds.predictions.values()])

    def score_of_mean(of_seeds: Floats) -> float:
        """Return the score of the mean output of some seeds, in percent; [seeds, rows, classes]."""
        return _score_percent(task, labels, _chosen(task, of_seeds.mean(axis=0)))

    together = score_of_mean(outputs)
    single: list[float] = []
    without_one: list[float] = []
    for place, table in enumerate(seeds.predictions.values()):
        single.append(_score_percent(task, labels, [*table["prediction"]]))
        # How far the ensembles without one seed lie apart shows how much hangs on a single seed.
        without_one.append(score_of_mean(np.delete(outputs, place, axis=0)))
    low = min(without_one)
    high = max(without_one)
    mean = float(np.mean(single))
    cells = {
        "mean": Cell(mean, std=float(np.std(single, ddof=1))),
        "ensemble": Cell(together),
        "without_one": Cell(format_interval(low, high, ".1f"), interval=(low, high)),
        "gain": Cell(together - mean),
        "seeds": Cell(len(single)),
    }
    return Row(seeds.method, label_of("methods", seeds.method), "runs", cells)


def _table_of_ensembles(task: str, setting: str, ensembles: EnsemblesOfTask) -> Table:
    """Return the table of a task's ensembles, the best ones marked.

    Args:
        task: its name.
        setting: protocol, backbone and shots, in words.
        ensembles: the rows of `_ensemble_of`, and the notes.
    """
    metric = task_spec.load(task).primary
    explanation = (
        "ensemble: mean of the seeds' probabilities; without one seed: the lowest and the highest"
        " score of the ensembles that lack one"
    )
    table = Table(
        f"Ensembles of seeds: {label_of('tasks', task)}, {metric} ({setting})",
        ensembles.rows,
        {
            "mean": "Single seeds",
            "ensemble": "Ensemble",
            "without_one": "Without one seed",
            "gain": "Gain",
            "seeds": "Seeds",
        },
        [
            value_column("mean"),
            std_column("mean"),
            value_column("ensemble"),
            *interval_columns("without_one"),
            value_column("gain"),
            value_column("seeds", is_count=True),
        ],
        formats={"gain": "+z.1f", "seeds": ",.0f"},
        # Methods share most of their notes, and each of these is printed once.
        notes=[*dict.fromkeys(ensembles.notes), explanation],
    )
    return table.ranked("ensemble", lower_is_better=False, not_ranked=[])


def _score_percent(task: TaskSpec, labels: pd.Series, predictions: Sequence[Any]) -> float:
    """Return the primary metric of some predictions, in percent.

    Raises:
        NeedsMore: it needs more than labels and predictions.
    """
    table = pd.DataFrame({"label": [*labels], "prediction": predictions})
    score = score_of_rows(task, task.primary, table)
    if score is None:
        raise NeedsMore(f"{task.primary} needs more than the stored predictions")
    each_row_once = np.ones((1, len(table)))
    return 100 * float(score(each_row_once)[0])


def _outputs(task: TaskSpec, predictions: pd.DataFrame) -> Floats:
    """Return what seeds are averaged by: probabilities of classes [rows, classes], or numbers [rows, 1]."""
    logits: Floats = np.array([*predictions["logits"]], dtype=np.float64)
    if task.rules.labels_are_numbers:
        return logits
    # Most tables need no probabilities, and scipy takes a tenth of a second to load.
    from scipy.special import expit

    if task.rules.has_any_number_of_labels:
        return np.asarray(expit(logits))
    if logits.shape[1] == 1:
        # One logit is that of the second of two classes.
        second = expit(logits)
        return np.hstack([1 - second, second])
    return np.exp(log_probabilities(logits))


def _chosen(task: TaskSpec, outputs: Floats) -> list[Any]:
    """Return the predictions of averaged outputs, as runs store them; on a tie the first class."""
    if task.rules.labels_are_numbers:
        return outputs[:, 0].tolist()
    if task.rules.has_any_number_of_labels:
        chosen = []
        for row in outputs:
            pairs = zip(task.labels, row, strict=True)
            chosen.append([name for name, value in pairs if value > 0.5])
        return chosen
    return [task.labels[place] for place in outputs.argmax(axis=1)]
