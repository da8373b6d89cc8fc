"""A paper's numbers beside ours."""

from collections.abc import Mapping, Sequence

import pandas as pd

from hifi_cli.reports.table import Cell, known
from hifi_cli.reports.table_spec import (
    AVERAGE,
    LayoutRow,
    PublishedRow,
    PublishedTable,
    TableSpec,
    load_published,
)
from hifi_cli.text import counted_noun


def cells(
    spec: TableSpec,
    rows: Sequence[LayoutRow],
    paper: PublishedTable,
    metrics: Mapping[str, str | None],
) -> dict[int, dict[str, Cell]]:
    """Return what a paper prints in each row that it has.

    A column has nothing where the paper's is of another metric. Where the table shows other columns
    than the paper, the average is the mean of the cells shown.

    Args:
        spec: the table.
        rows: its rows.
        paper: the published table.
        metrics: of each column, by its name.

    Returns:
        Cells by index of the row and by key.
    """
    columns = {
        column.name: column.published
        for column in spec.columns
        if paper.columns.get(column.published) == metrics[column.name]
    }
    found: dict[int, dict[str, Cell]] = {}
    for index, row in enumerate(rows):
        if row.published not in paper.rows:
            continue
        printed = paper.rows[row.published]
        of_row = {}
        for key, column in columns.items():
            mean = paper.mean(row.published, column)
            # A text is no score.
            value = float(mean) if isinstance(mean, float | int) else None
            of_row[key] = Cell(value, std=paper.deviation(row.published, column))
        average = printed.average
        if average is not None and not spec.has_columns_of(paper):
            average = _mean([of_row[key].value if key in of_row else None for key in metrics])
        of_row[AVERAGE] = Cell(average)
        found[index] = of_row
    return found


def _mean(values: Sequence[float | str | None]) -> float | None:
    """Return the mean of the cells of a row; None where one is empty."""
    return known(pd.Series(values, dtype=float).mean(skipna=False))


def footnotes(spec: TableSpec, printed: PublishedRow, paper: PublishedTable) -> dict[str, str]:
    """Return the remarks on what a paper prints in a row, by key; on the row as a whole by "".

    Args:
        spec: the table.
        printed: the row.
        paper: the published table.
    """
    notes: dict[str, str] = {}
    if printed.note:
        notes[""] = printed.note
    for column in spec.columns:
        note = printed.cell_notes.get(column.published)
        if note:
            notes[column.name] = note
    note = printed.cell_notes.get(AVERAGE)
    if note and spec.has_columns_of(paper):
        notes[AVERAGE] = note
    return notes


def note(spec: TableSpec, runs: pd.DataFrame) -> str:
    """Return a note on whose the published numbers are, and what ours are of where that differs.

    Args:
        spec: the table, which names the published one.
        runs: rows of `Study.runs`.
    """
    name, paper = load_published(str(spec.published))
    theirs = {word for word in (paper.split, paper.backbone) if word}
    ours = {*runs["split"], spec.backbone} - theirs
    words = sorted(theirs)
    if paper.seeds:
        words.append(counted_noun(paper.seeds, "seed"))
    text = f"published: {name}, table {paper.number} ({', '.join(words)})"
    if ours:
        text += f"; ours: {', '.join(sorted(ours))}"
    if not spec.has_columns_of(paper):
        text += "; Avg.: of the columns shown"
    return text
