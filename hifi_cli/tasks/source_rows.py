"""A row as its source stores it, and its cells as the values that a task needs."""

from dataclasses import dataclass
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.tasks.examples import IncompleteRow, Label
from hifi_cli.tasks.labels import as_number, is_missing, words_in

# Python raises these when code for a format meets a missing key, or a value of another type. Each
# becomes a message with the line.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


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

    @property
    def is_empty(self) -> bool:
        """Whether every cell is empty, as in a line of commas alone; an object of JSON may have none."""
        for value in self.values.values():
            # The cells beyond the named columns are a list.
            cells = value if isinstance(value, list) else [value]
            if not all(is_missing(cell) for cell in cells):
                return False
        return True

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
        is_list = isinstance(value, list)
        if not is_list or not all(isinstance(text, str) and text.strip() for text in value):
            raise UsageError(f"{name} is {value!r:.40}, not a list of texts")
        return value

    def words(self, name: str) -> list[str]:
        """Return the value of a column that holds a list of words, or one text; see `words_in`.

        A word of a list may be blank: it keeps its place, so that the tags stay beside their words.
        """
        value = self.value(name)
        words = value
        if isinstance(value, str):
            words = words_in(value)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{name} is {value!r:.40}, not a list of words")
        if not any(word.strip() for word in words):
            raise IncompleteRow(f"{name} is empty")
        return words
