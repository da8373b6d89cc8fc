"""Batches of examples of similar length, and their results in the order of the examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hifi_cli.tasks.encode import evaluation_order
from hifi_cli.tasks.task_spec import EncodedExample

Result = TypeVar("Result")


@dataclass(frozen=True)
class NumberedBatch:
    """Some examples, and their numbers among all.

    Attributes:
        numbers: the place of each example in the list that the batches are made of.
        examples: the examples, in the same order.
    """

    numbers: list[int]
    examples: list[EncodedExample]


def batches_by_length(examples: Sequence[EncodedExample], size: int) -> list[NumberedBatch]:
    """Cut examples into batches of similar length, so that little is padded.

    The longest come first: a batch that does not fit in memory fails at once.

    Args:
        examples: in any order.
        size: examples of a batch; the last one may have fewer.
    """
    batches = []
    for numbers in evaluation_order(examples, size):
        of_batch = [examples[number] for number in numbers]
        batches.append(NumberedBatch(numbers, of_batch))
    return batches


def in_order(batches: Sequence[NumberedBatch], results: Iterable[Iterable[Result]]) -> list[Result]:
    """Return a result of each example, in the order of the examples that the batches are made of.

    Args:
        batches: all batches of the examples.
        results: for each batch, a result of each of its examples.
    """
    by_number: dict[int, Result] = {}
    for batch, of_batch in zip(batches, results, strict=True):
        by_number.update(zip(batch.numbers, of_batch, strict=True))
    return [by_number[number] for number in range(len(by_number))]
