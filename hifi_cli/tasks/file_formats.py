"""The table of file formats. A new one is an entry of it, with a reader."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks.readers.conll import read_conll
from hifi_cli.tasks.readers.json_files import read_jsonl, read_multirc, read_record, read_squad
from hifi_cli.tasks.readers.parquet import parquet_class_names, read_parquet_file
from hifi_cli.tasks.readers.tables import TsvQuotes, read_csv, read_tsv, tsv_quotes
from hifi_cli.tasks.readers.texts import Refused
from hifi_cli.tasks.source_rows import SourceRow


class Read(Protocol):
    """Reads the records of a file."""

    def __call__(
        self, path: Path, header: list[str] | None, *, quotes: bool
    ) -> Iterator[SourceRow]:
        """Yield the records of a file.

        Args:
            path: of the file.
            header: the column names of a file without a line of them; ignored by formats that name
                columns in each record.
            quotes: whether the cells of a TSV file may stand in quotes; other formats ignore it.

        Raises:
            Refused: the file is malformed; the text continues the file's name.
        """


@dataclass(frozen=True)
class FileFormat:
    """A format of data files.

    Attributes:
        name: in a task's YAML, as its `reader`.
        read: yields the records of a file.
        suffixes: of the files that `--task` takes; none for the official files of a benchmark, which
            only the YAML of a task names.
        separator: what stands between cells, as people call it; empty: the format has no lines of
            cells.
        quotes_of: returns what the quotes of a file are, None if no cell begins with one; None for
            formats in which nobody need ask.
        numbers_columns: whether a file has no names of columns; they are the numbers from 1.
        class_names: returns the names of class indices that a file has, by column; None if no file
            of the format has any.
    """

    name: str
    read: Read
    suffixes: tuple[str, ...] = ()
    separator: str = ""
    quotes_of: Callable[[Path], TsvQuotes | None] | None = None
    numbers_columns: bool = False
    class_names: Callable[[Path], dict[str, list[str]]] | None = None


_FORMATS = [
    FileFormat("csv", read_csv, (".csv",), separator="commas"),
    FileFormat("tsv", read_tsv, (".tsv",), separator="tabs", quotes_of=tsv_quotes),
    FileFormat("jsonl", read_jsonl, (".jsonl", ".json")),
    FileFormat("parquet", read_parquet_file, (".parquet",), class_names=parquet_class_names),
    FileFormat("conll", read_conll, (".conll", ".conllu"), numbers_columns=True),
    FileFormat("multirc", read_multirc),
    FileFormat("record", read_record),
    FileFormat("squad", read_squad),
]
FORMATS = {format_.name: format_ for format_ in _FORMATS}
# The format of each suffix of data files.
_OF_SUFFIX = {suffix: format_ for format_ in _FORMATS for suffix in format_.suffixes}


def is_data_file(name: str) -> bool:
    """Return whether a name ends as that of a data file."""
    return Path(name).suffix.lower() in _OF_SUFFIX


def suffixes_in_words() -> str:
    """Return the suffixes of data files, for messages: `.csv, .tsv or .jsonl`."""
    *others, last = _OF_SUFFIX
    return f"{', '.join(others)} or {last}"


def format_of(path: Path) -> FileFormat:
    """Return the format that the end of a file's name says.

    Raises:
        UsageError: it says none.
    """
    found = _OF_SUFFIX.get(path.suffix.lower())
    if found is None:
        known = ", ".join(_OF_SUFFIX)
        raise UsageError(f"{path}: rename it so that it ends in {known}, as its format is")
    return found


def read(
    path: Path, reader: str, header: list[str] | None = None, *, quotes: bool = False
) -> Iterator[SourceRow]:
    """Read the records of a file, without those at its end of which every cell is empty.

    A program of sheets writes such rows as lines of commas alone. Elsewhere they stay, so that the
    number of a row is its place in the file: whoever needs its cells refuses it.

    Args:
        path: the file.
        reader: the name of its format.
        header: column names of a TSV or CSV file without a header line, or of a CoNLL file.
        quotes: whether the cells of a TSV file may stand in quotes.

    Raises:
        MissingError: no such file.
        UsageError: the file is malformed; the message names the line.
    """
    with _refusals_name(path):
        yield from _without_empty_end(FORMATS[reader].read(path, header, quotes=quotes))


def quotes_of(path: Path) -> TsvQuotes | None:
    """Return what the quotes of a file are; None: no cell begins with one, or they are no question.

    Raises:
        MissingError, UsageError: see `read`.
    """
    find = format_of(path).quotes_of
    if find is None:
        return None
    with _refusals_name(path):
        return find(path)


@contextmanager
def _refusals_name(path: Path) -> Iterator[None]:
    """Add the name of a file to the refusals of its reader; refuse one that is not there."""
    if not path.exists():
        raise MissingError(f"no file {path}")
    try:
        yield
    except Refused as error:
        raise UsageError(f"{path}{error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _without_empty_end(records: Iterable[SourceRow]) -> Iterator[SourceRow]:
    """Yield records up to the last one that has a cell with something in it."""
    empty: list[SourceRow] = []
    for record in records:
        if record.is_empty:
            # Whether it stands at the end is not known yet.
            empty.append(record)
            continue
        yield from empty
        empty = []
        yield record
