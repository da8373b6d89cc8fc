"""Tokenize rows: single texts, text pairs, choices, target words, tagged words, and sliding windows over a long context."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError
from hifi_cli.tasks.task_spec import Row, TaskSpec

logger = logging.getLogger("hifi")
Truncation = Literal["longest_first", "only_first", "only_second"]
Span = tuple[int, int]
OUTSIDE: Span = (-1, -1)  # the character span of a token that is not part of the context
UNREAD = -1  # the token of a word that has none
MAX_QUESTION_FRACTION = 0.25  # of a window's tokens, so that enough of them are left for the context


@dataclass(frozen=True, slots=True)
class Example:
    """A tokenized row. A context longer than `max_length` gives several examples of the same row.

    Attributes:
        row: the row that was tokenized.
        sequences: for each sequence of the row the tokenizer's lists (input_ids, token_type_ids), int32 without padding.
        word_spans: the token span [first, last) of each target word (WiC).
        word_tokens: for token classification, the first token of each word, or UNREAD.
        offsets: for span tasks, the character span [start, end) of each token in the context, or OUTSIDE.
        answer: for span tasks, the first and last token of the answer; (0, 0), the first token, if the answer is not
            completely in this window.
        is_truncated: whether a text was cut, because the row is longer than `max_length`; a context in several windows is not.
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


@dataclass(frozen=True)
class TokenizationSettings:
    """How rows are tokenized.

    Attributes:
        max_length: maximum tokens of a sequence, or of a window over a context.
        truncation: which text of a pair is truncated when the pair is too long.
        swap_texts: whether the second text of a pair comes first.
        stride: tokens by which consecutive windows over a long context overlap.
    """

    max_length: int
    truncation: Truncation = "longest_first"
    swap_texts: bool = False
    stride: int = 128


def tokenize(tokenizer: Any, spec: TaskSpec, rows: Sequence[Row], settings: TokenizationSettings) -> list[Example]:
    """Tokenize rows, without padding.

    Raises:
        UsageError: a target word is truncated, or `max_length` leaves no room for two texts.
    """
    if spec.kind == "span":
        return _tokenize_windows(tokenizer, rows, settings)
    if spec.kind == "token-classification":
        return _tokenize_words(tokenizer, rows, settings)
    order = slice(None, None, -1 if settings.swap_texts else 1)
    columns = [list(column) for column in zip(*(sequence[order] for row in rows for sequence in row.sequences), strict=True)]
    is_pair = len(columns) == 2
    room = _room_for_texts(tokenizer, settings) if is_pair else settings.max_length
    is_cut = [False] * len(columns[0])  # each sequence
    if is_pair and settings.truncation != "longest_first":  # the text that is not truncated must leave room for the other
        protected = 1 if settings.truncation == "only_first" else 0
        columns[protected], is_cut = _truncate(tokenizer, columns[protected], room - 1)
    has_words = any(row.word_spans for row in rows)
    encoded = tokenizer(
        *columns,
        truncation=settings.truncation if is_pair else "only_first",
        max_length=settings.max_length,
        return_offsets_mapping=has_words,
    )
    examples, first = [], 0
    for row in rows:
        numbers = range(first, first + len(row.sequences))
        sequences = tuple(_model_inputs(encoded, index) for index in numbers)
        word_spans = _token_spans(encoded, first, row.word_spans[order], row, settings) if has_words else ()
        is_truncated = any(is_cut[index] or _has_overflow(encoded, index) for index in numbers)
        examples.append(Example(row, sequences, word_spans, is_truncated=is_truncated))
        first += len(row.sequences)
    return examples


def rows_of(examples: Iterable[Example]) -> list[Row]:
    """Return the rows of some examples, each row once, in order."""
    return list({example.row.id: example.row for example in examples}.values())


def truncated_rows(examples: Iterable[Example]) -> int:
    """Return how many rows have a text that was cut."""
    return len({example.row.id for example in examples if example.is_truncated})


def single_sequences(examples: Iterable[Example]) -> list[Example]:
    """Return every sequence as an example of its own, without target words: the inputs of an encoder without a task head."""
    return [Example(example.row, (sequence,)) for example in examples for sequence in example.sequences]


def _model_inputs(encoded: Any, index: int) -> dict[str, NDArray[np.int32]]:
    return {name: np.array(encoded[name][index], dtype=np.int32) for name in encoded if name in ("input_ids", "token_type_ids")}


def _has_overflow(encoded: Any, index: int) -> bool:
    """Whether a sequence was longer than `max_length`."""
    return bool(encoded.encodings[index].overflowing)


def _token_spans(
    encoded: Any, index: int, word_spans: Sequence[Span], row: Row, settings: TokenizationSettings
) -> tuple[Span, ...]:
    """Return for the target word of each text the span of the tokens that overlap its characters."""
    offsets, text_ids = encoded["offset_mapping"][index], encoded.sequence_ids(index)
    token_spans = []
    for text, (start, end) in enumerate(word_spans):
        tokens = [
            token for token, (first, last) in enumerate(offsets) if text_ids[token] == text and first < end and last > start
        ]
        if not tokens or offsets[tokens[-1]][1] < end:
            raise UsageError(f"row {row.id}: max_length={settings.max_length} truncates the target word; increase max_length")
        token_spans.append((tokens[0], tokens[-1] + 1))
    return tuple(token_spans)


def _tokenize_words(tokenizer: Any, rows: Sequence[Row], settings: TokenizationSettings) -> list[Example]:
    """Tokenize sentences whose words are tagged; logs how many words have no token because their sentence is truncated."""
    encoded = tokenizer([row.sequences[0][0] for row in rows], truncation=True, max_length=settings.max_length)
    examples = []
    for number, row in enumerate(rows):
        word_tokens = tuple(_first_token(encoded, number, span) for span in row.word_spans)
        inputs, is_truncated = _model_inputs(encoded, number), _has_overflow(encoded, number)
        examples.append(Example(row, (inputs,), word_tokens=word_tokens, is_truncated=is_truncated))
    unread = [example.word_tokens.count(UNREAD) for example in examples]
    if any(unread):
        words = sum(len(example.word_tokens) for example in examples)
        logger.warning(
            f"note: max_length={settings.max_length} leaves {sum(unread):,} of {words:,} words without a token, in"
            f" {sum(map(bool, unread)):,} of {len(rows):,} rows: they are not trained on and count as tagged O"
        )
    return examples


def _first_token(encoded: Any, index: int, span: Span) -> int:
    tokens = (encoded.char_to_token(index, character) for character in range(*span))
    return next((token for token in tokens if token is not None), UNREAD)


def _tokenize_windows(tokenizer: Any, rows: Sequence[Row], settings: TokenizationSettings) -> list[Example]:
    """Tokenize questions and contexts: overlapping windows over each context, each of them after the question."""
    question_length = max(1, int(settings.max_length * MAX_QUESTION_FRACTION))
    room = _room_for_texts(tokenizer, settings) - question_length
    questions, is_cut = _truncate(tokenizer, [row.sequences[0][0].strip() for row in rows], question_length)
    encoded = tokenizer(
        questions,
        [row.sequences[0][1] for row in rows],
        truncation="only_second",
        max_length=settings.max_length,
        stride=min(settings.stride, room // 2),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    examples = []
    for window, row_number in enumerate(encoded["overflow_to_sample_mapping"]):
        text_ids = encoded.sequence_ids(window)
        offsets = tuple(
            tuple(span) if text == 1 else OUTSIDE
            for span, text in zip(encoded["offset_mapping"][window], text_ids, strict=True)
        )
        row = rows[row_number]
        answer = _answer_tokens(row, offsets)
        inputs, is_truncated = _model_inputs(encoded, window), is_cut[row_number]
        examples.append(Example(row, (inputs,), offsets=offsets, answer=answer, is_truncated=is_truncated))
    return examples


def _room_for_texts(tokenizer: Any, settings: TokenizationSettings) -> int:
    """Return how many tokens the two texts of a pair may have together."""
    room: int = settings.max_length - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 2:
        raise UsageError(f"max_length={settings.max_length} leaves no room for two texts; increase max_length")
    return room


def _truncate(tokenizer: Any, texts: list[str], max_tokens: int) -> tuple[list[str], list[bool]]:
    """Cut each text after at most `max_tokens` tokens; the second list says which ones were longer."""
    encoded = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=max_tokens, return_offsets_mapping=True)
    ends = [offsets[-1][1] if offsets else 0 for offsets in encoded["offset_mapping"]]
    is_cut = [_has_overflow(encoded, index) for index in range(len(texts))]
    return [text[:end] for text, end in zip(texts, ends, strict=True)], is_cut


def _answer_tokens(row: Row, offsets: Sequence[Span]) -> Span:
    """Return the first and last token of the first accepted answer, or (0, 0) if it is not completely in the window."""
    text, start = row.answers[0]
    end = start + len(text)
    context_tokens = [token for token, span in enumerate(offsets) if span != OUTSIDE]
    if not context_tokens or offsets[context_tokens[0]][0] > start or offsets[context_tokens[-1]][1] < end:
        return (0, 0)
    answer_tokens = [token for token in context_tokens if offsets[token][0] < end and offsets[token][1] > start]
    return (answer_tokens[0], answer_tokens[-1]) if answer_tokens else (0, 0)
