"""Load a task's rows from their source: the demo data, local files or the Hugging Face hub."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import local_files
from hifi_cli.tasks.task_spec import REQUIRED_SPLITS, Cut, Split, TaskData, TaskSpec, rows_digest


def load(spec: TaskSpec, *, data_dir: Path | None, required: Iterable[Split] = REQUIRED_SPLITS) -> TaskData:
    """Load a task's rows: the demo's, from `data_dir`, or from the hub when no directory is given.

    Raises:
        MissingError: the source is missing, or a `required` split of the local files is.
        UsageError: the rows do not fit the task.
    """
    data = _load(spec, data_dir=data_dir, required=required)
    return _cut(data, spec.cut) if spec.cut and "train" in data.splits else data


def fingerprint(spec: TaskSpec, directory: Path) -> dict[Split, str]:
    """What `load` gives as the fingerprint of a task's files in a directory; empty where they are missing or generated.

    Raises:
        UsageError: a split is cut off another, and the rows do not fit the task.
    """
    if spec.local.generated:
        return {}
    try:
        if spec.cut:
            return _cut(local_files.load(spec, directory), spec.cut).fingerprint
        return local_files.fingerprint(spec, directory)
    except MissingError:
        return {}  # another machine may have them


def _load(spec: TaskSpec, *, data_dir: Path | None, required: Iterable[Split]) -> TaskData:
    if spec.local.generated:
        directory = demo_directory()
        data = local_files.load(spec, directory)
        return replace(data, origin={split: str(Path(path).relative_to(directory)) for split, path in data.origin.items()})
    if spec.local.directory and Path(spec.local.directory).is_dir():
        return local_files.load(spec, Path(spec.local.directory), required=required)
    if data_dir and (spec.local.files or not spec.hub):  # a task made from a hub dataset names no files
        if not data_dir.is_dir():
            raise MissingError(f"--data-dir {data_dir}: no such directory")
        return local_files.load(spec, data_dir, required=required)
    if spec.hub:
        from hifi_cli.tasks import hub_dataset

        return hub_dataset.load(spec, spec.hub)
    missing = f"no directory {spec.local.directory}" if spec.local.directory else f"task {spec.label} has no hub repository"
    raise MissingError(f"{missing}: give --data-dir")


def _cut(data: TaskData, cut: Cut) -> TaskData:
    """Cut the validation split off the train split.

    The rows are sorted by label, and within a label by SHA-256 of seed and row number; every (1 / fraction)th is cut off. Each
    label's number of rows, or each range of numbers, thereby has the same fraction within one row, and no library's random
    generator decides. A row with the same texts as an earlier one is on the side of that one.

    Raises:
        UsageError: there are too few rows.
    """
    rows = data.rows("train")
    first = {row.sequences: number for number, row in reversed([*enumerate(rows)])}  # the first row with each texts
    order = sorted(
        first.values(), key=lambda number: (rows[number].label, hashlib.sha256(f"{cut.seed}:{number}".encode()).digest())
    )
    is_cut_off = {number: int((at + 1) * cut.validation) > int(at * cut.validation) for at, number in enumerate(order)}
    train = [row for row in rows if not is_cut_off[first[row.sequences]]]
    validation = [row for row in rows if is_cut_off[first[row.sequences]]]
    if not train or not validation:
        where = data.origin.get("train", "the data")
        raise UsageError(f"{where}: {len(order)} rows with different texts are too few to cut off a validation split")
    splits = {**data.splits, "train": train, "validation": validation}
    fingerprint = {**data.fingerprint, "train": rows_digest(train), "validation": rows_digest(validation)}
    return TaskData(splits, fingerprint, data.origin)


def demo_directory() -> Path:
    """Where the demo data are: `scripts/make_demo_data.py` generated them."""
    return registry.configs_directory() / "tasks" / "demo"
