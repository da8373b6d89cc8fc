"""The papers' printed numbers, and whether each printed average follows from its own cells."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Literal

from pydantic import model_validator

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import UsageError

Verdict = Literal["follows", "rounding", "mismatch", "unchecked"]
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
        """A printed number; None where the table has no such cell."""
        return self._entry(self.rows[row].means, column) if row in self.rows else None

    def deviation(self, row: str, column: str) -> Number:
        """A printed standard deviation; None where the table has none."""
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
class Audit:
    """What a row's own cells say about its printed average.

    Attributes:
        verdict: `follows` (the cells' mean rounds to it), `rounding` (less than one unit of the last place away, as the
            cells' own rounding can explain), `mismatch` (it is a unit or more away), `unchecked` (a cell is illegible).
        recomputed: the cells' mean; None when unchecked.
        suspects: columns whose cell is another row's too, with that row and the value that the printed average would need.
    """

    verdict: Verdict
    recomputed: Decimal | None = None
    suspects: dict[str, tuple[str, Decimal]] | None = None


@cache
def table(reference: str) -> tuple[str, PublishedTable]:
    """The paper's name and the table that `file/table` stands for.

    Raises:
        UsageError: there is no such file or table, or it does not hold together.
    """
    name, _, key = reference.partition("/")
    path = registry.find("published", name)
    content = parse(PublishedFile, registry.load("published", name), str(path))
    if key not in content.tables:
        raise UsageError(f"{path}: no table '{key}'{registry.nearest(key, content.tables)}")
    return content.paper, content.tables[key]


def audit(found: PublishedTable, name: str) -> Audit:
    """Recompute a row's average, the plain mean of its columns, in decimal arithmetic as printed."""
    row = found.rows[name]
    if row.average is None or not row.means:
        return Audit("unchecked")
    cells = [_decimal(value, found.decimals) for value in row.means if isinstance(value, float)]
    if len(cells) < len(row.means):
        return Audit("unchecked")
    unit = Decimal(1).scaleb(-found.decimals)
    printed, recomputed = _decimal(row.average, found.decimals), sum(cells, Decimal(0)) / len(cells)
    if recomputed.quantize(unit, ROUND_HALF_UP) == printed:
        return Audit("follows", recomputed)
    if abs(recomputed - printed) < unit:
        return Audit("rounding", recomputed)
    by_far = abs(recomputed - printed) > 2 * unit  # one wrong digit leaves a trace of this size
    return Audit("mismatch", recomputed, _suspects(found, name, (printed - recomputed) * len(cells)) if by_far else None)


def average_note(found: PublishedTable, name: str) -> str | None:
    """A footnote on a printed average; None where it follows from its cells."""
    row, checked = found.rows[name], audit(found, name)
    if row.average is None or checked.verdict == "follows":
        return None
    if checked.recomputed is None:
        illegible = sum(value == "illegible" for value in row.means)
        return f"average not checked: {illegible} of {len(row.means)} cells are illegible in our copy"
    printed, own = f"{row.average:.{found.decimals}f}", f"{checked.recomputed:.{found.decimals + 1}f}"
    if checked.verdict == "rounding":
        return f"printed {printed}, its cells average {own}: their rounding can explain it"
    return f"printed {printed} does not follow from its {len(row.means)} cells, which average {own}"


def cell_notes(found: PublishedTable, name: str, column: str) -> tuple[str, ...]:
    """The footnotes on a printed cell: our remark, and that it may have been copied from another row."""
    row = found.rows[name]
    notes = [row.cell_notes[column]] if column in row.cell_notes else []
    if "illegible" in (found.mean(name, column), found.deviation(name, column)):
        which = "cell" if found.mean(name, column) == "illegible" else "standard deviation"
        notes.append(f"{which} illegible in our copy")
    suspects = audit(found, name).suspects or {}
    if column in suspects:
        other, needed = suspects[column]
        notes.append(f"equal to {other}'s, perhaps copied: the printed average would need {needed:.{found.decimals}f} here")
    return tuple(notes)


def _suspects(found: PublishedTable, name: str, lacking: Decimal) -> dict[str, tuple[str, Decimal]]:
    """Cells that equal another row's in the same column, in a row whose average asks for another value there."""
    suspects = {}
    for column in found.columns:
        value = found.mean(name, column)
        twin = next((other for other in found.rows if other != name and found.mean(other, column) == value), None)
        needed = _decimal(value, found.decimals) + lacking if isinstance(value, float) else Decimal(-1)
        if twin and 0 <= needed <= 100:
            suspects[column] = (twin, needed)
    return suspects


def _decimal(value: float, decimals: int) -> Decimal:
    return Decimal(f"{value:.{decimals}f}")
