"""Batches: drawn from (seed, epoch) alone, padded to their longest example and never further."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hifi_cli.tasks.inputs import Example

_WINDOW = 32  # batches sorted together: enough that they hold like lengths, few enough that epochs differ


def training_order(lengths: Sequence[int], batch_size: int, *, strategy: str, seed: int, epoch: int) -> list[list[int]]:
    """Every example once, in random batches.

    The order depends on nothing but the arguments, so a resumed run draws the same batches.

    Args:
        lengths: tokens of each example.
        strategy: `random`: the shuffled examples in consecutive batches. `group_by_length`: windows of shuffled examples are
            sorted by length before they are cut into batches, and the batches are shuffled; less padding, but an example
            only meets others of like length.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    if strategy == "random":
        return list(_batches(shuffled, batch_size))
    size = batch_size * _WINDOW
    windows = [sorted(window, key=lambda index: lengths[index]) for window in _batches(shuffled, size)]
    batches = [batch for window in windows for batch in _batches(window, batch_size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def evaluation_order(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Every example once, longest first, so that a batch too large for memory fails at once."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return list(_batches(order, batch_size))


def collate(examples: Sequence[Example], pad: dict[str, int]) -> dict[str, Tensor]:
    """Pad to the longest sequence.

    Args:
        pad: the value that fills each of the tokenizer's lists.

    Returns:
        int64 [examples, tokens] for each list and `attention_mask`, [examples, choices, tokens] for several sequences per
        example; where the task has target words also `word_spans` [examples, words, 2], their tokens [first, last).
    """
    longest = max(len(example) for example in examples)
    sequences = [sequence for example in examples for sequence in example.sequences]
    lengths = [len(sequence["input_ids"]) for sequence in sequences]
    batch = {
        name: torch.tensor([sequence[name] + [pad.get(name, 0)] * (longest - len(sequence[name])) for sequence in sequences])
        for name in sequences[0]
    }
    batch["attention_mask"] = torch.tensor([[1] * length + [0] * (longest - length) for length in lengths])
    choices = len(examples[0].sequences)
    if choices > 1:
        batch = {name: values.unflatten(0, (-1, choices)) for name, values in batch.items()}
    if examples[0].words:
        batch["word_spans"] = torch.tensor([example.words for example in examples])
    return batch


def split_batch(batch: list[int], parts: int) -> Iterator[list[int]]:
    """A batch in at most `parts` consecutive parts of nearly equal size."""
    return _batches(batch, -(-len(batch) // parts))


def _batches(indices: list[int], size: int) -> Iterator[list[int]]:
    """Consecutive parts of `size` indices; the last may be smaller."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
