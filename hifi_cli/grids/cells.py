"""The runs of a grid, one cell each.

They are those of a table, a figure or claims, or every combination of tasks, methods and seeds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import PurePath
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, parse_override, resolve
from hifi_cli.config.unused import may_be_unused
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.grids.grid_spec import GridSpec
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.run_paths import relative_run_path

# Train rows of a task that does not say how many it has: only the order of runs depends on it.
_USUAL_ROWS = 1000

# Gives the values of a configuration, nested as in config.yaml.
ValuesOf = Callable[[RunConfig], dict[str, Any]]


# A cell is equal to itself alone.
@dataclass(frozen=True, eq=False)
class GridCell:
    """One run of a grid.

    Attributes:
        task, method, backbone, protocol: names as on a command line.
        overrides: all `key=value`.
        config: the resolved configuration.
        shares_keys: whether it has keys that the grid sets for several methods, some of which may
            not use them.
    """

    task: str
    method: str
    backbone: str
    protocol: str
    overrides: tuple[str, ...]
    config: RunConfig
    shares_keys: bool = False

    @property
    def starts_from(self) -> PurePath | None:
        """Path of the run, from `runs/` on, whose weights this one starts from."""
        start = self.config.start_from
        if not start:
            return None
        return PurePath(relative_run_path(start))

    @cached_property
    def rows(self) -> int | None:
        """Training rows of an epoch; None: neither the configuration nor the task says how many."""
        config = self.config
        if config.shots:
            # Most tasks have two classes.
            return 2 * config.shots
        if config.limit:
            return config.limit
        official = registry.load("tasks", self.task).get("rows") or {}
        return official.get("train") or None

    @cached_property
    def cost(self) -> float:
        """The expected duration in training examples seen."""
        return float(self.config.epochs * (self.rows or _USUAL_ROWS))

    def command(self, where: Sequence[str], *, force: bool = False) -> list[str]:
        """Return the command that trains the run.

        Args:
            where: the options that name its data and results.
            force: whether the command replaces a result.
        """
        words = ["hifi", "train", "--task", self.task, "--method", self.method]
        words += ["--backbone", self.backbone, "--protocol", self.protocol]
        words += ["--seeds", str(self.config.seed)]
        if force:
            words.append("--force")
        if self.shares_keys:
            words.append("--allow-unused")
        return [*words, *where, *self.overrides]


def stated_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of a configuration as its layers set them.

    The defaults of its method's settings are not among them: only the method's class has these, and
    `methods.find.values_of` imports it.
    """
    return config.model_dump(mode="json")


def cells(
    grid: GridSpec,
    name: str,
    overrides: Sequence[str] = (),
    values_of: ValuesOf = stated_values,
) -> list[GridCell]:
    """Return every cell of a grid: task by task, all methods, their variants, and seeds.

    Args:
        grid: has a protocol and a backbone.
        name: of the grid, for messages.
        overrides: `key=value` of the command line, set for every run.
        values_of: gives the values of a configuration, by which a variant differs from the usual run.

    Raises:
        UsageError: a name, key or value is wrong, or two runs are the same.
    """
    # Keys that are set for several methods: some of them may not use such a key.
    common_keys = [*_keys_of(overrides), *grid.vary]
    shares_keys = any(may_be_unused(key) for key in common_keys)
    all_cells: list[GridCell] = []
    varied_keys: set[str] = set()
    for task, (method, varied) in product(grid.tasks, grid.varied.items()):
        on_task = _MethodOnTask(
            task=task,
            method=method,
            backbone=str(grid.backbone),
            protocol=str(grid.protocol),
            overrides=tuple(overrides),
            shares_keys=shares_keys,
            values_of=values_of,
            origin=f"grid {name}",
        )
        for values in product(*varied.values()):
            setting = dict(zip(varied, values, strict=True))
            all_cells += on_task.cells(setting, grid.seeds)
        varied_keys.update(varied)
    if varied_keys:
        refuse_own_keys(overrides, {*varied_keys, "variant"}, f"grid {name}")
    distinct_paths = {cell.config.run_path for cell in all_cells}
    if len(distinct_paths) < len(all_cells):
        raise UsageError(
            f"grid {name}: two of its runs are the same; name each task, method, seed and value once"
        )
    return all_cells


@dataclass(frozen=True)
class _MethodOnTask:
    """A method on a task of a grid, whose runs differ in seed and in the keys that vary.

    Attributes:
        task, method, backbone, protocol: names as on a command line.
        overrides: `key=value` of the command line.
        shares_keys: as `GridCell` has it.
        values_of: gives the values of a configuration.
        origin: what has the keys, for messages.
    """

    task: str
    method: str
    backbone: str
    protocol: str
    overrides: tuple[str, ...]
    shares_keys: bool
    values_of: ValuesOf
    origin: str

    @cached_property
    def usual_values(self) -> dict[str, Any] | None:
        """The values of the usual run, in which no key varies; None: it needs a key that varies."""
        try:
            return self.values_of(self.resolved(self.overrides))
        except UsageError:
            return None

    def resolved(self, words: Sequence[str]) -> RunConfig:
        """Resolve the configuration of a run with some `key=value`."""
        return resolve(
            task=self.task,
            method=self.method,
            backbone=self.backbone,
            protocol=self.protocol,
            overrides=words,
            origin=self.origin,
        )

    def cells(self, setting: Mapping[str, Any], seeds: Sequence[int]) -> list[GridCell]:
        """Return the cells under one setting, one for each seed.

        Args:
            setting: a value for each of the keys that vary; it names the variant.
            seeds: of the runs.
        """
        own_words = [f"{key}={override_value(value)}" for key, value in setting.items()]
        words = self.overrides
        if own_words:
            words = (*own_words, *self.overrides, f"variant={variant(own_words)}")
        config = self.resolved(words)
        if own_words and self.is_usual(config):
            # Tables, figures and other grids have this run too: it is trained once for all of them.
            words = self.overrides
            config = self.resolved(words)
        cells_of_seeds = []
        for seed in seeds:
            cell = GridCell(
                task=self.task,
                method=self.method,
                backbone=self.backbone,
                protocol=self.protocol,
                overrides=words,
                config=config.model_copy(update={"seed": seed}),
                shares_keys=self.shares_keys,
            )
            cells_of_seeds.append(cell)
        return cells_of_seeds

    def is_usual(self, config: RunConfig) -> bool:
        """Return whether a variant differs from the usual run in nothing but its name."""
        usual = self.usual_values
        if usual is None:
            return False
        values = {**self.values_of(config), "variant": usual["variant"]}
        return values == usual


def cells_of_claims(grid: GridSpec, name: str, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Return the runs that decide claims, each once; none where no run of the protocol can.

    Args:
        grid: names a file of claims.
        name: of the grid, for messages.
        overrides: `key=value` of the command line, set for every run.

    Raises:
        UsageError: the overrides set `shots` or `variant`; the claims would not read the runs.
    """
    refuse_own_keys(overrides, ["shots", "variant"], f"grid {name}")
    setting = {"protocol": grid.protocol, "backbone": grid.backbone}
    file = claims_spec.load(str(grid.claims), **setting, tasks=grid.tasks)
    found: dict[PurePath, GridCell] = {}
    for claim in file.claims.values():
        if claims_spec.why_undecidable(claim, file):
            continue
        spec = GridSpec(
            protocol=claim.protocol or file.protocol,
            backbone=claim.only_backbone or file.backbone,
            tasks=[registry.argument_of(task) for task in claims_spec.tasks_of(claim, file)],
            methods={registry.argument_of(method): {} for method in claims_spec.methods_of(claim)},
            seeds=grid.seeds or file.seeds,
        )
        for cell in cells(spec, name, overrides):
            found[cell.config.run_path] = cell
    return list(found.values())


def variant(overrides: Sequence[str]) -> str:
    """Return a variant's name: the `key=value` that tell it from other runs of its method."""
    return safe_name(",".join(overrides))


def refuse_own_keys(overrides: Iterable[str], own: Iterable[str], origin: str) -> None:
    """Refuse a `key=value` of the command line that would replace a key that a grid or figure sets.

    Args:
        overrides: of the command line.
        own: the keys that the grid or figure sets.
        origin: what they are set by, for the message.

    Raises:
        UsageError: names `origin` and the key.
    """
    given = _keys_of(overrides)
    for key in sorted(own):
        if any(_overlap(key, other) for other in given):
            raise UsageError(f"{origin} sets {key}: leave it out")


def _keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys that some `key=value` set, as `section.key`."""
    keys: list[str] = []
    for word in overrides:
        keys += flatten(parse_override(word))
    return keys


def _overlap(key: str, other: str) -> bool:
    """Return whether two keys are the same, or one is a section that holds the other."""
    # The point at the end tells `heads` from `heads_x`.
    return f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}.")


def shard(all_cells: Sequence[GridCell], text: str) -> list[GridCell]:
    """Return the i-th of n parts of about the same cost, for a text `i/n` with i from 1 to n.

    Raises:
        UsageError: the text is not `i/n`.
    """
    found = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard {text:.40}: expected i/n, two numbers with 1 <= i <= n")
    part = int(found[1])
    parts = int(found[2])
    # They are dealt like cards: each part gets one of the longest runs, then one of the next, and so on.
    longest_first = sorted(all_cells, key=lambda cell: -cell.cost)
    return longest_first[part - 1 :: parts]
