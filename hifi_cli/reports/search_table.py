"""Tables of searches: every setting that was tried, with its score on the selection split, and the chosen one."""

from collections.abc import Sequence
from pathlib import Path

from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import command_line
from hifi_cli.records.search_result import MethodSearch, SearchResult
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow


def build_all(results_dir: Path, names: Sequence[str] = ()) -> list[Table]:
    """Build a table for each task and method of the searches in a results directory.

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
    return [
        _build(result, search, path)
        for name in names or paths
        for path in paths[name]
        for result in [SearchResult.read(path)]
        for search in result.searches
    ]


def _build(result: SearchResult, search: MethodSearch, path: Path) -> Table:
    labels = f"{label_of('methods', search.method)} on {label_of('tasks', search.task)}"
    where = ["--backbone", result.backbone, "--protocol", result.protocol]
    command = ["hifi", "train", "--task", search.task, "--method", search.method, *where, "-c", str(path)]
    return Table(
        title=f"Search {result.grid}: {labels} (protocol {result.protocol}, backbone {result.backbone})",
        headings=[TableHeading("Score", 2), TableHeading("SD", 2), TableHeading("Seeds", 0), TableHeading("Chosen")],
        rows=[
            TableRow(
                " ".join(f"{key}={value}" for key, value in tried.setting.items()) or "as configured",
                (
                    TableCell(
                        None if tried.score is None else 100 * tried.score, text="diverged" * (tried.score is None) or None
                    ),
                    TableCell(None if tried.deviation is None else 100 * tried.deviation),
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
