"""Tables for programs: CSV and JSON, numbers unrounded."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from hifi_cli.reports.table import DASH, Line, Table, TableCell


def as_csv(tables: Sequence[Table]) -> str:
    """Means, standard deviations and numbers of seeds; a line's source says whose numbers they are."""
    return "\n".join(map(_csv, tables))


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    full = [_has_seeds(table, number) for number in range(len(table.headings))]
    names = []
    for heading, several in zip(table.headings, full, strict=True):
        label = f"{heading.label} %" if heading.decimals is None else heading.label
        names += [f"{label} mean", f"{label} std", f"{label} seeds"] if several else [label]
    writer.writerow(map(_harmless, ["method", "source", *names]))
    for line in table.lines:
        values: list[Any] = []
        for cell, several in zip(line.cells, full, strict=True):
            value = cell.text if cell.mean is None else cell.mean
            values += [value, cell.deviation, len(cell.samples) if line.source == "runs" else None] if several else [value]
        writer.writerow(map(_harmless, [line.label, line.source, *values]))
    return stream.getvalue()


def _harmless(value: Any) -> Any:
    """A text on one line, after an apostrophe where a spreadsheet would compute it as a formula; numbers as they are."""
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
    """Everything, every seed's score and the directory of its run included; a list where there are several tables."""
    contents = [_json(table) for table in tables]
    return json.dumps(contents[0] if len(contents) == 1 else contents, indent=1) + "\n"


def _json(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [heading.label for heading in table.headings],
        "rows": [_line(table, line) for line in table.lines],
        "notes": table.notes,
        "missing": [
            {"method": one.method, "tasks": one.tasks, "seeds": one.seeds, "command": one.command} for one in table.missing
        ],
    }


def _line(table: Table, line: Line) -> dict[str, Any]:
    pairs = list(zip((heading.label for heading in table.headings), line.cells, strict=True))
    content: dict[str, Any] = {"method": line.label, "name": line.method, "source": line.source, "notes": line.notes}
    if line.source == "runs":
        content["scores"] = {label: [one.score for one in cell.samples] for label, cell in pairs if cell.samples}
    return {**content, "cells": {label: _cell(cell) for label, cell in pairs}}


def _cell(cell: TableCell) -> dict[str, Any]:
    content: dict[str, Any] = {"mean": cell.mean, "std": cell.deviation}
    if cell.text is not None:
        content = {"text": cell.text} if cell.mean is None else {"mean": cell.mean}
    if cell.samples:
        content["runs"] = [
            {"seed": one.seed, "score": one.score, "path": str(one.record.directory.path)} for one in cell.samples
        ]
    return {**content, **({"place": cell.place} if cell.place else {}), **({"notes": cell.notes} if cell.notes else {})}


def _has_seeds(table: Table, number: int) -> bool:
    return any(line.cells[number].samples or line.cells[number].deviation is not None for line in table.lines)
