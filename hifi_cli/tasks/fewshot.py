"""Few-shot (HiFi, section 4.3): k rows of each class to train on and k others to choose by, the same on every machine."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import digest
from hifi_cli.tasks.task_spec import Row, TaskSpec


@dataclass(frozen=True)
class FewShotSplit:
    """The rows of a few-shot run, drawn from the official train split.

    Attributes:
        train: k rows of each class.
        dev: k others of each class.
    """

    train: list[Row]
    dev: list[Row]

    def record(self) -> dict[str, Any]:
        """The ids, and a SHA-256 over ids, texts and labels, by which two samples can be compared."""
        parts = {"train": self.train, "dev": self.dev}
        content = [[row.id, row.sequences, row.label] for rows in parts.values() for row in rows]
        return {**{name: [row.id for row in rows] for name, rows in parts.items()}, "sha256": digest(content, 64)}


def refuse(spec: TaskSpec) -> None:
    """Raise UsageError for a task that has no classes to draw from."""
    if spec.kind in ("regression", "span"):
        what = "a number" if spec.kind == "regression" else "a part of the text"
        raise UsageError(f"task {spec.label} has no few-shot setting: it predicts {what}, and shots are counted per class")


def sample(spec: TaskSpec, rows: Sequence[Row], shots: int, seed: int) -> FewShotSplit:
    """One seeded shuffle of all rows; of each label the first `shots` are train, the next `shots` are dev.

    The order is that of SHA-256 over seed and row number, so neither a library's nor Python's generator decides.

    Raises:
        UsageError: the task has no classes, or one of them has too few rows.
    """
    refuse(spec)
    of_label: dict[Any, list[Row]] = defaultdict(list)
    shuffled = sorted(range(len(rows)), key=lambda number: hashlib.sha256(f"{seed}:{number}".encode()).digest())
    parts: tuple[list[Row], list[Row]] = ([], [])
    for number in shuffled:
        taken = of_label[rows[number].label]
        if len(taken) < 2 * shots:
            parts[len(taken) >= shots].append(rows[number])
            taken.append(rows[number])
    for index, label in enumerate(spec.labels):
        if len(of_label[index]) < 2 * shots:
            raise UsageError(
                f"task {spec.label} has {len(of_label[index])} training rows of '{label}';"
                f" {shots} shots want {2 * shots}, half to train on and half to choose by"
            )
    return FewShotSplit(*parts)
