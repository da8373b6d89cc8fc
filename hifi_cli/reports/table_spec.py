"""What a table's YAML says, and how the command line changes it."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hifi_cli.config import registry
from hifi_cli.config.protocols import protocol_chain
from hifi_cli.config.run_config import ConfigModel, Seed
from hifi_cli.errors import UsageError


def _named(key: str) -> BeforeValidator:
    """Lets a bare name in a YAML list stand for a mapping with that one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class RowSpec(ConfigModel):
    """A row: one method. A bare method name in the YAML is short for `method: name`.

    Attributes:
        method: its name; None for a row that only the paper has, shown beside others with `--published`.
        best_of: methods, `method` among them, of which each cell of a table of scores shows the one with the best mean.
        label: instead of the method's own.
        published: the row of the published table; default: the method's name.
    """

    method: str | None = None
    best_of: list[str] = []
    label: str | None = None
    published: str | None = None

    @model_validator(mode="after")
    def _method_is_one_of_best_of(self) -> "RowSpec":
        if self.best_of and self.method not in self.best_of:
            raise ValueError(f"best_of must hold the row's method, {self.method}")
        return self

    @property
    def methods(self) -> list[str]:
        """The methods whose runs the row is made from."""
        return self.best_of or ([self.method] if self.method else [])

    @property
    def published_name(self) -> str | None:
        return self.published or self.method


class ColumnSpec(ConfigModel):
    """A column: one metric of one task. A bare task name in the YAML is short for `task: name`.

    Attributes:
        metric: a key of results.json's `metrics`; default: the task's primary metric.
        split: the suffix of the splits that are counted, in a table of counts (MNLI: mismatched).
        label: instead of the task's own.
        published: the column of the published table; default: the task's name.
    """

    task: str
    metric: str | None = None
    split: str | None = None
    label: str | None = None
    published: str | None = None

    @property
    def published_name(self) -> str:
        return self.published or self.task


class TableSpec(ConfigModel):
    """What the YAML of every kind of table says; a kind may add keys of its own.

    Attributes:
        kind: which code builds the table; a key of `hifi_cli.reports.table_types.TABLE_TYPES`.
        rows: methods; default: all that were run.
        columns: tasks; default: all that were run.
        decimals: of a score in percent.
        published: the paper's table, as `file/table` in `configs/published`.
    """

    description: str = ""
    kind: str = "scores"
    protocol: str
    backbone: str
    rows: list[Annotated[RowSpec, _named("method")]] = []
    columns: list[Annotated[ColumnSpec, _named("task")]] = []
    decimals: int = Field(1, ge=0, le=6)
    published: str | None = None


class ScoresSpec(TableSpec):
    """A table of finished runs' scores.

    Attributes:
        shots: training rows per class of few-shot runs, or `full`; default: as the protocol has them.
        seeds: those that enter a mean, and that are missed where they were not run; default: all that were run.
        average: whether there is an Avg. column, the plain mean over all columns, as both papers take it.
    """

    shots: Annotated[int, Field(ge=1)] | Literal["full"] | None = None
    seeds: list[Seed] = []
    average: bool = True


def narrowed(
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
    """The same layout for another protocol, backbone, shots or seeds, or for some rows and columns only.

    Methods and tasks the layout lacks come last.

    Args:
        known: names that are right although they have no YAML (`methods`, `tasks`): those of finished runs.

    Raises:
        UsageError: a method or task has no YAML, no finished run, and no place in the layout.
    """
    chosen = {"protocol": protocol, "backbone": backbone}
    update: dict[str, Any] = {key: value for key, value in chosen.items() if value}
    if isinstance(spec, ScoresSpec):
        update |= {key: value for key, value in {"seeds": seeds, "shots": shots}.items() if value}
    if wanted := list(methods):
        rows = {row.method: row for row in spec.rows if row.method}
        _check_names("methods", wanted, known["methods"] | rows.keys())
        update["rows"] = [row for name, row in rows.items() if name in wanted]
        update["rows"] += [RowSpec(method=name) for name in wanted if name not in rows]
    if wanted := list(tasks):
        there = {column.task for column in spec.columns}
        _check_names("tasks", wanted, known["tasks"] | there)
        update["columns"] = [column for column in spec.columns if column.task in wanted]
        update["columns"] += [ColumnSpec(task=name) for name in wanted if name not in there]
    return spec.model_copy(update=update)


def label_of(kind: str, name: str) -> str:
    """The label of a method or task in its YAML; the name itself where there is no YAML."""
    return str(registry.load(kind, name).get("label", name)) if name in registry.names(kind) else name


def shots_of(protocol: str) -> str:
    """The training rows per class that a protocol sets, or `full`; also `full` for one that has no YAML any more."""
    if protocol not in registry.names("protocols") and not registry.is_file(protocol):
        return "full"
    keys = {key: value for rules in protocol_chain(protocol).values() for key, value in rules.config.items()}
    return str(keys.get("shots") or "full")


def _check_names(kind: str, wanted: list[str], known: set[str]) -> None:
    names = known | set(registry.names(kind))
    for name in wanted:
        if name not in names:
            raise UsageError(f"unknown {kind[:-1]} '{name}'{registry.nearest(name, names)} (hifi ls {kind} lists all)")
