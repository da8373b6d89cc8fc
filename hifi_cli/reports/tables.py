"""Tables of scores: a method per row, a task per column, mean and deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.

`build` makes a table in four steps: `lay_out` finds rows, columns and runs; `_scores` the score of each
run that counts; `_cells_of_runs` means and deviations; `_rows` sets a paper's numbers beside them.
A column is known by its key: the name of its `ColumnSpec`, `AVERAGE`, or one of `SHARES`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.registry import label_of, own_file
from hifi_cli.config.sources import stored_name
from hifi_cli.errors import UsageError
from hifi_cli.paired_tests import mean_interval
from hifi_cli.records.study import TABLE_KEYS, Study
from hifi_cli.reports import published, table_notes
from hifi_cli.reports.calibration import MEASURES, classes_of
from hifi_cli.reports.comparable import (
    EPOCHS,
    ComparableRuns,
    RowKey,
    is_of_held_out_rows,
    note_on_epochs,
)
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.table import (
    Cell,
    Column,
    Position,
    Row,
    Table,
    known,
    own_interval_columns,
    seeds_column,
    std_column,
    value_column,
)
from hifi_cli.reports.table_runs import note_on_variants, runs_with, select_runs, table_keys
from hifi_cli.reports.table_spec import (
    AVERAGE,
    NO_TABLE,
    ColumnSpec,
    LayoutRow,
    PublishedTable,
    RowSpec,
    TableSpec,
    load_published,
    shots_of,
)
from hifi_cli.tasks.metrics import heading_of, is_lower_better, within_range
from hifi_cli.text import counted_noun, format_number

# Columns of trained shares in percent: their headings, and the column of `Study.runs` that is
# divided by all parameters.
SHARES = {
    "trainable_percent": ("Trained %", "trainable"),
    "trainable_backbone_percent": ("Backbone %", "trainable_backbone"),
}


def specs_of(study: Study, tasks: Sequence[str] = (), **only: str | None) -> list[TableSpec]:
    """Return one table for each protocol, backbone and number of shots that was run.

    Args:
        study: all runs.
        tasks: only what was run on one of these; empty: on any.
        only: only this `protocol`, `backbone`, or number of `shots`.
    """
    runs = runs_with(select_runs(study.runs, **only), task=tasks)
    keys = table_keys(runs).drop_duplicates()
    specs: list[TableSpec] = []
    for record in keys.sort_values(TABLE_KEYS).to_dict("records"):
        shots = record["shots"]
        specs.append(
            TableSpec(
                protocol=record["protocol"],
                backbone=record["backbone"],
                shots="full" if shots == "full" else int(shots),
            )
        )
    return specs


# --- what a table is made of


@dataclass(frozen=True)
class Layout:
    """The rows and columns of a table of scores, and the runs that fill them.

    Attributes:
        spec: what the YAML and the command line say, with all columns.
        rows: of the table, each about a method or a backbone.
        row_key: which of the two.
        shots: training rows per class, or `full`.
        paper: the published table; `NO_TABLE`: none.
        metrics: of each column, by its name; None: not known, as no run has one.
        all_runs: rows of `Study.runs` of the protocol, the backbone and the shots.
        runs: those of them that the table is about, with what excludes them.
        left_out: notes on finished runs, and measures of them, that the table does not show.
    """

    spec: TableSpec
    rows: list[LayoutRow]
    row_key: RowKey
    shots: str
    paper: PublishedTable
    metrics: dict[str, str | None]
    all_runs: pd.DataFrame
    runs: ComparableRuns
    left_out: list[str]

    @property
    def names(self) -> list[str]:
        """Names of the methods or backbones of all rows that have one."""
        return list(dict.fromkeys(row.name for row in self.rows if row.name))

    @property
    def labels(self) -> list[str]:
        """Labels of the rows for readers."""
        return distinct_labels(
            [row.label or self.runs.label_of_row(row.name or "") for row in self.rows],
            [str(row.name) for row in self.rows],
        )

    @property
    def title(self) -> str:
        """Description and conditions of the table."""
        spec = self.spec
        constant = f"backbone {spec.backbone}"
        if self.row_key == "backbone":
            constant = f"method {spec.methods[0]}"
        conditions = [f"protocol {spec.protocol}", constant]
        if self.shots != "full":
            conditions.append(f"{self.shots}-shot")
        asked = self.runs.options.epoch_choice
        shown = [asked] if asked else sorted(self.all_runs["report"].unique())
        conditions += [EPOCHS[choice] for choice in shown]
        return f"{spec.description or 'Finished runs'} ({', '.join(conditions)})"

    @property
    def headings(self) -> dict[str, str]:
        """Task and metric of each column with scores, by its name."""
        labels = distinct_labels(
            [column.label or label_of("tasks", column.task) for column in self.spec.columns],
            [column.label or column.task for column in self.spec.columns],
        )
        headings = {}
        for (key, metric), label in zip(self.metrics.items(), labels, strict=True):
            if metric:
                headings[key] = f"{label} ({heading_of(metric)})"
            else:
                headings[key] = label
        return headings


@dataclass(frozen=True)
class Scores:
    """The scores of the runs that may be averaged, and what a reader must know of them.

    Attributes:
        frame: a line for each row, column and seed: the columns of `ComparableRuns.frame`, with a
            score, and `column`.
        notes: footnotes by row and column.
        not_ranked: by column, the rows that are not compared with the others.
    """

    frame: pd.DataFrame
    notes: dict[tuple[str, str], list[str]]
    not_ranked: dict[str, list[str]]


def build(spec: TableSpec, study: Study, options: ReportOptions, *, grid: str = "") -> Table:
    """Build a table of scores from finished runs.

    Args:
        spec: rows and columns; where it names none, those of the runs.
        study: all runs.
        options: which epoch's score is meant, which runs count, whether a paper's numbers are shown.
        grid: the command that makes the table's runs; empty: no run is missing, as the table shows
            what there is.
    """
    layout = lay_out(spec, study, options)
    scores = _scores(layout)
    ours = _cells_of_runs(layout, scores.frame)
    if options.show_intervals:
        ours = _with_intervals(layout, scores.frame, ours)
    # The keys of the columns with scores.
    keys = [*layout.metrics]
    if _has_average(layout, ours):
        keys.append(AVERAGE)
    shown_paper = layout.paper if options.show_published else NO_TABLE
    theirs = published.cells(layout.spec, layout.rows, shown_paper, layout.metrics)
    rows, footnotes = _rows(layout, keys, ours, theirs, scores.notes)
    table = Table(
        title=layout.title,
        rows=rows,
        headings=_headings(layout, rows, keys),
        columns=_columns(layout, rows, keys, show_intervals=options.show_intervals),
        index_title=layout.row_key.capitalize(),
        formats=_formats(layout, keys),
        footnotes=footnotes,
        notes=_notes(layout, scores.frame, options, has_paper=bool(theirs)),
        missing=_missing(layout, grid) if grid else [],
        own_texts=frozenset(row.label for row in layout.rows if row.label),
        scores=scores.frame.reindex(columns=["row", "column", "seed", "points", "path"]),
        shows_intervals=options.show_intervals,
    )
    for key in keys:
        table = table.ranked(
            key,
            lower_is_better=is_lower_better(layout.metrics.get(key)),
            not_ranked=scores.not_ranked.get(key, []),
        )
    return table


def lay_out(spec: TableSpec, study: Study, options: ReportOptions) -> Layout:
    """Find the rows, columns and runs of a table.

    Args:
        spec: rows and columns; where it names none, those of the runs.
        study: all runs.
        options: which epoch's score is meant, and which runs count.

    Raises:
        UsageError: backbones are to stand beside one another under several methods.
    """
    row_key: RowKey = "backbone" if spec.backbones else "method"
    of_protocol = select_runs(study.runs, protocol=spec.protocol)
    of_protocol = runs_with(of_protocol, backbone=_backbones(spec))
    shots = str(spec.shots or shots_of(spec.protocol))
    all_runs = of_protocol[table_keys(of_protocol)["shots"] == shots]
    spec = _with_stored_tasks(spec, all_runs)
    left_out = _notes_on_runs_left_out(spec, study, shots)
    left_out += _note_on_measures(spec.metrics, spec.tasks or sorted(all_runs["task"].unique()))
    spec = _with_defaults(spec, all_runs)
    rows = _rows_of_backbones(spec) if spec.backbones else spec.rows_of_methods
    runs = all_runs[all_runs["method"].isin(spec.methods) & all_runs["task"].isin(spec.tasks)]
    runs = runs_with(runs, seed=spec.seeds)
    paper = load_published(spec.published).table if spec.published else NO_TABLE
    return Layout(
        spec=spec,
        rows=rows,
        row_key=row_key,
        shots=shots,
        paper=paper,
        metrics=_metrics(spec.columns, all_runs, paper),
        all_runs=all_runs,
        runs=ComparableRuns.of(study, runs, options, row_key=row_key),
        left_out=left_out,
    )


def _notes_on_runs_left_out(spec: TableSpec, study: Study, shots: str) -> list[str]:
    """Return notes on finished runs that a table does not show: of other shots, of other seeds, variants.

    They count runs of the table's own tasks and methods alone. Variants are those of all methods,
    since a search may be of a method that is the first stage of another one.

    Args:
        spec: as it was asked for. Without tasks it is about all of them, and likewise without methods.
        study: all runs.
        shots: of the table.
    """
    shown = {"protocol": [spec.protocol], "backbone": _backbones(spec), "task": spec.tasks}
    runs = runs_with(study.table_runs, **shown, method=spec.methods)
    shots_of_runs = table_keys(runs)["shots"]
    other_shots = shots_of_runs[shots_of_runs != shots].value_counts()
    return [
        *table_notes.on_other_shots({str(name): int(n) for name, n in other_shots.items()}),
        *table_notes.on_other_seeds(spec.seeds, runs[shots_of_runs == shots]),
        *note_on_variants(study, shots, **shown),
    ]


def _note_on_measures(metrics: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Return a note where no task has the measures of predictions that were asked for.

    Tasks without classes have no column of them, and nothing would say why there is none at all.
    """
    measures = [heading_of(metric) for metric in metrics if metric in MEASURES]
    if not measures or not tasks or any(classes_of(task) for task in tasks):
        return []
    labels = [label_of("tasks", task) for task in tasks]
    return [
        f"no {' and '.join(measures)} of {', '.join(labels)}: the rows have no single class, or the"
        " task's YAML is not here"
    ]


def _with_stored_tasks(spec: TableSpec, runs: pd.DataFrame) -> TableSpec:
    """Return a table whose own tasks have the YAML that their runs keep.

    Names from a command line or a table's YAML have no file, and with it neither label nor classes.

    Args:
        spec: the table.
        runs: rows of `Study.runs`.
    """
    # A run's name of its task equals the plain name, and has the file of the YAML besides.
    stored = {task: task for task in runs["task"].unique()}
    columns = []
    for column in spec.columns:
        if not own_file(column.task):
            task = stored.get(column.task, column.task)
            column = column.model_copy(update={"task": task})
        columns.append(column)
    return spec.model_copy(update={"columns": columns})


def _with_defaults(spec: TableSpec, runs: pd.DataFrame) -> TableSpec:
    """Return a table with rows and columns: those of the runs where it names none, and those of metrics."""
    rows = spec.rows
    if not rows:
        # A method without a run on the table's tasks would have a row of empty cells.
        if spec.columns:
            runs = runs[runs["task"].isin(spec.tasks)]
        # Methods that train more parameters stand above those that train fewer, as in the papers.
        ordered = runs.sort_values(["trainable", "method"], ascending=[False, True])
        rows = [RowSpec(method=method) for method in ordered["method"].unique()]
    columns = spec.columns
    if not columns:
        columns = [ColumnSpec(task=task) for task in sorted(runs["task"].unique())]
    if spec.metrics:
        columns = _columns_of_metrics(columns, spec.metrics)
    return spec.model_copy(update={"rows": rows, "columns": columns})


def _columns_of_metrics(columns: Sequence[ColumnSpec], metrics: Sequence[str]) -> list[ColumnSpec]:
    """Return a column of each metric for each task; of a measure only where the task has classes."""
    found = []
    for task in dict.fromkeys(column.task for column in columns):
        for metric in metrics:
            if metric in MEASURES and not classes_of(task):
                continue
            found.append(ColumnSpec(task=task, metric=None if metric == "score" else metric))
    return found


def _rows_of_backbones(spec: TableSpec) -> list[LayoutRow]:
    """Return a row for each backbone.

    Raises:
        UsageError: the table has several methods.
    """
    if len(spec.methods) != 1:
        raise UsageError("backbones stand beside one another under one method: --method full-ft")
    return [LayoutRow(name=name, label=None, published=name) for name in _backbones(spec)]


def _backbones(spec: TableSpec) -> list[str]:
    """Return the backbones of a table's runs, as finished runs have them."""
    if not spec.backbones:
        return [spec.backbone]
    return [stored_name("backbones", backbone) for backbone in spec.backbones]


def _metrics(
    columns: Sequence[ColumnSpec], runs: pd.DataFrame, paper: PublishedTable
) -> dict[str, str | None]:
    """Return the metric of each column: its own, else the paper's, else the primary one of the runs."""
    primary = runs.groupby("task")["metric"].first()
    metrics = {}
    for column in columns:
        printed = paper.columns.get(column.published)
        metrics[column.name] = column.metric or printed or primary.get(column.task)
    return metrics


# --- scores


def _scores(layout: Layout) -> Scores:
    """Return the scores of all columns."""
    runs_by_column: dict[str, ComparableRuns] = {}
    # In what each row of a column differs from most of its rows; empty: in nothing.
    mismatches: dict[str, dict[str, list[str]]] = {}
    for column in layout.spec.columns:
        of_column = layout.runs.of_tasks([column.task]).scored_by(layout.metrics[column.name])
        runs_by_column[column.name] = of_column
        mismatches[column.name] = of_column.mismatches_with_majority()
    # `concat` takes an empty frame first, so that a table without columns has the frame's columns
    # too.
    frames = [layout.runs.usable[:0].assign(column="")]
    frames += [runs.usable.assign(column=key) for key, runs in runs_by_column.items()]
    return Scores(
        frame=pd.concat(frames).dropna(subset="points"),
        notes=_notes_on_cells(layout, runs_by_column, mismatches),
        not_ranked=_not_ranked(mismatches),
    )


def _not_ranked(mismatches: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return by column the rows that differ from most of its rows.

    A row that is not compared in one column is not compared by its average either.

    Args:
        mismatches: by column and row.
    """
    not_ranked = {key: [*names] for key, names in mismatches.items()}
    of_any_column = list(chain.from_iterable(not_ranked.values()))
    return not_ranked | {AVERAGE: of_any_column}


def _notes_on_cells(
    layout: Layout,
    runs_by_column: Mapping[str, ComparableRuns],
    mismatches: Mapping[str, Mapping[str, list[str]]],
) -> dict[tuple[str, str], list[str]]:
    """Return the footnotes of cells, by row and column: on runs, on seeds, on what is not compared.

    Args:
        layout: the table.
        runs_by_column: those of its task, with the scores of its metric.
        mismatches: by column and row, in what the row differs from most of the others.
    """
    notes_on_runs = layout.runs.notes()
    notes: dict[tuple[str, str], list[str]] = {}
    for column in layout.spec.columns:
        runs = runs_by_column[column.name]
        # The number of seeds that were asked for, or that the fullest row of the column has.
        most = len(layout.spec.seeds) or runs.usable["row"].value_counts().max()
        for name in layout.names:
            of_cell = list(notes_on_runs.get((name, column.task), []))
            of_cell += _notes_on_seeds(runs, name, most)
            if name in mismatches[column.name]:
                conditions = " and ".join(mismatches[column.name][name])
                of_cell.append(
                    f"not compared with the column's other runs, which differ in {conditions}"
                )
            notes[name, column.name] = of_cell
    return notes


def _notes_on_seeds(runs: ComparableRuns, name: str, most: int) -> list[str]:
    """Return a note on how many seeds a cell has, where it lacks some.

    Args:
        runs: those of the column.
        name: of the row.
        most: as many seeds as a row of the column may have.
    """
    points = runs.usable["points"][runs.usable["row"] == name]
    found = int(points.count())
    if points.empty or found >= most:
        return []
    note = f"{found} of {most} seeds"
    if found < len(points):
        if runs.metric == "churn" and len(points) == 1:
            note += ": churn needs two seeds"
        else:
            note += f": no {runs.metric} stored for this score"
    return [note]


def _cells_of_runs(layout: Layout, scores: pd.DataFrame) -> list[dict[str, Cell]]:
    """Return the cells of each row: mean, deviation and seeds of each column, average, trained shares.

    Args:
        layout: the table.
        scores: `Scores.frame`.
    """
    names = [row.name for row in layout.rows]
    # A cell is computed once, also where two rows show the same method.
    statistics = scores.groupby(["row", "column"])["points"].agg(["mean", "std", "count"])
    # A row has an average only where all of its cells are filled: a mean over the easier tasks
    # alone would look better.
    means = statistics["mean"].unstack("column").reindex(index=names, columns=[*layout.metrics])
    averages = means.mean(axis=1, skipna=False)
    # The share of the parameters that is trained is the same in all runs of a row.
    runs = scores.drop_duplicates("row").set_index("row")
    rows = []
    for index, name in enumerate(names):
        cells = {}
        for key, metric in layout.metrics.items():
            cells[key] = Cell(seeds=0)
            if (name, key) in statistics.index:
                cells[key] = _cell(statistics.loc[(name, key)], metric)
        cells[AVERAGE] = Cell(known(averages.iloc[index]))
        if name in runs.index:
            run = runs.loc[name]
            for key, (_, column) in SHARES.items():
                cells[key] = Cell(float(100 * run[column] / run["total"]))
        rows.append(cells)
    return rows


def _cell(statistics: pd.Series, metric: str | None) -> Cell:
    """Return a cell from `mean`, `std` and `count` over seeds."""
    std = known(statistics["std"])
    # Churn is a disagreement between seeds, so each of two seeds has the same value. A printed
    # spread of 0 would claim a certainty that is not there.
    if metric == "churn":
        std = None
    return Cell(known(statistics["mean"]), std=std, seeds=int(statistics["count"]))


def _with_intervals(
    layout: Layout, scores: pd.DataFrame, cells: Sequence[dict[str, Cell]]
) -> list[dict[str, Cell]]:
    """Return the cells of each row, with the 95 % intervals of the means over seeds.

    Args:
        layout: the table.
        scores: `Scores.frame`.
        cells: those of `_cells_of_runs`.
    """
    found = []
    for row, of_row in zip(layout.rows, cells, strict=True):
        filled = dict(of_row)
        for key, metric in layout.metrics.items():
            of_cell = scores[(scores["row"] == row.name) & (scores["column"] == key)]
            # A churn is one number of two seeds, which is no sample of several.
            if metric == "churn" or len(of_cell) < 2:
                continue
            interval = mean_interval([of_cell["points"].to_numpy()])
            if interval:
                ends = within_range(*interval, metric or of_cell["metric"].iloc[0])
                filled[key] = replace(of_row[key], interval=ends)
        found.append(filled)
    return found


def _has_average(layout: Layout, ours: Sequence[dict[str, Cell]]) -> bool:
    """Return whether the table has a column with the mean over all columns.

    It has none where rows fill different columns, as their averages could not be compared, unless
    these are the paper's own columns, whose averages stand beside them.

    Args:
        layout: the table.
        ours: the cells of each row.
    """
    spec = layout.spec
    if not spec.average or len(spec.columns) < 2 or spec.metrics:
        return False
    filled = set()
    for cells in ours:
        filled.add(tuple(key for key in layout.metrics if cells[key].value is not None))
    # An empty tuple is a row without any score, which has no average to compare.
    has_one_kind_of_rows = len(filled - {()}) <= 1
    papers_own = {column.published for column in spec.columns} <= set(layout.paper.columns)
    return has_one_kind_of_rows or papers_own


# --- rows and columns


def _rows(
    layout: Layout,
    keys: Sequence[str],
    ours: Sequence[dict[str, Cell]],
    theirs: dict[int, dict[str, Cell]],
    notes: dict[tuple[str, str], list[str]],
) -> tuple[list[Row], dict[Position, list[str]]]:
    """Return the rows of a table, each of ours above the paper's and the difference, and their footnotes.

    Args:
        layout: the table.
        keys: of the columns with scores.
        ours: the cells of each row.
        theirs: what the paper prints, by index of the row.
        notes: footnotes on ours, by name of the row and column.
    """
    rows: list[Row] = []
    footnotes: dict[Position, list[str]] = {}
    for index, (row, label) in enumerate(zip(layout.rows, layout.labels, strict=True)):
        if row.name:
            for key in keys:
                if notes.get((row.name, key)):
                    footnotes[len(rows), key] = notes[row.name, key]
            rows.append(Row(row.name, label, "runs", ours[index]))
        if index not in theirs:
            continue
        printed = layout.paper.rows[str(row.published)]
        for key, note in published.footnotes(layout.spec, printed, layout.paper).items():
            footnotes[len(rows), key] = [note]
        papers_label = row.label or printed.label or label
        rows.append(Row(row.name, papers_label, "published", theirs[index]))
        differences = _differences(keys, ours[index], theirs[index], layout.spec.decimals)
        if differences:
            rows.append(Row(row.name, label, "difference", differences))
    return rows, footnotes


def _differences(
    keys: Sequence[str], ours: dict[str, Cell], theirs: dict[str, Cell], decimals: int
) -> dict[str, Cell]:
    """Return ours minus the paper's, of the numbers as they are printed; cells where both have one."""
    cells = {}
    for key in keys:
        value = ours[key].value
        other = theirs[key].value if key in theirs else None
        if isinstance(value, float) and isinstance(other, float):
            # The difference is that of the printed numbers, so that a reader can check it.
            printed = float(format_number(value, f".{decimals}f"))
            cells[key] = Cell(float(np.round(printed - other, decimals)))
    return cells


def _columns(
    layout: Layout, rows: Sequence[Row], keys: Sequence[str], *, show_intervals: bool
) -> list[Column]:
    """Return the columns of CSV and JSON; without deviations and seeds where no row has any."""
    columns = []
    for key in layout.metrics:
        columns.append(value_column(key))
        if any(row.cell(key).std or row.cell(key).seeds for row in rows):
            columns += [std_column(key), seeds_column(key)]
            if show_intervals:
                columns += own_interval_columns(key)
    if AVERAGE in keys:
        columns.append(value_column(AVERAGE))
    return columns + [value_column(key) for key in SHARES]


def _headings(layout: Layout, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, str]:
    """Return the headings of the columns: tasks, the average, and shares that a row has."""
    headings = dict(layout.headings)
    if AVERAGE in keys:
        headings[AVERAGE] = "Avg."
    for key, (heading, _) in SHARES.items():
        if any(row.cell(key).value is not None for row in rows):
            headings[key] = heading
    return headings


def _formats(layout: Layout, keys: Sequence[str]) -> dict[str, str]:
    """Return how the numbers of each column are printed, as `format` takes it."""
    formats = dict.fromkeys(keys, f"z.{layout.spec.decimals}f")
    for key in SHARES:
        formats[key] = "z.2f"
    for key, metric in layout.metrics.items():
        if metric in MEASURES:
            formats[key] = "z.3f"
    return formats


def distinct_labels(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the labels; the name where several names share a label.

    A copy of a task or method keeps the label of the original.
    """
    of_names = set(zip(labels, names, strict=True))
    uses = Counter(label for label, _ in of_names)
    distinct = []
    for label, name in zip(labels, names, strict=True):
        distinct.append(name if uses[label] > 1 else label)
    return distinct


def labels_of_methods(methods: Sequence[str]) -> list[str]:
    """Return the label of each method, or its name where several of them share a label."""
    return distinct_labels([label_of("methods", method) for method in methods], methods)


# --- notes


def _notes(
    layout: Layout, scores: pd.DataFrame, options: ReportOptions, *, has_paper: bool
) -> list[str]:
    """Return the notes below the table.

    Args:
        layout: the table.
        scores: `Scores.frame`.
        options: those of the command.
        has_paper: whether the table shows a paper's numbers.
    """
    spec = layout.spec
    study = layout.runs.study
    notes = []
    if has_paper:
        notes.append(published.note(spec, layout.all_runs))
    notes += layout.left_out
    notes += table_notes.on_protocol(spec.protocol, scores)
    notes += table_notes.on_truncation(scores)
    notes += table_notes.on_seeds(scores, show_intervals=options.show_intervals)
    on_chosen_rows = [key for key, name in layout.metrics.items() if not is_of_held_out_rows(name)]
    notes += note_on_epochs(scores[scores["column"].isin(on_chosen_rows)])
    # A table of chosen metrics stands beside the table of scores, which already names the signs
    # that a score should not be believed.
    if not spec.metrics:
        notes += table_notes.on_signs(study, scores)
    for metric in dict.fromkeys(layout.metrics.values()):
        if metric in MEASURES:
            notes.append(f"{heading_of(metric)}: {MEASURES[metric]}; lower is better")
    return notes


def _missing(layout: Layout, grid: str) -> list[str]:
    """Return in words how many runs the table lacks, and the command that makes them.

    Args:
        layout: the table.
        grid: the command, without the backbone where backbones are rows.
    """
    spec = layout.spec
    usable = layout.runs.usable
    # An excluded run counts as missing.
    finished = set(zip(usable["row"], usable["task"], usable["seed"], strict=True))
    seeds = spec.seeds or sorted(layout.all_runs["seed"].unique()) or [1]
    # Backbones as rows need a command each.
    commands = dict.fromkeys(layout.names, grid)
    for backbone in spec.backbones:
        commands[stored_name("backbones", backbone)] = f"{grid} --backbone {backbone}"
    lacking: Counter[str] = Counter()
    for name, task, seed in product(layout.names, spec.tasks, seeds):
        if (name, task, seed) not in finished:
            lacking[commands[name]] += 1
    return [f"{counted_noun(count, 'run')}: {command}" for command, count in lacking.items()]
