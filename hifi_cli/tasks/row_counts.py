"""Count the rows of each task's splits, next to the official counts."""

from collections.abc import Iterable
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.tasks import data_sources, task_spec
from hifi_cli.tasks.task_spec import TaskData


def collect(names: Iterable[str], *, data_dir: Path | None) -> dict[str, dict[str, tuple[int | None, int | None]]]:
    """Count the rows of each split of the named tasks, here and in the official release; None where they are not known.

    Raises:
        UsageError: the data do not fit the task.
    """
    counts = {}
    for name in names:
        task = task_spec.load(name)
        try:
            data = data_sources.load(task, data_dir=data_dir, required=())
        except MissingError:
            data = TaskData({}, {}, {})
        splits = dict.fromkeys([*task.local.files, *data.splits])
        rows = {split: task.count(data.splits[split]) if split in data.splits else None for split in splits}
        counts[name] = {split: (rows[split], task.rows.get(split)) for split in splits}
    return counts
