"""Tables as text for a terminal, Markdown, LaTeX, CSV or JSON."""

from collections.abc import Callable, Sequence

from hifi_cli.errors import UsageError
from hifi_cli.reports.formats import csv_table, json_table, latex, markdown, text
from hifi_cli.reports.table import Table

FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": text.render,
    "md": markdown.render,
    "tex": latex.render,
    "csv": csv_table.as_csv,
    "json": json_table.render,
}


def render(name: str, tables: Sequence[Table], *, standalone: bool = False) -> str:
    """Return tables in a format.

    Args:
        standalone: a complete LaTeX document instead of a fragment.

    Raises:
        UsageError: `standalone` with another format than tex.
    """
    if standalone and name != "tex":
        raise UsageError("--standalone is for --format tex")
    return latex.document(tables) if standalone else FORMATS[name](tables)
