"""The runs of a grid, one cell each.

They are those of a table, a figure or claims, or every combination of tasks, methods and seeds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, parse_override, resolve
from hifi_cli.config.unused import may_be_unused
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.reports import table_spec
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.run_paths import relative_run_path

# Train rows of a task that does not say how many it has: only the order of runs depends on it.
_USUAL_ROWS = 1000

Values = dict[str, Annotated[list[Any], Field(min_length=1)]]
# Gives the values of a configuration, nested as in config.yaml.
ValuesOf = Callable[[RunConfig], dict[str, Any]]


def _with_own_keys(methods: Any) -> Any:
    """Make a mapping of a list of methods: no key varies for one of them only."""
    if isinstance(methods, list):
        return {str(name): {} for name in methods}
    return methods


class GridSpec(ConfigModel):
    """A grid. What it does not say is taken from its table, figure or claims."""

    description: str = ""
    """The purpose of the grid, in one line."""
    table: str | None = None
    """A table's name or YAML, for its protocol, backbone, methods, tasks and seeds."""
    figure: str | None = None
    """A figure's name or YAML, for the runs that it is drawn from, their methods and settings."""
    claims: str | None = None
    """A file of claims, for the runs that decide them."""
    protocol: str | None = None
    """Protocol of the runs."""
    backbone: str | None = None
    """Backbone of the runs."""
    tasks: list[str] = []
    """Names of tasks."""
    methods: Annotated[dict[str, Values], BeforeValidator(_with_own_keys)] = {}
    """Names of methods; or a mapping from names to the keys that vary for that method only, with
    their values."""
    seeds: list[Seed] = []
    """Seeds of the runs."""
    vary: Values = {}
    """Configuration keys and their values. Every combination is a variant with a directory of its
    own, but for the usual one, in which each key has the value that the run has anyway; `hifi table search`
    shows which is best. A key with one value is set for every run."""

    @property
    def varied(self) -> dict[str, Values]:
        """Each method with all keys that vary for it."""
        return {method: {**self.vary, **values} for method, values in self.methods.items()}


def load(name: str, changes: Mapping[str, Any]) -> GridSpec:
    """Load a grid, change it, and fill in what its table says.

    Args:
        name: a grid, a table, `figure-NAME` or `claims-NAME`, or a YAML of a grid, table, figure or claims.
        changes: fields of the grid that the command line sets; empty ones change nothing.

    Raises:
        UsageError: an unknown name or key, or the grid names no protocol, backbone, task or method.
    """
    spec = parse(GridSpec, _content(name), name)
    update = {key: value for key, value in changes.items() if value}
    if "methods" in update:
        # The keys that vary for a method stay with it.
        update["methods"] = {method: spec.methods.get(method, {}) for method in update["methods"]}
    spec = spec.model_copy(update=update)
    if spec.figure or spec.claims:
        if spec.table or spec.methods or spec.vary:
            raise UsageError(
                f"grid {name}: figures and claims define their own methods: leave out what else names runs or keys"
            )
        return spec
    if spec.table:
        spec = _filled_from_table(spec, spec.table)
    for key in ("protocol", "backbone", "tasks", "methods"):
        if not getattr(spec, key):
            raise UsageError(f"grid {name} names no {key}: add it to its YAML or use --{key}")
    return spec.model_copy(update={"seeds": spec.seeds or [1]})


def _filled_from_table(spec: GridSpec, name: str) -> GridSpec:
    """Take what a grid does not say from a table."""
    table = table_spec.load(name)
    filled: dict[str, Any] = {
        "protocol": spec.protocol or table.protocol,
        "backbone": spec.backbone or table.backbone,
        "seeds": spec.seeds or table.seeds,
    }
    # A table of another kind has no runs of its own.
    if table.kind == "scores":
        methods = [registry.argument_of(method) for method in table.methods]
        filled["tasks"] = spec.tasks or [registry.argument_of(task) for task in table.tasks]
        filled["methods"] = spec.methods or {method: {} for method in methods}
    return spec.model_copy(update=filled)


def _content(name: str) -> dict[str, Any]:
    """Give what a grid's YAML says, or the one line that makes a grid of a table, figure or claims."""
    # Names of other kinds, and the grids that they stand for.
    others = {table: {"table": table} for table in registry.names("tables")}
    others |= {f"figure-{figure}": {"figure": figure} for figure in registry.names("figures")}
    others |= {f"claims-{paper}": {"claims": paper} for paper in registry.names("claims")}
    if name in others:
        return others[name]
    if name not in registry.names("grids") and not registry.is_yaml_path(name):
        raise registry.unknown_name_error("grids", name, others)
    content = registry.load("grids", name)
    # A YAML of the user's own may be a table, claims or a figure, which its keys show.
    if {"rows", "columns"} & content.keys():
        return {"table": name}
    if isinstance(content.get("claims"), dict):
        return {"claims": name}
    # A grid has no kind, and a table names its tasks as columns.
    if {"kind", "tasks"} <= content.keys():
        return {"figure": name}
    return content


# --- cells


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
        """Give the command that trains the run.

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
    """Give the values of a configuration, without those settings of its method that no source sets."""
    return config.model_dump(mode="json")


def cells(
    grid: GridSpec,
    name: str,
    overrides: Sequence[str] = (),
    values_of: ValuesOf = stated_values,
) -> list[GridCell]:
    """Give every cell of a grid: task by task, all methods, their variants, and seeds.

    Args:
        grid: has a protocol and a backbone.
        name: of the grid, for messages.
        overrides: `key=value` of the command line, set for every run.
        values_of: gives the values of a configuration, by which a variant differs from the usual run.

    Raises:
        UsageError: a name, key or value is wrong, or there are too many runs.
    """
    keys_of_words: list[str] = []
    for word in overrides:
        keys_of_words += flatten(parse_override(word))
    # Keys that are set for several methods: some of them may not use such a key.
    shares_keys = any(may_be_unused(key) for key in [*keys_of_words, *grid.vary])
    all_cells: list[GridCell] = []
    varied: set[str] = set()
    for task, (method, values_of_keys) in product(grid.tasks, grid.varied.items()):
        varied.update(values_of_keys)
        on_task = _MethodOnTask(
            task=task,
            method=method,
            backbone=str(grid.backbone),
            protocol=str(grid.protocol),
            overrides=tuple(overrides),
            shares_keys=shares_keys,
            values_of=values_of,
        )
        for values in product(*values_of_keys.values()):
            setting = dict(zip(values_of_keys, values, strict=True))
            all_cells += on_task.cells(setting, grid.seeds)
    if varied:
        refuse_own_keys(overrides, {*varied, "variant"}, f"grid {name}")
    if len({cell.config.run_path for cell in all_cells}) < len(all_cells):
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
    """

    task: str
    method: str
    backbone: str
    protocol: str
    overrides: tuple[str, ...]
    shares_keys: bool
    values_of: ValuesOf

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
        )

    def cells(self, setting: Mapping[str, Any], seeds: Sequence[int]) -> list[GridCell]:
        """Give the cells under one setting, one for each seed.

        Args:
            setting: a value for each of the keys that vary; it names the variant.
            seeds: of the runs.
        """
        own = [f"{key}={override_value(value)}" for key, value in setting.items()]
        words = self.overrides
        if own:
            words = (*own, *self.overrides, f"variant={variant(own)}")
        config = self.resolved(words)
        if own and self.is_usual(config):
            # Tables, figures and other grids have this run too: it is trained once for all of them.
            words = self.overrides
            config = self.resolved(words)
        of_seeds = []
        for seed in seeds:
            of_seed = config.model_copy(update={"seed": seed})
            of_seeds.append(
                GridCell(
                    self.task,
                    self.method,
                    self.backbone,
                    self.protocol,
                    words,
                    of_seed,
                    self.shares_keys,
                )
            )
        return of_seeds

    def is_usual(self, config: RunConfig) -> bool:
        """Say whether a variant differs from the usual run in nothing but its name."""
        usual = self.usual_values
        if usual is None:
            return False
        values = {**self.values_of(config), "variant": usual["variant"]}
        return values == usual


def cells_of_claims(grid: GridSpec, name: str, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Give the runs that decide claims, each once; none where no run of the protocol can.

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
    """Give a variant's name: the `key=value` that tell it from other runs of its method."""
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
    given: list[str] = []
    for word in overrides:
        given += flatten(parse_override(word))
    for key in sorted(own):
        for word in given:
            # A key, a section that it is in, or a part of it; the points tell `heads` from `heads_x`.
            if f"{word}.".startswith(f"{key}.") or f"{key}.".startswith(f"{word}."):
                raise UsageError(f"{origin} sets {key}: leave it out")


def shard(all_cells: Sequence[GridCell], text: str) -> list[GridCell]:
    """Give the i-th of n parts of about the same cost, for a text `i/n` with i from 1 to n.

    Raises:
        UsageError: the text is not `i/n`.
    """
    found = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard {text:.40}: expected i/n, two numbers with 1 <= i <= n")
    part = int(found[1])
    parts = int(found[2])
    longest_first = sorted(all_cells, key=lambda cell: -cell.cost)
    return longest_first[part - 1 :: parts]
