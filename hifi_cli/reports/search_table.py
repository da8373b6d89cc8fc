"""Tables of searches, with every setting that was tried, and the footnotes of scores whose setting a search chose."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of
from hifi_cli.config.sources import CHOOSING_KEYS, override_value, train_arguments
from hifi_cli.errors import MissingError
from hifi_cli.files import command_line
from hifi_cli.records.search_result import MethodSearch, SearchResult, SettingScore
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import DASH, Table, TableCell, TableHeading, TableRow


def build_all(
    results_dir: Path,
    names: Sequence[str] = (),
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Table]:
    """Build a table for each search in a results directory.

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
    searches = [search for result in results.values() for search in result.searches]
    for kind, chosen in (("task", tasks), ("method", methods)):
        _refuse_unknown(kind, chosen, {getattr(search, kind) for search in searches})
    tables = []
    for path, result in results.items():
        kept = [
            search
            for search in result.searches
            if search.task in (tasks or [search.task]) and search.method in (methods or [search.method])
        ]
        if kept and result.protocol == (protocol or result.protocol) and result.backbone == (backbone or result.backbone):
            tables.append(_build(result.model_copy(update={"searches": kept}), path))
    if not tables:
        raise MissingError("no finished search has all of these: leave out --tasks, --methods, --protocol or --backbone")
    return tables


def _refuse_unknown(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise MissingError(f"no finished search of {kind} '{name}'; there are searches of {', '.join(sorted(known))}")


def _build(result: SearchResult, path: Path) -> Table:
    """Build the table of a search: a row for each setting of each method, a column for each task."""
    tasks = [*dict.fromkeys(search.task for search in result.searches)]
    methods = [*dict.fromkeys(search.method for search in result.searches)]
    has_mean = len(tasks) > 1
    methods_by_tasks: dict[tuple[str, ...], list[str]] = {}  # a command names only settings that were chosen
    for method in methods:
        searches = [search for search in result.searches if search.method == method]
        chosen_on = tuple(search.arguments.get("task", search.task) for search in searches if search.chosen)
        methods_by_tasks.setdefault(chosen_on, []).append(searches[-1].arguments.get("method", method))
    backbone, protocol = (result.arguments.get(key, getattr(result, key)) for key in ("backbone", "protocol"))
    chosen_runs = [(chosen_on, names) for chosen_on, names in methods_by_tasks.items() if chosen_on]
    arguments = [train_arguments(chosen_on, names, backbone, protocol) for chosen_on, names in chosen_runs]
    return Table(
        title=f"Search {result.grid} (protocol {result.protocol}, backbone {result.backbone})",
        headings=[
            *(TableHeading(label_of("tasks", task), 2, name=task) for task in tasks),
            *([TableHeading("Mean", 2)] if has_mean else []),
            TableHeading("Seeds"),
            TableHeading("Best on"),
        ],
        rows=[row for method in methods for row in _rows(result, method, tasks, has_mean=has_mean)],
        corner="Method, setting",
        notes=[
            "score: mean over seeds of the primary metric, with its standard deviation, on the split that chooses the epoch",
            *_notes_on_config(result),
            *(
                f"train with the setting that is best on each task: {command_line(['hifi', *words, '-c', str(path)])}"
                for words in arguments
            ),
        ],
    )


def _rows(result: SearchResult, method: str, tasks: Sequence[str], *, has_mean: bool) -> Iterator[TableRow]:
    """Build a row for each setting of a method that was tried on any task."""
    searches = {search.task: search for search in result.searches if search.method == method}
    tried = {(task, _label(each.setting)): each for task, search in searches.items() for each in search.tried}
    means = {_label(each.setting): each.mean for each in result.over_tasks(method)}
    best = result.best_over_tasks(method)
    for label in dict.fromkeys(label for _, label in tried):
        scores = [tried.get((task, label)) for task in tasks]
        marks = [
            label_of("tasks", task)
            for task, search in searches.items()
            if search.chosen and _label(search.chosen.setting) == label
        ]
        if best and _label(best.setting) == label:
            at_end = " (at an end of the range)" if _is_at_end(best.setting, result.varied.get(method, {})) else ""
            marks.append(f"mean{at_end}")
        mean, seeds = means.get(label), sorted({score.seeds for score in scores if score})
        cells = [
            *map(_score_cell, scores),
            *([TableCell(text=DASH) if mean is None else TableCell(100 * mean)] if has_mean else []),
            TableCell(text=" and ".join(map(str, seeds)), value=seeds),
            TableCell(text=", ".join(marks), value=marks),
        ]
        yield TableRow(f"{label_of('methods', method)}, {label}", tuple(cells), method=method)


def _notes_on_config(result: SearchResult) -> list[str]:
    """Return what was set for every run of a search; where that differs, by task and method."""
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


def _score_cell(tried: SettingScore | None) -> TableCell:
    if tried is None:
        return TableCell(text=DASH)
    if tried.score is None:
        return TableCell(text="diverged")
    return TableCell(100 * tried.score, deviation=None if tried.deviation is None else 100 * tried.deviation)


def _is_at_end(setting: Mapping[str, str], varied: Mapping[str, Sequence[str]]) -> bool:
    """Whether a search of one key, whose values are numbers in any order, has the lowest or the highest one in a setting."""
    try:
        [(key, values)] = varied.items()
        numbers = [float(value) for value in values]
    except ValueError:  # several keys, or texts
        return False
    return float(setting[key]) in (min(numbers), max(numbers))


def _label(setting: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items()) or "as configured"


_START = "setting chosen by search "


def cell_notes(record: RunRecord, searches: Sequence[SearchResult]) -> tuple[str, ...]:
    """Return a footnote for each search that chose the setting of a run, for all tasks (the highest mean) or for the run's.

    The run must also have what the search set for all of its runs, but for the keys that say which scores choose.
    """
    result = record.result
    searches = [search for search in searches if (search.protocol, search.backbone) == (result.protocol, result.backbone)]
    by_task = [{each.task: each for each in search.searches if each.method == result.method} for search in searches]
    config = flatten(result.config) if any(by_task) else {}

    def is_of_run(setting: Mapping[str, str], search: MethodSearch) -> bool:
        given = {key: value for key, value in search.config.items() if key not in CHOOSING_KEYS}
        all_keys = {**given, **setting}
        return bool(setting) and all(key in config and override_value(config[key]) == value for key, value in all_keys.items())

    notes = []
    for search, of_tasks in zip(searches, by_task, strict=True):
        best, own = search.best_over_tasks(result.method), of_tasks.get(result.task)
        if best and any(is_of_run(best.setting, each) for each in ([own] if own else of_tasks.values())):
            labels = " and ".join(label_of("tasks", task) for task in of_tasks)
            notes.append(f"{_START}{search.grid} over {labels}: {search.budget(next(iter(of_tasks.values())))}")
        elif own and own.chosen and is_of_run(own.chosen.setting, own):
            notes.append(f"{_START}{search.grid}: {search.budget(own)}")
    return tuple(notes)


def table_notes(rows: Sequence[TableRow]) -> list[str]:
    """Return a note if only some cells of our own runs have a setting that was searched for their own method."""
    cells = [cell for row in rows if row.source == "runs" for cell in row.cells if cell.seed_scores]
    searched = [any(note.startswith(_START) for note in cell.notes) for cell in cells]
    is_unequal = any(searched) and not all(searched)
    others = "the others have given settings, or those of another method's search"
    note = f"a search chose the settings of the cells with such a footnote; {others}"
    return [note] if is_unequal else []
