"""The records of a data file: each format's reader, and refusals that name the line and what to do."""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import LFS_POINTER, MAX_COLUMNS, read_file, read_parquet
from hifi_cli.tasks.examples import IncompleteRow, Label
from hifi_cli.tasks.labels import SPACES, as_number, is_missing, split_words
from hifi_cli.tasks.task_spec import Reader

READER_OF_SUFFIX: dict[str, Reader] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".conllu": "conll",
}
# The first bytes of files whose name says another format.
_OTHER_FORMATS = {
    LFS_POINTER: "a pointer of Git LFS, not the data: run git lfs pull",
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"PK\x03\x04": "a ZIP or Excel file: unpack it, or save its sheet as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save its sheet as CSV in UTF-8",
    b"<!doctype html": "a page of HTML, not the data: download the file itself",
    b"<html": "a page of HTML, not the data: download the file itself",
}
_PARQUET = b"PAR1"
_ENCODINGS = {  # by the mark that a file begins with; UTF-32 first, whose mark begins as UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
CONLLU_COLUMNS = 10
_DOCSTART = "-DOCSTART-"


@dataclass(slots=True)
class SourceRow:
    """A row as its source stores it.

    Attributes:
        values: value of each column, by the task's column names; None: the row ends before it.
        where: its line, for error messages.
        id: of the row that it becomes.
        label: of the row that it becomes; None if it is unknown.
    """

    values: dict[str, Any]
    where: str
    id: str = ""
    label: Label | None = None

    def present(self, name: str) -> Any:
        """Return the value of a column that must be there."""
        if name not in self.values:
            columns = ", ".join(map(str, self.values))
            raise UsageError(f"no column '{name}'; the columns are {columns[:200]}")
        return self.values[name]

    def value(self, name: str) -> Any:
        """Return the value of a column that must be there and not be empty."""
        value = self.present(name)
        if value == [] or is_missing(value):
            raise IncompleteRow(f"{name} is empty")
        return value

    def text(self, name: str) -> str:
        """Return the value of a text column."""
        value = self.value(name)
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r:.40}, not text")
        return value

    def integer(self, name: str) -> int:
        """Return the value of a column of integers, which may be written as texts."""
        value = self.value(name)
        number = as_number(value)
        if not number.is_integer():
            raise UsageError(f"{name} is {value!r:.40}, not an integer")
        return int(number)

    def texts(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of texts, none of them blank."""
        value = self.value(name)
        if not isinstance(value, list) or not all(
            isinstance(text, str) and text.strip() for text in value
        ):
            raise UsageError(f"{name} is {value!r:.40}, not a list of texts")
        return value

    def words(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of words, or one text that is split at spaces.

        A word of a list may be blank: it keeps its place, so that the tags stay beside their words.
        """
        value = self.value(name)
        words: list[str] = split_words(value) if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{name} is {value!r:.40}, not a list of words")
        if not any(word.strip() for word in words):
            raise IncompleteRow(f"{name} is empty")
        return words


def reader_of(path: Path) -> Reader:
    """Return the format that the end of a file's name says.

    Raises:
        UsageError: it says none.
    """
    reader = READER_OF_SUFFIX.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(READER_OF_SUFFIX)
        raise UsageError(f"{path}: rename it so that it ends in {known}, as its format is")
    return reader


def read(
    path: Path, reader: Reader, header: list[str] | None = None, *, quotes: bool = False
) -> Iterator[SourceRow]:
    """Read the records of a file.

    Args:
        path: the file.
        reader: its format.
        header: column names of a TSV or CSV file without a header line, or of a CoNLL file.
        quotes: whether the cells of a TSV file may stand in quotes.

    Raises:
        MissingError: no such file.
        UsageError: the file is malformed; the message names the line.
    """
    if not path.exists():
        raise MissingError(f"no file {path}")
    try:
        if reader == "parquet":
            yield from _parquet(path)
            return
        text = text_of(path)
        if reader in ("csv", "tsv"):
            yield from _table(text, _dialect(text, reader, quotes=quotes), header)
        elif reader == "conll":
            yield from _conll(text, header or [])
        else:
            yield from _json(text, reader)
    except _Refused as error:
        raise UsageError(f"{path}{error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


class _Refused(UsageError):
    """A file is malformed; the text continues the file's name: `, line 3: ...`."""


# Texts


def _content_of(path: Path) -> bytes:
    try:
        return read_file(path)
    except UsageError as error:  # no regular file
        raise _Refused(str(error).removeprefix(str(path))) from None


def text_of(path: Path) -> str:
    """Return the text of a file, with one character for the end of a line.

    UTF-8 and, with its mark, UTF-16 and UTF-32 are read. A file without any other line end may have
    that of old Macs.

    Raises:
        UsageError: it is in another encoding, or no text.
    """
    content = _content_of(path)
    for mark, what in _OTHER_FORMATS.items():
        if content[: len(mark)].lower() == mark.lower():
            raise _Refused(f" is {what}")
    if content.startswith(_PARQUET):
        raise _Refused(" is a Parquet file: rename it so that it ends in .parquet")
    encodings = (name for mark, name in _ENCODINGS.items() if content.startswith(mark))
    encoding = next(encodings, "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise _Refused(
                f": its first bytes are the mark of {encoding.upper()}, and its text is not in it;"
                " save the file as UTF-8"
            ) from None
        line = content[: error.start].count(b"\n") + 1
        raise _Refused(
            f", line {line}: not UTF-8 (byte 0x{content[error.start]:02x}); save the file as UTF-8,"
            " for example by iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    if "\0" in text[:1000]:
        raise _Refused(" has bytes of 0, as UTF-16 without its mark has; save it as UTF-8")
    text = text.replace("\r\n", "\n")
    return text if "\n" in text else text.replace("\r", "\n")


# Tables


def _dialect(text: str, reader: str, *, quotes: bool) -> dict[str, Any]:
    """Return how the cells of a table are told apart, as arguments of Python's csv module."""
    if reader == "tsv":
        return TSV_WITH_QUOTES if quotes else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    # `text, label`: a space after each comma belongs to no cell.
    names = text.lstrip("\n").partition("\n")[0].split(",")
    has_spaces = len(names) > 1 and all(name.startswith(" ") for name in names[1:])
    return {"strict": True, "skipinitialspace": has_spaces}


TSV_WITH_QUOTES: dict[str, Any] = {"delimiter": "\t", "strict": True}


def _table(
    text: str, dialect: dict[str, Any], header: list[str] | None = None
) -> Iterator[SourceRow]:
    """Yield the rows of a TSV or CSV file; empty lines are no rows."""
    csv.field_size_limit(1 << 30)  # Python's own limit is 131,072 characters
    empty_lines = len(text) - len(text.lstrip("\n"))
    has_quotes = dialect.get("quoting") != csv.QUOTE_NONE
    # A carriage return within a line would end a row of a file without quotes.
    body = text[empty_lines:] if has_quotes else text[empty_lines:].replace("\r", " ")
    table = csv.DictReader(io.StringIO(body, newline="\n"), header, **dialect)
    line = empty_lines
    try:
        names = table.fieldnames or []
        if len(names) > MAX_COLUMNS:
            raise _Refused(f": {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
        twice = [name for name, count in Counter(names).items() if count > 1 and name.strip()]
        if twice:
            raise _Refused(f", line 1: two columns are called '{twice[0]}'; rename one of them")
        line = empty_lines + table.line_num
        for values in table:
            line = empty_lines + table.line_num
            yield SourceRow(values, f"line {line}")
    except csv.Error as error:
        raise _Refused(f", {_reason_of_csv(error, text.split(chr(10)), line + 1)}") from None


def _reason_of_csv(error: csv.Error, lines: list[str], first: int) -> str:
    """Return the line in which a table cannot be read, and why.

    Args:
        error: of Python's csv module.
        lines: of the whole file.
        first: the first line of the row that could not be read, from 1.
    """
    line = lines[first - 1] if first <= len(lines) else ""
    if '\\"' in line:
        why = 'a quote within a cell is written twice (""), not after a backslash (\\")'
    elif "unexpected end of data" in str(error):
        why = "a quote is opened and never closed"
    elif "\r" in line:
        why = "a carriage return stands in a cell without quotes; put the cell in quotes"
    else:
        why = 'a cell goes on after its closing quote; a quote within a cell is written twice ("")'
    return f"line {first}: {why}"


def tsv_has_quotes(path: Path) -> tuple[bool, int]:
    """Return whether the quotes of a TSV file enclose its cells, as pandas and R write them.

    They do if the file with its quotes is what Python's csv module writes for the cells, or if
    below the header every cell of some columns stands in quotes and no cell of others does.

    Returns:
        Whether they do, and the number of cells that begin and end with a quote.
    """
    text = text_of(path).strip("\n")
    if text.partition("\n")[0].count("\t") >= MAX_COLUMNS:
        return False, 0  # reading refuses it
    lines = [line.split("\t") for line in text.split("\n") if line]
    cells = [cell for line in lines for cell in line]
    in_quotes = sum(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)
    if not any(cell.startswith('"') for cell in cells):
        return False, 0
    try:
        rows = [
            row for row in csv.reader(io.StringIO(text, newline="\n"), **TSV_WITH_QUOTES) if row
        ]
    except csv.Error:
        return False, in_quotes
    written = io.StringIO(newline="\n")
    csv.writer(written, delimiter="\t", lineterminator="\n").writerows(rows)
    is_of_equal_length = len({len(row) for row in rows}) == 1
    is_written_so = written.getvalue().strip("\n") == text
    return is_of_equal_length and (is_written_so or _quotes_fill_columns(lines)), in_quotes


def _quotes_fill_columns(lines: list[list[str]]) -> bool:
    """Return whether a cell below the header has quotes only where its whole column has."""
    for column in zip(*lines[1:], strict=False):
        has_quotes = {cell[:1] == '"' for cell in column}
        if len(has_quotes) > 1:
            return False
    return True


# CoNLL


@dataclass(frozen=True)
class _ConllLayout:
    """How the lines of a CoNLL file are laid out.

    Attributes:
        separator: a tab, or the spaces of ASCII.
        columns: of most lines of words.
        last_cells: what the words have in their last column.
        is_conllu: whether it is CoNLL-U, whose first column numbers the words.
    """

    separator: str
    columns: int
    last_cells: set[str]
    is_conllu: bool

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split("\t") if self.separator == "\t" else split_words(line)

    def is_comment(self, line: str, *, is_first: bool) -> bool:
        """Return whether a line is a comment; `is_first`: no word of its sentence stands before it."""
        if not line.startswith("#"):
            return False
        if self.separator == "\t" and "\t" not in line:
            return True
        cells = self.cells(line)
        if not is_first:
            return False
        # The word `#` has a tag that other words have too; a comment has none.
        is_word = len(cells) == self.columns and (line[1:2] != " " or cells[-1] in self.last_cells)
        return not is_word

    def is_outside(self, cells: list[str]) -> bool:
        """Return whether a line of CoNLL-U has several words (`1-2`), or one that no text has (`1.1`)."""
        return self.is_conllu and not cells[0].isdecimal()


def _layout_of(lines: list[str]) -> _ConllLayout:
    """Return the layout that most lines have; columns are separated by tabs if most have one."""
    words = [line for line in lines if line.strip() and not line.startswith(("#", _DOCSTART))]
    with_tab = sum("\t" in line for line in words)
    separator = "\t" if 2 * with_tab > len(words) else SPACES
    rows = [line.split("\t") if separator == "\t" else split_words(line) for line in words]
    lengths = Counter(map(len, rows))
    columns = lengths.most_common(1)[0][0] if lengths else 0
    is_conllu = columns == CONLLU_COLUMNS and all(re.fullmatch(r"[\d.-]+", row[0]) for row in rows)
    last_cells = {row[-1] for row in rows if len(row) == columns}
    return _ConllLayout(separator, columns, last_cells, is_conllu)


def _conll(text: str, names: list[str]) -> Iterator[SourceRow]:
    """Yield one record per sentence, of each column the list of its cells.

    One word per line; a line without text ends a sentence. Columns are separated by tabs if most
    lines have one, else by spaces and tabs of ASCII. A column without a name has its number, from 1.
    Lines of `-DOCSTART-`, comments, and of CoNLL-U the lines of several words (`1-2`) and of words
    that are not in the text (`1.1`) are skipped.
    """
    lines = text.split("\n")
    layout = _layout_of(lines)
    header = [*names, *map(str, range(len(names) + 1, layout.columns + 1))]
    sentence: list[list[str]] = []
    first = number = 0
    for at, line in enumerate([*lines, ""], start=1):
        if line.strip():
            cells = _word_cells(line, at, layout, is_first=not sentence)
            if cells:
                first = first if sentence else at
                sentence.append(cells)
        elif sentence:
            number += 1
            by_column = [list(column) for column in zip(*sentence, strict=True)]
            values = dict(zip(header, by_column, strict=False))
            yield SourceRow(values, f"sentence {number} (line {first})")
            sentence = []


def _word_cells(line: str, at: int, layout: _ConllLayout, *, is_first: bool) -> list[str]:
    """Return the cells of a word's line, or none for a line that holds no word of the text."""
    if line.startswith(_DOCSTART) or layout.is_comment(line, is_first=is_first):
        return []
    cells = layout.cells(line)
    if len(cells) != layout.columns:
        separator = "one tab" if layout.separator == "\t" else "spaces"
        raise _Refused(
            f", line {at}: {len(cells)} columns ({line[:40]!r}), where most lines have"
            f" {layout.columns}; columns are separated by {separator}, and an empty line ends a"
            " sentence"
        )
    return [] if layout.is_outside(cells) else cells


# JSON


def _json(text: str, reader: str) -> Iterator[SourceRow]:
    """Yield the records of a JSON document (SQuAD, an array) or of each line that is not empty."""
    if reader == "squad":
        yield from _records_in(_parsed(text, ""), reader, "line 1")
        return
    if reader == "jsonl" and text.lstrip().startswith("["):
        yield from _array(text)
        return
    is_first = True
    for index, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"line {index}"
            if is_first:
                _check_keys_differ(line, where)
                is_first = False
            yield from _records_in(_parsed(line, f", {where}"), reader, where)


def _check_keys_differ(line: str, where: str) -> None:
    """Refuse an object with two values of one key, of which a JSON parser keeps the last."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in pairs)
        twice = [key for key, count in counts.items() if count > 1]
        if twice:
            raise _Refused(f", {where}: two columns are called '{twice[0]}'; rename one of them")

    # A line that is not JSON is refused with its reason where it is parsed.
    with suppress(ValueError, RecursionError):
        json.loads(line, object_pairs_hook=check)


def _parsed(text: str, where: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, RecursionError) as error:
        reason = re.sub(r" at line 1 column (\d+)$", r" at character \1", str(error))
        hint = '; each line must be one object, for example {"text": "...", "label": "..."}'
        raise _Refused(f"{where}: not JSON ({reason}){hint if where else ''}") from None


def _array(text: str) -> Iterator[SourceRow]:
    """Yield the objects of one array."""
    try:
        values = from_json(text)
    except (ValueError, RecursionError) as error:
        raise _Refused(f": not a JSON array ({error})") from None
    for index, value in enumerate(values, start=1):
        where = f"object {index}"
        yield from _records_in(value, "jsonl", where)


def _records_in(value: Any, reader: str, where: str) -> Iterator[SourceRow]:
    """Yield the records that a JSON value holds."""
    try:
        records = [{**record} for record in _RECORDS_OF[reader](value)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        if reader == "jsonl":
            raise _Refused(f", {where}: {_shown(value)} is not an object of columns") from None
        missing = f"; it has no {error}" if isinstance(error, KeyError) else ""
        raise _Refused(
            f", {where}: not laid out as the official files of {reader}{missing}"
        ) from None
    for record in records:
        yield SourceRow(record, where)


def _shown(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), f"{value!r:.20}")


def _multirc_answers(value: Any) -> list[dict[str, Any]]:
    """Return a record per answer; its idx holds the indices of paragraph, question and answer."""
    return [
        {
            "paragraph": value["passage"]["text"],
            "question": question["question"],
            "answer": answer["text"],
            "idx": {
                "paragraph": value["idx"],
                "question": question["idx"],
                "answer": answer["idx"],
            },
            "label": answer.get("label"),
        }
        for question in value["passage"]["questions"]
        for answer in question["answers"]
    ]


def _record_queries(value: Any) -> list[dict[str, Any]]:
    """Return a record per query, with the hub's column names; `end` is an entity's last character."""
    passage = value["passage"]["text"]
    return [
        {
            "passage": passage,
            "query": query["query"],
            "entities": [
                passage[place["start"] : place["end"] + 1] for place in value["passage"]["entities"]
            ],
            # the test split has none
            "answers": [answer["text"] for answer in query.get("answers", [])],
            "idx": {"passage": value["idx"], "query": query["idx"]},
        }
        for query in value["qas"]
    ]


def _squad_questions(value: Any) -> list[dict[str, Any]]:
    """Return a record per question, with the column names of the hub."""
    return [
        {
            "id": question["id"],
            "question": question["question"],
            "answers": {
                key: [answer[key] for answer in question["answers"]]
                for key in ("text", "answer_start")
            },
            "context": paragraph["context"],
        }
        for article in value["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


_RECORDS_OF: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "jsonl": lambda value: [value],
    "multirc": _multirc_answers,
    "record": _record_queries,
    "squad": _squad_questions,
}


# Parquet, and tables of the library datasets


def _parquet(path: Path) -> Iterator[SourceRow]:
    """Yield the rows of a Parquet file, with the class names that the library datasets wrote into it."""
    schema = _parquet_schema(path)
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise _Refused(f": two columns are called '{twice[0]}'; rename one of them")
    names_of = _class_names_in(schema)
    try:
        rows = read_parquet(path).to_pylist()
    except UsageError as error:
        raise _Refused(str(error).removeprefix(str(path))) from None
    for index, values in enumerate(rows):
        yield SourceRow(with_class_names(values, names_of), f"row {index}")


def parquet_class_names(path: Path) -> dict[str, list[str]]:
    """Return the class names of each column of class indices, which the library datasets wrote."""
    return _class_names_in(_parquet_schema(path))


def _parquet_schema(path: Path) -> Any:
    """Return the columns of a Parquet file, with their types and notes."""
    from pyarrow import ArrowException, parquet

    start = _content_of(path)[: len(LFS_POINTER)]
    if start == LFS_POINTER:
        raise _Refused(f" is {_OTHER_FORMATS[LFS_POINTER]}")
    if not start.startswith(_PARQUET):
        raise _Refused(" is not a Parquet file")
    try:
        return parquet.read_schema(path)
    except (ArrowException, OSError) as error:
        raise _Refused(f": the Parquet file is damaged ({str(error)[:100]})") from None


def _class_names_in(schema: Any) -> dict[str, list[str]]:
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features  # takes a second

    features = Features.from_arrow_schema(schema)
    found = {column: class_names(feature) for column, feature in features.items()}
    return {column: names for column, names in found.items() if names}


def class_names(feature: Any) -> list[str]:
    """Return the class names of a column of class indices or lists of them; else nothing."""
    return list(getattr(getattr(feature, "feature", feature), "names", None) or [])


def with_class_names(values: dict[str, Any], names_of: dict[str, list[str]]) -> dict[str, Any]:
    """Return a row with class names in the place of class indices; -1 is a hidden label.

    Args:
        values: the row's values by column.
        names_of: the class names of columns.
    """
    for column, names in names_of.items():
        value = values[column]
        if isinstance(value, list):
            if not all(isinstance(index, int) and 0 <= index < len(names) for index in value):
                raise UsageError(f"{column} has a class other than 0 to {len(names) - 1}: {value}")
            values[column] = [names[index] for index in value]
        else:
            is_known = value is not None and 0 <= value < len(names)
            values[column] = names[value] if is_known else None
    return values
