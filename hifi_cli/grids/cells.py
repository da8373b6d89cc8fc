"""Grid cells: one run each, with its run directory and its part of a command line."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import ConfigResolver, method_spec, parse_override
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.grids import trials
from hifi_cli.grids.grid_spec import Grid
from hifi_cli.grids.trials import Setting
from hifi_cli.results.directory import RunDirectory


@dataclass(frozen=True, eq=False)  # a cell is equal to itself alone
class GridCell:
    """One run of a grid.

    Attributes:
        task, method, backbone, protocol: names as on a command line.
        settings: the keys that vary, and their values in this cell.
        overrides: all `key=value`.
        config: the resolved configuration.
        cost: the expected duration in training examples seen.
        chooses_heads: whether heads must be scored before the run.
    """

    task: str
    method: str
    backbone: str
    protocol: str
    settings: Setting
    overrides: tuple[str, ...]
    config: RunConfig
    cost: float
    chooses_heads: bool

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def name(self) -> str:
        """The run's name: task, method, variant and seed."""
        parts = (self.config.task, self.config.method, self.config.variant, f"seed{self.seed}")
        return "/".join(part for part in parts if part)

    @cached_property
    def run_path(self) -> PurePath:
        """Path of the run in a results directory."""
        return self.config.run_path

    @cached_property
    def config_hash(self) -> str:
        """Hash of the configuration."""
        return self.config.hash

    def run_directory(self, results_dir: Path) -> RunDirectory:
        """The run's directory."""
        return RunDirectory(results_dir / self.run_path)


def cells(grid: Grid, overrides: Iterable[str] = ()) -> list[GridCell]:
    """Return every cell of a grid: task by task, all methods, their variants, and seeds.

    Args:
        overrides: `key=value` of the command line, set for every run.

    Raises:
        UsageError: a name, key or value is wrong, there are too many runs, or the trials are not those of a fair search.
    """
    counts = {method: math.prod(map(len, varied.values())) for method, varied in grid.methods.items()}
    if grid.trials:
        trials.refuse_too_few(counts, grid.trials, grid.name)
    settings = {method: trials.sample_settings(varied, grid.trials) for method, varied in grid.methods.items()}
    all_cells = [cell for task in grid.tasks for cell in _cells_of_task(grid, task, settings, tuple(overrides))]
    if grid.trials:
        trials.refuse_reported_split((cell.config for cell in all_cells), grid.name)
    varied = {key for keys in grid.methods.values() for key in keys}
    own = varied | {word.partition("=")[0] for word in grid.config}
    refuse_own_keys(overrides, own, f"grid {grid.name}")  # the names of its runs contain them
    run_paths = {cell.run_path for cell in all_cells}
    if len(run_paths) < len(all_cells):
        raise UsageError(f"grid {grid.name}: two of its runs are the same; name each task, method, seed and value once")
    return all_cells


def _cells_of_task(
    grid: Grid, task: str, settings_of_method: Mapping[str, Sequence[Setting]], overrides: tuple[str, ...]
) -> Iterator[GridCell]:
    rows = registry.train_rows(task)
    for method, settings_of_cells in settings_of_method.items():
        scored = chooses_heads(method)
        resolver = ConfigResolver(task=task, method=method, backbone=grid.backbone, protocol=grid.protocol)
        for settings in settings_of_cells:
            grid_overrides = [*grid.config, *(f"{key}={value}" for key, value in settings)]
            of_variant = [f"variant={variant(grid_overrides)}"] if grid_overrides else []
            words = (*grid_overrides, *overrides, *of_variant)
            first = resolver.resolve(overrides=words).config
            for seed in grid.seeds:
                config = first.model_copy(update={"seed": seed})
                yield GridCell(
                    task, method, grid.backbone, grid.protocol, settings, words, config, first.expected_cost(rows), scored
                )


def variant(overrides: Sequence[str]) -> str:
    """Return the name of a run's variant: the `key=value` that distinguish it from other runs of its task and method."""
    return safe_name(",".join(overrides))


def refuse_own_keys(overrides: Iterable[str], own: Iterable[str], origin: str) -> None:
    """Refuse a `key=value` of the command line that would replace a key that a grid or figure sets, its section or part of it.

    Raises:
        UsageError: names `origin` and the key.
    """
    given = [f"{key}." for word in overrides for key in flatten(parse_override(word).values)]
    for key in sorted(own):
        if any(word.startswith(f"{key}.") or f"{key}.".startswith(word) for word in given):
            raise UsageError(f"{origin} sets {key}: leave it out")


def shard(all_cells: list[GridCell], text: str) -> list[GridCell]:
    """Return the i-th of n parts of about the same cost, for a text `i/n` with i from 1 to n.

    Each cell, the most expensive first, goes to the part with the least cost so far; of several such parts to the one with
    the fewest cells of its method, as methods differ in time per example.

    Raises:
        UsageError: the text is not `i/n`.
    """
    part, slash, number = text.partition("/")
    is_pair = slash and part.isdecimal() and number.isdecimal() and len(text) < 20  # Python reads no number of 5,000 digits
    if not (is_pair and 1 <= int(part) <= int(number)):
        raise UsageError(f"--shard {text:.40}: expected i/n, two numbers with 1 <= i <= n")
    parts = min(int(number), len(all_cells))  # the others are empty
    costs = [0.0] * parts
    counts = {cell.method: [0] * parts for cell in all_cells}
    part_of: dict[GridCell, int] = {}
    for cell in sorted(all_cells, key=lambda cell: -cell.cost):
        least = min(costs)
        lightest = (index for index, cost in enumerate(costs) if cost == least)
        part_of[cell] = index = min(lightest, key=counts[cell.method].__getitem__)
        costs[index] += cell.cost
        counts[cell.method][index] += 1
    return [cell for cell in all_cells if part_of[cell] == int(part) - 1]


def chooses_heads(method: str) -> bool:
    """Return whether a method selects heads, itself or in its first stage, so that heads must be scored first."""
    spec = method_spec(method)
    stage1 = (spec.config.get("stage1") or {}).get("method")
    return "heads" in spec.config or any(chooses_heads(name) for name in (spec.base, stage1) if name)
