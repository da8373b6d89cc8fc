"""A table as a DataFrame with title and notes, and its formats: text, Markdown, LaTeX, CSV, JSON."""

import html
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any

import pandas as pd

from hifi_cli.errors import UsageError
from hifi_cli.files import json_text

DASH = "-"
WIDTH = 100  # columns of text in a file or a pipe
_LABEL_WIDTH = 24  # of the rows' labels where a table is too wide
Place = tuple[int, str]  # a cell: number of the row and key of the column; the column is "" for the row as a whole


@dataclass
class Table:
    """A table. Programs get `frame` as it is; readers get its columns that have a heading, rounded and marked.

    Attributes:
        frame: a line per row. `label`; `source`: whose numbers they are (runs, published, difference, ...). `KEY_std` beside
            KEY is its standard deviation.
        headings: of the columns that readers see, by key.
        decimals: of numbers, by key; others have one.
        best: keys of the columns whose best and second best number is marked, separately for each source.
        apart: cells that are not compared with their column.
        texts: what is printed instead of a number.
        footnotes: on cells and rows.
        missing: runs that the table requires, as a sentence with the command that makes them.
        scores: of each seed: `row` (number), `column`, `seed`, `score` in percent, `path` of the run.
    """

    title: str
    frame: pd.DataFrame
    headings: dict[str, str]
    corner: str = "Method"
    decimals: dict[str, int] = field(default_factory=dict)
    best: Sequence[str] = ()
    apart: set[Place] = field(default_factory=set)
    texts: dict[Place, str] = field(default_factory=dict)
    footnotes: dict[Place, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def sources(self) -> list[str]:
        """The source of each row."""
        return [*self.frame["source"]] if "source" in self.frame else ["runs"] * len(self.frame)

    @property
    def is_incomplete(self) -> bool:
        """Whether a run is missing, or one of our own cells has neither a number nor a text."""
        ours = [row for row, source in enumerate(self.sources) if source == "runs"]
        return bool(self.missing) or any(self.cell(row, key)[0] == DASH for row in ours for key in self.headings)

    @property
    def labels(self) -> list[str]:
        """What stands before each row: below a row of ours only the source of the numbers, indented."""
        method = self.frame.get("method", self.frame["label"])
        ours = set(method[self.frame["source"] == "runs"]) if "source" in self.frame else set()
        return [
            label if source in ("runs", "test server") else f"  {source}" if name in ours else f"  {source}: {label}"
            for label, source, name in zip(self.frame["label"], self.sources, method, strict=True)
        ]

    @cached_property
    def shown_footnotes(self) -> dict[Place, list[str]]:
        """The footnotes as readers see them: one that all cells of a row with a standard deviation share is on the row."""
        shown = {}
        for row in range(len(self.frame)):
            texts = {key: self.footnotes.get((row, key), []) for key in self.headings}
            means = [key for key in self.headings if self.cell(row, key)[1]]
            shared = [text for text in texts[means[0]] if all(text in texts[key] for key in means)] if len(means) > 1 else []
            shown[row, ""] = [*self.footnotes.get((row, ""), []), *shared]
            shown |= {(row, key): [text for text in texts[key] if text not in shared] for key in self.headings}
        return shown

    @cached_property
    def marks(self) -> dict[str, str]:
        """The letter of each footnote."""
        texts = dict.fromkeys(text for texts in self.shown_footnotes.values() for text in texts)
        return {text: _letters(number) for number, text in enumerate(texts)}

    def marks_of(self, row: int, key: str = "") -> str:
        """The letters of the footnotes on a cell or row."""
        marks = [self.marks[text] for text in self.shown_footnotes[row, key]]
        return ",".join(sorted(marks, key=lambda mark: (len(mark), mark)))

    def cell(self, row: int, key: str) -> tuple[str, str]:
        """A cell and its standard deviation, as every format prints them; the latter is empty where there is none."""
        value, spread = self.frame[key].iloc[row], self.frame.get(f"{key}_std")
        if (row, key) in self.texts:
            return self.texts[row, key], ""
        if not isinstance(value, str) and pd.isna(value):
            return DASH, ""
        if isinstance(value, str):
            return value, ""
        printed = rounded(value, self.decimals.get(key, 1))
        sign = "+" if self.sources[row] == "difference" and printed else ""
        has_spread = spread is not None and pd.notna(spread.iloc[row])
        return f"{printed:{sign},}", str(rounded(spread.iloc[row], self.decimals.get(key, 1))) if has_spread else ""

    @cached_property
    def places(self) -> dict[Place, int]:
        """1 for the best number of a column and 2 for the second. Equal printed numbers get equal marks, as in both papers."""
        places: dict[Place, int] = {}
        for key in self.best:
            for source in dict.fromkeys(self.sources):
                rows = [row for row, other in enumerate(self.sources) if other == source != "difference"]
                values = {row: self.frame[key].iloc[row] for row in rows if (row, key) not in self.apart}
                printed = {row: rounded(value, self.decimals.get(key, 1)) for row, value in values.items() if pd.notna(value)}
                order = sorted(set(printed.values()), reverse=True)[:2]
                places |= {
                    (row, key): 1 + order.index(value) for row, value in printed.items() if len(order) > 1 and value in order
                }
        return places


def rounded(value: float, decimals: int) -> Decimal:
    """A number as it is printed: half up, as in both papers' averages (55.95 is 56.0), and never -0.0."""
    exact = Decimal(f"{value:.9f}")  # the binary fraction of 55.95 is 55.949999999999996
    return exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP) + 0


def render(name: str, tables: Sequence[Table], *, standalone: bool = False) -> str:
    """Tables in a format.

    Args:
        standalone: a complete LaTeX document instead of a fragment.

    Raises:
        UsageError: `standalone` with another format than tex.
    """
    if standalone and name != "tex":
        raise UsageError("--standalone is for --format tex")
    if name == "json":
        contents = [_as_json(table) for table in tables]
        return json_text(contents[0] if len(contents) == 1 else contents)
    if name == "csv":
        return _csv(tables)
    if name == "tex":
        fragment = "\n".join([r"% in the preamble: \usepackage{booktabs}", *map(_latex, tables)]) + "\n"
        return f"{_HEAD}{fragment}\\end{{document}}\n" if standalone else fragment
    return "\n".join(_markdown(table) if name == "md" else as_text(table) for table in tables)


def _as_json(table: Table) -> dict[str, Any]:
    """Title, headings, rows (lines of the frame, with their footnotes by column), notes, missing, and scores of each seed."""
    rows = table.frame.astype(object).where(table.frame.notna(), None).to_dict("records")
    for row, content in enumerate(rows):
        notes = {key or "row": texts for (number, key), texts in table.footnotes.items() if number == row and texts}
        content |= {"notes": notes} if notes else {}
    content = {"title": table.title, "headings": table.headings, "rows": rows, "notes": table.notes, "missing": table.missing}
    return content | ({"scores": table.scores.to_dict("records")} if len(table.scores) else {})


def _csv(tables: Sequence[Table]) -> str:
    """The lines of the frames; of several tables, the first column says which one a line belongs to."""
    frames = [
        table.frame if len(tables) == 1 else table.frame.assign(table=table.title)[["table", *table.frame]] for table in tables
    ]
    return str(
        pd.concat([frame.map(_spreadsheet_safe).rename(columns=_spreadsheet_safe) for frame in frames]).to_csv(
            index=False, lineterminator="\n"
        )
    )


def _spreadsheet_safe(value: Any) -> Any:
    """A text on one line, after an apostrophe where a spreadsheet would read a formula; numbers unchanged."""
    if not isinstance(value, str):
        return value
    line = " ".join(value.split())
    is_number = re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", line)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) and line != DASH and not is_number else line


def as_text(table: Table, width: int | None = None) -> str:
    """A table for a terminal: best bold, second underlined. Where it is too wide, cells take two lines.

    Args:
        width: None: that of the terminal, or `WIDTH` without one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    terminal, stream = sys.stdout.isatty(), io.StringIO()
    width = width or (Console().width if terminal else WIDTH)
    headings = dict(table.headings)
    labels = [label + _bracketed(table.marks_of(row)) for row, label in enumerate(table.labels)]
    cells = {key: [text_cell(table, row, key) for row in range(len(labels))] for key in headings}
    label_width = max(map(len, [table.corner, *labels]))
    widths = {key: max(map(len, [headings[key], *column])) for key, column in cells.items()}
    if label_width + sum(widths.values()) + 2 * len(widths) > width:  # each word on a line of its own
        headings = {key: re.sub("[()]", "", heading) for key, heading in headings.items()}
        widths = {key: max(map(len, " ".join([headings[key], *column]).split())) for key, column in cells.items()}
        label_width = max(len(word) for label in [table.corner, *labels] for word in [label[:_LABEL_WIDTH], *label.split()])
    needed = label_width + sum(widths.values()) + 2 * len(widths)  # nothing is cut off on a narrow terminal
    space = 1 if needed <= width else 0
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, space, 0, 0), show_edge=False)
    grid.add_column(table.corner, width=label_width)
    for key, heading in headings.items():
        grid.add_column(heading, justify="right", width=widths[key])
    styles = {1: "bold", 2: "underline"}
    for row, label in enumerate(labels):
        texts = [Text(cells[key][row], style=styles.get(table.places.get((row, key), 0), "")) for key in table.headings]
        grid.add_row(Text(label), *texts, style="dim" if label.startswith(" ") else "")
    Console(file=stream, width=max(width, needed), force_terminal=terminal).print(grid)
    drawn = [line.rstrip() for line in stream.getvalue().splitlines()]
    below = [f"{mark}: {text}" for text, mark in table.marks.items()]
    below += [f"note: {text}" for text in table.notes] + [f"missing: {text}" for text in table.missing]
    return "\n".join([" ".join(table.title.split()), *drawn, *below]) + "\n"


def text_cell(table: Table, row: int, key: str) -> str:
    """A cell with its standard deviation and the letters of its footnotes."""
    number, spread = table.cell(row, key)
    return number + (f" ±{spread}" if spread else "") + _bracketed(table.marks_of(row, key))


def _bracketed(marks: str) -> str:
    return f"[{marks}]" if marks else ""


def _markdown(table: Table) -> str:
    styles = {1: "**{}**", 2: "<u>{}</u>", 0: "{}"}
    header = map(markdown_text, [table.corner, *table.headings.values()])
    lines = [markdown_text(table.title), "", f"| {' | '.join(header)} |", f"|---|{'---:|' * len(table.headings)}"]
    for row, label in enumerate(table.labels):
        cells = [markdown_text(label).replace("  ", "&nbsp;&nbsp;", 1) + _raised(table.marks_of(row))]
        for key in table.headings:
            number, spread = table.cell(row, key)
            printed = styles[table.places.get((row, key), 0)].format(markdown_text(number))
            cells.append(printed + (f" ±{spread}" if spread else "") + _raised(table.marks_of(row, key)))
        lines.append(f"| {' | '.join(cells)} |")
    below = [f"- {_raised(mark)} {markdown_text(text)}" for text, mark in table.marks.items()]
    below += [f"- note: {markdown_text(text)}" for text in table.notes]
    below += [f"- missing: {markdown_code(text)}" for text in table.missing]
    return "\n".join([*lines, "", *below]) + "\n"


def _raised(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def markdown_text(line: str) -> str:
    """A text on one line, with HTML and column separators escaped."""
    return html.escape(" ".join(line.splitlines()), quote=False).replace("|", r"\|")


def markdown_code(line: str) -> str:
    """A text on one line as code, between more backticks than it contains in a row."""
    line = " ".join(line.splitlines())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
    "✓": r"$\checkmark$", "×": r"$\times$",  # noqa: RUF001
}  # fmt: skip
_HEAD = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\usepackage{amssymb}
\usepackage[landscape,margin=1cm]{geometry}
\begin{document}
"""


def _latex(table: Table) -> str:
    """A table with booktabs; comments before it name the missing runs."""
    columns: dict[str, list[str]] = {
        latex_text(table.corner): [
            (r"\quad " if label.startswith(" ") else "") + latex_text(label.strip()) + _superscript(table.marks_of(row))
            for row, label in enumerate(table.labels)
        ]
    }
    for key, heading in table.headings.items():
        columns[latex_text(heading)] = [_latex_cell(table, row, key) for row in range(len(table.frame))]
    styler = pd.DataFrame(columns).style.hide(axis="index")
    body = styler.to_latex(hrules=True, column_format="l" + "r" * len(table.headings))
    notes = [f"{_superscript(mark)} {latex_text(text)}" for text, mark in table.marks.items()]
    notes += [latex_text(text) for text in table.notes]
    lines = [
        *(f"% missing: {' '.join(line.splitlines())}" for line in table.missing),
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{latex_text(table.title)}}}",
        body.rstrip(),
        *([rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright\scriptsize {'; '.join(notes)}.}}"] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_cell(table: Table, row: int, key: str) -> str:
    number, spread = table.cell(row, key)
    printed = latex_text(number)
    if table.sources[row] == "difference" and number != DASH:
        printed = f"${printed}$"  # math mode prints a minus sign instead of a hyphen
    printed = {1: r"\textbf{%s}", 2: r"\underline{%s}"}.get(table.places.get((row, key), 0), "%s") % printed
    return printed + (rf"$_{{\pm {spread}}}$" if spread else "") + _superscript(table.marks_of(row, key))


def _superscript(marks: str) -> str:
    return rf"\textsuperscript{{{marks}}}" if marks else ""


def latex_text(line: str) -> str:
    """A text on one line, with all characters escaped that LaTeX would read as commands."""
    line = " ".join(line.splitlines())  # an empty line would start a paragraph, which a caption cannot contain
    return re.sub("[" + re.escape("".join(_SPECIAL)) + "]", lambda match: _SPECIAL[match.group()], line)


def _letters(index: int) -> str:
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
