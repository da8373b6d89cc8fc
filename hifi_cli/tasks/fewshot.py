"""Few-shot splits (HiFi, section 4.1): per class k rows for training, k others for validation."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hifi_cli.errors import UsageError
from hifi_cli.files import digest
from hifi_cli.results.record import FewShotRows
from hifi_cli.tasks.task_spec import Row, TaskSpec


@dataclass(frozen=True)
class FewShotSplit:
    """The rows of a few-shot run, sampled from the official train split.

    Attributes:
        train: k rows of each class, for training.
        dev: k other rows of each class, which select the best epoch.
    """

    train: list[Row]
    dev: list[Row]

    def record(self) -> FewShotRows:
        """Return the row ids, and a SHA-256 over ids, texts and labels."""
        content = [[row.id, row.sequences, row.label] for row in (*self.train, *self.dev)]
        train, dev = ([row.id for row in rows] for rows in (self.train, self.dev))
        return FewShotRows(train=train, dev=dev, sha256=digest(content, 64))


def check_supported(spec: TaskSpec) -> None:
    """Raise UsageError if the task has no classes to sample from."""
    if not spec.classes or spec.format == "record":
        raise UsageError(f"task {spec.label} has no few-shot setting: shots are counted per class, and it predicts none")


def sample(spec: TaskSpec, rows: Sequence[Row], shots: int, seed: int) -> FewShotSplit:
    """Shuffle all rows; of each class the first `shots` rows are train, the next `shots` rows are dev.

    A row of several classes (multi-label; a sentence with entities of several types) is used if any
    of them still lacks rows: a class may get more than `shots`, none gets fewer. A row of no class
    is not used.

    The shuffle sorts by SHA-256 of seed and row number, so that it depends on no library's random
    generator.

    Raises:
        UsageError: the task has no classes, or a class has too few rows.
    """
    check_supported(spec)
    shuffled = sorted(range(len(rows)), key=lambda number: hashlib.sha256(f"{seed}:{number}".encode()).digest())
    splits: list[list[Row]] = [[], []]  # train, dev
    counts: list[Counter[int]] = [Counter(), Counter()]  # rows of each class in them
    for number in shuffled:
        classes = spec.classes_of(rows[number])
        for split, count in zip(splits, counts, strict=True):
            if any(count[index] < shots for index in classes):
                split.append(rows[number])
                count.update(classes)
                break
    for index, label in enumerate(spec.classes):
        if min(count[index] for count in counts) < shots:
            in_all = sum(index in spec.classes_of(row) for row in rows)
            raise UsageError(
                f"task {spec.label} has {in_all} training rows of '{label}';"
                f" {shots} shots require {2 * shots}, half for training and half for validation"
            )
    return FewShotSplit(*splits)
