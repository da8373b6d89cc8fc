"""CSV and TSV files."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.parquet_files import MAX_COLUMNS
from hifi_cli.tasks.readers.texts import Refused, text_of
from hifi_cli.tasks.source_rows import SourceRow

# How cells are told apart, as arguments of Python's csv module.
_TSV: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
_TSV_WITH_QUOTES: dict[str, Any] = {"delimiter": "\t", "strict": True}
# A cell of a TSV file with its quotes, between which tabs and line ends may stand, and what ends it.
_CELL_WITH_QUOTES = re.compile(r'("(?:[^"]|"")*"|[^\t\n]*)([\t\n])')


def read_tsv(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the rows of a TSV file.

    Args:
        path: the file.
        header: the column names of a file without a line of them.
        quotes: whether cells may stand in quotes, in which a quote is written twice.
    """
    dialect = _TSV
    if quotes:
        dialect = _TSV_WITH_QUOTES
    yield from _rows(text_of(path), dialect, header, has_quotes=quotes)


def read_csv(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield the rows of a CSV file.

    Args:
        path: of the file.
        header: the column names of a file without a line of them.
        quotes: has no effect: cells of a CSV file may always stand in quotes.
    """
    del quotes
    text = text_of(path)
    # `text, label`: a space after each comma belongs to no cell.
    first_line = text.lstrip("\n").partition("\n")[0]
    names = first_line.split(",")
    has_spaces = len(names) > 1 and all(name.startswith(" ") for name in names[1:])
    dialect = {"strict": True, "skipinitialspace": has_spaces}
    yield from _rows(text, dialect, header, has_quotes=True)


def _rows(
    text: str, dialect: dict[str, Any], header: list[str] | None, *, has_quotes: bool
) -> Iterator[SourceRow]:
    """Yield the rows of a table; empty lines are no rows.

    Args:
        text: of the file.
        dialect: how cells are told apart, as arguments of Python's csv module.
        header: the column names of a file without a line of them.
        has_quotes: whether cells may stand in quotes.
    """
    # Python's own limit is 131,072 characters.
    csv.field_size_limit(1 << 30)
    body = text.lstrip("\n")
    empty_lines = len(text) - len(body)
    if not has_quotes:
        # A carriage return within a line would end a row of a file without quotes.
        body = body.replace("\r", " ")
    # Line ends are kept as they are, which a cell in quotes may hold.
    table = csv.DictReader(io.StringIO(body, newline="\n"), header, **dialect)
    line = empty_lines
    try:
        _check_names(table.fieldnames or [])
        line = empty_lines + table.line_num
        for values in table:
            line = empty_lines + table.line_num
            yield SourceRow(values, f"line {line}")
    except csv.Error as error:
        reason = _reason_of(error, text.split("\n"), line + 1)
        raise Refused(f", {reason}") from None


def _check_names(names: Any) -> None:
    """Refuse too many columns, and two of one name.

    Raises:
        Refused: there are such columns.
    """
    if len(names) > MAX_COLUMNS:
        raise Refused(f": {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
    for name, count in Counter(names).items():
        if count > 1 and name.strip():
            raise Refused(f", line 1: two columns are called '{name}'; rename one of them")


def _reason_of(error: csv.Error, lines: list[str], first: int) -> str:
    """Return the line in which a table cannot be read, and why.

    Args:
        error: of Python's csv module.
        lines: of the whole file.
        first: the first line of the row that could not be read, from 1.
    """
    line = ""
    if first <= len(lines):
        line = lines[first - 1]
    if '\\"' in line:
        why = 'a quote within a cell is written twice (""), not after a backslash (\\")'
    elif "unexpected end of data" in str(error):
        why = "a quote is opened and never closed"
    elif "\r" in line:
        why = "a carriage return stands in a cell without quotes; put the cell in quotes"
    else:
        why = 'a cell goes on after its closing quote; a quote within a cell is written twice ("")'
    return f"line {first}: {why}"


@dataclass(frozen=True)
class TsvQuotes:
    """The quotes of a TSV file.

    Attributes:
        enclose_cells: whether they enclose cells, as pandas and R write them, and are no text.
        cells: how many cells begin and end with a quote.
    """

    enclose_cells: bool
    cells: int


def tsv_quotes(path: Path) -> TsvQuotes | None:
    """Find out whether the quotes of a TSV file enclose its cells; None: no cell begins with one.

    They do if the file with its quotes is what Python's csv module writes for the cells, or if
    below the header every cell of some columns stands in quotes and no cell of others does.
    """
    text = text_of(path).strip("\n")
    if text.partition("\n")[0].count("\t") >= MAX_COLUMNS:
        # Reading refuses the file.
        return None
    # The cells, with their quotes as text.
    lines = [line.split("\t") for line in text.split("\n") if line]
    with_quote: list[str] = []
    for line in lines:
        with_quote += [cell for cell in line if cell.startswith('"')]
    if not with_quote:
        return None
    in_quotes = sum(len(cell) > 1 and cell.endswith('"') for cell in with_quote)
    try:
        parsed = csv.reader(io.StringIO(text, newline="\n"), **_TSV_WITH_QUOTES)
        rows = [row for row in parsed if row]
    except csv.Error:
        return TsvQuotes(False, in_quotes)
    # Python's csv module writes quotes only where they are needed, as pandas does: a file of such a
    # program is written again to the letter.
    written = io.StringIO(newline="\n")
    csv.writer(written, delimiter="\t", lineterminator="\n").writerows(rows)
    is_written_so = written.getvalue().strip("\n") == text
    has_equal_lengths = len({len(row) for row in rows}) == 1
    enclose = has_equal_lengths and (is_written_so or _quotes_fill_columns(text))
    return TsvQuotes(enclose, in_quotes)


def _quotes_fill_columns(text: str) -> bool:
    """Return whether a cell below the header has quotes only where its whole column has."""
    rows: list[list[str]] = []
    row: list[str] = []
    for cell, end in _CELL_WITH_QUOTES.findall(f"{text}\n"):
        row.append(cell)
        if end == "\n":
            rows.append(row)
            row = []
    rows = [row for row in rows if row != [""]]
    for column in zip(*rows[1:], strict=False):
        # Programs that quote all but numbers write an empty number in quotes.
        has_quotes = {cell[:1] == '"' for cell in column if cell != '""'}
        if len(has_quotes) > 1:
            return False
    return True
