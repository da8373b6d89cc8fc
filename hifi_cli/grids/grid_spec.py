"""Grid specifications: the runs of a table or a figure, or tasks x methods x seeds, and keys that vary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.config import figure_spec as figures
from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, PositiveCount, Seed, check_keys, flatten, nest, parse
from hifi_cli.config.figure_spec import FigureSpec
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value
from hifi_cli.errors import UsageError
from hifi_cli.reports import claim_spec, table_spec
from hifi_cli.reports.claim_spec import ClaimsFile, methods_of

Values = dict[str, list[Any]]


class GridSpec(ConfigModel):
    """A grid. What it does not say is taken from its table, and then from the protocol."""

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
    """Names of methods; or a mapping from names to the keys that vary for that method only, with their values."""
    seeds: list[Seed] = []
    """Seeds of the runs."""
    config: dict[str, Any] = {}
    """Configuration keys for every run. Its runs are variants then (see `vary`)."""
    vary: Values = {}
    """Configuration keys and their values. Every combination is a variant with a directory of its own; the grid reports the
    best one."""
    trials: PositiveCount | None = None
    """How many settings of each method are tried, drawn at random where there are more; null: every combination. With trials
    the setting is chosen on a holdout, never on the reported split."""


@dataclass(frozen=True)
class Grid:
    """A grid with the values of its table or figure filled in.

    Attributes:
        name: used for its logs and its chosen settings.
        figure: the figure that requires these runs, if any.
        methods: each method with all keys that vary for it.
        config: `key=value` words set for every run.
        trials: number of settings tried per method; None: every combination.
        claims: the file of claims that these runs decide, if any.
    """

    name: str
    figure: FigureSpec | None
    protocol: str
    backbone: str
    tasks: list[str]
    methods: dict[str, Values]
    seeds: list[int]
    config: list[str]
    trials: int | None = None
    claims: ClaimsFile | None = None

    @property
    def is_search(self) -> bool:
        """Whether any key varies, so that a setting has to be chosen."""
        return any(self.methods.values())


def load(name: str) -> GridSpec:
    """Load and validate the YAML of a grid, or of a user's own file.

    Raises:
        UsageError: an unknown name or key, or a key that varies over no value.
    """
    own = registry.read_yaml(Path(name)) if registry.is_file(name) else {}
    if {"rows", "columns"} & own.keys():  # the user's own table
        return GridSpec(table=name)
    if isinstance(own.get("claims"), dict):  # the user's own claims
        return GridSpec(claims=name)
    origin = str(registry.find("grids", name))
    spec = parse(GridSpec, registry.load("grids", name), origin)
    per_method = list(spec.methods.values()) if isinstance(spec.methods, dict) else []
    for values in (spec.vary, *per_method):
        for key, choices in values.items():
            check_keys(RunConfig, nest(key, {}), origin)
            if not choices:
                raise UsageError(f"{origin}: '{key}' varies over no value")
    check_keys(RunConfig, spec.config, origin)
    if spec.claims and (spec.figure or spec.table or spec.tasks or spec.methods or spec.config or spec.vary):
        raise UsageError(f"{origin}: claims define their own runs; remove figure, table, tasks, methods, config and vary")
    if spec.figure and (spec.table or spec.methods or spec.config or spec.vary):
        raise UsageError(f"{origin}: a figure defines its own runs; remove table, methods, config and vary")
    return spec


def with_changes(spec: GridSpec, changes: Mapping[str, Any]) -> GridSpec:
    """Apply the command line's changes to a grid; keys that vary for a method stay with it."""
    update = {key: value for key, value in changes.items() if value}
    if "methods" in update and isinstance(spec.methods, dict):
        update["methods"] = {method: spec.methods.get(method, {}) for method in update["methods"]}
    return spec.model_copy(update=update)


def resolve(spec: GridSpec, name: str, claims: Sequence[str] = ()) -> Grid:
    """Fill in the values of a grid's table, figure or claims.

    Args:
        claims: only these of the grid's claims; empty: all.

    Raises:
        UsageError: no protocol, backbone, task or method is named anywhere, there are trials and no key varies, or a claim is
            unknown.
    """
    if claims and not spec.claims:
        raise UsageError(f"grid {name} has no claims; remove --claims")
    if spec.trials and (spec.figure or spec.claims):
        raise UsageError(f"grid {name}: --trials is for a search; a figure and claims define their own runs")
    if spec.figure:
        return _of_figure(spec, spec.figure, name)
    if spec.claims:
        return _of_claims(spec, spec.claims, name, claims)
    table = table_spec.load(spec.table) if spec.table else None
    has_runs = table is not None and table.kind == "scores"  # a table of settings needs no run
    tasks = spec.tasks or [registry.task_argument(task) for task in (table.tasks if table and has_runs else [])]
    of_table = [registry.argument_of("methods", method) for method in (table.methods if table and has_runs else [])]
    methods = spec.methods or of_table
    settings = {
        "protocol": spec.protocol or (table.protocol if table else None),
        "backbone": spec.backbone or (table.backbone if table else None),
    }
    required = {**settings, **({} if table else {"tasks": tasks, "methods": methods})}
    if missing := [key for key, value in required.items() if not value]:
        raise UsageError(f"grid {name} names no {missing[0]}: add it to its YAML or use --{missing[0]}")
    vary = methods if isinstance(methods, dict) else {method: {} for method in methods}
    grid = Grid(
        name=name,
        figure=None,
        protocol=str(settings["protocol"]),
        backbone=str(settings["backbone"]),
        tasks=tasks,
        methods={method: {**spec.vary, **values} for method, values in vary.items()},
        seeds=spec.seeds or (table.seeds if table else []) or [1],
        config=[f"{key}={override_value(value)}" for key, value in flatten(spec.config).items()],
        trials=spec.trials,
    )
    if grid.trials and not grid.is_search:
        raise UsageError(f"grid {name}: --trials is for a search, and no key varies in this grid: add vary to its YAML")
    return grid


def _of_figure(spec: GridSpec, figure: str, name: str) -> Grid:
    if spec.methods:
        raise UsageError(f"grid {name}: a figure defines its own methods; remove --methods")
    figure_spec = figures.load(figure, protocol=spec.protocol, backbone=spec.backbone, tasks=spec.tasks, seeds=spec.seeds)
    methods: dict[str, Values] = {method: {} for method in figure_spec.methods}
    return Grid(
        name=name,
        figure=figure_spec,
        protocol=figure_spec.protocol,
        backbone=figure_spec.backbone,
        tasks=figure_spec.tasks,
        methods=methods,
        seeds=figure_spec.seeds,
        config=[],
    )


def _of_claims(spec: GridSpec, claims: str, name: str, chosen: Sequence[str]) -> Grid:
    if spec.methods or spec.tasks:
        raise UsageError(f"grid {name}: claims define their own methods and tasks; remove --methods and --tasks")
    file = claim_spec.load(claims, protocol=spec.protocol, backbone=spec.backbone)
    for claim in chosen:
        if claim not in file.claims:
            raise UsageError(f"grid {name} has no claim '{claim}'{registry.nearest(claim, file.claims)}")
        if not methods_of(file.claims[claim]):
            raise UsageError(f"a figure or a measured cost decides claim '{claim}', not runs: hifi claims prints the command")
    changes = {
        "seeds": spec.seeds or file.seeds,
        "claims": {key: claim for key, claim in file.claims.items() if not chosen or key in chosen},
    }
    file = file.model_copy(update=changes)
    return Grid(name, None, file.protocol, file.backbone, file.tasks, {}, file.seeds, [], claims=file)
