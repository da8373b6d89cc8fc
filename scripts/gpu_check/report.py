"""The tables of a check, in Markdown."""

from typing import Any


def tables(results: dict[str, Any]) -> str:
    """Every part that was measured."""
    parts = {name: rows for name, rows in results.items() if isinstance(rows, list)}
    return "\n\n".join(f"## {name}\n\n{_table(rows)}" for name, rows in parts.items())


def _table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
