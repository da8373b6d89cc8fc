"""The papers' printed numbers, and whether each printed average follows from its own cells."""

from functools import cache
from typing import Literal

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import UsageError

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

    def mean(self, row: str, column: str) -> Number | str:
        """A printed mean or text; None where the table has no such cell."""
        printed = self.rows.get(row, PublishedRow())
        return dict(zip(self.columns, printed.means or printed.texts, strict=False)).get(column)

    def deviation(self, row: str, column: str) -> Number:
        """A printed standard deviation; None where the table has none."""
        return dict(zip(self.columns, self.rows.get(row, PublishedRow()).deviations, strict=False)).get(column)

    def cell_notes(self, row: str, column: str) -> list[str]:
        """The footnotes on a printed cell: our remark, and whether it is legible."""
        notes = [note for key, note in self.rows[row].cell_notes.items() if key == column]
        if self.mean(row, column) == "illegible":
            notes.append("illegible in our copy of the paper")
        elif self.deviation(row, column) == "illegible":
            notes.append("standard deviation illegible in our copy of the paper")
        return notes

    def misprint(self, row: str) -> str:
        """How a printed average differs from the mean of its cells by more than their rounding; empty: it does not."""
        printed, cells = self.rows[row].average, [mean for mean in self.rows[row].means if isinstance(mean, float)]
        if printed is None or not cells or len(cells) < len(self.rows[row].means):
            return ""
        mean = sum(cells) / len(cells)
        if abs(mean - printed) < 10**-self.decimals - 1e-9:
            return ""
        return f"printed {printed:.{self.decimals}f}, but the mean of its {len(cells)} cells is {mean:.{self.decimals + 1}f}"


class PublishedFile(ConfigModel):
    """A paper's tables."""

    description: str
    """What the paper is, in one line."""
    paper: str
    """Short name of the paper."""
    tables: dict[str, PublishedTable]
    """Tables, by name."""


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
