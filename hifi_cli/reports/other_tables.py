"""Tables of settings (HiFi, table 5), numbers of rows (table 4), costs (table 1; EH-FT, section 4.3) and searches."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, counted_noun
from hifi_cli.reports import pairs
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import (
    NO_TABLE,
    ColumnSpec,
    RowSpec,
    TableSpec,
    load_published,
    shots_of,
)
from hifi_cli.results.study import TABLE_KEYS, Study, tried_settings

FULL_FT = "full-ft"  # the reference for costs
SPLITS = ("train", "validation", "test")
COSTS = {
    "trained_percent": "Trained %",
    "time": "Time",
    "memory": "Memory",
    "stored": "Stored",
    "stored_mb": "MB",
}


def settings(spec: TableSpec, *, show_published: bool) -> Table:
    """Batch size and learning rate of each method on each task; needs no run and no data."""

    def setting(method: str, column: ColumnSpec) -> str | None:
        config = pairs.protocol_config(
            task=column.task, method=method, backbone=spec.backbone, protocol=spec.protocol
        )
        if config is None:
            return None
        mantissa, exponent = f"{config.learning_rate:.6e}".split("e")
        return f"{config.batch_size}/{float(mantissa):g}e{int(exponent)}"

    table = _beside_paper(spec, setting, show_published)
    table.title += f" (protocol {spec.protocol}, backbone {spec.backbone})"
    table.notes.insert(0, "batch size / learning rate")
    return table


def row_counts(
    spec: TableSpec, counts: Mapping[str, Mapping[str, int]], *, show_published: bool
) -> Table:
    """Numbers of rows of each split of the local data.

    Args:
        counts: by task and split.
    """

    def count(split: str, column: ColumnSpec) -> int | None:
        of_task = counts.get(column.task, {})
        return of_task.get(f"{split}_{column.split}", of_task.get(split))

    splits = [RowSpec(method=split, label=split) for split in SPLITS]
    table = _beside_paper(spec.model_copy(update={"rows": splits}), count, show_published)
    table.frame = table.frame.astype(dict.fromkeys(table.headings, "Int64"))
    table.corner, table.formats = "Split", dict.fromkeys(table.headings, ",.0f")
    return table


def _beside_paper(
    spec: TableSpec, ours: Callable[[str, ColumnSpec], Any], show_published: bool
) -> Table:
    """A table of what `ours` says of each row and column, each row above the paper's."""
    paper = load_published(spec.published) if spec.published and show_published else None
    lines: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for row in spec.rows:
        method = str(row.method)
        line = {"method": method, "label": row.label or label_of("methods", method)}
        cells = {column.name: ours(method, column) for column in spec.columns}
        lines.append({**line, "source": "runs", **cells})
        if paper and row.published in paper[1].rows:
            note = paper[1].rows[row.published].note
            footnotes[len(lines), ""] = [note] if note else []
            cells = {
                column.name: paper[1].mean(row.published, column.published)
                for column in spec.columns
            }
            lines.append({**line, "source": "published", **cells})
    headings = {
        column.name: column.label or label_of("tasks", column.task) for column in spec.columns
    }
    return Table(
        title=spec.description,
        frame=pd.DataFrame(lines, columns=["method", "label", "source", *headings]),
        headings=headings,
        footnotes=footnotes,
        notes=[f"published: {paper[0]}, table {paper[1].number}"] if paper else [],
    )


def costs(spec: TableSpec, study: Study, *, counted: Collection[str]) -> Table:
    """What finished runs took, relative to Full-FT on the same tasks, device and threads; means over tasks.

    Beside them stands what the paper's table marks (HiFi, table 1: extra parameters, corrupted structure, inference delay,
    storage).
    """
    runs = pairs.of_table(
        study.runs,
        protocol=spec.protocol,
        backbone=spec.backbone,
        shots=str(spec.shots or shots_of(spec.protocol)),
    )
    runs = runs[
        runs["seed"].isin(spec.seeds or runs["seed"])
        & runs["task"].isin(spec.tasks or runs["task"])
    ]
    judged = pairs.judged(runs, counted)
    measured = relative_costs(judged[judged["left_out"] == ""])
    rows = spec.rows or [RowSpec(method=name) for name in measured.index]
    notes = [
        "time per epoch, peak memory and stored file relative to Full-FT's on the same task, device and number of threads:"
        " means over tasks"
    ]
    alone = judged["method"][~judged["method"].isin(measured.index)]
    reasons = judged["left_out"].replace(
        "", "Full-FT has no run on their tasks, devices and numbers of threads"
    )
    notes += [
        f"left out: {reason}: {', '.join(sorted({*names}))}"
        for reason, names in alone.groupby(reasons)
    ]
    shared = judged[(judged["left_out"] == "") & ~has_own_memory(judged)]
    if len(shared):
        names = ", ".join(sorted({*shared["method"]}))
        notes.append(
            f"memory left out: {counted_noun(len(shared), 'run')} that another one of the same"
            f" command had preceded ({names}); hifi grid starts a process for each run"
        )
    name, paper = load_published(spec.published) if spec.published else ("", NO_TABLE)
    marks = {
        column: [paper.mean(str(row.published), column) for row in rows] for column in paper.columns
    }
    columns = {
        "method": [row.method for row in rows],
        "label": [row.label or label_of("methods", str(row.method)) for row in rows],
        "source": "runs",
        **marks,
    }
    notes += [f"check marks as printed in {name}, table {paper.number}"] if marks else []
    notes += [paper.note] if paper.note else []
    return Table(
        title=f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})",
        frame=pd.DataFrame(columns).join(measured, on="method"),
        headings={key: key for key in marks} | COSTS,
        formats={**dict.fromkeys(COSTS, ".2f"), "stored": ".3f"},
        notes=notes,
    )


def has_own_memory(runs: pd.DataFrame) -> pd.Series:
    """Whether the peak memory of each run is its own; where the record does not say so, it counts as such."""
    return runs["memory_is_own"].ne(False)


def relative_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Costs by method: percent of trained parameters, `time` per epoch, peak `memory` and size of the file `stored`.

    The latter three are ratios to Full-FT's on the same task, device and number of threads, means over tasks.
    """
    by_cell = (
        runs.assign(
            trained_percent=100 * runs["trainable"] / runs["total"],
            time=runs["time_s"].astype(float) / runs["epoch_last"].astype(float),
            memory=runs["peak_memory_bytes"].astype(float).where(has_own_memory(runs)),
            stored=runs["delta_bytes"].astype(float),
            stored_mb=runs["delta_bytes"].astype(float) / 1e6,
        )
        .groupby(["method", "task", "device", "threads"])[[*COSTS]]
        .mean()
    )
    ratios = ["time", "memory", "stored"]
    full = by_cell.loc[by_cell.index.get_level_values("method") == FULL_FT, ratios].droplevel(
        "method"
    )
    by_cell[ratios] = by_cell[ratios] / full.reindex(by_cell.index.droplevel("method")).to_numpy()
    return by_cell.dropna(subset=["time"]).groupby(level="method").mean()


def searches(study: Study, **only: str | Sequence[str] | None) -> list[Table]:
    """A table for each protocol and backbone, with all settings that were tried.

    Args:
        only: this `protocol`, `backbone` or number of `shots`, these of `task` or `method`.

    Raises:
        MissingError: there is no such run.
    """
    tried = tried_settings(study)
    tried["shots"] = pairs.table_keys(tried)["shots"]
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
        corner="Method, setting",
        formats=dict.fromkeys([*tasks, "mean"], "z.2f"),
        footnotes=footnotes,
        notes=[
            f"score: mean over seeds of the primary metric on {' and '.join(tried['split'].unique())}, which chooses"
        ],
    )
