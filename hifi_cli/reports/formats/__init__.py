"""Comparisons and claims in every format: in JSON as they are, in the others as DataFrames."""

from collections.abc import Sequence

from hifi_cli.reports import render as dataframes
from hifi_cli.reports.formats import json_table
from hifi_cli.reports.table import VerdictTable


def render(name: str, tables: Sequence[VerdictTable], *, standalone: bool = False) -> str:
    """Return tables in a format.

    Raises:
        UsageError: `standalone` with another format than tex.
    """
    if name == "json" and not standalone:
        return json_table.render(tables)
    return dataframes.render(name, [table.converted() for table in tables], standalone=standalone)
