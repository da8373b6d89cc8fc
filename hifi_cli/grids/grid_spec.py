"""The content of a grid: its YAML, or the name of a table, figure or claims that it stands for."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.errors import UsageError
from hifi_cli.reports import table_spec

# Keys of a configuration, each with the values that it takes in turn.
Values = dict[str, Annotated[list[Any], Field(min_length=1)]]


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

    @property
    def is_search(self) -> bool:
        """Whether the runs are variants: a key of `vary` or of a method has values, be it a single one."""
        return any(self.varied.values())

    @property
    def varies_settings(self) -> bool:
        """Whether settings of methods vary."""
        keys: set[str] = set().union(*self.varied.values())
        return any("settings" in key.split(".") for key in keys)


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
    """Return what a grid's YAML says, or the one line that makes a grid of a table, figure or claims."""
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
