"""Table specifications: what a table's YAML says, and how the command line changes it."""

from collections.abc import Iterable, Set
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Seed, parse
from hifi_cli.config.sources import protocol_chain, run_name


def _named(key: str) -> BeforeValidator:
    """Accept a plain name in a YAML list as a mapping with this one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class RowSpec(ConfigModel):
    """A row: one method. A bare method name in the YAML is short for `method: name`."""

    method: str | None = None
    """Name of the method; null for a row that only the paper has, shown with `--published`."""
    best_of: list[str] = []
    """Methods, including `method`; each cell of a table of scores shows the one with the best mean."""
    label: str | None = None
    """Label of the row; default: the method's own."""
    published: str | None = None
    """The row of the published table; default: the method's name."""

    @model_validator(mode="after")
    def _method_is_one_of_best_of(self) -> "RowSpec":
        if self.best_of and self.method not in self.best_of:
            raise ValueError(f"best_of must hold the row's method, {self.method}")
        return self

    @property
    def methods(self) -> list[str]:
        """Methods whose runs the row shows."""
        return self.best_of or ([self.method] if self.method else [])

    @property
    def published_name(self) -> str | None:
        return self.published or self.method


class ColumnSpec(ConfigModel):
    """A column: one metric of one task. A bare task name in the YAML is short for `task: name`."""

    task: str
    """Name of the task."""
    metric: str | None = None
    """A key of results.json's `metrics`; default: the task's primary metric."""
    split: str | None = None
    """In a table of numbers of rows: suffix of the counted splits (MNLI: mismatched)."""
    label: str | None = None
    """Label of the column; default: the task's own."""
    published: str | None = None
    """The column of the published table; default: the task's name."""

    @property
    def published_name(self) -> str:
        return self.published or self.task

    @property
    def name(self) -> str:
        """The column's name for programs: `rte`, `stsb.pearson`, `mnli-mm`."""
        return self.published or (f"{self.task}.{self.metric}" if self.metric else self.task)


class TableSpec(ConfigModel):
    """What the YAML of a table says."""

    description: str = ""
    """What the table shows, in one line."""
    kind: Literal["scores", "settings", "costs", "statistics"] = "scores"
    """Scores of finished runs, settings of methods, costs of finished runs, or numbers of rows."""
    protocol: str
    """Protocol of the runs."""
    backbone: str
    """Backbone of the runs."""
    rows: list[Annotated[RowSpec, _named("method")]] = []
    """Methods; default: all that were run."""
    columns: list[Annotated[ColumnSpec, _named("task")]] = []
    """Tasks; default: all that were run."""
    decimals: int = Field(1, ge=0, le=6)
    """Decimals of a score in percent."""
    published: str | None = None
    """The paper's table, as `file/table` in `configs/published`."""
    shots: Annotated[int, Field(ge=1)] | Literal["full"] | None = None
    """Training rows per class of few-shot runs, or `full`; default: as the protocol has them."""
    seeds: list[Seed] = []
    """Seeds that enter a mean; a missing one is reported. Default: all finished ones."""
    average: bool = True
    """Whether the table has a column Avg., the plain mean over all columns, as in both papers."""

    @field_validator("seeds")
    @classmethod
    def _has_no_duplicates(cls, seeds: list[Seed]) -> list[Seed]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice")
        return seeds

    @property
    def methods(self) -> list[str]:
        """The methods of all rows."""
        return list(dict.fromkeys(method for row in self.rows for method in row.methods))

    @property
    def tasks(self) -> list[str]:
        """The tasks of all columns."""
        return list(dict.fromkeys(column.task for column in self.columns))


def load(name: str) -> TableSpec:
    """Load and validate the YAML of a table, or of a user's own file.

    Raises:
        UsageError: an unknown name, kind or key.
    """
    return parse(TableSpec, registry.load("tables", name), str(registry.find("tables", name)))


def by_names(spec: TableSpec) -> TableSpec:
    """Return a table with the names that finished runs have, in place of the paths of a user's own YAMLs.

    Raises:
        MissingError: there is no such file.
        UsageError: there is no such backbone.
    """
    rows = [
        row.model_copy(
            update={
                "method": row.method and run_name("methods", row.method),
                "best_of": [run_name("methods", method) for method in row.best_of],
            }
        )
        for row in spec.rows
    ]
    columns = [column.model_copy(update={"task": run_name("tasks", column.task)}) for column in spec.columns]
    names = {"protocol": run_name("protocols", spec.protocol), "backbone": run_name("backbones", spec.backbone)}
    return spec.model_copy(update={**names, "rows": rows, "columns": columns})


def with_changes(
    spec: TableSpec,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    methods: Iterable[str] = (),
    tasks: Iterable[str] = (),
    seeds: list[int] | None = None,
    shots: str | None = None,
    known: dict[str, set[str]],
) -> TableSpec:
    """Apply another protocol, backbone, shots or seeds to a table, or select rows and columns.

    Methods and tasks that the table does not have are added at the end.

    Args:
        known: names of finished runs (`methods`, `tasks`), which are accepted without a YAML.

    Raises:
        UsageError: a method or task has no YAML and no finished run, and is not in the table.
    """
    options = {"protocol": protocol, "backbone": backbone, "seeds": seeds, "shots": shots}
    update: dict[str, Any] = {key: value for key, value in options.items() if value}
    if names := list(methods):
        rows = {row.method: row for row in spec.rows if row.method}
        check_names("methods", names, known["methods"] | rows.keys())
        update["rows"] = [row for name, row in rows.items() if name in names]
        update["rows"] += [RowSpec(method=name) for name in names if name not in rows]
    if names := list(tasks):
        present = {column.task for column in spec.columns}
        check_names("tasks", names, known["tasks"] | present)
        update["columns"] = [column for column in spec.columns if column.task in names]
        update["columns"] += [ColumnSpec(task=name) for name in names if name not in present]
    return spec.model_copy(update=update)


def shots_of(protocol: str) -> str:
    """Return the training rows per class that a protocol sets, or `full`, also for a protocol without a YAML."""
    if protocol not in registry.names("protocols") and not registry.user_file("protocols", registry.name_of(protocol)):
        return "full"
    keys = {key: value for rules in protocol_chain(protocol).values() for key, value in rules.config.items()}
    return str(keys.get("shots") or "full")


def check_names(kind: str, names: Iterable[str], known: Set[str]) -> None:
    """Refuse a name that has neither a YAML nor a finished run.

    Args:
        known: names of finished runs.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        if name not in known and name not in registry.names(kind) and not registry.user_file(kind, name):
            raise registry.unknown(kind, name, known)
