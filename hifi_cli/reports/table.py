"""A table ready to print: headings, rows of cells, footnotes, and missing runs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from math import floor, log10
from typing import Any, Literal

from hifi_cli.reports.run_records import RunRecord

DASH = "-"
Source = Literal["runs", "published", "difference"]


@dataclass(frozen=True)
class SeedScore:
    """The score of one seed in percent, and the run it comes from."""

    seed: int
    score: float
    record: RunRecord


@dataclass(frozen=True)
class TableCell:
    """A number with its standard deviation, footnotes and runs, or a text.

    Attributes:
        mean: None prints a dash.
        deviation: sample standard deviation over seeds; None for fewer than two.
        text: printed instead of a number.
        value: what the text says, for programs: a number, a list or a mapping; None: the mean, or else the text.
        place: 1 for the best of its column, 2 for the second, by the printed number.
        is_comparable: whether it is compared with the rest of its column.
        notes: footnotes.
        seed_scores: the scores that the mean is computed from.
    """

    mean: float | None = None
    deviation: float | None = None
    text: str | None = None
    value: Any = None
    place: int | None = None
    is_comparable: bool = True
    notes: tuple[str, ...] = ()
    seed_scores: tuple[SeedScore, ...] = ()


def signed_cell(value: float) -> TableCell:
    """Return the cell of a difference, which is printed with its sign."""
    return TableCell(value, text=f"{round(value, 2) + 0.0:+.2f}")  # + 0.0: no minus before a rounded zero


@dataclass(frozen=True)
class TableHeading:
    """The heading of a column.

    Attributes:
        name: of the column for programs; empty: the label in lower case with underscores.
        decimals: of its numbers, the same in the whole column.
        marks_best: whether the highest number of the column is marked, and the second.
        unit: printed after each number.
    """

    label: str
    decimals: int = 1
    marks_best: bool = False
    name: str = ""
    unit: str = ""

    @property
    def key(self) -> str:
        """The name of the column for programs."""
        return self.name or "_".join(re.findall(r"[a-z0-9]+", self.label.lower()))


@dataclass(frozen=True)
class TableRow:
    """A row.

    Attributes:
        source: our own runs, the paper's numbers, or the difference.
        method: shared by the rows of several sources.
        verdict: what the row allows to conclude, in the word that programs read.
    """

    label: str
    cells: tuple[TableCell, ...]
    source: Source = "runs"
    method: str | None = None
    verdict: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MissingRuns:
    """Runs that a table requires and that are missing, and the command that makes them."""

    method: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str


@dataclass(frozen=True)
class Table:
    """A table ready to print.

    Attributes:
        corner: the heading of the rows' labels.
        notes: about the whole table.
    """

    title: str
    headings: list[TableHeading]
    rows: list[TableRow]
    corner: str = "Method"
    notes: list[str] = field(default_factory=list)
    missing: list[MissingRuns] = field(default_factory=list)

    @property
    def incomplete(self) -> bool:
        """Whether a run is missing or one of our own cells is empty."""
        own_cells = (cell for row in self.rows if row.source == "runs" for cell in row.cells)
        return bool(self.missing) or any(cell.mean is None and cell.text is None for cell in own_cells)

    @property
    def missing_commands(self) -> list[str]:
        """The commands of the missing runs; one for all methods whose runs have the same tasks, seeds and options."""
        methods: dict[tuple[str, str], dict[str, None]] = {}
        for missing in self.missing:
            before, option, after = missing.command.partition(f" --method {missing.method} ")
            methods.setdefault((before, option and after), {})[missing.method] = None
        return [
            f"{before} --method {','.join(names)} {after}" if after else before for (before, after), names in methods.items()
        ]

    @property
    def footnotes(self) -> dict[str, str]:
        """The mark of every footnote, `a`, `b`, ..., in the order of first use."""
        marks: dict[str, str] = {}
        for row in self.rows:
            for text in (*row.notes, *(note for cell in row.cells for note in cell.notes)):
                marks.setdefault(text, _letters(len(marks)))
        return marks

    def footnote_marks(self, notes: Sequence[str]) -> str:
        """Return the marks of some footnotes, separated by commas."""
        marks = self.footnotes
        return ",".join(sorted({marks[note] for note in notes}, key=lambda mark: (len(mark), mark)))


def with_places(headings: list[TableHeading], rows: list[TableRow]) -> list[TableRow]:
    """Mark the best and second of each column among the rows of one source.

    Printed numbers are compared, so that equal printed numbers get equal marks, as in both papers.
    """
    cells = [list(row.cells) for row in rows]
    for number, heading in enumerate(headings):
        for source in ("runs", "published"):
            column = [row.cells[number] if row.source == source else TableCell() for row in rows]
            for index, place in _places(heading, column).items():
                cells[index][number] = replace(cells[index][number], place=place)
    return [replace(row, cells=tuple(row_cells)) for row, row_cells in zip(rows, cells, strict=True)]


def number(heading: TableHeading, cell: TableCell, *, signed: bool = False) -> str:
    """Return a cell's number or text as every format prints it, without standard deviation and footnotes."""
    if cell.text is not None:
        return cell.text
    if cell.mean is None:
        return DASH
    printed = rounded(cell.mean, heading.decimals)
    return f"{printed:{'+' if signed and printed else ''}}{heading.unit}"


def deviation(heading: TableHeading, cell: TableCell) -> str | None:
    """Return a cell's standard deviation as every format prints it; None where there is none."""
    return None if cell.deviation is None else str(rounded(cell.deviation, heading.decimals))


def rounded(value: float, decimals: int) -> Decimal:
    """Round a number as it is printed: half up, as in both papers' averages (55.95 is 56.0), and never -0.0."""
    exact = Decimal(f"{value:.9f}")  # the binary fraction of 55.95 is 55.949999999999996
    return exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) + 0


def decimals_for(values: Iterable[float | None]) -> int:
    """Return the decimals with which the smallest number of a column keeps two digits; at least one, at most six."""
    smallest = min((abs(value) for value in values if value), default=1.0)
    return min(6, max(1, 1 - floor(log10(smallest))))


def row_label(row: TableRow) -> str:
    """Return the label of a row: `published` and `difference` are indented below the method's own row."""
    if row.source == "runs":
        return row.label
    return f"  {row.source}" if row.method else f"  {row.source}: {row.label}"  # a row that only the paper has names itself


def _places(heading: TableHeading, column: list[TableCell]) -> dict[int, int]:
    if not heading.marks_best:
        return {}
    means = {row: cell.mean for row, cell in enumerate(column) if cell.mean is not None and cell.is_comparable}
    printed = {row: rounded(mean, heading.decimals) for row, mean in means.items()}
    order = sorted(set(printed.values()), reverse=True)[:2]
    if len(order) < 2:
        return {}
    return {row: 1 + order.index(value) for row, value in printed.items() if value in order}


def _letters(index: int) -> str:
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
