"""Grid specifications: the runs of a table, a figure or claims, or tasks x methods x seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, flatten, parse
from hifi_cli.config.sources import override_value
from hifi_cli.errors import UsageError
from hifi_cli.reports import table_spec

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
        own = self.methods if isinstance(self.methods, dict) else {name: {} for name in self.methods}
        return {method: {**self.vary, **values} for method, values in own.items()}

    @property
    def words(self) -> list[str]:
        """The keys that are set for every run, as `key=value`."""
        return [f"{key}={override_value(value)}" for key, value in flatten(self.config).items()]


def load(name: str, changes: Mapping[str, Any]) -> GridSpec:
    """Load a grid's or an own table's YAML, change it, and fill in what its table says.

    Raises:
        UsageError: an unknown name or key, or the grid names no protocol, backbone, task or method.
    """
    own = registry.read_yaml(Path(name)) if registry.is_file(name) else {}
    kind = "table" if {"rows", "columns"} & own.keys() else "claims" if isinstance(own.get("claims"), dict) else ""
    content = {kind: name} if kind else registry.load("grids", name)
    spec = parse(GridSpec, content, name if kind else str(registry.find("grids", name)))
    update = {key: value for key, value in changes.items() if value}
    if "methods" in update and isinstance(spec.methods, dict):  # keys that vary for a method stay with it
        update["methods"] = {method: spec.methods.get(method, {}) for method in update["methods"]}
    spec = spec.model_copy(update=update)
    if spec.figure or spec.claims:
        if spec.table or spec.methods or spec.config or spec.vary or (spec.claims and spec.tasks):
            what = "a figure defines its own methods" if spec.figure else "claims define their own methods and tasks"
            raise UsageError(f"grid {name}: {what}: leave out what else names runs or keys")
        return spec
    if spec.table:
        table = table_spec.load(spec.table)
        filled = {key: getattr(spec, key) or getattr(table, key) for key in ("protocol", "backbone", "seeds")}
        if table.kind == "scores":  # another has no runs of its own
            filled["tasks"] = spec.tasks or [registry.task_argument(task) for task in table.tasks]
            filled["methods"] = spec.methods or [registry.argument_of("methods", method) for method in table.methods]
        spec = spec.model_copy(update=filled)
    for key in ("protocol", "backbone", "tasks", "methods"):
        if not getattr(spec, key):
            raise UsageError(f"grid {name} names no {key}: add it to its YAML or use --{key}")
    return spec.model_copy(update={"seeds": spec.seeds or [1]})
