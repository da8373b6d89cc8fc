"""The YAML of a table, how the command line changes it, and the papers' printed numbers."""

from collections.abc import Iterable, Sequence, Set
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, Name, Seed, parse
from hifi_cli.config.sources import stored_name
from hifi_cli.config.specs import ProtocolSpec, with_bases
from hifi_cli.errors import UsageError

# The key of the column Avg., in tables and in the remarks on published cells.
AVERAGE = "average"
# A user's own YAML is given by its path and used by its name, which its runs have.
Method = Annotated[Name, AfterValidator(partial(stored_name, "methods"))]
Task = Annotated[Name, AfterValidator(partial(stored_name, "tasks"))]


def _named(key: str) -> BeforeValidator:
    """Accept a plain name in a YAML list as a mapping with this one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class RowSpec(ConfigModel):
    """A row: one method. A bare method name in the YAML is short for `method: name`."""

    method: Method | None = None
    """Name of the method; null for a row that only the paper has, shown with `--published`."""
    label: str | None = None
    """Label of the row; default: the method's own."""
    published: str | None = Field(default_factory=lambda row: row["method"])
    """The row of the published table; default: the method's name."""


class LayoutRow(NamedTuple):
    """A row as a table has it.

    Attributes:
        name: of the method, backbone or split that the row is about; None: only the paper has it.
        label: that the YAML gives it; None: that of the name.
        published: the row of the published table; None: none.
    """

    name: str | None
    label: str | None
    published: str | None


class ColumnSpec(ConfigModel):
    """A column: one metric of one task. A bare task name in the YAML is short for `task: name`."""

    task: Task
    """Name of the task."""
    metric: str | None = None
    """A key of results.json's `metrics`; default: that of the published column, or the task's
    primary one."""
    split: str | None = None
    """In a table of numbers of rows: suffix of the counted splits (MNLI: mismatched)."""
    label: str | None = None
    """Label of the column; default: the task's own."""
    published: str = Field(default_factory=lambda column: column["task"])
    """The column of the published table; default: the task's name."""

    @property
    def name(self) -> str:
        """The column's name for programs: `rte`, `stsb.pearson`, `mnli-mm`."""
        of_metric = f"{self.task}.{self.metric}" if self.metric else self.task
        return of_metric if self.published == self.task else self.published


class TableSpec(ConfigModel):
    """The content of a table's YAML."""

    description: str = ""
    """The content of the table, in one line."""
    kind: Literal["scores", "settings", "costs", "statistics"] = "scores"
    """Scores of finished runs, settings of methods, costs of finished runs, or numbers of rows."""
    protocol: str
    """Protocol of the runs."""
    backbone: str
    """Backbone of the runs."""
    backbones: list[str] = []
    """Backbones of the rows, where they stand beside one another under the one method of `rows`."""
    rows: list[Annotated[RowSpec, _named("method")]] = []
    """Methods; default: all that were run on a task of `columns`."""
    columns: list[Annotated[ColumnSpec, _named("task")]] = []
    """Tasks; default: all that were run."""
    metrics: list[str] = []
    """Metrics that each task has a column of: `score` (its primary one), names of metrics, or of
    the stored predictions `nll`, `brier`, `ece` and `churn`; default: as the columns say."""
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

    @property
    def methods(self) -> list[str]:
        """The methods of all rows."""
        return list(dict.fromkeys(row.method for row in self.rows if row.method))

    @property
    def rows_of_methods(self) -> list[LayoutRow]:
        """The rows as a table has them, where methods are its rows."""
        return [LayoutRow(row.method, row.label, row.published) for row in self.rows]

    def has_columns_of(self, paper: "PublishedTable") -> bool:
        """Return whether the columns are those of the paper's table, all of them."""
        return [column.published for column in self.columns] == list(paper.columns)

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


def with_changes(
    spec: TableSpec,
    *,
    protocol: str | None = None,
    backbone: str | None = None,
    methods: Sequence[str] = (),
    tasks: Sequence[str] = (),
    **others: Any,
) -> TableSpec:
    """Apply other settings to a table, or select rows and columns.

    Protocol and backbone get the names that finished runs have. Methods and tasks that the table
    does not have are added at the end.

    Args:
        spec: the table.
        protocol: another protocol; None: the table's.
        backbone: another backbone; None: the table's.
        methods: the rows; empty: the table's.
        tasks: the columns; empty: the table's.
        others: `backbones`, `shots`, `seeds` or `metrics`; empty ones change nothing.

    Raises:
        MissingError: no such file of a protocol.
        UsageError: no such backbone.
    """
    update = {key: value for key, value in others.items() if value}
    update["protocol"] = stored_name("protocols", protocol or spec.protocol)
    update["backbone"] = stored_name("backbones", backbone or spec.backbone)
    if methods:
        kept_rows = [row for row in spec.rows if row.method in methods]
        new_rows = [RowSpec(method=name) for name in methods if name not in spec.methods]
        update["rows"] = kept_rows + new_rows
    if tasks:
        kept_columns = [column for column in spec.columns if column.task in tasks]
        new_columns = [ColumnSpec(task=name) for name in tasks if name not in spec.tasks]
        update["columns"] = kept_columns + new_columns
    return spec.model_copy(update=update)


def shots_of(protocol: str) -> str:
    """Return the training rows per class that a protocol sets, or `full`; also without a YAML."""
    if protocol not in registry.names("protocols") and not registry.own_file(protocol):
        return "full"
    shots = None
    # The protocol itself comes last and overrides its bases.
    for spec in with_bases("protocols", protocol, ProtocolSpec).values():
        shots = spec.config.get("shots", shots)
    return str(shots or "full")


def check_names(kind: str, names: Iterable[str], known: Set[str]) -> None:
    """Refuse a name that has neither a YAML nor a finished run.

    Args:
        kind: what the names are, as `registry.names` takes it.
        names: the names to check.
        known: names of finished runs.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        has_yaml = name in registry.names(kind) or registry.own_file(name)
        if name not in known and not has_yaml:
            raise registry.unknown_name_error(kind, name, known)


# --- printed numbers


class PublishedRow(ConfigModel):
    """A row as printed, one entry per column of its table."""

    label: str | None = None
    """Label of the row; default: the method's own."""
    means: list[float | None] = []
    """Printed means; null where nothing is printed, or where our copy cannot be read."""
    deviations: list[float | None] = []
    """Printed standard deviations, likewise; empty: none are printed."""
    texts: list[str] = []
    """Printed texts, in a table that has no numbers."""
    average: float | None = None
    """The printed average."""
    note: str | None = None
    """A remark on the whole row."""
    cell_notes: dict[str, str] = {}
    """Remarks on single cells, by column; on `average`, where it does not follow from the row's cells."""


class PublishedTable(ConfigModel):
    """A table of a paper."""

    number: int
    """Number of the table in the paper."""
    title: str
    """Title of the table."""
    note: str | None = None
    """A remark of the paper that belongs to the table."""
    backbone: str | None = None
    """Backbone that the numbers are of."""
    split: str | None = None
    """Split that the numbers are of."""
    seeds: int | None = None
    """Number of seeds in a mean."""
    decimals: int
    """Decimals of the printed numbers."""
    columns: dict[str, str | None]
    """Metric of each column, by task."""
    rows: dict[str, PublishedRow]
    """Rows, by method."""

    def mean(self, row: str, column: str) -> float | str | None:
        """Return a printed mean or text; None where the table has no such cell."""
        printed = self.rows.get(row, PublishedRow())
        values: list[Any] = printed.means or printed.texts
        return self._at(column, values)

    def deviation(self, row: str, column: str) -> float | None:
        """Return a printed standard deviation; None where the table has none."""
        printed = self.rows.get(row, PublishedRow())
        deviation: float | None = self._at(column, printed.deviations)
        return deviation

    def _at(self, column: str, values: Sequence[Any]) -> Any:
        """Return the value of a column in a row; None where either ends before it."""
        of_columns = dict(zip(self.columns, values, strict=False))
        return of_columns.get(column)


NO_TABLE = PublishedTable(number=0, title="", decimals=0, columns={}, rows={})


class PublishedFile(ConfigModel):
    """A paper's tables."""

    description: str
    """The paper, in one line."""
    paper: str
    """Short name of the paper."""
    tables: dict[str, PublishedTable]
    """Tables, by name."""


class Published(NamedTuple):
    """A table and the short name of the paper that it is printed in."""

    paper: str
    table: PublishedTable


@cache
def load_published(reference: str) -> Published:
    """Load the table that `file/table` names.

    Raises:
        UsageError: there is no such file or table, or it is inconsistent.
    """
    name, _, key = reference.partition("/")
    path = registry.find("published", name)
    content = parse(PublishedFile, registry.load("published", name), str(path))
    if key not in content.tables:
        raise UsageError(f"{path}: no table '{key}'{registry.did_you_mean(key, content.tables)}")
    return Published(content.paper, content.tables[key])
