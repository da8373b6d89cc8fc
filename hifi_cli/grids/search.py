"""A grid search: the setting of each task and method with the best mean score on its selection split."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import backbone_config, override_value, parse_override
from hifi_cli.errors import UsageError
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.grid_spec import Grid
from hifi_cli.results.directory import RunDirectory, RunStatus
from hifi_cli.results.record import RunResult
from hifi_cli.results.search_result import MethodSearch, SearchResult, SettingScore
from hifi_cli.wording import counted_noun


def refuse_another_search(grid: Grid, cells: Iterable[GridCell], results_dir: Path) -> None:
    """Refuse a search whose choices cannot stand beside the stored ones.

    Raises:
        ConflictError: the stored search had another number of trials, or chose on other examples.
    """
    description = _description(grid, cells)
    description.with_earlier(SearchResult.path(results_dir, grid.name, grid.protocol, grid.backbone))


def result(grid: Grid, cells: Sequence[GridCell], statuses: Mapping[GridCell, RunStatus], results_dir: Path) -> SearchResult:
    """Return what a search tried and chose; see `choose`.

    Args:
        cells: of methods all of whose runs finished, in the grid's order.
        statuses: of finished runs, in any order.
    """
    in_order = {cell: statuses[cell] for cell in cells}
    return _description(grid, cells).model_copy(update={"searches": choose(in_order, results_dir)})


def _description(grid: Grid, cells: Iterable[GridCell]) -> SearchResult:
    """Return what a search varies, without any scores."""
    names = {"protocol": registry.name_of(grid.protocol), "backbone": backbone_config(grid.backbone).name}
    return SearchResult(
        grid=grid.name,
        **names,
        arguments=_other_than(names, {"protocol": grid.protocol, "backbone": grid.backbone}),
        searches=[],
        varied={
            registry.name_of(method): {key: list(map(override_value, values)) for key, values in varied.items()}
            for method, varied in grid.methods.items()
        },
        trials=grid.trials,
        splits=sorted({_selection_split(cell.config) for cell in cells}),
    )


def choose(statuses: dict[GridCell, RunStatus], results_dir: Path) -> list[MethodSearch]:
    """Score every setting of each task and method, and choose the best.

    The score is the primary metric's mean over seeds, on the split that chooses the epoch. A setting with a run that
    diverged has none. Of equal settings the first in the grid's order is chosen.

    Args:
        statuses: of finished runs.
    """
    scores: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], list[float | None]]] = {}
    cell_of: dict[tuple[str, str], GridCell] = {}
    for cell, status in statuses.items():
        cell_of[cell.task, cell.method] = cell
        seeds = scores.setdefault((cell.task, cell.method), {}).setdefault(cell.settings, [])
        seeds.append(selection_score(cell.run_directory(results_dir), status.result) if status.result else None)
    searches = []
    for key, settings in scores.items():
        cell, tried = cell_of[key], [_setting_score(keys, values) for keys, values in settings.items()]
        best = max(tried, key=lambda setting: -math.inf if setting.score is None else round(setting.score, 9))
        chosen = None if best.score is None else best
        names = {"task": cell.config.task, "method": cell.config.method}
        arguments = _other_than(names, {"task": cell.task, "method": cell.method})
        searches.append(MethodSearch(**names, chosen=chosen, tried=tried, config=_set_for_all(cell), arguments=arguments))
    return searches


def _other_than(names: Mapping[str, str], arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that are not the names themselves."""
    return {key: argument for key, argument in arguments.items() if argument != names[key]}


def _set_for_all(cell: GridCell) -> dict[str, str]:
    """Return the keys that the grid and the command line set for every run of a search, with the values of a run."""
    keys = dict.fromkeys(key for text in cell.overrides for key in flatten(parse_override(text).values))
    values = flatten(cell.config.model_dump(mode="json"))
    others = {key: values[key] for key in keys if key in values and key not in {"variant", *dict(cell.settings)}}
    return {key: override_value(value) for key, value in others.items()}


def selection_score(directory: RunDirectory, result: RunResult) -> float | None:
    """The score of a run on its selection split; None when it diverged.

    Raises:
        MissingError: metrics.jsonl, which holds it for a split cut from train, is missing.
        UsageError: it is damaged.
    """
    if not result.is_done:
        return None
    if result.report == "max" or result.selection == "validation":
        return result.score()
    epoch = directory.read_epochs().get(result.epoch())
    if epoch is None or epoch.selection is None:
        raise UsageError(
            f"{directory.metrics} is damaged (no selection score of epoch {result.epoch()}); train the run again with --force"
        )
    return epoch.selection


def _selection_split(config: RunConfig) -> str:
    """The examples whose scores choose the setting; `validation` is the reported split."""
    return "validation" if config.report == "max" else "few-shot" if config.shots else config.selection


def lines(searches: list[MethodSearch]) -> Iterable[str]:
    """The choices as lines, with the words that `hifi train` takes; `-c` with the search's file stands for them."""
    for search in searches:
        best, name = search.chosen, f"{search.task}  {search.method}"
        if best is None or best.score is None:
            yield f"{name}  no setting: every one diverged"
            continue
        setting = " ".join(f"{key}={value}" for key, value in best.setting.items())
        scores = [tried.score for tried in search.tried if tried.score is not None]
        spread = f"{100 * min(scores):.2f} to {100 * max(scores):.2f} over {counted_noun(len(search.tried), 'setting')}"
        yield f"{name}  {setting}  {100 * best.score:.2f} ({spread}, {counted_noun(best.seeds, 'seed')})"


def _setting_score(keys: tuple[tuple[str, str], ...], values: list[float | None]) -> SettingScore:
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if len(known) == len(values) else None
    deviation = statistics.stdev(known) if mean is not None and len(known) > 1 else None
    return SettingScore(setting=dict(keys), score=mean, deviation=deviation, seeds=len(values))
