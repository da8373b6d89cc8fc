"""The settings that searches tried, and which is best."""

from collections.abc import Sequence

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError
from hifi_cli.records.study import TABLE_KEYS, Study, tried_settings
from hifi_cli.reports import comparable
from hifi_cli.reports.render import Table


def searches(study: Study, **only: str | Sequence[str] | None) -> list[Table]:
    """A table for each protocol and backbone, with all settings that were tried.

    Args:
        only: this `protocol`, `backbone` or number of `shots`, these of `task` or `method`.

    Raises:
        MissingError: there is no such run.
    """
    tried = tried_settings(study)
    tried["shots"] = comparable.table_keys(tried)["shots"]
    for key, names in only.items():
        chosen = [names] if isinstance(names, str) else names
        tried = tried[tried[key].isin(chosen)] if chosen else tried
    if tried.empty:
        raise MissingError(
            f"no such run of a search in {study.directory}; hifi grid demo-search is an example"
        )
    by_table = tried.groupby(TABLE_KEYS, sort=False, dropna=False)
    return [_search(keys, rows) for keys, rows in by_table]


def _search(keys: tuple[str, str, str], tried: pd.DataFrame) -> Table:
    """A row for the settings of each method, a column for each task: score on the split that chooses the epoch."""
    protocol, backbone, shots = keys
    tasks = {task: label_of("tasks", task) for task in tried["task"].unique()}
    cells = tried.assign(label=tried["task"].map(tasks)).groupby(["method", "settings"], sort=False)
    order = [*cells.groups]
    scores, deviations = (
        100
        * tried.pivot(index=["method", "settings"], columns="task", values=value).reindex(order)[
            [*tasks]
        ]
        for value in ("score", "deviation")
    )
    frame = pd.concat([scores, deviations.add_suffix("_std")], axis=1)
    if len(tasks) > 1:
        frame["mean"] = scores.mean(axis=1, skipna=False)
    frame["seeds"] = cells["seeds"].agg(
        lambda numbers: " and ".join(map(str, sorted(numbers.unique())))
    )
    frame["best_on"] = (
        tried[tried["best"]]
        .groupby(["method", "settings"])["task"]
        .agg(lambda names: ", ".join(names.map(tasks)))
    )
    frame = frame.reset_index()
    settings = frame.pop("settings").replace("", "as configured")
    frame.insert(
        1, "label", frame["method"].map(lambda name: label_of("methods", name)) + ", " + settings
    )
    frame.insert(2, "source", "runs")
    unusual = tried[tried["score"].isna() | tried["collapsed"]]
    footnotes = {
        (order.index((run.method, run.settings)), run.task): [
            "diverged" if pd.isna(run.score) else "a run collapsed"
        ]
        for run in unusual.itertuples()
    }
    shown = {"mean": "Mean", "seeds": "Seeds", "best_on": "Best on"}
    few = "" if shots == "full" else f", {shots}-shot"
    return Table(
        title=f"Settings tried (protocol {protocol}, backbone {backbone}{few})",
        frame=frame,
        headings=tasks | {key: heading for key, heading in shown.items() if key in frame},
        index_title="Method, setting",
        formats=dict.fromkeys([*tasks, "mean"], "z.2f"),
        footnotes=footnotes,
        notes=[
            f"score: mean over seeds of the primary metric on {' and '.join(tried['split'].unique())}, which chooses"
        ],
    )
