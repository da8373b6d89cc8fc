"""A table: rows of cells with title, notes and footnotes. `render.py` prints it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_lowercase
from typing import Any, Literal

import pandas as pd

from hifi_cli.text import format_number

DASH = "-"
# Whose numbers a row has: ours, a paper's, or ours minus the paper's.
Source = Literal["runs", "published", "difference"]
# A row, by its index, and a column, by its key. The column is "" for the row as a whole.
Position = tuple[int, str]


@dataclass(frozen=True)
class Cell:
    """The content of a table at one position.

    Attributes:
        value: a mean over seeds (of scores in percent), another number, or a text; None: nothing.
        std: standard deviation over the seeds; None: none, as of a single seed.
        seeds: number of seeds; None: the value is none of seeds.
        interval: 95 % interval of the value; None: none.
    """

    value: float | str | None = None
    std: float | None = None
    seeds: int | None = None
    interval: tuple[float, float] | None = None

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return self.interval[0] if self.interval else None

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return self.interval[1] if self.interval else None


NOTHING = Cell()


def known(number: Any) -> float | None:
    """Return a number as a cell has it: None where it is missing, as NaN is of pandas."""
    return None if pd.isna(number) else float(number)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: of the method, backbone or task that the row is about; None: a paper's alone.
        label: what readers call it.
        source: whose numbers they are.
        cells: by key of the column; a missing one says nothing.
    """

    name: str | None
    label: str
    source: Source
    cells: dict[str, Cell]

    def cell(self, key: str) -> Cell:
        """Return the cell of a column."""
        return self.cells.get(key, NOTHING)


@dataclass(frozen=True)
class Column:
    """A column of CSV and JSON, which has one part of the cells of a key.

    Attributes:
        name: its heading there.
        key: whose cells they are.
        part: which part.
        is_count: whether the values are whole numbers, also where some are missing.
    """

    name: str
    key: str
    part: Literal["value", "std", "seeds", "low", "high"] = "value"
    is_count: bool = False


def value_column(key: str, *, is_count: bool = False) -> Column:
    """Return the column of the values of a key."""
    return Column(key, key, "value", is_count)


def std_column(key: str) -> Column:
    """Return the column of the standard deviations of a key."""
    return Column(f"{key}_std", key, "std")


def seeds_column(key: str) -> Column:
    """Return the column of the numbers of seeds of a key."""
    return Column(f"{key}_seeds", key, "seeds", is_count=True)


def interval_columns(key: str) -> list[Column]:
    """Return the columns `low` and `high` of the intervals of a key."""
    return [Column("low", key, "low"), Column("high", key, "high")]


def own_interval_columns(key: str) -> list[Column]:
    """Return the columns of the intervals of a key, which have its name: several keys may have some."""
    return [Column(f"{key}_low", key, "low"), Column(f"{key}_high", key, "high")]


@dataclass(frozen=True)
class Table:
    """A table. Readers get the keys that have a heading, rounded and marked; programs all columns.

    Attributes:
        title: one line above it.
        rows: from top to bottom; a paper's numbers and differences follow ours.
        headings: of the columns that readers see, by key, from left to right.
        columns: of CSV and JSON, from left to right.
        index_title: heading of the labels.
        names_column: heading of the rows' names in CSV and JSON. Programs know it as `method`,
            also where rows are backbones or tasks; empty: the labels are the names.
        formats: of numbers by key, for `format`; others have one decimal.
        ranks: 1 for the best number of a column and 2 for the second; others have none.
        footnotes: on cells and rows, in reading order.
        notes: sentences below the table.
        missing: what the table lacks, and the command that makes it.
        own_texts: texts that the user's or the project's own YAML says, and no run.
        scores: a row for each seed of each cell. Columns: `row` (a method or backbone), `column`
            (the key), `seed`, `points`, `path` of the run.
        shows_intervals: whether a number with an interval is printed with it.
    """

    title: str
    rows: list[Row]
    headings: dict[str, str]
    columns: list[Column]
    index_title: str = "Method"
    names_column: str = "method"
    formats: dict[str, str] = field(default_factory=dict)
    ranks: dict[Position, int] = field(default_factory=dict)
    footnotes: dict[Position, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    own_texts: frozenset[str] = frozenset()
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    shows_intervals: bool = False

    @property
    def labels(self) -> list[str]:
        """Labels of the rows: below one of ours whose numbers they are, indented."""
        ours = {row.name for row in self.rows if row.source == "runs"}
        labels = []
        for row in self.rows:
            if row.source == "runs":
                labels.append(row.label)
            elif row.name in ours:
                labels.append(f"  {row.source}")
            else:
                labels.append(f"  {row.source}: {row.label}")
        return labels

    def ranked(self, key: str, *, lower_is_better: bool, not_ranked: Collection[str]) -> "Table":
        """Return the table with the best and second number of a column marked, ours and published apart.

        Equal printed numbers get equal marks, as in both papers.

        Args:
            key: of the column.
            lower_is_better: whether the smallest number is the best.
            not_ranked: names of our rows that are not compared with the others.
        """
        marked = dict(self.ranks)
        for source in ("runs", "published"):
            printed = {}
            for index, row in enumerate(self.rows):
                is_compared = row.source != "runs" or row.name not in not_ranked
                if row.source == source and is_compared:
                    printed[index] = self.number(index, key)
            numbers = pd.to_numeric(pd.Series(printed, dtype=object), errors="coerce")
            ranks = numbers.rank(method="dense", ascending=lower_is_better)
            if ranks.nunique() <= 1:
                continue
            for index, rank in ranks[ranks <= 2].items():
                marked[int(str(index)), key] = int(rank)
        return replace(self, ranks=marked)

    @cached_property
    def marks(self) -> dict[str, str]:
        """The letter of each footnote: a to z, then aa, bb and so on."""
        marks: dict[str, str] = {}
        for texts in self.footnotes.values():
            for text in texts:
                if text not in marks:
                    repetitions, letter = divmod(len(marks), len(ascii_lowercase))
                    marks[text] = ascii_lowercase[letter] * (1 + repetitions)
        return marks

    def number(self, row: int, key: str) -> str:
        """Return the number or text of a cell as every format prints it.

        Args:
            row: index of the row.
            key: of the column.
        """
        return self._printed(row, key, self.rows[row].cell(key).value)

    def spread(self, row: int, key: str) -> str:
        """Return the standard deviation of a cell as every format prints it."""
        return self._printed(row, key, self.rows[row].cell(key).std)

    def interval(self, row: int, key: str) -> str:
        """Return the interval of a cell as every format prints it; empty: none is shown beside the number."""
        ends = self.rows[row].cell(key).interval
        if ends is None or not self.shows_intervals:
            return ""
        low, high = (self._printed(row, key, end) for end in ends)
        return f"[{low}, {high}]"

    def _printed(self, row: int, key: str, value: float | str | None) -> str:
        """Return a value in the format of its column."""
        if isinstance(value, str):
            return value
        if value is None:
            return DASH
        form = self.formats.get(key, "z.1f")
        if self.rows[row].source == "difference":
            form = f"+{form}"
        return format_number(float(value), form)


def with_notes(tables: Sequence[Table], notes: Sequence[str]) -> list[Table]:
    """Return the tables of a command, with notes below the first that are about all of them."""
    first, *others = tables
    return [replace(first, notes=[*first.notes, *notes]), *others]
