"""Rows of each task as they were read, beside the official counts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.tasks import inputs, task_spec
from hifi_cli.tasks.task_spec import Dataset, Split, TaskSpec


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


def collect(names: Iterable[str], *, data_dir: Path | None, results_dir: Path) -> dict[str, list[SplitCount]]:
    """The splits of every named task; a task whose data are not at hand has None for its rows.

    Raises:
        UsageError: a task's data do not fit it.
    """
    found = {}
    for name in names:
        task = task_spec.load(name)
        try:
            data = inputs.load_rows(task, data_dir=data_dir, results_dir=results_dir, needed=())
        except MissingError:
            data = Dataset({}, {}, {})
        found[name] = count(task, data)
    return found


def count(task: TaskSpec, data: Dataset) -> list[SplitCount]:
    """The splits a task names, in its YAML's order."""
    return [_count(task, split, data) for split in task.local.files]


def _count(task: TaskSpec, split: Split, data: Dataset) -> SplitCount:
    rows = data.splits.get(split)
    classes = task.kind in ("classification", "multiple-choice")
    found = Counter(row.label for row in rows or [] if row.label is not None and classes)
    labels = {task.labels[int(label)]: number for label, number in sorted(found.items())}
    return SplitCount(split, None if rows is None else len(rows), task.rows.get(split), labels)
