"""From rows to what a model reads: tokens, the order of an epoch, and padded batches."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.tasks.examples import OUTSIDE, UNREAD, EncodedExample, Row, Span
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate

Item = TypeVar("Item", bound=Sized)
# A question has at most this part of a window's tokens: the context needs the others.
MAX_QUESTION_FRACTION = 0.25
# So many batches are sorted together by length: enough for similar lengths, few enough that epochs
# differ.
_WINDOW = 32
# Versions of the library tokenizers that read a text hardly further than to `max_length`. They leave
# out windows, and do not see which text of a pair is the longer one if both are longer than that
# (huggingface/tokenizers#2091).
_WRONG_TRUNCATION = ("0.23.1", "0.23.2")
# The tokenizer's lists that a model reads.
_MODEL_INPUTS = ("input_ids", "token_type_ids")


def tokenize(
    tokenizer: Any,
    spec: TaskSpec,
    rows: Sequence[Row],
    config: RunConfig,
    *,
    length_key: str = "max_length",
) -> list[EncodedExample]:
    """Tokenize rows, without padding, by `max_length`, `truncation`, `swap_texts` and `stride`.

    Args:
        tokenizer: of the encoder; a fast one of transformers.
        spec: the task, whose kind says how token ids are made.
        rows: the rows; each becomes one example, or several windows.
        config: of the run.
        length_key: the key that has set `max_length`, for messages.

    Raises:
        UsageError: a target word is truncated.
        MissingError: this version of the library tokenizers truncates long texts wrongly.
    """
    encoding = spec.rules.encoding
    if encoding == "windows":
        return _tokenize_windows(tokenizer, rows, config)
    sequences: list[tuple[str, ...]] = []
    for row in rows:
        sequences += row.sequences
    encoded = _tokenize_sequences(tokenizer, sequences, config)
    examples = []
    # A row's sequences follow one another.
    index = 0
    for row in rows:
        indices = range(index, index + len(row.sequences))
        index = indices.stop
        inputs = tuple(encoded.inputs(number) for number in indices)
        is_truncated = any(encoded.is_truncated[number] for number in indices)
        word_spans: tuple[Span, ...] = ()
        word_tokens: tuple[int, ...] = ()
        if encoding == "target words":
            word_spans = _tokens_of_target_words(encoded, indices[0], row, length_key)
        if encoding == "words":
            word_tokens = tuple(encoded.first_token(indices[0], span) for span in row.word_spans)
        examples.append(
            EncodedExample(row, inputs, word_spans, word_tokens, is_truncated=is_truncated)
        )
    _warn_of_unread_words(examples, f"{length_key}={config.max_length}")
    return examples


@dataclass(frozen=True)
class _EncodedSequences:
    """Sequences as a tokenizer encoded them.

    Attributes:
        encoded: what the tokenizer returned.
        is_truncated: whether a text of each sequence was truncated, [sequences].
        swaps_texts: whether the second text of a pair stands before the first.
    """

    encoded: Any
    is_truncated: list[bool]
    swaps_texts: bool

    def inputs(self, index: int) -> dict[str, NDArray[np.int32]]:
        """Return what a model reads of a sequence."""
        return _model_inputs(self.encoded, index)

    def first_token(self, index: int, span: Span) -> int:
        """Return the first token of a word of a sequence of one text, or UNREAD if it has none.

        Args:
            index: of the sequence.
            span: the word's characters [start, end).
        """
        for character in range(*span):
            token: int | None = self.encoded.char_to_token(index, character)
            if token is not None:
                return token
        return UNREAD


def _tokenize_sequences(
    tokenizer: Any, sequences: Sequence[tuple[str, ...]], config: RunConfig
) -> _EncodedSequences:
    """Tokenize sequences of one or two texts.

    Args:
        tokenizer: of the encoder.
        sequences: all with the same number of texts.
        config: of the run.

    Raises:
        MissingError: this version of the library tokenizers truncates long texts wrongly.
    """
    # One list of all first texts, and for pairs one of all second texts.
    columns = [list(column) for column in zip(*sequences, strict=True)]
    if config.swap_texts:
        columns.reverse()
    # A single text is the first one.
    truncation = "only_first"
    if len(columns) == 2:
        truncation = config.truncation
    truncated_before = [False] * len(sequences)
    if len(columns) == 2 and truncation != "longest_first":
        # The tokenizer truncates one text of the pair. The other one, truncated before, must leave
        # room for a token of it.
        other = 0
        if truncation == "only_first":
            other = 1
        room = config.max_length - tokenizer.num_special_tokens_to_add(pair=True) - 1
        columns[other], truncated_before = _truncate(tokenizer, columns[other], room)
    encoded = tokenizer(*columns, truncation=truncation, max_length=config.max_length)
    truncated_by_tokenizer = _are_truncated(
        tokenizer, columns, encoded["input_ids"], config.max_length
    )
    if truncation == "longest_first":
        _refuse_halved_pairs(encoded, truncated_by_tokenizer)
    is_truncated = []
    for before, by_tokenizer in zip(truncated_before, truncated_by_tokenizer, strict=True):
        is_truncated.append(before or by_tokenizer)
    return _EncodedSequences(encoded, is_truncated, config.swap_texts)


def _refuse_halved_pairs(encoded: Any, is_truncated: Sequence[bool]) -> None:
    """Refuse pairs that a wrong version of the library tokenizers has truncated.

    Such a version gives each text of a long pair half of the tokens, whichever is longer.

    Args:
        encoded: what the tokenizer returned for pairs whose longest text is to be truncated.
        is_truncated: whether it truncated each of them.

    Raises:
        MissingError: there is such a pair, and this version is a wrong one.
    """
    for index, pair_is_truncated in enumerate(is_truncated):
        if pair_is_truncated and _has_halves(encoded, index):
            _refuse_wrong_truncation()


def _has_halves(encoded: Any, index: int) -> bool:
    """Return whether the texts of a pair have equally many tokens, or one of them one more."""
    text_of_token = encoded.sequence_ids(index)
    return abs(text_of_token.count(0) - text_of_token.count(1)) <= 1


def _refuse_wrong_truncation() -> None:
    """Refuse versions of the library tokenizers that truncate long texts wrongly.

    Raises:
        MissingError: it is one of them.
    """
    if tokenizers.__version__ in _WRONG_TRUNCATION:
        raise MissingError(
            f"tokenizers {tokenizers.__version__} cuts long texts wrongly: install another version"
            " (pip install 'tokenizers>=0.23.3')"
        )


def _are_truncated(
    tokenizer: Any, columns: list[list[str]], encoded: Sequence[Sized], max_length: int
) -> list[bool]:
    """Return of each sequence whether the tokenizer has truncated it to `max_length` tokens.

    The tokenizer's own list of what it left out is not complete in every version
    (huggingface/tokenizers#2091).

    Args:
        tokenizer: of the encoder.
        columns: the first texts, and the second texts of pairs, as the tokenizer was given them.
        encoded: the tokens of each sequence that it returned, at most `max_length`.
        max_length: in tokens.
    """
    is_truncated = [False] * len(encoded)
    # Shorter sequences have all their tokens.
    full = [index for index, tokens in enumerate(encoded) if len(tokens) == max_length]
    if full:
        texts = [[column[index] for index in full] for column in columns]
        whole = tokenizer(*texts, verbose=False)["input_ids"]
        for index, tokens in zip(full, whole, strict=True):
            is_truncated[index] = len(tokens) > max_length
    return is_truncated


def _model_inputs(encoded: Any, index: int) -> dict[str, NDArray[np.int32]]:
    """Return the lists that a model reads of a sequence, int32."""
    inputs = {}
    for name in encoded:
        if name in _MODEL_INPUTS:
            inputs[name] = np.array(encoded[name][index], dtype=np.int32)
    return inputs


def _tokens_of_target_words(
    sequences: _EncodedSequences, index: int, row: Row, length_key: str
) -> tuple[Span, ...]:
    """Return the token span [first, last) of the target word of each text of a pair.

    Args:
        sequences: the encoded sequences.
        index: of the row's sequence.
        row: has the characters of the words.
        length_key: the key by which texts are truncated.

    Raises:
        UsageError: a word has no token.
    """
    texts = [*zip(row.sequences[0], row.word_spans, strict=True)]
    if sequences.swaps_texts:
        texts.reverse()
    spans = []
    for place, (text, (start, end)) in enumerate(texts):
        first = sequences.encoded.char_to_token(index, start, place)
        last = sequences.encoded.char_to_token(index, end - 1, place)
        if first is None or last is None:
            problem = f"{text[start:end]!r:.40} has no token of this tokenizer"
            if sequences.is_truncated[index]:
                problem = f"is truncated; increase {length_key}"
            raise UsageError(f"row {row.id}: the target word {problem}")
        spans.append((first, last + 1))
    return tuple(spans)


def _warn_of_unread_words(examples: Sequence[EncodedExample], length: str) -> None:
    """Warn of words that have no token, because of truncation or because of the tokenizer.

    Args:
        length: the setting by which texts are truncated, `max_length=128` for example.
    """
    words = 0
    truncated = 0
    dropped: list[str] = []
    for example in examples:
        tokens = example.word_tokens
        words += len(tokens)
        places_read = [place for place, token in enumerate(tokens) if token != UNREAD]
        # The words behind the last one with a token are truncated where the text is. All others
        # without a token are dropped by the tokenizer: spaces, and characters that it does not know
        # as any.
        last_place = len(tokens)
        if places_read and example.is_truncated:
            last_place = places_read[-1]
        for place, token in enumerate(tokens):
            if token != UNREAD:
                continue
            if place > last_place:
                truncated += 1
            else:
                dropped.append(example.row.words[place])
    consequence = "they are not trained on and count as tagged O"
    if truncated:
        logger.warning(
            f"note: {length} leaves {truncated:,} of {words:,} words without a token: {consequence}"
        )
    if dropped:
        different = dict.fromkeys(dropped)
        shown = abbreviate([ascii(word) for word in different])
        logger.warning(
            f"note: the tokenizer has no token for {len(dropped):,} of {words:,} words ({shown}):"
            f" {consequence}"
        )


# --- windows over long contexts


def _tokenize_windows(
    tokenizer: Any, rows: Sequence[Row], config: RunConfig
) -> list[EncodedExample]:
    """Tokenize questions and contexts: overlapping windows over each context, after the question.

    Raises:
        MissingError: this version of the library tokenizers truncates long texts wrongly.
    """
    _refuse_wrong_truncation()
    question_length = max(1, int(config.max_length * MAX_QUESTION_FRACTION))
    special_tokens = tokenizer.num_special_tokens_to_add(pair=True)
    # The tokens of a context that every window has room for.
    room = config.max_length - special_tokens - question_length
    whole_questions = [row.sequences[0][0].strip() for row in rows]
    questions, is_truncated = _truncate(tokenizer, whole_questions, question_length)
    encoded = tokenizer(
        questions,
        [row.sequences[0][1] for row in rows],
        truncation="only_second",
        max_length=config.max_length,
        # At most half of the room, so that every window has new tokens.
        stride=min(config.stride, room // 2),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    examples = []
    for window, row_index in enumerate(encoded["overflow_to_sample_mapping"]):
        row = rows[row_index]
        offsets = _offsets_in_context(encoded, window)
        answer = (0, 0)
        if row.answers:
            answer = _answer_tokens(row, offsets)
        examples.append(
            EncodedExample(
                row,
                (_model_inputs(encoded, window),),
                offsets=offsets,
                answer=answer,
                is_truncated=is_truncated[row_index],
            )
        )
    return examples


def _offsets_in_context(encoded: Any, window: int) -> tuple[Span, ...]:
    """Return the character span of each token in the context, or OUTSIDE."""
    offsets = []
    texts = encoded.sequence_ids(window)
    for (start, end), text in zip(encoded["offset_mapping"][window], texts, strict=True):
        # The context is the second text of the pair; special tokens are of no text.
        is_in_context = text == 1
        span = OUTSIDE
        if is_in_context:
            span = (start, end)
        offsets.append(span)
    return tuple(offsets)


def _truncate(tokenizer: Any, texts: list[str], max_tokens: int) -> tuple[list[str], list[bool]]:
    """Truncate each text to `max_tokens` tokens.

    Args:
        tokenizer: of the encoder.
        texts: without special tokens.
        max_tokens: of each text, 0 or more.

    Returns:
        The texts, and which of them were truncated.
    """
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    truncated = []
    is_truncated = []
    for text, offsets in zip(texts, encoded["offset_mapping"], strict=True):
        kept = offsets[:max_tokens]
        left_out = offsets[max_tokens:]
        # The text ends where the last kept token does. A character of several tokens is left out whole
        # where only some of them fit: it begins before that token ends.
        ends = []
        if kept:
            _, end_of_kept = kept[-1]
            ends.append(end_of_kept)
        if left_out:
            start_of_left_out, _ = left_out[0]
            ends.append(start_of_left_out)
        truncated.append(text[: min(ends, default=0)])
        is_truncated.append(bool(left_out))
    return truncated, is_truncated


def _answer_tokens(row: Row, offsets: Sequence[Span]) -> Span:
    """Return the first and last token of the first answer; (0, 0) if it is not all in the window.

    Args:
        row: has an answer.
        offsets: the character span of each token in the context, or OUTSIDE.
    """
    text, start = row.answers[0]
    end = start + len(text)
    context = [token for token, span in enumerate(offsets) if span != OUTSIDE]
    if not context:
        return (0, 0)
    window_start, _ = offsets[context[0]]
    _, window_end = offsets[context[-1]]
    # Half an answer is none: the model is to point at the first token in such a window.
    if window_start > start or window_end < end:
        return (0, 0)
    # An answer may begin or end within a token, which then belongs to it.
    answer = []
    for token in context:
        token_start, token_end = offsets[token]
        if token_start < end and token_end > start:
            answer.append(token)
    if not answer:
        return (0, 0)
    return (answer[0], answer[-1])


# --- examples and their rows


def rows_of(examples: Iterable[EncodedExample]) -> list[Row]:
    """Return the rows of some examples, each row once, in order."""
    by_id = {example.row.id: example.row for example in examples}
    return list(by_id.values())


def count_truncated_rows(examples: Iterable[EncodedExample]) -> int:
    """Return how many rows have a truncated text."""
    return len({example.row.id for example in examples if example.is_truncated})


def single_sequences(examples: Iterable[EncodedExample]) -> list[EncodedExample]:
    """Return every sequence as an example of its own: the inputs of an encoder without a task head."""
    singles = []
    for example in examples:
        for sequence in example.sequences:
            singles.append(EncodedExample(example.row, (sequence,)))
    return singles


# --- batches


def epoch_batches(
    config: RunConfig, batch_size: int, examples: Sequence[Item], epoch: int
) -> list[list[Item]]:
    """Return the batches of an epoch: every example once, in random order.

    The result depends only on the arguments, so that a resumed run gets the same batches. The
    strategy `random` cuts the shuffled examples into batches. `group_by_length` sorts windows of
    shuffled examples by length, cuts them into batches and shuffles the batches: less padding, but
    a batch holds similar lengths only.

    Args:
        config: of the run: seed and strategy.
        batch_size: examples of a batch; a few-shot run has other ones than `config` says.
        examples: anything with a length.
        epoch: counted from 0.
    """
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order = torch.randperm(len(examples), generator=generator).tolist()
    shuffled = [examples[index] for index in order]
    if config.train_sampling_strategy == "random":
        return list(_batches(shuffled, batch_size))
    batches: list[list[Item]] = []
    for window in _batches(shuffled, batch_size * _WINDOW):
        batches += _batches(sorted(window, key=len), batch_size)
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[index] for index in order]


def evaluation_order(examples: Sequence[Sized], batch_size: int) -> list[list[int]]:
    """Return batches of all examples' indices, longest first: a batch that is too large fails at once."""
    order = sorted(range(len(examples)), key=lambda index: -len(examples[index]))
    return list(_batches(order, batch_size))


def padding_values(tokenizer: Any) -> dict[str, int]:
    """Return the padding value of each of a tokenizer's lists, for `collate`."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def collate(
    examples: Sequence[EncodedExample], pad: dict[str, int], *, multiple: int = 1
) -> dict[str, Tensor]:
    """Pad examples to the longest sequence and stack them.

    Args:
        examples: the examples of the batch.
        pad: the padding value of each of the tokenizer's lists.
        multiple: the padded length is a multiple of it.

    Returns:
        int64 [examples, tokens] for each list and for `attention_mask`; [examples, choices, tokens]
        for multiple choice. With target words also `word_spans` [examples, words, 2], their token
        spans [first, last).
    """
    sequences = [sequence for example in examples for sequence in example.sequences]
    lengths = np.array([len(sequence["input_ids"]) for sequence in sequences])
    # Rounded up.
    width = -(-lengths.max() // multiple) * multiple
    is_real = np.arange(width) < lengths[:, None]
    batch = {"attention_mask": torch.from_numpy(is_real.astype(np.int64))}
    for name in sequences[0]:
        padded = np.full(is_real.shape, pad.get(name, 0), dtype=np.int64)
        padded[is_real] = np.concatenate([sequence[name] for sequence in sequences])
        batch[name] = torch.from_numpy(padded)
    # All rows of a task have the same number of choices.
    choices = len(examples[0].sequences)
    if choices > 1:
        batch = {name: values.unflatten(0, (-1, choices)) for name, values in batch.items()}
    if examples[0].word_spans:
        batch["word_spans"] = torch.tensor([example.word_spans for example in examples])
    return batch


def split_batch(batch: list[EncodedExample], micro_batches: int) -> Iterator[list[EncodedExample]]:
    """Split a batch into at most `micro_batches` consecutive micro-batches of nearly equal size."""
    size = -(-len(batch) // micro_batches)
    return _batches(batch, size)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield consecutive batches of `size` items; the last one may be smaller."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
