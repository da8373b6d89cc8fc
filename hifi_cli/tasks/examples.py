"""Examples in their forms: a row as texts, the row as tokens, and what is predicted of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError

Label = int | float | tuple[int, ...]
Span = tuple[int, int]
Values = NDArray[np.float64]
# The tags of a sentence's words.
Tags = Sequence[str]
# The character span of a token that is not part of the context.
OUTSIDE: Span = (-1, -1)
# The token of a word that has none.
UNREAD = -1


class IncompleteRow(UsageError):
    """A row has no text or no label."""


class UnknownLabel(UsageError):
    """A row has a label that is none of the task's."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a task, before tokenization.

    Attributes:
        id: unique within its split.
        sequences: one sequence of one or two texts; for multiple choice one sequence per choice.
        label: index of the class or choice, or the number; for multi-label 0 or 1 of each class;
            for tokens the index of each word's tag; None if it is unknown, and for spans.
        word_spans: for WiC, the character span [start, end) of the target word in each text; for
            tokens that of each word.
        answers: for span tasks, the accepted answers as (text, first character in the last text);
            for ReCoRD the query's answers as (text, -1).
        group: the id of what several rows are about: of MultiRC's question, whose answers are the
            rows, or of ReCoRD's query, whose candidates are.
        candidate: for ReCoRD, the entity in the gap of the query.
    """

    id: str
    sequences: tuple[tuple[str, ...], ...]
    label: Label | None
    word_spans: tuple[Span, ...] = ()
    answers: tuple[tuple[str, int], ...] = ()
    group: str = ""
    candidate: str = ""

    @property
    def words(self) -> list[str]:
        """The words of a sentence whose words are tagged."""
        text = self.sequences[0][0]
        return [text[start:end] for start, end in self.word_spans]


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """A tokenized row. A context longer than `max_length` gives several examples of the same row.

    Attributes:
        row: the row that was tokenized.
        sequences: for each sequence of the row the tokenizer's lists (input_ids, token_type_ids),
            int32 without padding.
        word_spans: the token span [first, last) of each target word (WiC).
        word_tokens: for token classification, the first token of each word, or UNREAD.
        offsets: for span tasks, the character span [start, end) of each token in the context, or
            OUTSIDE.
        answer: for span tasks, the first and last token of the answer; (0, 0), the first token, if
            the answer is not completely in this window.
        is_truncated: whether a text was truncated because the row is longer than `max_length`; a
            context in several windows is not.
    """

    row: Row
    sequences: tuple[dict[str, NDArray[np.int32]], ...]
    word_spans: tuple[Span, ...] = ()
    word_tokens: tuple[int, ...] = ()
    offsets: tuple[Span, ...] = ()
    answer: Span = (0, 0)
    is_truncated: bool = False

    def __len__(self) -> int:
        return max(len(sequence["input_ids"]) for sequence in self.sequences)


class Output(NamedTuple):
    """A prediction of a row that is no single number.

    Attributes:
        prediction: the answer's text, empty if no window has a valid one; or the tag of each word,
            `O` for one that was not read.
        logits: of the answer's first and last token; or of each word's tag, 0 for one that was not
            read.
    """

    prediction: str | list[str]
    logits: list[float]


# Predictions, one for each row: numbers, [rows], or [rows, classes] of 0 and 1; or outputs.
Predictions = Values | Sequence[Output]


def labels_of(rows: Sequence[Row]) -> Values:
    """Return the rows' labels as float64, [rows], or [rows, classes] for multi-label."""
    return np.array([row.label for row in rows], dtype=np.float64)
