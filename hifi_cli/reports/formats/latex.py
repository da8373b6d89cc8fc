r"""Tables in LaTeX with booktabs: a fragment for \input, or a complete document."""

import re
from collections.abc import Sequence

from hifi_cli.reports.table import Table, TableCell, TableHeading, deviation, number, row_label

STYLES = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip
_HEAD = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\usepackage[landscape,margin=1cm]{geometry}
\begin{document}
"""


def render(tables: Sequence[Table]) -> str:
    r"""Return the table environments for \input into a document; comments before them list the missing runs."""
    comments = [_comment(f"missing: {command}") for table in tables for command in table.missing_commands]
    needed = r"% in the preamble: \usepackage{booktabs}"
    return "\n".join([*comments, needed, *map(_environment, tables)]) + "\n"


def document(tables: Sequence[Table]) -> str:
    """Return a complete document."""
    return f"{_HEAD}{render(tables)}\\end{{document}}\n"


def _environment(table: Table) -> str:
    parts = [r"\begin{table}", r"\centering\footnotesize\setlength{\tabcolsep}{3pt}", rf"\caption{{{escaped(table.title)}}}"]
    parts += [rf"\begin{{tabular}}{{l{'r' * len(table.headings)}}}", r"\toprule"]
    parts += [" & ".join(escaped(name) for name in [table.corner, *(heading.label for heading in table.headings)]) + r" \\"]
    parts += [r"\midrule"]
    for row in table.rows:
        signed = row.source == "difference"
        cells = [_cell(table, heading, cell, signed=signed) for heading, cell in zip(table.headings, row.cells, strict=True)]
        indent = "" if row.source == "runs" else r"\quad "
        label = indent + escaped(row_label(row).strip()) + _superscript(table.footnote_marks(row.notes))
        parts.append(" & ".join([label, *cells]) + r" \\")
    parts += [r"\bottomrule", r"\end{tabular}"]
    notes = [f"{_superscript(mark)} {escaped(text)}" for text, mark in table.footnotes.items()]
    notes += [escaped(text) for text in table.notes]
    parts += [rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright\scriptsize {'; '.join(notes)}.}}"] if notes else []
    return "\n".join([*parts, r"\end{table}"])


def escaped(text: str) -> str:
    """Return `text` on one line, with all characters escaped that LaTeX would read as commands."""
    line = " ".join(text.splitlines())  # an empty line would start a paragraph, which a caption cannot contain
    return re.sub("[" + re.escape("".join(_SPECIAL)) + "]", lambda match: _SPECIAL[match.group()], line)


def _comment(text: str) -> str:
    """Return a comment; every line of the text starts with %, because a path may contain a line break."""
    return "\n".join(f"% {line}" for line in text.splitlines())


def _cell(table: Table, heading: TableHeading, cell: TableCell, *, signed: bool) -> str:
    printed = escaped(number(heading, cell, signed=signed))
    if signed and cell.mean is not None:
        printed = f"${printed}$"  # math mode prints a minus sign instead of a hyphen
    spread = deviation(heading, cell)
    subscript = rf"$_{{\pm {spread}}}$" if spread else ""
    return STYLES.get(cell.place or 0, "%s") % printed + subscript + _superscript(table.footnote_marks(cell.notes))


def _superscript(marks: str) -> str:
    return rf"\textsuperscript{{{marks}}}" if marks else ""
