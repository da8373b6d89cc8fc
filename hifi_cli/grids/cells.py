"""The cells of a grid: one run each, with its place in the results directory and its part of a command line."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.methods import method_spec
from hifi_cli.config.run_config import RunConfig, refuse_too_many
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.grids.grid_spec import Grid


@dataclass(frozen=True, eq=False)  # a cell is equal to itself alone
class Cell:
    """One run of a grid.

    Attributes:
        task, method, backbone, protocol: as they are named on a command line.
        settings: the keys that vary, and their values here.
        words: all `key=value` words.
        config: what they resolve to.
    """

    task: str
    method: str
    backbone: str
    protocol: str
    settings: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    config: RunConfig

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def name(self) -> str:
        """The run in one word."""
        parts = (self.config.task, self.config.method, self.config.variant, f"seed{self.seed}")
        return "/".join(part for part in parts if part)

    @property
    def cost(self) -> float:
        """How long the run takes, in a unit of its own: examples seen, where the task's YAML says how many there are."""
        rows = registry.load("tasks", self.task).get("rows") or {}
        return float(self.config.epochs * (self.config.limit or rows.get("train") or 1000))

    def run_directory(self, results_dir: Path) -> Path:
        """The run's directory."""
        return results_dir / self.config.run_path


def cells(grid: Grid, words: Iterable[str] = ()) -> list[Cell]:
    """Every run of a grid: task by task, all methods, their variants, and seeds.

    Args:
        words: `key=value` words of the command line, set for every run.

    Raises:
        UsageError: a name, key or value is wrong, or there are too many runs.
    """
    settings = sum(math.prod(map(len, varied.values())) for varied in grid.methods.values())
    refuse_too_many(len(grid.tasks) * settings * len(grid.seeds))
    found = [
        cell
        for task in grid.tasks
        for method, varied in grid.methods.items()
        for keys, values in _combinations(varied)
        for cell in _seeds(grid, task, method, tuple(zip(keys, values, strict=True)), tuple(words))
    ]
    places = {cell.config.run_path for cell in found}
    if len(places) < len(found):
        raise UsageError(f"grid {grid.name}: two of its runs are the same; name each task, method, seed and value once")
    return found


def _combinations(varied: dict[str, list[object]]) -> Iterable[tuple[tuple[str, ...], tuple[str, ...]]]:
    keys = tuple(varied)
    return ((keys, tuple(map(override_value, values))) for values in product(*varied.values()))


def _seeds(grid: Grid, task: str, method: str, settings: tuple[tuple[str, str], ...], words: tuple[str, ...]) -> list[Cell]:
    own = [f"{key}={value}" for key, value in settings]
    named = [*grid.config, *own]
    overrides = (*grid.config, *own, *words, *([f"variant={variant(named)}"] if named else []))
    first = resolve(task=task, method=method, backbone=grid.backbone, protocol=grid.protocol, overrides=overrides)
    return [
        Cell(task, method, grid.backbone, grid.protocol, settings, overrides, first.model_copy(update={"seed": seed}))
        for seed in grid.seeds
    ]


def variant(words: Sequence[str]) -> str:
    """What a run is called by the `key=value` words that tell it from others of its task and method."""
    return safe_name(",".join(words))


def shard(found: list[Cell], text: str) -> list[Cell]:
    """The i-th of n parts, `i/n` counted from 1: every n-th cell.

    Raises:
        UsageError: not two such numbers.
    """
    part, slash, number = text.partition("/")
    is_pair = slash and part.isdecimal() and number.isdecimal() and len(text) < 20  # Python reads no number of 5,000 digits
    if not (is_pair and 1 <= int(part) <= int(number)):
        raise UsageError(f"--shard {text:.40}: i/n is required, two numbers with 1 <= i <= n")
    return found[int(part) - 1 :: int(number)]


def chooses_heads(method: str) -> bool:
    """Whether a method's YAML, or its first stage's, says how heads are chosen, so that scores are needed first."""
    spec = method_spec(method)
    stage1 = (spec.config.get("stage1") or {}).get("method")
    return "heads" in spec.config or any(chooses_heads(one) for one in (spec.base, stage1) if one)
