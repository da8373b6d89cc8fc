"""The papers' printed numbers, and whether each printed average follows from its own cells."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Literal

from pydantic import model_validator

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import UsageError

AverageCheckResult = Literal["follows", "rounding", "mismatch", "unchecked"]
Number = float | Literal["illegible"] | None


class PublishedRow(ConfigModel):
    """A row as printed, one entry per column of its table."""

    label: str | None = None
    """Label of the row; default: the method's own."""
    means: list[Number] = []
    """Printed means; `illegible` where our copy cannot be read, null where nothing is printed."""
    deviations: list[Number] = []
    """Printed standard deviations, likewise; empty: none are printed."""
    texts: list[str] = []
    """Printed texts, in a table that has no numbers."""
    average: float | None = None
    """The printed average."""
    note: str | None = None
    """A remark on the whole row."""
    cell_notes: dict[str, str] = {}
    """Remarks on single cells, by column."""


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

    @model_validator(mode="after")
    def _one_entry_per_column(self) -> "PublishedTable":
        for name, row in self.rows.items():
            for entries in (row.means, row.deviations, row.texts):
                if entries and len(entries) != len(self.columns):
                    raise ValueError(f"row {name} has {len(entries)} entries for {len(self.columns)} columns")
            if unknown := row.cell_notes.keys() - self.columns.keys():
                raise ValueError(f"row {name} has a note on column {min(unknown)}, which the table lacks")
        return self

    def mean(self, row: str, column: str) -> Number:
        """Return a printed number; None where the table has no such cell."""
        return self._entry(self.rows[row].means, column) if row in self.rows else None

    def deviation(self, row: str, column: str) -> Number:
        """Return a printed standard deviation; None where the table has none."""
        return self._entry(self.rows[row].deviations, column) if row in self.rows else None

    def _entry(self, entries: list[Number], column: str) -> Number:
        return entries[list(self.columns).index(column)] if entries and column in self.columns else None


class PublishedFile(ConfigModel):
    """A paper's tables."""

    description: str
    """What the paper is, in one line."""
    paper: str
    """Short name of the paper."""
    tables: dict[str, PublishedTable]
    """Tables, by name."""


@dataclass(frozen=True)
class AverageCheck:
    """Whether a printed average follows from its own cells.

    Attributes:
        verdict: `follows` (the cells' mean rounds to it), `rounding` (less than one unit of the last digit away, which the
            cells' own rounding can explain), `mismatch` (a unit or more away), `unchecked` (a cell is illegible).
        recomputed: the cells' mean; None when unchecked.
    """

    verdict: AverageCheckResult
    recomputed: Decimal | None = None


@cache
def load(reference: str) -> tuple[str, PublishedTable]:
    """Load the table that `file/table` names; return the paper's name too.

    Raises:
        UsageError: there is no such file or table, or it is inconsistent.
    """
    name, _, key = reference.partition("/")
    path = registry.find("published", name)
    content = parse(PublishedFile, registry.load("published", name), str(path))
    if key not in content.tables:
        raise UsageError(f"{path}: no table '{key}'{registry.nearest(key, content.tables)}")
    return content.paper, content.tables[key]


def check_average(published: PublishedTable, name: str) -> AverageCheck:
    """Recompute a row's average, the plain mean of its columns, in decimal arithmetic, from the printed cells."""
    row = published.rows[name]
    if row.average is None or not row.means:
        return AverageCheck("unchecked")
    cells = [_decimal(value, published.decimals) for value in row.means if isinstance(value, float)]
    if len(cells) < len(row.means):
        return AverageCheck("unchecked")
    unit = Decimal(1).scaleb(-published.decimals)
    printed, recomputed = _decimal(row.average, published.decimals), sum(cells, Decimal(0)) / len(cells)
    if recomputed.quantize(unit, ROUND_HALF_UP) == printed:
        return AverageCheck("follows", recomputed)
    if abs(recomputed - printed) < unit:
        return AverageCheck("rounding", recomputed)
    return AverageCheck("mismatch", recomputed)


def average_note(published: PublishedTable, name: str) -> str | None:
    """Return a footnote on a printed average; None where it follows from its cells."""
    row, check = published.rows[name], check_average(published, name)
    if row.average is None or check.verdict == "follows":
        return None
    if check.recomputed is None:
        illegible = sum(value == "illegible" for value in row.means)
        return f"average not checked: {illegible} of {len(row.means)} cells are illegible in our copy of the paper"
    printed, mean = f"{row.average:.{published.decimals}f}", f"{check.recomputed:.{published.decimals + 1}f}"
    if check.verdict == "rounding":
        return f"printed {printed}; the mean of its cells is {mean}, which their rounding can explain"
    return f"printed {printed}, but the mean of its {len(row.means)} cells is {mean}"


def cell_notes(published: PublishedTable, name: str, column: str) -> tuple[str, ...]:
    """Return the footnotes on a printed cell: our remark, and whether it is legible."""
    row = published.rows[name]
    notes = [row.cell_notes[column]] if column in row.cell_notes else []
    if "illegible" in (published.mean(name, column), published.deviation(name, column)):
        part = "cell" if published.mean(name, column) == "illegible" else "standard deviation"
        notes.append(f"{part} illegible in our copy of the paper")
    return tuple(notes)


def _decimal(value: float, decimals: int) -> Decimal:
    return Decimal(f"{value:.{decimals}f}")
