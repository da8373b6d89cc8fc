"""A table ready to print, whatever it is about: headings, lines of cells, footnotes, and what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from hifi_cli.reports.run_records import RunRecord

DASH = "-"
Source = Literal["runs", "published", "difference"]


@dataclass(frozen=True)
class Sample:
    """One seed's number in a cell, in percent, and the run it comes from."""

    seed: int
    score: float
    record: RunRecord


@dataclass(frozen=True)
class TableCell:
    """A number with what belongs to it, or a text.

    Attributes:
        mean: None: nothing to print but a dash.
        deviation: sample standard deviation over seeds; None for fewer than two.
        text: instead of a number.
        place: 1 for the best of its column, 2 for the second, by the number as printed.
        apart: shown, but not compared with the rest of its column.
        notes: footnotes.
        samples: what the mean is taken over.
    """

    mean: float | None = None
    deviation: float | None = None
    text: str | None = None
    place: int | None = None
    apart: bool = False
    notes: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Heading:
    """A column.

    Attributes:
        decimals: of its numbers; None: a share in percent, with as many as it needs.
        best: whether the highest or the lowest number of the column is marked, or none.
    """

    label: str
    decimals: int | None = 1
    best: Literal["high", "low"] | None = None


@dataclass(frozen=True)
class Line:
    """A row.

    Attributes:
        source: our own runs, the paper's numbers, or the difference of both.
        method: what the row is about; lines of several sources share it.
    """

    label: str
    cells: tuple[TableCell, ...]
    source: Source = "runs"
    method: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """Runs that a table wants and does not have, and the command that makes them."""

    method: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str


@dataclass(frozen=True)
class Table:
    """A table ready to print.

    Attributes:
        corner: the heading over the rows' labels.
        notes: remarks on the whole table.
    """

    title: str
    headings: list[Heading]
    lines: list[Line]
    corner: str = "Method"
    notes: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def incomplete(self) -> bool:
        """Whether a run is missing or one of our own cells is empty."""
        ours = (cell for line in self.lines if line.source == "runs" for cell in line.cells)
        return bool(self.missing) or any(cell.mean is None and cell.text is None for cell in ours)

    @property
    def footnotes(self) -> dict[str, str]:
        """The mark of every footnote, `a`, `b`, ..., in the order of first use."""
        found: dict[str, str] = {}
        for line in self.lines:
            for text in (*line.notes, *(note for cell in line.cells for note in cell.notes)):
                found.setdefault(text, _letters(len(found)))
        return found

    def marks(self, notes: Sequence[str]) -> str:
        """The marks of some footnotes, with commas."""
        marks = self.footnotes
        return ",".join(sorted({marks[note] for note in notes}, key=lambda mark: (len(mark), mark)))


def with_places(headings: list[Heading], lines: list[Line]) -> list[Line]:
    """Mark the best and second of each column among the lines of one source.

    It goes by the printed numbers, so that equal prints get equal marks, as in both papers.
    """
    placed = [list(line.cells) for line in lines]
    for number, heading in enumerate(headings):
        for source in ("runs", "published"):
            column = [line.cells[number] if line.source == source else TableCell() for line in lines]
            for row, place in _places(heading, column).items():
                placed[row][number] = replace(placed[row][number], place=place)
    return [replace(line, cells=tuple(cells)) for line, cells in zip(lines, placed, strict=True)]


def number(heading: Heading, cell: TableCell, *, signed: bool = False) -> str:
    """A cell's number or text as every format prints it, without deviation and marks."""
    if cell.text is not None:
        return cell.text
    if cell.mean is None:
        return DASH
    if heading.decimals is None:
        return f"{cell.mean:.3g} %" if 0 < cell.mean < 1 else f"{cell.mean:.1f} %"
    printed = rounded(cell.mean, heading.decimals)
    return f"{printed:{'+' if signed and printed else ''}}"


def deviation(heading: Heading, cell: TableCell) -> str | None:
    """A cell's standard deviation as every format prints it; None where there is none."""
    return None if cell.deviation is None or heading.decimals is None else str(rounded(cell.deviation, heading.decimals))


def rounded(value: float, decimals: int) -> Decimal:
    """A number as it is printed: halves go up, as in both papers' averages (55.95 is 56.0), and nothing is -0.0."""
    exact = Decimal(f"{value:.9f}")  # binary fractions would make 55.949999999999996 of that mean
    return exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) + 0


def line_label(line: Line) -> str:
    """What stands at the beginning of a line: the papers' numbers and the differences come below a method's own."""
    return line.label if line.source == "runs" else {"published": "  published", "difference": "  difference"}[line.source]


def _places(heading: Heading, column: list[TableCell]) -> dict[int, int]:
    if heading.best is None or heading.decimals is None:
        return {}
    means = {row: cell.mean for row, cell in enumerate(column) if cell.mean is not None and not cell.apart}
    printed = {row: rounded(mean, heading.decimals) for row, mean in means.items()}
    order = sorted(set(printed.values()), reverse=heading.best == "high")[:2]
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
