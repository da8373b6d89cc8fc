"""Batches: their order depends only on seed and epoch; each is padded to its longest example."""

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hifi_cli.tasks.tokenization import Example

_WINDOW = 32  # batches that are sorted together: enough for similar lengths, few enough that epochs differ


def training_order(lengths: Sequence[int], batch_size: int, *, strategy: str, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of an epoch: every example once, in random order.

    The result depends only on the arguments, so that a resumed run gets the same batches.

    Args:
        lengths: number of tokens of each example.
        batch_size: examples per batch.
        strategy: `random` cuts the shuffled examples into batches. `group_by_length` sorts windows of shuffled examples by
            length, cuts them into batches and shuffles the batches: less padding, but a batch holds similar lengths only.
        seed: of the run.
        epoch: counted from 0.

    Returns:
        The example indices of each batch.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    if strategy == "random":
        return list(_batches(shuffled, batch_size))
    size = batch_size * _WINDOW
    windows = [sorted(window, key=lambda index: lengths[index]) for window in _batches(shuffled, size)]
    batches = [batch for window in windows for batch in _batches(window, batch_size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def evaluation_order(examples: Sequence[Sized], batch_size: int) -> list[list[int]]:
    """Return batches of the numbers of all examples, longest first: a batch that does not fit in memory fails at once."""
    order = sorted(range(len(examples)), key=lambda index: -len(examples[index]))
    return list(_batches(order, batch_size))


def padding_values(tokenizer: Any) -> dict[str, int]:
    """Return the padding value of each of a tokenizer's lists, for `collate`."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def collate(examples: Sequence[Example], pad: dict[str, int], *, multiple: int = 1) -> dict[str, Tensor]:
    """Pad examples to the longest sequence and stack them.

    Args:
        examples: the examples of the batch.
        pad: the padding value of each of the tokenizer's lists.
        multiple: the padded length is a multiple of it.

    Returns:
        int64 [examples, tokens] for each list and for `attention_mask`; [examples, choices, tokens] for multiple choice.
        With target words also `word_spans` [examples, words, 2], their token spans [first, last).
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


def _batches(indices: list[int], size: int) -> Iterator[list[int]]:
    """Yield consecutive batches of `size` indices; the last one may be smaller."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
