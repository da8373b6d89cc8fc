"""Tables of settings (HiFi, table 5), numbers of rows (table 4), costs (table 1; EH-FT, section 4.3) and searches."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError
from hifi_cli.reports import pairs, published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec
from hifi_cli.results import search
from hifi_cli.results.study import SETTING, Study

UNEQUAL = "differs from the paper"
FULL_FT = "full-ft"  # the reference for costs
SPLITS = ("train", "validation", "test")
Counts = Mapping[str, Mapping[str, tuple[int | None, int | None]]]  # by task and split: rows here, and in the official release


def settings(spec: TableSpec, *, show_published: bool) -> Table:
    """Batch size and learning rate of each method on each task; needs no run and no data.

    The paper's own are shown where they differ from ours, or everywhere with `show_published`.
    """
    columns = spec.columns or [ColumnSpec(task=name) for name in registry.names("tasks")]
    paper = published.load(spec.published) if spec.published else None
    rows: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for row in spec.rows or [RowSpec(method=name) for name in registry.names("methods")]:
        if row.method is None:
            continue
        label = row.label or label_of("methods", row.method)
        texts = {column.name: _setting(spec, row.method, column.task) for column in columns}
        theirs = _printed(paper[1], row.published_name, columns) if paper else {}
        differing = [key for key, text in theirs.items() if text and texts[key] and text != texts[key]]
        footnotes |= {(len(rows), key): [UNEQUAL] for key in differing}
        rows.append({"method": row.method, "label": label, "source": "runs", **texts})
        if theirs and (show_published or differing):
            rows.append({"method": row.method, "label": label, "source": "published", **theirs})
    return Table(
        title=f"{spec.description or 'Settings'} (protocol {spec.protocol}, backbone {spec.backbone})",
        frame=pd.DataFrame(rows),
        headings=_headings(columns),
        footnotes=footnotes,
        notes=["batch size / learning rate", *_source(paper)],
    )


def _setting(spec: TableSpec, method: str, task: str) -> str | None:
    known = {"methods": method, "tasks": task, "protocols": spec.protocol}
    if any(not registry.is_file(name) and name not in registry.names(kind) for kind, name in known.items()):
        return None
    config = resolve(task=task, method=method, backbone=spec.backbone, protocol=spec.protocol)
    mantissa, exponent = f"{config.learning_rate:.6e}".split("e")
    return f"{config.batch_size}/{float(mantissa):g}e{int(exponent)}"


def _printed(paper: PublishedTable, name: str | None, columns: Sequence[ColumnSpec]) -> dict[str, str | None]:
    """What a paper prints in a row of texts, by column; empty where it has no such row."""
    if name not in paper.rows:
        return {}
    texts = dict(zip(paper.columns, paper.rows[name].texts, strict=True))
    return {column.name: texts.get(column.published_name) for column in columns}


def row_counts(spec: TableSpec, counts: Counts, *, show_published: bool) -> Table:
    """Numbers of rows of each split of the local data, beside the paper's; notes name the official release's."""
    paper = published.load(spec.published) if spec.published and show_published else None
    rows: list[dict[str, Any]] = []
    footnotes: dict[Place, list[str]] = {}
    for split in SPLITS:
        ours: dict[str, Any] = {"method": split, "label": split, "source": "runs"}
        for column in spec.columns:
            of_task = counts.get(column.task, {})
            ours[column.name], official = of_task.get(f"{split}_{column.split}") or of_task.get(split) or (None, None)
            if ours[column.name] and official and official != ours[column.name]:
                footnotes[len(rows), column.name] = [f"the official release has {official:,} rows"]
        rows.append(ours)
        if paper:
            printed = paper[1].rows[split]
            footnotes |= {(len(rows), ""): [printed.note] if printed.note else []}
            theirs = {column.name: paper[1].mean(split, column.published_name) for column in spec.columns}
            rows.append({"method": split, "label": split, "source": "published", **theirs})
    headings = _headings(spec.columns)
    return Table(
        title=spec.description,
        frame=pd.DataFrame(rows).astype(dict.fromkeys(headings, "Int64")),
        headings=headings,
        corner="Split",
        decimals=dict.fromkeys(headings, 0),
        footnotes=footnotes,
        notes=_source(paper),
    )


def costs(spec: TableSpec, study: Study, *, counted: Collection[str]) -> Table:
    """What finished runs took, relative to Full-FT on the same tasks and the same device; means over tasks.

    Beside them stands what the paper's table marks (HiFi, table 1: extra parameters, corrupted structure, inference delay,
    storage).
    """
    runs = study.shown
    runs = runs[(runs["protocol"] == spec.protocol) & (runs["backbone"] == spec.backbone)]
    averaged = [pairs.averaged(study, group, spec.seeds, counted)[0] for _, group in runs.groupby(["method", "task"])]
    measured = relative_costs(pd.concat(averaged) if averaged else runs)
    paper = published.load(spec.published) if spec.published else None
    printed = list(paper[1].columns) if paper else []
    row_specs = spec.rows or [RowSpec(method=name) for name in measured.index]
    rows: list[dict[str, Any]] = []
    texts: dict[Place, str] = {}
    for row in row_specs:
        marks = paper[1].rows[row.published_name].texts if paper and row.published_name in paper[1].rows else []
        content = {"method": row.method, "label": row.label or label_of("methods", str(row.method)), "source": "runs"}
        content |= dict(zip(printed, marks, strict=False))
        texts |= {(len(rows), key): "" for key in printed if key not in content}
        rows.append(content | (measured.loc[row.method].to_dict() if row.method in measured.index else {}))
    headings = {
        **{key: key for key in printed},
        "trained_percent": "Trained %",
        "time": "Time",
        "memory": "Memory",
        "stored": "Stored",
        "stored_mb": "MB",
    }
    notes = ["time per epoch, peak memory and stored file relative to Full-FT's on the same task and device: means over tasks"]
    if alone := {*runs["method"]} - {*measured.index}:
        notes.append(f"left out, as Full-FT has no run on their tasks and devices: {', '.join(sorted(alone))}")
    if paper:
        notes.append(f"check marks as printed in {paper[0]}, table {paper[1].number}")
        notes += [paper[1].note] if paper[1].note else []
    return Table(
        title=f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})",
        frame=pd.DataFrame(rows, columns=["method", "label", "source", *printed, *measured.columns]),
        headings=headings,
        decimals={"trained_percent": 2, "time": 2, "memory": 2, "stored": 3, "stored_mb": 2},
        texts=texts,
        notes=notes,
    )


def relative_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Costs by method: percent of trained parameters, `time` per epoch, peak `memory` and size of the file `stored`.

    The latter three are ratios to Full-FT's on the same task and device, means over tasks.
    """
    runs = runs[runs["status"] == "done"]
    by_cell = (
        runs.assign(
            trained_percent=100 * runs["trainable"] / runs["total"],
            time=runs["time_s"].astype(float) / runs["epochs"].astype(float),
            memory=runs["peak_memory_bytes"].astype(float),
            stored=runs["delta_bytes"].astype(float),
            stored_mb=runs["delta_bytes"].astype(float) / 1e6,
        )
        .groupby(["method", "task", "device"])[["trained_percent", "time", "memory", "stored", "stored_mb"]]
        .mean()
    )
    ratios = ["time", "memory", "stored"]
    full = by_cell.loc[by_cell.index.get_level_values("method") == FULL_FT, ratios].droplevel("method")
    by_cell[ratios] = by_cell[ratios] / full.reindex(by_cell.index.droplevel("method")).to_numpy()
    return by_cell.dropna(subset=["time"]).groupby(level="method").mean()


def searches(
    study: Study,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Table]:
    """A table for each protocol and backbone, with every setting that was tried.

    Args:
        protocol, backbone, tasks, methods: only these; empty: all.

    Raises:
        MissingError: there is no such run.
    """
    tried = search.tried_settings(study)
    wanted = {"protocol": [protocol] if protocol else [], "backbone": [backbone] if backbone else []}
    for key, names in {**wanted, "task": tasks, "method": methods}.items():
        tried = tried[tried[key].isin(names)] if names else tried
    if tried.empty:
        raise MissingError(f"no such run of a search in {study.directory}; hifi grid demo-search is an example of one")
    return [_search(names, rows) for names, rows in tried.groupby(SETTING, sort=False, dropna=False)]


def _search(setting: tuple[str, str, int | None], tried: pd.DataFrame) -> Table:
    """A row for each setting of each method, a column for each task: score on the split that chooses the epoch."""
    protocol, backbone, shots = setting
    tasks = [*tried["task"].unique()]
    texts: dict[Place, str] = {}
    rows: list[dict[str, Any]] = []
    for (method, keys), of_setting in tried.groupby(["method", "setting"], sort=False):
        scores = of_setting.set_index("task")
        values = (100 * scores["score"]).to_dict()
        texts |= {(len(rows), task): "diverged" for task, value in values.items() if pd.isna(value)}
        row = {"method": method, "label": f"{label_of('methods', method)}, {keys or 'as configured'}", **values}
        row |= {f"{task}_std": 100 * deviation for task, deviation in scores["deviation"].items()}
        if len(tasks) > 1:
            row["mean"] = scores["score"].reindex(tasks).mean(skipna=False) * 100
        row["seeds"] = " and ".join(map(str, sorted(scores["seeds"].unique())))
        rows.append(row | {"best_on": ", ".join(label_of("tasks", task) for task in scores.index[scores["best"]])})
    labels = {task: label_of("tasks", task) for task in tasks}
    headings = {**labels, **({"mean": "Mean"} if len(tasks) > 1 else {}), "seeds": "Seeds", "best_on": "Best on"}
    few = f", {shots:.0f}-shot" if shots and pd.notna(shots) else ""
    return Table(
        title=f"Settings tried (protocol {protocol}, backbone {backbone}{few})",
        frame=pd.DataFrame(rows),
        headings=headings,
        corner="Method, setting",
        decimals=dict.fromkeys([*tasks, "mean"], 2),
        texts=texts,
        notes=[f"score: mean over seeds of the primary metric on {' and '.join(tried['split'].unique())}, which chooses"],
    )


def _headings(columns: Sequence[ColumnSpec]) -> dict[str, str]:
    return {column.name: column.label or label_of("tasks", column.task) for column in columns}


def _source(paper: tuple[str, PublishedTable] | None) -> list[str]:
    return [f"published: {paper[0]}, table {paper[1].number}"] if paper else []
