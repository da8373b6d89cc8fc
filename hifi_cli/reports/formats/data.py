"""Tables for programs: CSV and JSON, numbers unrounded."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from hifi_cli.reports.table import DASH, Table, TableCell, TableRow


def as_csv(tables: Sequence[Table]) -> str:
    """Return means, standard deviations and numbers of seeds; a row's source says whose numbers they are."""
    return "\n".join(map(_csv, tables))


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    full = [_has_seeds(table, number) for number in range(len(table.headings))]
    names = []
    for heading, several in zip(table.headings, full, strict=True):
        label = f"{heading.label} %" if heading.decimals is None else heading.label
        names += [f"{label} mean", f"{label} std", f"{label} seeds"] if several else [label]
    writer.writerow(map(_spreadsheet_safe, ["method", "source", *names]))
    for row in table.rows:
        values: list[Any] = []
        for cell, several in zip(row.cells, full, strict=True):
            value = cell.text if cell.mean is None else cell.mean
            values += [value, cell.deviation, len(cell.seed_scores) if row.source == "runs" else None] if several else [value]
        writer.writerow(map(_spreadsheet_safe, [row.label, row.source, *values]))
    return stream.getvalue()


def _spreadsheet_safe(value: Any) -> Any:
    """Return a text on one line, after an apostrophe where a spreadsheet would read a formula; numbers unchanged."""
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    if not text.startswith(("=", "+", "-", "@")) or text == DASH:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_json(tables: Sequence[Table]) -> str:
    """Return everything, with every seed's score and run directory; a list where there are several tables."""
    contents = [_json(table) for table in tables]
    return json.dumps(contents[0] if len(contents) == 1 else contents, indent=1) + "\n"


def _json(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [heading.label for heading in table.headings],
        "rows": [_row(table, row) for row in table.rows],
        "notes": table.notes,
        "missing": [
            {"method": missing.method, "tasks": missing.tasks, "seeds": missing.seeds, "command": missing.command}
            for missing in table.missing
        ],
    }


def _row(table: Table, row: TableRow) -> dict[str, Any]:
    pairs = list(zip((heading.label for heading in table.headings), row.cells, strict=True))
    content: dict[str, Any] = {"method": row.label, "name": row.method, "source": row.source, "notes": row.notes}
    if row.source == "runs":
        content["scores"] = {
            label: [seed_score.score for seed_score in cell.seed_scores] for label, cell in pairs if cell.seed_scores
        }
    return {**content, "cells": {label: _cell(cell) for label, cell in pairs}}


def _cell(cell: TableCell) -> dict[str, Any]:
    content: dict[str, Any] = {"mean": cell.mean, "std": cell.deviation}
    if cell.text is not None:
        content = {"text": cell.text} if cell.mean is None else {"mean": cell.mean}
    if cell.seed_scores:
        content["runs"] = [
            {"seed": seed_score.seed, "score": seed_score.score, "path": str(seed_score.record.directory.path)}
            for seed_score in cell.seed_scores
        ]
    return {**content, **({"place": cell.place} if cell.place else {}), **({"notes": cell.notes} if cell.notes else {})}


def _has_seeds(table: Table, number: int) -> bool:
    return any(row.cells[number].seed_scores or row.cells[number].deviation is not None for row in table.rows)
