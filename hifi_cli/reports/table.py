"""A table as comparisons and claims build it: headings, rows of cells, footnotes, and missing runs."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from hifi_cli.reports import render

DASH = "-"
Source = Literal["runs", "published", "difference"]


@dataclass(frozen=True)
class TableCell:
    """A number with its standard deviation, and footnotes, or a text.

    Attributes:
        mean: None prints a dash.
        deviation: sample standard deviation over seeds; None for fewer than two.
        text: printed instead of a number.
        value: what the text says, for programs: a number, a list or a mapping; None: the mean, or else the text.
        notes: footnotes.
    """

    mean: float | None = None
    deviation: float | None = None
    text: str | None = None
    value: Any = None
    notes: tuple[str, ...] = ()


def signed_cell(value: float) -> TableCell:
    """Return the cell of a difference, which is printed with its sign."""
    return TableCell(value, text=f"{round(value, 2) + 0.0:+.2f}")  # + 0.0: no minus before a rounded zero


@dataclass(frozen=True)
class TableHeading:
    """The heading of a column.

    Attributes:
        name: of the column for programs; empty: the label in lower case with underscores.
        decimals: of its numbers, the same in the whole column.
    """

    label: str
    decimals: int = 1
    name: str = ""

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
class VerdictTable:
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
    def missing_commands(self) -> list[str]:
        """The commands of the missing runs; one for all methods whose runs have the same tasks, seeds and options."""
        methods: dict[tuple[str, str], dict[str, None]] = {}
        for missing in self.missing:
            before, option, after = missing.command.partition(f" --method {missing.method} ")
            methods.setdefault((before, option and after), {})[missing.method] = None
        return [
            f"{before} --method {','.join(names)} {after}" if after else before for (before, after), names in methods.items()
        ]

    def converted(self) -> "render.Table":
        """The same table as a DataFrame, which every format prints."""
        frame_rows: list[dict[str, Any]] = []
        texts: dict[tuple[int, str], str] = {}
        footnotes: dict[tuple[int, str], list[str]] = {}
        for number, row in enumerate(self.rows):
            content: dict[str, Any] = {"method": row.method, "label": row.label, "source": row.source}
            footnotes[number, ""] = list(row.notes)
            for heading, cell in zip(self.headings, row.cells, strict=True):
                value = next((value for value in (cell.mean, cell.value, cell.text) if value is not None), None)
                content[heading.key] = None if value == DASH else value
                content |= {f"{heading.key}_std": cell.deviation} if cell.deviation is not None else {}
                texts |= {} if cell.text is None else {(number, heading.key): cell.text}
                footnotes[number, heading.key] = list(cell.notes)
            frame_rows.append(content)
        return render.Table(
            title=self.title,
            frame=pd.DataFrame(frame_rows, columns=None if frame_rows else ["method", "label", "source"]),
            headings={heading.key: heading.label for heading in self.headings},
            corner=self.corner,
            decimals={heading.key: heading.decimals for heading in self.headings},
            texts=texts,
            footnotes=footnotes,
            notes=self.notes,
            missing=self.missing_commands,
        )
