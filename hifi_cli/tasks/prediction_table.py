"""Predictions of new rows as CSV, beside the columns that the user's file has."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.text import spreadsheet_cell

# The columns of a prediction, and the beginning of those of a label's probability.
PREDICTION = "prediction"
PROBABILITY = "probability."


def check_columns(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Refuse a file with a column that has the name of a predicted one.

    Args:
        rows: the file's rows, by column.
        file: for the message.

    Raises:
        UsageError: it has one.
    """
    # The objects of a JSON file may have different columns.
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    for name in names:
        # Cells beyond the named columns have no name; reading refuses their row.
        if name is None:
            continue
        if name == PREDICTION or name.startswith(PROBABILITY):
            raise UsageError(
                f"{file} has a column '{name}', as the predictions would have: rename it, or write"
                " --out FILE.jsonl"
            )


def csv_text(rows: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any]]) -> str:
    """Return a CSV of the user's rows, with what is predicted of each.

    `prediction`: a label, a number or a text; several labels with | between them.
    `probability.LABEL`: of each label, where rows have labels.

    Args:
        rows: the file's rows, by column.
        predictions: of each row, as `hifi predict` prints them.

    Raises:
        UsageError: the predictions are tags of words, which are no cell.
    """
    lines: list[dict[str, Any]] = []
    for row, predicted in zip(rows, predictions, strict=True):
        if PREDICTION not in predicted:
            raise UsageError("tags of words are no column of a CSV: write --out FILE.jsonl")
        value = predicted[PREDICTION]
        if isinstance(value, list):
            value = "|".join(value)
        line = {**row, PREDICTION: spreadsheet_cell(value)}
        for label, probability in predicted.get("probabilities", {}).items():
            line[f"{PROBABILITY}{label}"] = probability
        lines.append(line)
    # No DataFrame: it makes fractions of the integers of a column with an empty cell, and rounds ids.
    names: dict[str, None] = {}
    for line in lines:
        names |= dict.fromkeys(line)
    text = [_csv_line(names)]
    for line in lines:
        text.append(_csv_line([_cell(line.get(name)) for name in names]))
    return "".join(text)


def _cell(value: Any) -> Any:
    """Return a value as a cell: as it is, and empty for NaN, as for None."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _csv_line(cells: Iterable[Any]) -> str:
    """Return a line of a CSV."""
    line = io.StringIO()
    # Up to Python 3.12, the module quotes a carriage return only where one ends the lines.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"
