"""CoNLL files: one word per line, with its columns."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.tasks.labels import SPACES, split_words
from hifi_cli.tasks.readers.texts import Refused, text_of
from hifi_cli.tasks.source_rows import SourceRow

CONLLU_COLUMNS = 10
# The first column of a line between documents.
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class _Layout:
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
        return _cells(line, self.separator)

    def is_comment(self, line: str, *, is_first: bool) -> bool:
        """Return whether a line is a comment.

        Args:
            line: a line that is not empty.
            is_first: whether no word of its sentence stands before it.
        """
        if not line.startswith("#"):
            return False
        # Where tabs separate columns, a line of a word has one.
        if self.separator == "\t" and "\t" not in line:
            return True
        # Comments stand above a sentence, not in it.
        if not is_first:
            return False
        cells = self.cells(line)
        if len(cells) != self.columns:
            return True
        # A comment may have as many words as a word has columns. `#tag O` is a word, and so is `# O`,
        # whose tag other words have too.
        begins_as_comment = line[1:2] == " "
        return begins_as_comment and cells[-1] not in self.last_cells

    def is_outside(self, cells: list[str]) -> bool:
        """Return whether a line of CoNLL-U has several words (`1-2`), or one that no text has (`1.1`)."""
        return self.is_conllu and not cells[0].isdecimal()


def _cells(line: str, separator: str) -> list[str]:
    if separator == "\t":
        return line.split("\t")
    return split_words(line)


def _layout_of(lines: list[str]) -> _Layout:
    """Return the layout that most lines have; columns are separated by tabs if most have one."""
    words = [line for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT))]
    with_tab = sum("\t" in line for line in words)
    separator = SPACES
    if 2 * with_tab > len(words):
        separator = "\t"
    rows = [_cells(line, separator) for line in words]
    lengths = Counter(len(row) for row in rows)
    columns = 0
    if lengths:
        columns = lengths.most_common(1)[0][0]
    has_numbers = all(re.fullmatch(r"[\d.-]+", row[0]) for row in rows)
    is_conllu = columns == CONLLU_COLUMNS and has_numbers
    last_cells = {row[-1] for row in rows if len(row) == columns}
    return _Layout(separator, columns, last_cells, is_conllu)


def read_conll(path: Path, header: list[str] | None, *, quotes: bool) -> Iterator[SourceRow]:
    """Yield one record per sentence, of each column the list of its cells.

    One word per line; a line without text ends a sentence. Columns are separated by tabs if most
    lines have one, else by spaces and tabs of ASCII. Lines of `-DOCSTART-`, comments, and of CoNLL-U
    the lines of several words (`1-2`) and of words that are not in the text (`1.1`) are skipped.

    Args:
        path: the file.
        header: the names of the first columns; a column without a name has its number, from 1.
        quotes: ignored: a quote is a word.
    """
    del quotes
    names = header or []
    lines = text_of(path).split("\n")
    layout = _layout_of(lines)
    numbers = range(len(names) + 1, layout.columns + 1)
    columns = [*names, *(str(number) for number in numbers)]
    sentence: list[list[str]] = []
    first = 0
    sentences = 0
    # The last sentence may have no empty line behind it.
    for at, line in enumerate([*lines, ""], start=1):
        if line.strip():
            cells = _word_cells(line, at, layout, is_first=not sentence)
            if not cells:
                continue
            if not sentence:
                first = at
            sentence.append(cells)
        elif sentence:
            sentences += 1
            by_column = [list(column) for column in zip(*sentence, strict=True)]
            values = dict(zip(columns, by_column, strict=False))
            yield SourceRow(values, f"sentence {sentences} (line {first})")
            sentence = []


def _word_cells(line: str, at: int, layout: _Layout, *, is_first: bool) -> list[str]:
    """Return the cells of a word's line, or none for a line that holds no word of the text.

    Args:
        line: a line that is not empty.
        at: its number, from 1.
        layout: of the file.
        is_first: whether no word of its sentence stands before it.

    Raises:
        Refused: the line has another number of columns than most.
    """
    if line.startswith(_DOCUMENT) or layout.is_comment(line, is_first=is_first):
        return []
    cells = layout.cells(line)
    if len(cells) != layout.columns:
        separator = "spaces"
        if layout.separator == "\t":
            separator = "one tab"
        raise Refused(
            f", line {at}: {len(cells)} columns ({line[:40]!r}), where most lines have"
            f" {layout.columns}; columns are separated by {separator}, and an empty line ends a"
            " sentence"
        )
    if layout.is_outside(cells):
        return []
    return cells
