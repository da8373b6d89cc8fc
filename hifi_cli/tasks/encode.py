"""From rows to what a model reads: tokens, the order of an epoch, and padded batches."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError, logger
from hifi_cli.tasks.examples import OUTSIDE, UNREAD, EncodedExample, Row, Span
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate

Item = TypeVar("Item", bound=Sized)
MAX_QUESTION_FRACTION = 0.25  # of a window's tokens: the context needs the others
_WINDOW = 32  # batches sorted together: enough for similar lengths, few enough that epochs differ


def tokenize(
    tokenizer: Any, spec: TaskSpec, rows: Sequence[Row], config: RunConfig
) -> list[EncodedExample]:
    """Tokenize rows, without padding, by `max_length`, `truncation`, `swap_texts` and `stride`.

    Raises:
        UsageError: a target word is truncated.
    """
    encoding = spec.rules.encoding
    if encoding == "windows":
        return _tokenize_windows(tokenizer, rows, config)
    order = slice(None, None, -1 if config.swap_texts else 1)
    columns = [
        list(column)
        for column in zip(
            *(sequence[order] for row in rows for sequence in row.sequences), strict=True
        )
    ]
    is_pair = len(columns) == 2
    is_cut = [False] * len(columns[0])  # each sequence
    if is_pair and config.truncation != "longest_first":
        # The text that is not truncated must leave room for a token of the other one.
        protected = 1 if config.truncation == "only_first" else 0
        room = config.max_length - tokenizer.num_special_tokens_to_add(pair=True) - 1
        columns[protected], is_cut = _truncate(tokenizer, columns[protected], room)
    encoded = tokenizer(
        *columns,
        truncation=config.truncation if is_pair else "only_first",
        max_length=config.max_length,
    )
    examples, indices = [], iter(range(len(columns[0])))
    for row in rows:
        numbers = list(islice(indices, len(row.sequences)))
        sequences = tuple(_model_inputs(encoded, number) for number in numbers)
        is_truncated = any(
            is_cut[number] or encoded.encodings[number].overflowing for number in numbers
        )
        spans: tuple[Span, ...] = ()
        if encoding == "target words":
            spans = _token_spans(encoded, numbers[0], row, order, is_truncated=is_truncated)
        tagged = row.word_spans if encoding == "words" else ()
        tokens = tuple(_first_token(encoded, numbers[0], span) for span in tagged)
        examples.append(EncodedExample(row, sequences, spans, tokens, is_truncated=is_truncated))
    _warn_of_unread_words(examples, config.max_length)
    return examples


def _warn_of_unread_words(examples: Sequence[EncodedExample], max_length: int) -> None:
    """Say how many words have no token, because of `max_length` or because of the tokenizer."""
    words, cut = 0, 0
    dropped: list[str] = []
    for example in examples:
        tokens = example.word_tokens
        words += len(tokens)
        # The words behind the last one with a token are cut where the text is; the tokenizer drops
        # the others: spaces, and characters that it does not know as any.
        read = [at for at, token in enumerate(tokens) if token != UNREAD]
        last = read[-1] if read and example.is_truncated else len(tokens)
        for at, token in enumerate(tokens):
            if token == UNREAD and at > last:
                cut += 1
            elif token == UNREAD:
                dropped.append(example.row.words[at])
    without = "they are not trained on and count as tagged O"
    if cut:
        logger.warning(
            f"note: max_length={max_length} leaves {cut:,} of {words:,} words without a token: {without}"
        )
    if dropped:
        shown = abbreviate([ascii(word) for word in dict.fromkeys(dropped)])
        logger.warning(
            f"note: the tokenizer has no token for {len(dropped):,} of {words:,} words ({shown}): {without}"
        )


def rows_of(examples: Iterable[EncodedExample]) -> list[Row]:
    """Return the rows of some examples, each row once, in order."""
    return list({example.row.id: example.row for example in examples}.values())


def truncated_rows(examples: Iterable[EncodedExample]) -> int:
    """Return how many rows have a text that was cut."""
    return len({example.row.id for example in examples if example.is_truncated})


def single_sequences(examples: Iterable[EncodedExample]) -> list[EncodedExample]:
    """Return every sequence as an example of its own: the inputs of an encoder without a task head."""
    return [
        EncodedExample(example.row, (sequence,))
        for example in examples
        for sequence in example.sequences
    ]


def _model_inputs(encoded: Any, index: int) -> dict[str, NDArray[np.int32]]:
    return {
        name: np.array(encoded[name][index], dtype=np.int32)
        for name in encoded
        if name in ("input_ids", "token_type_ids")
    }


def _token_spans(
    encoded: Any, index: int, row: Row, order: slice, *, is_truncated: bool
) -> tuple[Span, ...]:
    """Return the span of the tokens of the target word of each text."""
    token_spans = []
    for text, (start, end) in enumerate(row.word_spans[order]):
        first, last = (encoded.char_to_token(index, at, text) for at in (start, end - 1))
        if first is None or last is None:
            problem = "is truncated; increase max_length"
            if not is_truncated:
                word = row.sequences[0][order][text][start:end]
                problem = f"{word!r:.40} has no token of this tokenizer"
            raise UsageError(f"row {row.id}: the target word {problem}")
        token_spans.append((first, last + 1))
    return tuple(token_spans)


def _first_token(encoded: Any, index: int, span: Span) -> int:
    tokens = (encoded.char_to_token(index, character) for character in range(*span))
    return next((token for token in tokens if token is not None), UNREAD)


def _tokenize_windows(
    tokenizer: Any, rows: Sequence[Row], config: RunConfig
) -> list[EncodedExample]:
    """Tokenize questions and contexts: overlapping windows over each context, after the question."""
    question_length = max(1, int(config.max_length * MAX_QUESTION_FRACTION))
    special_tokens = tokenizer.num_special_tokens_to_add(pair=True)
    room = config.max_length - special_tokens - question_length
    questions, is_cut = _truncate(
        tokenizer, [row.sequences[0][0].strip() for row in rows], question_length
    )
    encoded = tokenizer(
        questions,
        [row.sequences[0][1] for row in rows],
        truncation="only_second",
        max_length=config.max_length,
        stride=min(config.stride, room // 2),
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
        answer = _answer_tokens(row, offsets) if row.answers else (0, 0)
        examples.append(
            EncodedExample(
                row,
                (_model_inputs(encoded, window),),
                offsets=offsets,
                answer=answer,
                is_truncated=is_cut[row_number],
            )
        )
    return examples


def _truncate(tokenizer: Any, texts: list[str], max_tokens: int) -> tuple[list[str], list[bool]]:
    """Cut each text after `max_tokens` tokens; the second list says which ones were longer."""
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=True,
        max_length=max_tokens,
        return_offsets_mapping=True,
    )
    # a character of several tokens is left out whole where only some of them fit
    ends = [
        min(
            [
                *(end for _, end in one.offsets[-1:]),
                *(rest.offsets[0][0] for rest in one.overflowing),
            ],
            default=0,
        )
        for one in encoded.encodings
    ]
    return [text[:end] for text, end in zip(texts, ends, strict=True)], [
        bool(one.overflowing) for one in encoded.encodings
    ]


def _answer_tokens(row: Row, offsets: Sequence[Span]) -> Span:
    """Return the first and last token of the first answer; (0, 0) if it is not all in the window."""
    text, start = row.answers[0]
    end = start + len(text)
    context_tokens = [token for token, span in enumerate(offsets) if span != OUTSIDE]
    if (
        not context_tokens
        or offsets[context_tokens[0]][0] > start
        or offsets[context_tokens[-1]][1] < end
    ):
        return (0, 0)
    answer_tokens = [
        token for token in context_tokens if offsets[token][0] < end and offsets[token][1] > start
    ]
    return (answer_tokens[0], answer_tokens[-1]) if answer_tokens else (0, 0)


def epoch_batches(config: RunConfig, examples: Sequence[Item], epoch: int) -> list[list[Item]]:
    """Return the batches of an epoch, counted from 0: every example once, in random order.

    The result depends only on the arguments, so that a resumed run gets the same batches. The
    strategy `random` cuts the shuffled examples into batches. `group_by_length` sorts windows of
    shuffled examples by length, cuts them into batches and shuffles the batches: less padding, but
    a batch holds similar lengths only.
    """
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order = torch.randperm(len(examples), generator=generator).tolist()
    shuffled, size = [examples[index] for index in order], config.batch_size
    if config.train_sampling_strategy == "random":
        return list(_batches(shuffled, size))
    windows = [sorted(window, key=len) for window in _batches(shuffled, size * _WINDOW)]
    batches = [batch for window in windows for batch in _batches(window, size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def evaluation_order(examples: Sequence[Sized], batch_size: int) -> list[list[int]]:
    """Return batches of all examples' numbers, longest first: one that is too large fails at once."""
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
    width = -(-lengths.max() // multiple) * multiple
    is_real = np.arange(width) < lengths[:, None]
    batch = {"attention_mask": torch.from_numpy(is_real.astype(np.int64))}
    for name in sequences[0]:
        padded = np.full(is_real.shape, pad.get(name, 0), dtype=np.int64)
        padded[is_real] = np.concatenate([sequence[name] for sequence in sequences])
        batch[name] = torch.from_numpy(padded)
    choices = len(examples[0].sequences)
    if choices > 1:
        batch = {name: values.unflatten(0, (-1, choices)) for name, values in batch.items()}
    if examples[0].word_spans:
        batch["word_spans"] = torch.tensor([example.word_spans for example in examples])
    return batch


def split_batch(batch: list[int], micro_batches: int) -> Iterator[list[int]]:
    """Split a batch into at most `micro_batches` consecutive micro-batches of nearly equal size."""
    return _batches(batch, -(-len(batch) // micro_batches))


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield consecutive batches of `size` items; the last one may be smaller."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
