"""How tables are printed: as text, Markdown, LaTeX, HTML, CSV and JSON."""

import html
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype
from rich import box, markup
from rich.console import Console
from rich.table import Table as Grid

from hifi_cli.errors import UsageError
from hifi_cli.files import json_text, suffix_of_output, write_or_print
from hifi_cli.reports.table import DASH, Table
from hifi_cli.text import spreadsheet_cell

_FORMAT_OF_SUFFIX = {".txt": "text", ".md": "md", ".tex": "tex", ".csv": "csv", ".json": "json"}
# Width of text in a file or a pipe, in characters, unless a table is wider.
WIDTH = 100
# A width that no table reaches, so that nothing wraps where a table is measured.
_ENDLESS = 10_000
# LaTeX takes these letters in a label without escapes.
_LABEL = re.compile(r"[A-Za-z0-9:./+_-]+")


@dataclass(frozen=True)
class LatexOptions:
    """How LaTeX refers to the tables of a command.

    Attributes:
        caption: of the first table in place of its title; further tables keep theirs. None: none.
        label: of the first table; further ones have a number behind it. None: no label.
    """

    caption: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.label is not None and not _LABEL.fullmatch(self.label):
            raise UsageError(
                f"--label '{self.label:.60}': letters, digits and : . - _ / + are allowed, as in tab:rte"
            )

    def caption_of(self, index: int, table: Table) -> str:
        """Return the caption of the table at an index."""
        if index == 0 and self.caption is not None:
            return self.caption
        return table.title

    def label_of(self, index: int) -> str | None:
        """Return the label of the table at an index; None: it has none."""
        if self.label is None or index == 0:
            return self.label
        return f"{self.label}-{index + 1}"


# The title is the caption, and there is no label.
AS_IT_IS = LatexOptions()


def emit(
    tables: Sequence[Table],
    name: str | None,
    out: Path | None,
    latex: LatexOptions = AS_IT_IS,
) -> None:
    """Print tables, or write them to a file.

    Args:
        tables: one or several.
        name: the format; None: as the file's suffix says, or text.
        out: the file; None: standard output.
        latex: caption and label, for LaTeX alone.

    Raises:
        UsageError: the file's name ends in another format, or another format has no such caption.
    """
    form = format_of(name, out)
    if form != "tex" and latex != AS_IT_IS:
        raise UsageError("--caption and --label are for --format tex: leave them out")
    write_or_print(render(form, tables, latex), out)


def format_of(name: str | None, out: Path | None) -> str:
    """Return the format in which tables are printed.

    Args:
        name: the format, if it is given; None: as the file's suffix says, or text.
        out: the file; None: standard output.

    Raises:
        UsageError: the file's name ends in another format.
    """
    if name is not None:
        return name
    other = "or give --format; hifi report writes HTML"
    return _FORMAT_OF_SUFFIX.get(suffix_of_output(out, _FORMAT_OF_SUFFIX, other), "text")


def render(name: str, tables: Sequence[Table], latex: LatexOptions = AS_IT_IS) -> str:
    """Return tables in a format.

    Args:
        name: `text`, `md`, `tex`, `csv` or `json`.
        tables: one or several.
        latex: caption and label, for `tex`.
    """
    if name == "json":
        contents = [_as_json(table) for table in tables]
        return json_text(contents[0] if len(contents) == 1 else contents)
    if name == "csv":
        return _as_csv(tables)
    if name == "tex":
        parts = []
        for index, table in enumerate(tables):
            parts.append(_as_latex(table, latex.caption_of(index, table), latex.label_of(index)))
        text = "\n".join(parts) + "\n"
        return f"{_preamble(text)}\n{text}"
    # A table in LaTeX goes to a place of its own, with all its notes. Here all stand together.
    own, shared = _with_shared_notes_apart(tables)
    if name == "md":
        parts = [*map(_as_markdown, own)]
        lines = [f"- all tables: {_MARKDOWN.line(note)}" for note in shared]
    else:
        parts = [*map(as_text, own)]
        wrap = _wrapper(_width())
        lines = [wrap.fill(f"all tables: {note}") for note in shared]
    if lines:
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _with_shared_notes_apart(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Return several tables without the notes that all of them have, and these notes."""
    if len(tables) < 2:
        return [*tables], []
    first, *others = tables
    shared = [*first.notes]
    for table in others:
        shared = [note for note in shared if note in table.notes]
    own = []
    for table in tables:
        notes = [note for note in table.notes if note not in shared]
        own.append(replace(table, notes=notes))
    return own, shared


# --- for programs


def flat(table: Table) -> pd.DataFrame:
    """Return a table for programs: one line a row, one column for each part of its cells.

    Returns:
        Columns: the rows' names (`Table.names_column`), `label`, `source`, `Table.columns`.
    """
    columns: dict[str, pd.Series] = {}
    if table.names_column:
        columns[table.names_column] = pd.Series([row.name for row in table.rows], dtype=object)
    columns["label"] = pd.Series([row.label for row in table.rows], dtype=object)
    columns["source"] = pd.Series([row.source for row in table.rows], dtype=object)
    for column in table.columns:
        values = [getattr(row.cell(column.key), column.part) for row in table.rows]
        # A column of whole numbers with a missing one must not become one of fractions.
        if column.is_count:
            columns[column.name] = pd.Series(values, dtype="Int64")
        elif all(value is None for value in values):
            # No type can be inferred from nothing.
            columns[column.name] = pd.Series(values, dtype=object)
        else:
            columns[column.name] = pd.Series(values)
    return pd.DataFrame(columns)


def _as_csv(tables: Sequence[Table]) -> str:
    """Return the lines of all tables; of several, the first column says which one a line belongs to."""
    frames = []
    for table in tables:
        frame = _for_spreadsheets(table)
        if len(tables) > 1:
            frame.insert(0, "table", table.title)
        frames.append(frame)
    return str(pd.concat(frames).to_csv(index=False, lineterminator="\n"))


def _for_spreadsheets(table: Table) -> pd.DataFrame:
    """Return `flat` for CSV, with its columns: a spreadsheet computes no text of a run as a formula."""

    def cell(value: Any) -> Any:
        """Return a cell as CSV has it: texts of the user's own YAMLs stay as they are."""
        if isinstance(value, str) and value in table.own_texts:
            return value
        return spreadsheet_cell(value)

    frame = flat(table)
    for column in frame:
        if not is_numeric_dtype(frame[column]):
            frame[column] = frame[column].map(cell)
    return frame


def _as_json(table: Table) -> dict[str, Any]:
    """Return title, headings, rows (those of `flat`, with footnotes), notes, missing and scores."""
    rows = _records(flat(table))
    for (row, key), texts in table.footnotes.items():
        rows[row].setdefault("notes", {})[key or "row"] = texts
    scores = table.scores.rename(columns={"row": table.names_column, "points": "score"})
    return {
        "title": table.title,
        "headings": table.headings,
        "rows": rows,
        "notes": table.notes,
        "missing": table.missing,
        "scores": _records(scores),
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the lines of a frame; None is where a value is missing."""
    records: list[dict[str, Any]] = (
        frame.astype(object).where(frame.notna(), None).to_dict("records")
    )
    return records


# --- for readers


@dataclass(frozen=True)
class Style:
    """How a format writes the parts of a cell.

    Attributes:
        escape: makes a text plain.
        rank_templates: around the best number of a column (1) and the second (2).
        indent: before a label that belongs to the row above.
        mark: around the letters of footnotes.
        spread: around a standard deviation.
    """

    escape: Callable[[str], str]
    rank_templates: Mapping[int, str]
    indent: str = "  "
    mark: str = "[{}]"
    spread: str = " ±{}"

    def line(self, text: str) -> str:
        """Return a text on one line: an empty line would end a table or a caption."""
        return self.escape(" ".join(text.split()))


# The characters that mean something in LaTeX, or that its usual fonts lack, and what prints them.
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "✓": r"$\checkmark$",
}  # fmt: skip


def _escaped_markdown(text: str) -> str:
    """Return a text that is neither HTML nor the border of a cell, and no link or image."""
    escaped = html.escape(text.replace("\\", r"\\"), quote=False)
    # A link needs a bracket and a parenthesis side by side; intervals keep their brackets.
    return escaped.replace("|", r"\|").replace("](", r"]\(")


def _escaped_latex(text: str) -> str:
    """Return a text whose characters have no meaning in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)


_TEXT = Style(
    escape=markup.escape,
    mark=r"\[{}]",
    rank_templates={1: "[bold]{}[/]", 2: "[underline]{}[/]"},
)
_MARKDOWN = Style(
    escape=_escaped_markdown,
    indent="&nbsp;&nbsp;",
    mark="<sup>{}</sup>",
    rank_templates={1: "**{}**", 2: "<u>{}</u>"},
)
_TEX = Style(
    escape=_escaped_latex,
    indent=r"\quad ",
    mark=r"\textsuperscript{{{}}}",
    spread=r"$_{{\pm {}}}$",
    rank_templates={1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"},
)
_HTML = Style(
    escape=html.escape,
    indent="&nbsp;&nbsp;",
    mark="<sup>{}</sup>",
    rank_templates={1: "<b>{}</b>", 2: "<u>{}</u>"},
)


def _cells(table: Table, style: Style) -> pd.DataFrame:
    """Return the table as readers see it, as texts of a format.

    Returns:
        Columns: the labels under `index_title`, then the table's headings.
    """
    headings = [table.index_title, *table.headings.values()]
    lines = []
    for index, label in enumerate(table.labels):
        texts = [_label(table, style, index, label)]
        texts += [_cell(table, style, index, key) for key in table.headings]
        lines.append(texts)
    columns = pd.Index([style.line(heading) for heading in headings], dtype=object)
    return pd.DataFrame(lines, columns=columns)


def _label(table: Table, style: Style, row: int, label: str) -> str:
    """Return the label before a row, with the marks of footnotes on the row as a whole."""
    text = style.line(label) + _marks(table, style, row, "")
    if label.startswith(" "):
        return style.indent + text
    return text


def _cell(table: Table, style: Style, row: int, key: str) -> str:
    """Return a number or text, its interval or standard deviation, and the marks of its footnotes."""
    text = style.line(table.number(row, key))
    rank = table.ranks.get((row, key))
    if rank is not None:
        text = style.rank_templates[rank].format(text)
    interval = table.interval(row, key)
    deviation = table.spread(row, key)
    if interval:
        text += f" {interval}"
    elif deviation != DASH:
        text += style.spread.format(deviation)
    return text + _marks(table, style, row, key)


def _marks(table: Table, style: Style, row: int, key: str) -> str:
    """Return the letters of the footnotes on a cell; empty where it has none."""
    texts = table.footnotes.get((row, key), [])
    if not texts:
        return ""
    return style.mark.format(",".join(table.marks[text] for text in texts))


def as_text(table: Table, width: int | None = None) -> str:
    """Return a table for a terminal: best bold, second underlined.

    Where it is too wide, cells take several lines.

    Args:
        table: the table.
        width: in characters; None: that of the terminal, or `WIDTH` without one.
    """
    if width is None:
        width = _width()
    wrap = _wrapper(width)
    lines = [wrap.fill(table.title)]
    if table.rows:
        lines += _drawn(table, width, is_terminal=sys.stdout.isatty())
    lines += [wrap.fill(f"{mark}: {text}") for text, mark in table.marks.items()]
    lines += [wrap.fill(note) for note in table.notes]
    # A missing run ends with a command, which readers copy: it is not wrapped.
    lines += [f"missing: {text}" for text in table.missing]
    return "\n".join(lines) + "\n"


def _width() -> int:
    """Return the width of the terminal, or `WIDTH` without one."""
    return Console().width if sys.stdout.isatty() else WIDTH


def _wrapper(width: int) -> TextWrapper:
    """Return what breaks a title or a note into lines."""
    return TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)


def _drawn(table: Table, width: int, *, is_terminal: bool) -> list[str]:
    """Return the lines of a table without title and notes."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    cells = _cells(table, _TEXT)
    for heading in cells:
        grid.add_column(heading, justify="right" if grid.columns else "left")
    for label, *texts in cells.itertuples(index=False):
        grid.add_row(label, *texts, style="dim" if label.startswith(" ") else "")
    _narrow(grid, width)
    drawn_width = Console(width=_ENDLESS).measure(grid).maximum
    stream = io.StringIO()
    console = Console(file=stream, width=drawn_width, force_terminal=is_terminal, highlight=False)
    console.print(grid)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def _narrow(grid: Grid, width: int) -> None:
    """Make a table's columns narrower where it is too wide: first headings wrap, then cells too."""
    console = Console(width=_ENDLESS)
    for cells_wrap in (False, True):
        if console.measure(grid).maximum <= width:
            return
        grid.padding = 0
        for column in grid.columns:
            widths = [console.measure(column.header).minimum]
            widths += [_width_of_cell(console, text, wraps=cells_wrap) for text in column.cells]
            column.width = max(widths)


def _width_of_cell(console: Console, text: Any, *, wraps: bool) -> int:
    """Return the characters that a cell takes: all on one line, or its longest word if it wraps."""
    measured = console.measure(text)
    if not wraps:
        return measured.maximum
    if str(text).startswith(" "):
        return measured.minimum + len(_TEXT.indent)
    return measured.minimum


def _as_markdown(table: Table) -> str:
    """Return a table with its title above and its notes as a list below."""
    lines = [_MARKDOWN.line(table.title), ""]
    if table.rows:
        cells = _cells(table, _MARKDOWN)
        alignment = ["---"] + ["---:"] * len(table.headings)
        for row in [[*cells], alignment, *cells.itertuples(index=False)]:
            lines.append(f"| {' | '.join(row)} |")
    lines.append("")
    lines += [f"- <sup>{mark}</sup> {_MARKDOWN.line(text)}" for text, mark in table.marks.items()]
    lines += [f"- {_MARKDOWN.line(text)}" for text in table.notes]
    lines += [f"- missing: {_MARKDOWN.line(text)}" for text in table.missing]
    return "\n".join(lines) + "\n"


# Hints for somebody at a shell: a command or an option, in parentheses or as its last part.
_HINT_IN_PARENTHESES = re.compile(r" \((?=[^()]*(?:--[a-z]|\bhifi [a-z]))[^()]*\)")
_HINT_AT_THE_END = re.compile(r"[;:] [^;:]*(?:--[a-z]|\bhifi [a-z])[^;:]*$")


def _without_hints(note: str) -> str:
    """Return a note as a paper may print it: without commands and options."""
    return _HINT_AT_THE_END.sub("", _HINT_IN_PARENTHESES.sub("", note))


def _preamble(text: str) -> str:
    """Return a comment with the packages that some LaTeX needs."""
    packages = "booktabs"
    if r"\checkmark" in text:
        packages += ",amssymb"
    return rf"% in the preamble: \usepackage{{{packages}}}"


def _as_latex(table: Table, caption: str, label: str | None) -> str:
    """Return a table with booktabs; comments before it name the missing runs."""
    styler = _cells(table, _TEX).style.hide(axis="index")
    body = styler.to_latex(hrules=True, column_format="l" + "r" * len(table.headings)).rstrip()
    # LaTeX prints a hyphen before a number as a hyphen: a minus sign needs math mode.
    # So do one that begins an interval, and one that is bold.
    body = re.sub(r"(?<=[ \n\[{])-(?=\d)", "$-$", body)
    notes = []
    for text, mark in table.marks.items():
        notes.append(f"{_TEX.mark.format(mark)} {_TEX.line(_without_hints(text))}")
    notes += [_TEX.line(_without_hints(text)) for text in table.notes]
    lines = [f"% missing: {' '.join(text.split())}" for text in table.missing]
    lines.append(r"\begin{table}")
    lines.append(r"\centering\footnotesize\setlength{\tabcolsep}{3pt}")
    lines.append(rf"\caption{{{_TEX.line(caption)}}}")
    if label is not None:
        # After the caption, which counts the table.
        lines.append(rf"\label{{{label}}}")
    lines.append(body)
    if notes:
        text = "; ".join(notes)
        box_of_notes = rf"\parbox{{\linewidth}}{{\raggedright\scriptsize {text}.}}"
        lines.append(rf"\par\smallskip{box_of_notes}")
    lines.append(r"\end{table}")
    return "\n".join(lines)


# A number at the beginning of a text, after the bracket of an interval; a digest is none.
_FIRST_NUMBER = re.compile(r"\[?([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.])")


def as_html(table: Table) -> str:
    """Return a table as an HTML element, without its title and notes.

    A program on the page can sort it: cells with numbers have them in `data-sort`, which is empty
    where a value is missing, and rows that belong together share a `tbody`.
    """
    cells = _cells(table, _HTML)
    lines = ['<table class="sortable">', "<thead>", "<tr>"]
    lines += [f"<th>{heading}</th>" for heading in cells]
    lines += ["</tr>", "</thead>", "<tbody>"]
    for index, (label, *texts) in enumerate(cells.itertuples(index=False)):
        if index and not _belongs_to_row_above(table, index):
            lines += ["</tbody>", "<tbody>"]
        lines += ["<tr>", f"<td>{label}</td>"]
        for key, text in zip(table.headings, texts, strict=True):
            lines.append(f"<td{_sort_attribute(table, index, key)}>{text}</td>")
        lines.append("</tr>")
    lines += ["</tbody>", "</table>"]
    return "\n".join(lines)


def _belongs_to_row_above(table: Table, index: int) -> bool:
    """Return whether a row has the paper's numbers for the row above, or the differences from them."""
    row = table.rows[index]
    if row.source == "runs" or row.name is None:
        return False
    return index > 0 and row.name == table.rows[index - 1].name


def _sort_attribute(table: Table, index: int, key: str) -> str:
    """Return the attribute with the number by which a cell is sorted; none where the cell is a text."""
    value = table.rows[index].cell(key).value
    if value is None or value == DASH:
        return ' data-sort=""'
    if isinstance(value, str):
        found = _FIRST_NUMBER.match(value)
        if not found:
            return ""
        value = float(found[1].replace(",", ""))
    return f' data-sort="{value:.9g}"'
