"""Tables of settings (HiFi, table 5), numbers of rows (table 4), costs (table 1; EH-FT, section 4.3) and searches."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import CHOOSING_KEYS, override_value, resolve, train_arguments
from hifi_cli.errors import MissingError
from hifi_cli.files import command_line
from hifi_cli.reports import pairs, published
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec
from hifi_cli.results.search_result import MethodSearch, SearchResult
from hifi_cli.results.study import Study

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
    results_dir: Path,
    names: Sequence[str] = (),
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Table]:
    """A table for each search in a results directory, with every setting that was tried.

    Args:
        names: grids; empty: all that are finished.
        protocol, backbone, tasks, methods: only these; empty: all.

    Raises:
        MissingError: there is no search, none of that name is finished, or none of such tasks and methods.
    """
    paths = SearchResult.paths(results_dir)
    for name in names:
        if name not in paths:
            known = f" (finished: {', '.join(paths)})" if paths else ""
            raise MissingError(f"no finished search '{name}' in {results_dir}{known}; hifi grid {name} makes it")
    if not paths:
        raise MissingError(f"no finished search in {results_dir}; make one with hifi grid, for example hifi grid demo-search")
    results = {path: SearchResult.read(path) for name in names or paths for path in paths[name]}
    for kind, option in (("protocol", protocol), ("backbone", backbone)):
        _refuse_unknown(kind, [option] if option else [], {getattr(result, kind) for result in results.values()})
    every = [search for result in results.values() for search in result.searches]
    for kind, chosen in (("task", tasks), ("method", methods)):
        _refuse_unknown(kind, chosen, {getattr(search, kind) for search in every})
    tables = []
    for path, result in results.items():
        kept = [
            search
            for search in result.searches
            if search.task in (tasks or [search.task]) and search.method in (methods or [search.method])
        ]
        if kept and result.protocol == (protocol or result.protocol) and result.backbone == (backbone or result.backbone):
            tables.append(_search(result.model_copy(update={"searches": kept}), path))
    if not tables:
        raise MissingError("no finished search has all of these: leave out --tasks, --methods, --protocol or --backbone")
    return tables


def _refuse_unknown(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise MissingError(f"no finished search of {kind} '{name}'; there are searches of {', '.join(sorted(known))}")


def _search(result: SearchResult, path: Path) -> Table:
    """A row for each setting of each method, a column for each task: score on the split that chooses the epoch."""
    tasks = [*dict.fromkeys(search.task for search in result.searches)]
    rows: list[dict[str, Any]] = []
    texts: dict[Place, str] = {}
    for method in dict.fromkeys(search.method for search in result.searches):
        of_method = {search.task: search for search in result.searches if search.method == method}
        means = {_label(each.setting): each.mean for each in result.over_tasks(method)}
        best = result.best_over_tasks(method)
        for label in dict.fromkeys(_label(tried.setting) for search in of_method.values() for tried in search.tried):
            content: dict[str, Any] = {"method": method, "label": f"{label_of('methods', method)}, {label}"}
            seeds, marks = set(), []
            for task, search in of_method.items():
                tried = next((each for each in search.tried if _label(each.setting) == label), None)
                if tried:
                    seeds.add(tried.seeds)
                    content[task] = None if tried.score is None else 100 * tried.score
                    content[f"{task}_std"] = None if tried.deviation is None else 100 * tried.deviation
                    texts |= {(len(rows), task): "diverged"} if tried.score is None else {}
                if search.chosen and _label(search.chosen.setting) == label:
                    marks.append(label_of("tasks", task))
            if best and _label(best.setting) == label:
                is_at_end = _is_at_end(best.setting, result.varied.get(method, {}))
                marks.append("mean (at an end of the range)" if is_at_end else "mean")
            mean = means.get(label)
            content |= {"mean": None if mean is None else 100 * mean, "best_on": ", ".join(marks)}
            rows.append(content | {"seeds": " and ".join(map(str, sorted(seeds)))})
    scores = {task: label_of("tasks", task) for task in tasks}
    headings = {**scores, **({"mean": "Mean"} if len(tasks) > 1 else {}), "seeds": "Seeds", "best_on": "Best on"}
    columns = ["method", "label", *(name for task in tasks for name in (task, f"{task}_std")), *list(headings)[len(tasks) :]]
    return Table(
        title=f"Search {result.grid} (protocol {result.protocol}, backbone {result.backbone})",
        frame=pd.DataFrame(rows, columns=columns),
        headings=headings,
        corner="Method, setting",
        decimals=dict.fromkeys([*tasks, "mean"], 2),
        texts=texts,
        notes=[
            "score: mean over seeds of the primary metric on the split that chooses the epoch",
            *_settings_of_all(result),
            *(f"train with the best setting of each task: {command}" for command in _commands(result, path)),
        ],
    )


def _settings_of_all(result: SearchResult) -> list[str]:
    """What was set for every run of a search; where that differs, by task and method."""
    runs_by_config: dict[str, list[str]] = {}
    for search in result.searches:
        name = f"{label_of('methods', search.method)} on {label_of('tasks', search.task)}"
        runs_by_config.setdefault(_label(search.config) if search.config else "", []).append(name)
    several = len(runs_by_config) > 1
    return [
        f"set for every run{' of ' + ', '.join(runs) if several else ''}: {config}"
        for config, runs in runs_by_config.items()
        if config
    ]


def _commands(result: SearchResult, path: Path) -> list[str]:
    """The commands that train with the chosen settings; each names only methods that were searched on all of its tasks."""
    methods_by_tasks: dict[tuple[str, ...], list[str]] = {}
    for method in dict.fromkeys(search.method for search in result.searches):
        chosen = [search for search in result.searches if search.method == method and search.chosen]
        if chosen:
            of_tasks = tuple(search.arguments.get("task", search.task) for search in chosen)
            methods_by_tasks.setdefault(of_tasks, []).append(chosen[-1].arguments.get("method", method))
    backbone, protocol = (result.arguments.get(key, getattr(result, key)) for key in ("backbone", "protocol"))
    return [
        command_line(["hifi", *train_arguments(tasks, methods, backbone, protocol), "-c", str(path)])
        for tasks, methods in methods_by_tasks.items()
    ]


def _is_at_end(setting: Mapping[str, str], varied: Mapping[str, Sequence[str]]) -> bool:
    """Whether a search of one key, whose values are numbers in any order, has the lowest or the highest one in a setting."""
    try:
        [(key, values)] = varied.items()
        numbers = [float(value) for value in values]
    except ValueError:  # several keys, or texts
        return False
    return float(setting[key]) in (min(numbers), max(numbers))


def search_notes(run: pd.Series, results: Sequence[SearchResult]) -> list[str]:
    """A note for each search that chose the setting of a run, for all tasks (the highest mean) or for the run's.

    The run must also have what the search set for all of its runs, but for the keys that say which scores choose.
    """
    notes = []
    for result in results:
        if (result.protocol, result.backbone) != (run["protocol"], run["backbone"]):
            continue
        of_tasks = {search.task: search for search in result.searches if search.method == run["method"]}
        best, own = result.best_over_tasks(run["method"]), of_tasks.get(run["task"])
        config = flatten(run["config"]) if of_tasks else {}
        if best and any(_has_setting(config, best.setting, each) for each in ([own] if own else of_tasks.values())):
            labels = " and ".join(label_of("tasks", task) for task in of_tasks)
            budget = result.budget(next(iter(of_tasks.values())))
            notes.append(f"setting chosen by search {result.grid} over {labels}: {budget}")
        elif own and own.chosen and _has_setting(config, own.chosen.setting, own):
            notes.append(f"setting chosen by search {result.grid}: {result.budget(own)}")
    return notes


def _has_setting(config: Mapping[str, Any], setting: Mapping[str, str], search: MethodSearch) -> bool:
    given = {key: value for key, value in search.config.items() if key not in CHOOSING_KEYS}
    keys = {**given, **setting}
    return bool(setting) and all(key in config and override_value(config[key]) == value for key, value in keys.items())


def _label(setting: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items()) or "as configured"


def _headings(columns: Sequence[ColumnSpec]) -> dict[str, str]:
    return {column.name: column.label or label_of("tasks", column.task) for column in columns}


def _source(paper: tuple[str, PublishedTable] | None) -> list[str]:
    return [f"published: {paper[0]}, table {paper[1].number}"] if paper else []
