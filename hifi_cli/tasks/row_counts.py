"""Count the rows of each task's splits, next to the official counts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.tasks import data_sources, task_spec
from hifi_cli.tasks.task_spec import Split, TaskData, TaskSpec


@dataclass(frozen=True)
class SplitCount:
    """The row counts of one split.

    Attributes:
        split: name of the split.
        rows: rows in the data; None if the split is missing.
        official: rows of the official release; None if unknown.
        labels: rows of each class; empty for an unlabelled split and for tasks without classes.
    """

    split: Split
    rows: int | None
    official: int | None
    labels: dict[str, int]


def collect(names: Iterable[str], *, data_dir: Path | None, results_dir: Path) -> dict[str, list[SplitCount]]:
    """Count the rows of every named task; the counts of a task without data are None.

    Raises:
        UsageError: the data do not fit the task.
    """
    counts = {}
    for name in names:
        task = task_spec.load(name)
        try:
            data = data_sources.load(task, data_dir=data_dir, results_dir=results_dir, required=())
        except MissingError:
            data = TaskData({}, {}, {})
        counts[name] = count(task, data)
    return counts


def count(task: TaskSpec, data: TaskData) -> list[SplitCount]:
    """Count the rows of a task's splits, in the order of its YAML."""
    return [_count_split(task, split, data) for split in dict.fromkeys([*task.local.files, *data.splits])]


def _count_split(task: TaskSpec, split: Split, data: TaskData) -> SplitCount:
    rows = data.splits.get(split)
    counter = Counter(index for row in rows or [] for index in task.classes_of(row))
    labels = {task.classes[index]: number for index, number in sorted(counter.items())}
    return SplitCount(split, None if rows is None else task.count(rows), task.rows.get(split), labels)
