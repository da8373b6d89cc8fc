"""A table as a DataFrame with title and notes, and its formats: text, Markdown, LaTeX, HTML, CSV, JSON."""

import html
import io
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from textwrap import TextWrapper
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype
from rich import box, markup
from rich.console import Console
from rich.table import Table as Grid

from hifi_cli.errors import spreadsheet_cell
from hifi_cli.files import json_text, suffix_of_output, write_or_print

DASH = "-"
_FORMAT_OF_SUFFIX = {".txt": "text", ".md": "md", ".tex": "tex", ".csv": "csv", ".json": "json"}
WIDTH = 100  # columns of text in a file or a pipe, where a table is not wider
Place = tuple[int, str]  # a cell: row and column; the column is "" for the row as a whole


@dataclass
class Table:
    """A table. Programs get `frame` as it is; readers get its columns that have a heading, rounded and marked.

    Attributes:
        frame: a line per row, numbered from 0. `label`; `source`: whose numbers they are (runs, published, difference).
            `KEY_std` beside KEY is its standard deviation.
        headings: of the columns that readers see, by key.
        formats: of numbers by key, for `format`; others have one decimal.
        places: 1 for the best number of a column and 2 for the second.
        footnotes: on cells and rows, in reading order.
        own_texts: cells that the user's or the project's own YAML says, and no run.
        missing: what the table lacks, and the command that makes it.
        scores: of each seed: `row`, `column`, `seed`, `score` in percent, `path` of the run.
    """

    title: str
    frame: pd.DataFrame
    headings: dict[str, str]
    index_title: str = "Method"
    formats: dict[str, str] = field(default_factory=dict)
    places: dict[Place, int] = field(default_factory=dict)
    footnotes: dict[Place, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    own_texts: frozenset[str] = frozenset()
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def labels(self) -> list[str]:
        """What stands before each row: below one of ours only whose numbers they are, indented."""
        source, method = self.frame["source"], self.frame.get("method", self.frame["label"])
        ours = {*method[source == "runs"]}
        rows = zip(self.frame["label"], source, method, strict=True)
        return [
            label
            if source == "runs"
            else f"  {source}" + (f": {label}" if name not in ours else "")
            for label, source, name in rows
        ]

    def rank(self, key: str, *, lower_is_better: bool, not_ranked: Collection[str]) -> None:
        """Mark the best and second number of a column, separately for ours and the published ones.

        Equal printed numbers get equal marks, as in both papers.

        Args:
            apart: methods that are not compared with the others.
        """
        compared = self.frame[
            (self.frame["source"] != "runs") | ~self.frame["method"].isin(not_ranked)
        ]
        for source in ("runs", "published"):
            rows = compared.index[compared["source"] == source]
            printed = pd.Series({row: self.number(row, key) for row in rows}, dtype=object)
            numbers = pd.to_numeric(printed, errors="coerce")
            ranks = numbers.rank(method="dense", ascending=lower_is_better)
            if ranks.nunique() > 1:
                self.places |= ranks[ranks <= 2].rename(lambda row: (row, key)).to_dict()

    @cached_property
    def marks(self) -> dict[str, str]:
        """The letter of each footnote."""
        texts = dict.fromkeys(text for texts in self.footnotes.values() for text in texts)
        return {text: ascii_lowercase[at % 26] * (1 + at // 26) for at, text in enumerate(texts)}

    def number(self, row: int, key: str) -> str:
        """A number or text as every format prints it; of KEY_std a standard deviation.

        Halves are rounded up, as in both papers (55.95 is 56.0), and there is no -0.0.
        """
        value: Any = self.frame[key][row] if key in self.frame else None
        if isinstance(value, str) or pd.isna(value):
            return value if isinstance(value, str) else DASH
        sign = "+" if self.frame.at[row, "source"] == "difference" else ""
        return format(
            float(value) + 1e-9, sign + self.formats.get(key.removesuffix("_std"), "z.1f")
        )


@dataclass(frozen=True)
class Style:
    """How a format writes a text, the indent of a label, footnote marks, standard deviations, the best and second number."""

    escape: Callable[[str], str]
    indent: str = "  "
    mark: str = "[{}]"
    spread: str = " ±{}"
    places: tuple[str, str, str] = ("{}", "{}", "{}")

    def line(self, text: str) -> str:
        """A text on one line: an empty line would end a table or a caption."""
        return self.escape(" ".join(text.split()))


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "✓": r"$\checkmark$",
}  # fmt: skip
_TEXT = Style(markup.escape, mark=r"\[{}]", places=("{}", "[bold]{}[/]", "[underline]{}[/]"))


def _escaped_markdown(text: str) -> str:
    """A text that is neither HTML nor the border of a cell, and no link or image."""
    escaped = html.escape(text.replace("\\", r"\\"), quote=False)
    # a link needs a bracket and a parenthesis side by side; intervals keep their brackets
    return escaped.replace("|", r"\|").replace("](", r"]\(")


_MARKDOWN = Style(
    _escaped_markdown,
    "&nbsp;&nbsp;",
    "<sup>{}</sup>",
    places=("{}", "**{}**", "<u>{}</u>"),
)
_TEX = Style(
    lambda text: "".join(_LATEX.get(character, character) for character in text),
    r"\quad ",
    r"\textsuperscript{{{}}}",
    r"$_{{\pm {}}}$",
    ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"),
)
_HTML = Style(html.escape, "&nbsp;&nbsp;", "<sup>{}</sup>", places=("{}", "<b>{}</b>", "<u>{}</u>"))


def _cells(table: Table, style: Style) -> pd.DataFrame:
    """The table as readers see it: texts of a format, the labels in the first column."""

    def marked(row: int, key: str = "") -> str:
        marks = [table.marks[text] for text in table.footnotes.get((row, key), [])]
        return style.mark.format(",".join(marks)) if marks else ""

    def cell(row: int, key: str) -> str:
        deviation, place = table.number(row, f"{key}_std"), int(table.places.get((row, key), 0))
        number = style.places[place].format(style.line(table.number(row, key)))
        spread = style.spread.format(deviation) if deviation != DASH else ""
        return number + spread + marked(row, key)

    labels = [
        (style.indent if label.startswith(" ") else "") + style.line(label) + marked(row)
        for row, label in enumerate(table.labels)
    ]
    columns = [[cell(row, key) for row in range(len(labels))] for key in table.headings]
    headings = map(style.line, [table.index_title, *table.headings.values()])
    return pd.DataFrame(
        zip(labels, *columns, strict=True), columns=pd.Index([*headings], dtype=object)
    )


def emit(tables: Sequence[Table], name: str | None, out: Path | None) -> None:
    """Print tables, or write them to a file, whose suffix is the format where none is named.

    Raises:
        UsageError: the file's name ends in another format.
    """
    other = "or give --format; hifi report writes HTML"
    suffix = "" if name else suffix_of_output(out, _FORMAT_OF_SUFFIX, other)
    write_or_print(render(name or _FORMAT_OF_SUFFIX.get(suffix, "text"), tables), out)


def render(name: str, tables: Sequence[Table]) -> str:
    """Tables in a format."""
    if name == "json":
        contents = [_as_json(table) for table in tables]
        return json_text(contents[0] if len(contents) == 1 else contents)
    if name == "csv":  # of several tables, the first column says which one a line belongs to
        frames = pd.concat(
            [_for_spreadsheets(table) for table in tables],
            keys=[table.title for table in tables],
            names=["table"],
        )
        return str(frames.droplevel(1).to_csv(index=len(tables) > 1, lineterminator="\n"))
    if name == "tex":
        preamble = r"% in the preamble: \usepackage{booktabs,amssymb}"
        return "\n".join([preamble, *map(_as_latex, tables)]) + "\n"
    return "\n".join(_as_markdown(table) if name == "md" else as_text(table) for table in tables)


def _for_spreadsheets(table: Table) -> pd.DataFrame:
    """The lines of a table for CSV, in which no text of a run is a formula."""

    def cell(value: Any) -> Any:
        is_own = isinstance(value, str) and value in table.own_texts
        return value if is_own else spreadsheet_cell(value)

    frame = table.frame.copy()
    for column in frame:
        if not is_numeric_dtype(frame[column]):
            frame[column] = frame[column].map(cell)
    return frame


def _as_json(table: Table) -> dict[str, Any]:
    """Title, headings, rows (lines of the frame and their footnotes), notes, missing, seeds' scores."""
    rows, scores = (
        frame.astype(object).where(frame.notna(), None).to_dict("records")
        for frame in (table.frame, table.scores)
    )
    for (row, key), texts in table.footnotes.items():
        rows[row].setdefault("notes", {})[key or "row"] = texts
    return {
        "title": table.title,
        "headings": table.headings,
        "rows": rows,
        "notes": table.notes,
        "missing": table.missing,
        "scores": scores,
    }


def as_text(table: Table, width: int | None = None) -> str:
    """A table for a terminal: best bold, second underlined. Where it is too wide, cells take several lines.

    Args:
        width: None: that of the terminal, or `WIDTH` without one.
    """
    terminal, stream = sys.stdout.isatty(), io.StringIO()
    width = width or (Console().width if terminal else WIDTH)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    cells = _cells(table, _TEXT)
    for heading in cells:
        grid.add_column(heading, justify="right" if grid.columns else "left")
    for label, *texts in cells.itertuples(index=False):
        grid.add_row(label, *texts, style="dim" if label.startswith(" ") else "")
    endless = Console(width=10_000)
    for cells_wrap in (False, True):  # headings alone take several lines, then cells too
        if endless.measure(grid).maximum <= width:
            break
        grid.padding = 0
        for column in grid.columns:
            column.width = max(
                endless.measure(column.header).minimum,
                *(
                    endless.measure(text).minimum + len(_TEXT.indent) * str(text).startswith(" ")
                    if cells_wrap
                    else endless.measure(text).maximum
                    for text in column.cells
                ),
            )
    drawn_width = endless.measure(grid).maximum
    console = Console(file=stream, width=drawn_width, force_terminal=terminal, highlight=False)
    console.print(grid)
    drawn = [line.rstrip() for line in stream.getvalue().splitlines()] if len(cells) else []
    wrap = TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
    below = [f"{mark}: {text}" for text, mark in table.marks.items()] + table.notes
    missing = [f"missing: {text}" for text in table.missing]  # ends with a command, which is copied
    lines = [wrap.fill(table.title), *drawn, *map(wrap.fill, below), *missing]
    return "\n".join(lines) + "\n"


def _as_markdown(table: Table) -> str:
    cells = _cells(table, _MARKDOWN)
    rows = [[*cells], ["---", *["---:"] * len(table.headings)], *cells.itertuples(index=False)]
    below = [f"- <sup>{mark}</sup> {_MARKDOWN.line(text)}" for text, mark in table.marks.items()]
    below += [f"- {_MARKDOWN.line(text)}" for text in table.notes]
    below += [f"- missing: {_MARKDOWN.line(text)}" for text in table.missing]
    drawn = [f"| {' | '.join(row)} |" for row in rows] if len(cells) else []
    return "\n".join([_MARKDOWN.line(table.title), "", *drawn, "", *below]) + "\n"


def _as_latex(table: Table) -> str:
    """A table with booktabs; comments before it name the missing runs."""
    styler = _cells(table, _TEX).style.hide(axis="index")
    body = styler.to_latex(hrules=True, column_format="l" + "r" * len(table.headings))
    notes = [_TEX.mark.format(mark) + " " + _TEX.line(text) for text, mark in table.marks.items()]
    notes += map(_TEX.line, table.notes)
    below = rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright\scriptsize {'; '.join(notes)}.}}"
    lines = [
        *(f"% missing: {' '.join(text.split())}" for text in table.missing),
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_TEX.line(table.title)}}}",
        re.sub(r"(?<=[ \n])-(?=\d)", "$-$", body.rstrip()),  # a minus sign instead of a hyphen
        *([below] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines)


def as_html(table: Table) -> str:
    """A table as an HTML element, without its title and notes."""
    return str(_cells(table, _HTML).to_html(index=False, escape=False, border=0))
