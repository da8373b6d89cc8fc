"""Tables as text for a terminal, Markdown, LaTeX, CSV or JSON."""

from collections.abc import Callable, Sequence

from hifi_cli.reports.formats import csv_table, json_table, latex, markdown, text
from hifi_cli.reports.table import Table

FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": text.render,
    "md": markdown.render,
    "tex": latex.render,
    "csv": csv_table.as_csv,
    "json": json_table.render,
}
