"""The settings that searches tried, and which is best."""

from collections.abc import Sequence

import pandas as pd

from hifi_cli.errors import MissingError
from hifi_cli.records.searches import tried_settings
from hifi_cli.records.study import TABLE_KEYS, Study
from hifi_cli.reports.table import Cell, Position, Row, Table, known, std_column, value_column
from hifi_cli.reports.table_runs import runs_with, setting_in_words, table_keys


def searches(
    study: Study,
    *,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    **keys: str | None,
) -> list[Table]:
    """Build a table for each protocol and backbone, with all settings that were tried.

    Args:
        study: all runs.
        tasks: empty: all; likewise `methods`.
        methods: those whose settings are shown.
        keys: `protocol`, `backbone` and `shots`; None or left out: any.

    Raises:
        MissingError: there is no such run.
    """
    tried = tried_settings(study)
    tried["shots"] = table_keys(tried)["shots"]
    asked = {key: [name] for key, name in keys.items() if name}
    tried = runs_with(tried, task=tasks, method=methods, **asked)
    if tried.empty:
        raise MissingError(
            f"no such run of a search in {study.directory}; hifi grid demo-search is an example"
        )
    tables = []
    for values, rows in tried.groupby(TABLE_KEYS, sort=False, dropna=False):
        conditions = setting_in_words(dict(zip(TABLE_KEYS, values, strict=True)))
        tables.append(_search(study, conditions, rows))
    return tables


def _search(study: Study, conditions: str, tried: pd.DataFrame) -> Table:
    """Return a row for the settings of each method, a column for each task.

    A cell is the score on the split that chooses the epoch, in percent, with its deviation over
    seeds.

    Args:
        study: has the runs, and with them the labels of the user's own methods and tasks.
        conditions: protocol, backbone and shots of all runs, in words.
        tried: rows of `tried_settings`.
    """
    tasks = {task: study.label_of("tasks", task) for task in tried["task"].unique()}
    rows: list[Row] = []
    footnotes: dict[Position, list[str]] = {}
    for (method, settings), of_row in tried.groupby(["method", "settings"], sort=False):
        for setting in of_row.itertuples():
            if pd.isna(setting.score):
                footnotes[len(rows), setting.task] = ["diverged"]
            elif setting.collapsed:
                footnotes[len(rows), setting.task] = ["a run collapsed"]
        label = f"{study.label_of('methods', method)}, {settings or 'as configured'}"
        rows.append(Row(method, label, "runs", _cells(of_row, tasks)))
    headings = dict(tasks)
    if len(tasks) > 1:
        headings["mean"] = "Mean"
    headings |= {"seeds": "Seeds", "best_on": "Best on"}
    splits = " and ".join(tried["split"].unique())
    notes = [f"score: mean over seeds of the primary metric on {splits}, which chooses"]
    if tried["all_collapsed"].any():
        notes.append("a setting whose runs all collapsed to one class is not called the best")
    return Table(
        title=f"Settings tried ({conditions})",
        rows=rows,
        headings=headings,
        # Programs know the deviations of all tasks after their scores.
        columns=[
            *(value_column(task) for task in tasks),
            *(std_column(task) for task in tasks),
            *(value_column(key) for key in headings if key not in tasks),
        ],
        index_title="Method, setting",
        formats=dict.fromkeys([*tasks, "mean"], "z.2f"),
        footnotes=footnotes,
        notes=notes,
    )


def _cells(settings: pd.DataFrame, tasks: dict[str, str]) -> dict[str, Cell]:
    """Return the cells of a row.

    Args:
        settings: the row's lines of `tried_settings`, one per task.
        tasks: label of each task of the table, in the order of the columns.
    """
    cells: dict[str, Cell] = {}
    for line in settings.itertuples():
        cells[line.task] = Cell(known(100 * line.score), std=known(100 * line.deviation))
    percent = 100 * settings.set_index("task")["score"].reindex([*tasks])
    cells["mean"] = Cell(known(percent.mean(skipna=False)))
    seeds = sorted(settings["seeds"].unique())
    cells["seeds"] = Cell(" and ".join(map(str, seeds)))
    best_on = [tasks[task] for task in settings["task"][settings["best"]]]
    cells["best_on"] = Cell(", ".join(best_on) or None)
    return cells
