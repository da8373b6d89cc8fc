"""Tables of searches, with every setting that was tried, and the footnotes of scores whose setting a search chose."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of, read_yaml
from hifi_cli.config.sources import override_value, train_arguments
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import command_line
from hifi_cli.records.search_result import MethodSearch, SearchResult
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow


def build_all(results_dir: Path, names: Sequence[str] = ()) -> list[Table]:
    """Build a table for each task and method of the searches in a results directory, then one for each method on several tasks.

    Args:
        names: grids; empty: all that are finished.

    Raises:
        MissingError: there is no search.
        UsageError: no search of that name is finished.
    """
    paths = SearchResult.paths(results_dir)
    for name in names:
        if name not in paths:
            known = f" (finished: {', '.join(paths)})" if paths else ""
            raise UsageError(f"no finished search '{name}' in {results_dir}{known}; hifi grid {name} makes it")
    if not paths:
        raise MissingError(f"no finished search in {results_dir}; make one with hifi grid, for example hifi grid demo-search")
    tables: list[Table] = []
    for path in (path for name in names or paths for path in paths[name]):
        result = SearchResult.read(path)
        tables += [_build(result, search, path) for search in result.searches]
        tables += [
            _build_over_tasks(result, method)
            for method in dict.fromkeys(search.method for search in result.searches)
            if result.over_tasks(method)
        ]
    return tables


def _build(result: SearchResult, search: MethodSearch, path: Path) -> Table:
    labels = f"{label_of('methods', search.method)} on {label_of('tasks', search.task)}"
    arguments = train_arguments([search.task], [search.method], result.backbone, result.protocol)
    command = ["hifi", *arguments, "-c", str(path)]
    return Table(
        title=f"Search {result.grid}: {labels} (protocol {result.protocol}, backbone {result.backbone})",
        headings=[TableHeading("Score", 2), TableHeading("SD", 2), TableHeading("Seeds", 0), TableHeading("Chosen")],
        rows=[
            TableRow(
                _label(tried.setting),
                (
                    TableCell(
                        None if tried.score is None else 100 * tried.score, text="diverged" * (tried.score is None) or None
                    ),
                    _percent(tried.deviation),
                    TableCell(float(tried.seeds)),
                    TableCell(text="chosen" if tried == search.chosen else ""),
                ),
            )
            for tried in search.tried
        ],
        corner="Setting",
        notes=[
            "score: mean over seeds on the split that chooses the epoch; SD: over seeds",
            *([f"the chosen setting: {command_line(command)}"] if search.chosen else []),
        ],
    )


def _build_over_tasks(result: SearchResult, method: str) -> Table:
    """Build the table of one method's settings on several tasks, from which one setting for all of them can be chosen."""
    settings, best = result.over_tasks(method), result.best_over_tasks(method)
    varied = result.varied.get(method, {})
    ends = [{key: values[at]} for key, values in varied.items() for at in (0, -1)] if len(varied) == 1 else []
    mark = "highest mean, at an end of the range" if best and best.setting in ends else "highest mean"
    return Table(
        title=f"Search {result.grid}: {label_of('methods', method)} over tasks"
        f" (protocol {result.protocol}, backbone {result.backbone})",
        headings=[TableHeading(label, 2) for label in ["Mean", *(label_of("tasks", task) for task in settings[0].scores)]]
        + [TableHeading("Best")],
        rows=[
            TableRow(
                _label(tried.setting),
                (
                    *(_percent(value) for value in [tried.mean, *tried.scores.values()]),
                    TableCell(text=mark if best == tried else ""),
                ),
            )
            for tried in settings
        ],
        corner="Setting",
        notes=["mean of the tasks' primary metrics, on the split that chooses the epoch"],
    )


def _percent(value: float | None) -> TableCell:
    return TableCell(None if value is None else 100 * value)


def _label(setting: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items()) or "as configured"


_START = "setting chosen by search "


def cell_notes(record: RunRecord, searches: Sequence[SearchResult]) -> tuple[str, ...]:
    """Return a footnote for each search that chose the setting of a run, for all tasks (the highest mean) or for the run's."""
    result = record.result
    searches = [search for search in searches if (search.protocol, search.backbone) == (result.protocol, result.backbone)]
    by_task = [{each.task: each for each in search.searches if each.method == result.method} for search in searches]
    config = flatten(read_yaml(record.directory.config_file)) if any(by_task) else {}

    def is_of_run(setting: Mapping[str, str]) -> bool:
        return bool(setting) and all(key in config and override_value(config[key]) == value for key, value in setting.items())

    notes = []
    for search, of_tasks in zip(searches, by_task, strict=True):
        best, own = search.best_over_tasks(result.method), of_tasks.get(result.task)
        if best and is_of_run(best.setting):
            labels = " and ".join(label_of("tasks", task) for task in of_tasks)
            notes.append(f"{_START}{search.grid} over {labels}: {search.budget(next(iter(of_tasks.values())))}")
        elif own and own.chosen and is_of_run(own.chosen.setting):
            notes.append(f"{_START}{search.grid}: {search.budget(own)}")
    return tuple(notes)


def table_notes(rows: Sequence[TableRow]) -> list[str]:
    """Return a note if only some cells of our own runs have a searched setting: the comparison is unequal then."""
    cells = [cell for row in rows if row.source == "runs" for cell in row.cells if cell.seed_scores]
    searched = [any(note.startswith(_START) for note in cell.notes) for cell in cells]
    is_unequal = any(searched) and not all(searched)
    note = (
        "a search chose the setting of the cells with such a note only; where others were tuned less, a comparison is unequal"
    )
    return [note] if is_unequal else []
