"""The runs of a grid: those of a table, a figure or claims, or tasks x methods x seeds, one cell each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import method_spec, override_value, parse_override, resolve
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.reports import claim_spec, table_spec
from hifi_cli.reports.claim_spec import methods_of, tasks_of, unmet

Values = dict[str, Annotated[list[Any], Field(min_length=1)]]


class GridSpec(ConfigModel):
    """A grid. What it does not say is taken from its table, figure or claims."""

    description: str = ""
    """What the grid is for, in one line."""
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
    methods: list[str] | dict[str, Values] = []
    """Names of methods; or a mapping from names to the keys that vary for that method only, with
    their values."""
    seeds: list[Seed] = []
    """Seeds of the runs."""
    config: dict[str, Any] = {}
    """Configuration keys for every run. Its runs are variants then (see `vary`)."""
    vary: Values = {}
    """Configuration keys and their values. Every combination is a variant with a directory of its
    own; `hifi table search` shows which is best."""

    @property
    def varied(self) -> dict[str, Values]:
        """Each method with all keys that vary for it."""
        own = (
            self.methods if isinstance(self.methods, dict) else {name: {} for name in self.methods}
        )
        return {method: {**self.vary, **values} for method, values in own.items()}

    @property
    def words(self) -> list[str]:
        """The keys that are set for every run, as `key=value`."""
        return [f"{key}={override_value(value)}" for key, value in flatten(self.config).items()]


def load(name: str, changes: Mapping[str, Any]) -> GridSpec:
    """Load a grid, change it, and fill in what its table says.

    Args:
        name: a grid, a table, `figure-NAME` or `claims-NAME`, or a YAML of a grid, table or claims.

    Raises:
        UsageError: an unknown name or key, or the grid names no protocol, backbone, task or method.
    """
    spec = parse(GridSpec, _content(name), name)
    update = {key: value for key, value in changes.items() if value}
    if "methods" in update and isinstance(
        spec.methods, dict
    ):  # keys that vary for a method stay with it
        update["methods"] = {method: spec.methods.get(method, {}) for method in update["methods"]}
    spec = spec.model_copy(update=update)
    if spec.figure or spec.claims:
        if spec.table or spec.methods or spec.config or spec.vary or (spec.claims and spec.tasks):
            what = (
                "a figure defines its own methods"
                if spec.figure
                else "claims define their own methods and tasks"
            )
            raise UsageError(f"grid {name}: {what}: leave out what else names runs or keys")
        return spec
    if spec.table:
        table = table_spec.load(spec.table)
        filled = {
            key: getattr(spec, key) or getattr(table, key)
            for key in ("protocol", "backbone", "seeds")
        }
        if table.kind == "scores":  # another has no runs of its own
            filled["tasks"] = spec.tasks or [registry.argument_of(task) for task in table.tasks]
            filled["methods"] = spec.methods or [
                registry.argument_of(method) for method in table.methods
            ]
        spec = spec.model_copy(update=filled)
    for key in ("protocol", "backbone", "tasks", "methods"):
        if not getattr(spec, key):
            raise UsageError(f"grid {name} names no {key}: add it to its YAML or use --{key}")
    return spec.model_copy(update={"seeds": spec.seeds or [1]})


def _content(name: str) -> dict[str, Any]:
    """What a grid's YAML says, or the one line that makes a grid of a table, a figure or claims."""
    own = registry.read_yaml(Path(name)) if registry.is_file(name) else {}
    if {"rows", "columns"} & own.keys():
        return {"table": name}
    if isinstance(own.get("claims"), dict):
        return {"claims": name}
    grids = {table: {"table": table} for table in registry.names("tables")}
    grids |= {f"figure-{figure}": {"figure": figure} for figure in registry.names("figures")}
    grids |= {f"claims-{paper}": {"claims": paper} for paper in registry.names("claims")}
    if name in grids:
        return grids[name]
    if own or name in registry.names("grids"):
        return registry.load("grids", name)
    raise registry.unknown("grids", name, grids)


# --- cells


@dataclass(frozen=True, eq=False)  # a cell is equal to itself alone
class GridCell:
    """One run of a grid.

    Attributes:
        task, method, backbone, protocol: names as on a command line.
        overrides: all `key=value`.
        config: the resolved configuration.
    """

    task: str
    method: str
    backbone: str
    protocol: str
    overrides: tuple[str, ...]
    config: RunConfig

    @property
    def name(self) -> str:
        """The run's name: task, method, variant and seed."""
        parts = (
            self.config.task,
            self.config.method,
            self.config.variant,
            f"seed{self.config.seed}",
        )
        return "/".join(part for part in parts if part)

    @property
    def run_path(self) -> PurePath:
        """Path of the run in a results directory."""
        return self.config.run_path

    @property
    def cost(self) -> float:
        """The expected duration in training examples seen."""
        rows = (
            self.config.limit
            or (registry.load("tasks", self.task).get("rows") or {}).get("train")
            or 1000
        )
        return float(self.config.epochs * (2 * self.config.shots if self.config.shots else rows))

    @property
    def needs_scores(self) -> bool:
        """Whether heads are scored before the run, once for all seeds and methods."""
        own = self.config.heads.given or self.config.scoring.warm_steps
        return selects_heads(self.method) and not own

    def train_command(self, where: Sequence[str], *, force: bool = False) -> list[str]:
        """The command that trains the run; `where`: the options that name its data and results."""
        names = [
            "--task",
            self.task,
            "--method",
            self.method,
            "--backbone",
            self.backbone,
            "--protocol",
            self.protocol,
        ]
        others = ["--seeds", str(self.config.seed), *(["--force"] if force else []), *where]
        return ["hifi", "train", *names, *others, *self.overrides]

    def score_command(self, where: Sequence[str]) -> list[str]:
        """The command that scores the heads of the run's task and encoder."""
        others = ("stage1", "variant=")  # what is scored has one stage and no variant
        words = [word for word in self.overrides if not word.startswith(others)]
        names = ["--task", self.task, "--backbone", self.backbone, "--protocol", self.protocol]
        return ["hifi", "score", *names, *where, *words]


def cells(grid: GridSpec, name: str, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Return every cell of a grid: task by task, all methods, their variants, and seeds.

    Args:
        overrides: `key=value` of the command line, set for every run.

    Raises:
        UsageError: a name, key or value is wrong, or there are too many runs.
    """
    all_cells = [cell for task in grid.tasks for cell in _cells_of_task(grid, task, overrides)]
    varied = {key for keys in grid.varied.values() for key in keys}
    refuse_own_keys(
        overrides, varied | {word.partition("=")[0] for word in grid.words}, f"grid {name}"
    )
    if len({cell.run_path for cell in all_cells}) < len(all_cells):
        raise UsageError(
            f"grid {name}: two of its runs are the same; name each task, method, seed and value once"
        )
    return all_cells


def _cells_of_task(grid: GridSpec, task: str, overrides: Sequence[str]) -> Iterator[GridCell]:
    backbone, protocol = str(grid.backbone), str(grid.protocol)
    for method, varied in grid.varied.items():
        for values in product(*varied.values()):
            setting = [
                f"{key}={override_value(value)}" for key, value in zip(varied, values, strict=True)
            ]
            own = [*grid.words, *setting]
            words = (*own, *overrides, *([f"variant={variant(own)}"] if own else []))
            first = resolve(
                task=task, method=method, backbone=backbone, protocol=protocol, overrides=words
            )
            for seed in grid.seeds:
                config = first.model_copy(update={"seed": seed})
                yield GridCell(task, method, backbone, protocol, words, config)


def cells_of_claims(grid: GridSpec, name: str, overrides: Sequence[str] = ()) -> list[GridCell]:
    """Return the runs that decide claims, each once; none where no run of the protocol can.

    Raises:
        UsageError: the overrides set `shots` or `variant`; the claims would not read the runs.
    """
    refuse_own_keys(overrides, ["shots", "variant"], f"grid {name}")
    file = claim_spec.load(str(grid.claims), protocol=grid.protocol, backbone=grid.backbone)
    cells_by_path: dict[PurePath, GridCell] = {}
    for claim in file.claims.values():
        if unmet(claim, file) or not methods_of(claim):
            continue
        protocol, backbone = claim.protocol or file.protocol, claim.only_backbone or file.backbone
        seeds = grid.seeds or file.seeds
        methods = [registry.argument_of(method) for method in dict.fromkeys(methods_of(claim))]
        tasks = [registry.argument_of(task) for task in tasks_of(claim, file)]
        spec = GridSpec(
            protocol=protocol, backbone=backbone, tasks=tasks, methods=methods, seeds=seeds
        )
        for cell in cells(spec, name, overrides):
            cells_by_path.setdefault(cell.run_path, cell)
    return list(cells_by_path.values())


def variant(overrides: Sequence[str]) -> str:
    """Return a variant's name: the `key=value` that tell it from other runs of its method."""
    return safe_name(",".join(overrides))


def refuse_own_keys(overrides: Iterable[str], own: Iterable[str], origin: str) -> None:
    """Refuse a `key=value` of the command line that would replace a key that a grid or figure sets.

    Raises:
        UsageError: names `origin` and the key.
    """
    given = [f"{key}." for word in overrides for key in flatten(parse_override(word))]
    for key in sorted(own):
        if any(word.startswith(f"{key}.") or f"{key}.".startswith(word) for word in given):
            raise UsageError(f"{origin} sets {key}: leave it out")


def shard(all_cells: Sequence[GridCell], text: str) -> list[GridCell]:
    """Return the i-th of n parts of about the same cost, for a text `i/n` with i from 1 to n.

    Raises:
        UsageError: the text is not `i/n`.
    """
    part, _, parts = text.partition("/")
    is_pair = part.isdecimal() and parts.isdecimal() and len(text) < 20
    if not is_pair or not 1 <= int(part) <= int(parts):
        raise UsageError(f"--shard {text:.40}: expected i/n, two numbers with 1 <= i <= n")
    return sorted(all_cells, key=lambda cell: -cell.cost)[int(part) - 1 :: int(parts)]


def selects_heads(method: str) -> bool:
    """Return whether a method selects heads, itself or in its first stage."""
    spec = method_spec(method)
    stage1 = (spec.config.get("stage1") or {}).get("method")
    return "heads" in spec.config or any(
        selects_heads(name) for name in (spec.base, stage1) if name
    )
