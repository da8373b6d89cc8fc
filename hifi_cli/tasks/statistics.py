"""Rows of each task as they were read, beside the official counts."""

from collections import Counter
from dataclasses import dataclass

from hifi_cli.tasks.spec import Dataset, Split, TaskSpec


@dataclass(frozen=True)
class SplitCount:
    """A split at hand.

    Attributes:
        rows: rows at hand; None when the split is not there.
        official: rows of the official release; None when it is not known.
        labels: rows of each label; empty for an unlabelled split, and where there are no classes.
    """

    split: Split
    rows: int | None
    official: int | None
    labels: dict[str, int]


def count(spec: TaskSpec, data: Dataset) -> list[SplitCount]:
    """The splits a task names, in its YAML's order."""
    return [_count(spec, split, data) for split in spec.local.files]


def _count(spec: TaskSpec, split: Split, data: Dataset) -> SplitCount:
    rows = data.splits.get(split)
    classes = spec.kind in ("classification", "multiple-choice")
    found = Counter(row.label for row in rows or [] if row.label is not None and classes)
    labels = {spec.labels[int(label)]: number for label, number in sorted(found.items())}
    return SplitCount(split, None if rows is None else len(rows), spec.rows.get(split), labels)
