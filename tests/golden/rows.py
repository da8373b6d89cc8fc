"""Digests of the rows of every official data file, as the program reads them: the only file here that looks inside the program."""

import contextlib
from pathlib import Path
from typing import Any

from commands import digest


def rows_of(data_dir: Path) -> dict[str, dict[str, list[Any]]]:
    """The rows of each split of each task that has files: id, texts, label, spans, answers, group, candidate."""
    from hifi_cli.config import registry
    from hifi_cli.errors import MissingError
    from hifi_cli.tasks import sources as task_sources
    from hifi_cli.tasks import task_spec

    found = {}
    for name in registry.names("tasks"):
        task = task_spec.load(name)
        if task.local.generated or task.local.directory:
            continue
        with contextlib.suppress(MissingError):
            splits = task_sources.load(task, data_dir=data_dir, required=()).splits
            found[name] = {
                split: [_plain(row, task.labels) for row in rows] for split, rows in splits.items()
            }
    return found


def _plain(row: Any, labels: list[str]) -> list[Any]:
    """A row as lists; a class as its word."""
    label = labels[row.label] if isinstance(row.label, int) and labels else row.label
    return [row.id, row.sequences, label, row.word_spans, row.answers, row.group, row.candidate]


def digests(data_dir: Path) -> dict[str, dict[str, Any]]:
    """By task and split: the number of rows and the SHA-256 of their content."""
    return {
        task: {split: {"rows": len(rows), "sha256": digest(rows)} for split, rows in splits.items()}
        for task, splits in rows_of(data_dir).items()
        if splits
    }
