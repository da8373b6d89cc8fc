"""A LaTeX document of booktabs tables; it compiles as it is, and its table environments can be taken out of it."""

import re
from collections.abc import Sequence

from hifi_cli.reports.table import Heading, Table, TableCell, deviation, line_label, number

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
    """The whole document; missing runs stand in comments at its head."""
    comments = [_comment(f"missing: {one.command}") for table in tables for one in table.missing]
    return "\n".join([*comments, _HEAD + "\n".join(map(_environment, tables)), r"\end{document}"]) + "\n"


def _environment(table: Table) -> str:
    out = [r"\begin{table}", r"\centering\footnotesize\setlength{\tabcolsep}{3pt}", rf"\caption{{{escaped(table.title)}}}"]
    out += [rf"\begin{{tabular}}{{l{'r' * len(table.headings)}}}", r"\toprule"]
    out += [" & ".join(escaped(name) for name in [table.corner, *(heading.label for heading in table.headings)]) + r" \\"]
    out += [r"\midrule"]
    for line in table.lines:
        signed = line.source == "difference"
        cells = [_cell(table, heading, cell, signed=signed) for heading, cell in zip(table.headings, line.cells, strict=True)]
        indent = "" if line.source == "runs" else r"\quad "
        label = indent + escaped(line_label(line).strip()) + _mark(table.marks(line.notes))
        out.append(" & ".join([label, *cells]) + r" \\")
    out += [r"\bottomrule", r"\end{tabular}"]
    remarks = [f"{_mark(mark)} {escaped(text)}" for text, mark in table.footnotes.items()]
    remarks += [escaped(text) for text in table.notes]
    out += [rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright\scriptsize {'; '.join(remarks)}.}}"] if remarks else []
    return "\n".join([*out, r"\end{table}"])


def escaped(text: str) -> str:
    """`text` on one line, with every character that LaTeX reads as a command made harmless."""
    line = " ".join(text.splitlines())  # an empty line would be a paragraph, which no caption can hold
    return re.sub("[" + re.escape("".join(_SPECIAL)) + "]", lambda found: _SPECIAL[found.group()], line)


def _comment(text: str) -> str:
    """A comment, in which every line of the text begins as one: a path may hold a line break."""
    return "\n".join(f"% {line}" for line in text.splitlines())


def _cell(table: Table, heading: Heading, cell: TableCell, *, signed: bool) -> str:
    printed = escaped(number(heading, cell, signed=signed))
    if signed and cell.mean is not None:
        printed = f"${printed}$"  # a true minus sign
    spread = deviation(heading, cell)
    subscript = rf"$_{{\pm {spread}}}$" if spread else ""
    return STYLES.get(cell.place or 0, "%s") % printed + subscript + _mark(table.marks(cell.notes))


def _mark(marks: str) -> str:
    return rf"\textsuperscript{{{marks}}}" if marks else ""
