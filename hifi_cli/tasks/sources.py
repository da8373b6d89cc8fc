"""Load a task's rows: the demo data, files in the layout of the official download, or the hub."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.files import digest, remembered
from hifi_cli.hub import resolve_commit, unavailable_error
from hifi_cli.tasks import kinds, task_spec
from hifi_cli.tasks import rows as rows_module
from hifi_cli.tasks.file_formats import SourceRow, class_names, read, with_class_names
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.task_spec import (
    REQUIRED_SPLITS,
    Cut,
    HubDataset,
    LocalFiles,
    Row,
    Split,
    TaskData,
    TaskSpec,
    is_labelled,
    rows_digest,
    rows_with_texts_of,
)
from hifi_cli.text import abbreviate

PARENTS = (".", "glue", "glue_data", "superglue", "super_glue", "SuperGLUE")  # of the downloads
PARQUET_REVISION = "refs/convert/parquet"  # the hub's conversion of script repositories


def load(
    spec: TaskSpec, *, data_dir: Path | None, required: Iterable[Split] = REQUIRED_SPLITS
) -> TaskData:
    """Load a task's rows: the demo's, from `data_dir`, or from the hub when no directory is given.

    Raises:
        MissingError: the source is missing, or a `required` split is.
        UsageError: the rows do not fit the task.
    """
    directory = find_directory(spec, data_dir)
    if directory:
        data = _load_files(spec, directory)
    elif spec.hub:
        data = _load_hub(spec, spec.hub)
    else:
        raise MissingError(
            f"{spec.local.directory or spec.label} is neither here nor on the hub: give --data-dir"
        )
    for split, official in spec.rows.items():
        count = spec.count(data.splits.get(split, []))
        if count not in (0, official):
            logger.warning(
                f"warning: {spec.label}: {count} rows, the official {split} split has {official}"
                f" ({count - official:+d})"
            )
    for split, name in spec.validation_of.items():
        task = task_spec.load(name)
        validation = {"files": {"validation": task.local.files["validation"]}}
        task = task.model_copy(update={"local": task.local.model_copy(update=validation)})
        other = load(task, data_dir=data_dir, required=["validation"])
        data.splits[split] = other.rows("validation")
        data.fingerprint[split] = other.fingerprint["validation"]
    if spec.cut and "train" in data.splits:
        data = _cut(data, spec.cut)
    for split in required:
        data.rows(split)
    _warn_of_shared_texts(spec, data)
    return data


def fingerprint_of_files(
    spec: TaskSpec, data_dir: Path | None, load_data: Callable[[], TaskData]
) -> dict[Split, str] | None:
    """Return the digests of a task's rows, as `TaskData.fingerprint`; None if no files of it are here.

    Rows that were read before, from files that have not changed since, are not read again.

    Args:
        load_data: reads the rows.
    """
    try:
        files = _files_read(spec, data_dir)
    except MissingError:
        return None
    if not files:
        return None
    # The code that reads decides too.
    readers = [Path(module.__file__ or "") for module in (rows_module, kinds, task_spec)]
    what = f"rows {spec.model_dump_json()}"
    found: dict[Split, str] = remembered(
        what, [*files, *readers, Path(__file__)], lambda: load_data().fingerprint
    )
    return found


def _files_read(spec: TaskSpec, data_dir: Path | None) -> list[Path]:
    """Return the files that `load` reads for a task; none if its rows come from the hub.

    Raises:
        MissingError: there are none.
    """
    directory = find_directory(spec, data_dir)
    if not directory:
        return []
    files = [*_files(spec.local, directory).values()]
    for name in spec.validation_of.values():
        other = task_spec.load(name)
        files += _files_read(other, data_dir)
    return files


def _warn_of_shared_texts(spec: TaskSpec, data: TaskData) -> None:
    """Say where rows to validate on are rows to train on.

    Of a benchmark's data only equal files are said: some of them share a few texts as they are.
    """
    train, validation = data.splits.get("train", []), data.splits.get("validation", [])
    digests = [data.fingerprint.get(split) for split in ("train", "validation")]
    is_equal = bool(train) and digests[0] == digests[1]
    if spec.rows and not is_equal:
        return
    shared = rows_with_texts_of(validation, train)
    if is_equal or (validation and shared == len(validation)):
        logger.warning(
            f"warning: {spec.label}: every validation row has the texts of a train row: the scores"
            " say nothing about new texts; give other rows with validation=FILE"
        )
    elif shared:
        logger.warning(
            f"note: {spec.label}: {shared:,} of {len(validation):,} validation rows have the texts of"
            " a train row"
        )


def count_rows(names: Iterable[str], *, data_dir: Path | None) -> dict[str, dict[str, int]]:
    """Count the rows of each split that is here, of `data_dir` or of the task itself; nothing is downloaded for a count.

    Raises:
        UsageError: the data do not fit the task.
    """
    counts: dict[str, dict[str, int]] = {}
    for name in names:
        task = task_spec.load(name).model_copy(update={"hub": None})
        with suppress(MissingError):
            splits = load(task, data_dir=data_dir, required=()).splits
            counts[name] = {split: task.count(rows) for split, rows in splits.items()}
    return counts


def demo_directory() -> Path:
    """Where the demo data are: `scripts/make_demo_data.py` generated them."""
    return registry.configs_directory() / "tasks" / "demo"


def find_directory(spec: TaskSpec, data_dir: Path | None) -> Path | None:
    """Return the directory of the task's files; None if they come from the hub."""
    if spec.local.generated:
        return demo_directory()
    if spec.local.directory and Path(spec.local.directory).is_dir():
        return Path(spec.local.directory)
    return data_dir if spec.local.files or not spec.hub else None


# Files


def _load_files(spec: TaskSpec, directory: Path) -> TaskData:
    """Load every split that has a file."""
    files = _files(spec.local, directory)
    splits: dict[Split, list[Row]] = {}
    for split, path in files.items():
        labelled = is_labelled(split)
        # test files of TSV have a header line, although those of CoLA with labels have none
        reader = spec.local.readers.get(split, spec.local.reader)
        has_names = labelled or reader == "conll"
        header = spec.local.header if has_names else None
        records = read(path, reader, header, quotes=spec.local.quotes)
        wanted = spec.local.only.get(split, {}).items()
        own = (record for record in records if wanted <= record.values.items())
        splits[split] = parse_rows(spec, own, spec.local, str(path), labelled=labelled)
    for split, names in spec.local.files.items():
        if split not in files and is_labelled(split):
            file = os.path.normpath(Path(spec.local.folder, names[0]))
            logger.warning(f"note: no file {file}; the {split} split is missing")
    digests = {split: rows_digest(rows) for split, rows in splits.items()}
    return TaskData(splits, digests, {split: str(path) for split, path in files.items()})


def _files(local: LocalFiles, directory: Path) -> dict[Split, Path]:
    """Find the file of each split, in the task's folder.

    The folder is the directory itself, or in it, or in a benchmark's folder in it.

    Of several the first one that has one of the task's files: GLUE and SuperGLUE both have a folder
    RTE.

    Raises:
        MissingError: there is none.
    """
    folders = [directory] if directory.name == local.folder else []
    folders += [directory / parent / local.folder for parent in PARENTS]
    for folder in folders:
        found = {
            split: [folder / name for name in names if (folder / name).is_file()]
            for split, names in local.files.items()
        }
        if any(found.values()):
            return {split: paths[0] for split, paths in found.items() if paths}
    files = abbreviate([names[0] for names in local.files.values()])
    raise MissingError(
        f"no folder {local.folder} with {files} in {directory}, nor in its subfolders {', '.join(PARENTS[1:])}"
        if directory.is_dir()
        else f"there is no directory {directory} (--data-dir)"
    )


# The hub


def _load_hub(spec: TaskSpec, hub: HubDataset) -> TaskData:
    """Load every split of a repository."""
    splits: dict[Split, list[Row]] = {}
    load_once = cache(load_tables)
    for split, name in hub.splits.items():
        config, _, hub_split = name.rpartition("/")
        tables, commit = load_once(hub.id, hub.revision, config or hub.config)
        labelled = is_labelled(split)
        if hub_split in tables:
            records, origin = hub_records(tables[hub_split]), f"{hub.id}, {hub_split}"
            splits[split] = parse_rows(spec, records, hub, origin, labelled=labelled)
        elif labelled:
            raise UsageError(
                f"{hub.id} has no split '{hub_split}'; the splits are {', '.join(tables)}"
            )
    digests = {split: rows_digest(rows) for split, rows in splits.items()}
    return TaskData(
        splits, digests, {"hub": hub.id, "config": hub.config or "", "commit": commit or ""}
    )


def load_tables(id: str, revision: str | None, config: str | None) -> tuple[Any, str | None]:  # noqa: A002
    """Return the splits of a repository's configuration, and the commit.

    Raises:
        MissingError: neither the hub nor the local cache has the repository.
    """
    import datasets  # takes a second

    datasets.disable_progress_bars()
    commit = resolve_commit("dataset", id, revision)
    # the hub's conversion has a folder for each configuration
    names = {"data_dir" if revision == PARQUET_REVISION else "name": config}
    try:
        return datasets.load_dataset(id, revision=commit or revision, **names), commit
    except (OSError, ValueError, RuntimeError) as error:
        raise unavailable_error("dataset", id, error) from None


def hub_records(table: Any) -> Iterator[SourceRow]:
    """Yield the rows of a hub table, with class names for class indices; -1 is a hidden label."""
    found = {column: class_names(feature) for column, feature in table.features.items()}
    names_of = {column: names for column, names in found.items() if names}
    for index, values in enumerate(table):
        yield SourceRow(with_class_names(values, names_of), f"row {index}")


# Samples


def _shuffled(rows: Sequence[Row], seed: int) -> list[int]:
    """Sort row numbers by SHA-256 of seed and number: no library's random generator decides."""
    return sorted(
        range(len(rows)), key=lambda number: hashlib.sha256(f"{seed}:{number}".encode()).digest()
    )


def _cut(data: TaskData, cut: Cut) -> TaskData:
    """Cut the validation split off the train split.

    The shuffled rows are sorted by label; every (1 / fraction)th is cut off. Each label's number of
    rows, or each range of numbers, thereby has the same fraction within one row. A row with the
    same texts as an earlier one is on the side of that one.

    Raises:
        UsageError: there are too few rows.
    """
    train = data.rows("train")
    first = {
        row.sequences: number for number, row in reversed([*enumerate(train)])
    }  # the first row with each texts
    distinct = [at for at in _shuffled(train, cut.seed) if first[train[at].sequences] == at]
    order = sorted(distinct, key=lambda number: train[number].label)  # type: ignore[arg-type, return-value]
    cut_off = {
        number
        for at, number in enumerate(order)
        if int((at + 1) * cut.validation) > int(at * cut.validation)
    }
    parts = {
        "train": [row for row in train if first[row.sequences] not in cut_off],
        "validation": [row for row in train if first[row.sequences] in cut_off],
    }
    if not all(parts.values()):
        raise UsageError(
            f"{data.origin.get('train', 'the data')}: too few different texts ({len(order)}) to cut off a validation split;"
            " give a file with validation=FILE"
        )
    cut_rows = len(parts["validation"])
    few = f"; warning: one validation row is {100 / cut_rows:.3g} % of them; give validation=FILE or a larger fraction"
    logger.info(
        f"{Path(data.origin.get('train', 'the data')).name}: {len(train)} rows: {len(parts['train'])} train,"
        f" {cut_rows} validation{few if cut_rows < 30 else ''}"
    )
    digests = {split: rows_digest(part) for split, part in parts.items()}
    return TaskData({**data.splits, **parts}, {**data.fingerprint, **digests}, data.origin)


def few_shot_sample(
    spec: TaskSpec, rows: Sequence[Row], shots: int, seed: int
) -> tuple[list[Row], list[Row]]:
    """Shuffle all rows; of each class the first `shots` rows are train, the next `shots` rows are dev (HiFi, section 4.1).

    Raises:
        UsageError: a class has too few rows.
    """
    import pandas as pd  # a third of a second, which other runs do without

    shuffled = [rows[number] for number in _shuffled(rows, seed)]
    labels = pd.Series([row.label for row in shuffled])
    for index, label in enumerate(spec.classes):
        if (count := int((labels == index).sum())) < 2 * shots:
            raise UsageError(
                f"task {spec.label} has {count} training rows of '{label}';"
                f" {shots} shots require {2 * shots}, half for training and half for validation"
            )
    part = labels.groupby(labels).cumcount() // shots  # of each class
    train, dev = (list(compress(shuffled, part == number)) for number in (0, 1))
    return train, dev


def few_shot_rows(train: Sequence[Row], dev: Sequence[Row]) -> dict[str, Any]:
    """Return the ids of a few-shot run's rows, and a SHA-256 over ids, texts and labels."""
    return {
        "train": [row.id for row in train],
        "dev": [row.id for row in dev],
        "sha256": digest([[row.id, row.sequences, row.label] for row in (*train, *dev)], 64),
    }
