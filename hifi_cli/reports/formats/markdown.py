"""Tables as Markdown: best bold, second underlined, standard deviations as subscripts, footnotes and missing runs below."""

import html
import re
from collections.abc import Sequence

from hifi_cli.reports.table import Table, TableCell, TableHeading, deviation, number, row_label

STYLES = {1: ("**", "**"), 2: ("<u>", "</u>")}


def render(tables: Sequence[Table]) -> str:
    """Return the tables one below the other, each with title, footnotes, notes and missing runs."""
    return "\n".join(map(_draw, tables))


def _draw(table: Table) -> str:
    header = [table.corner, *(heading.label for heading in table.headings)]
    lines = [f"{escaped(table.title)}\n", f"| {' | '.join(map(escaped, header))} |", f"|---|{'---:|' * len(table.headings)}"]
    for row in table.rows:
        signed = row.source == "difference"
        cells = [_cell(table, heading, cell, signed=signed) for heading, cell in zip(table.headings, row.cells, strict=True)]
        label = escaped(row_label(row)).replace("  ", "&nbsp;&nbsp;", 1) + _superscript(table.footnote_marks(row.notes))
        lines.append(f"| {' | '.join([label, *cells])} |")
    return "\n".join(lines) + "\n" + _below(table)


def _cell(table: Table, heading: TableHeading, cell: TableCell, *, signed: bool) -> str:
    before, after = STYLES.get(cell.place or 0, ("", ""))
    spread = deviation(heading, cell)
    subscript = f"<sub>±{spread}</sub>" if spread else ""
    marks = _superscript(table.footnote_marks(cell.notes))
    return f"{before}{escaped(number(heading, cell, signed=signed))}{after}{subscript}{marks}"


def _below(table: Table) -> str:
    lines = [f"- <sup>{mark}</sup> {escaped(text)}" for text, mark in table.footnotes.items()]
    lines += [f"- note: {escaped(text)}" for text in table.notes]
    lines += [f"- missing: {code(command)}" for command in table.missing_commands]
    return "\n" + "".join(f"{line}\n" for line in lines) if lines else ""


def _superscript(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def escaped(text: str) -> str:
    """Return `text` on one line, with HTML and column separators escaped."""
    return html.escape(" ".join(text.splitlines()), quote=False).replace("|", r"\|")


def code(text: str) -> str:
    """Return `text` on one line as code, between more backticks than it contains in a row."""
    line = " ".join(text.splitlines())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"
