"""Load a task's rows: the demo data, files in the layout of the official download, or the hub."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.digest_cache import remembered
from hifi_cli.digests import digest
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.hub import (
    check_is_available,
    has_copy_of_dataset,
    resolve_commit,
    unavailable_error,
)
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.file_formats import FORMATS, read
from hifi_cli.tasks.readers.parquet import class_names_of, with_class_names
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.source_rows import SourceRow
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

# The folders of the downloads, in which the folders of tasks are.
PARENTS = (".", "glue", "glue_data", "superglue", "super_glue", "SuperGLUE")
# The hub's conversion of repositories that are scripts.
PARQUET_REVISION = "refs/convert/parquet"


def load(
    spec: TaskSpec, *, data_dir: Path | None, required: Iterable[Split] = REQUIRED_SPLITS
) -> TaskData:
    """Load a task's rows: the demo's, from `data_dir`, or from the hub when no directory is given.

    Args:
        spec: the task.
        data_dir: the directory of the benchmarks' files.
        required: the splits that must be there.

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
    _warn_of_other_counts(spec, data)
    for split, name in spec.validation_of.items():
        other = _load_validation_of(name, data_dir)
        data = data.with_split(split, other.rows("validation"), other.fingerprint["validation"])
    if spec.cut and "train" in data.splits:
        data = _cut(data, spec.cut)
    for split in required:
        if split not in data.splits:
            there = ", ".join(data.splits) or "none"
            raise MissingError(
                f"{spec.label}: the data have no {split} split; the splits are {there}"
                " (`hifi ls TASK` lists the files of each)"
            )
    _warn_of_shared_texts(spec, data)
    _warn_of_absent_classes(spec, data)
    return data


def check_is_here(spec: TaskSpec, data_dir: Path | None, *, asks_hub: bool = False) -> None:
    """Refuse a task whose rows are not on this machine, and cannot come from the hub.

    Args:
        spec: the task.
        data_dir: the directory of the benchmarks' files.
        asks_hub: whether the hub is asked for what is not here.

    Raises:
        MissingError: no split of it is here, nor on the hub.
    """
    has_directory = find_directory(spec, data_dir) is not None
    if has_directory:
        _files_read(spec, data_dir)
    elif spec.hub and not has_copy_of_dataset(spec.hub.id):
        check_is_available("dataset", spec.hub.id, spec.hub.revision, asks=asks_hub)


def _warn_of_other_counts(spec: TaskSpec, data: TaskData) -> None:
    """Warn of splits that have another number of rows than the official ones."""
    for split, official in spec.rows.items():
        count = spec.count(data.splits.get(split, []))
        # A split that is not here is another matter.
        if count not in (0, official):
            logger.warning(
                f"warning: {spec.label}: {count} rows, the official {split} split has {official}"
                f" ({count - official:+d})"
            )


def _load_validation_of(name: str, data_dir: Path | None) -> TaskData:
    """Load the validation rows of a task, and of its files no others."""
    task = task_spec.load(name)
    files = {"validation": task.local.files["validation"]}
    local = task.local.model_copy(update={"files": files})
    task = task.model_copy(update={"local": local})
    return load(task, data_dir=data_dir, required=["validation"])


def fingerprint_of_files(
    spec: TaskSpec, data_dir: Path | None, load_data: Callable[[], TaskData]
) -> dict[Split, str] | None:
    """Return the digests of a task's rows, as `TaskData.fingerprint`; None if no files of it are here.

    Rows that were read before, from files that have not changed since, are not read again.

    Args:
        spec: the task.
        data_dir: the directory of the benchmarks' files.
        load_data: reads the rows.
    """
    try:
        files = _files_read(spec, data_dir)
    except MissingError:
        return None
    if not files:
        return None
    # The code that reads decides too.
    code = sorted(Path(__file__).parent.rglob("*.py"))
    what = f"rows {spec.model_dump_json()}"
    found: dict[Split, str] = remembered(what, [*files, *code], lambda: load_data().fingerprint)
    return found


def _files_read(spec: TaskSpec, data_dir: Path | None) -> list[Path]:
    """Return the files that `load` reads for a task; none if its rows come from the hub.

    Raises:
        MissingError: there are none.
    """
    directory = find_directory(spec, data_dir)
    if not directory:
        return []
    files = list(_files(spec.local, directory).values())
    for name in spec.validation_of.values():
        other = task_spec.load(name)
        files += _files_read(other, data_dir)
    return files


def _warn_of_shared_texts(spec: TaskSpec, data: TaskData) -> None:
    """Warn where rows to validate on are rows to train on.

    Some benchmarks' splits share a few texts as they are, so that equal files alone are a mistake.
    """
    train = data.splits.get("train", [])
    validation = data.splits.get("validation", [])
    has_equal_digests = data.fingerprint.get("train") == data.fingerprint.get("validation")
    is_equal = bool(train) and has_equal_digests
    is_of_benchmark = bool(spec.rows)
    if is_of_benchmark and not is_equal:
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


def _warn_of_absent_classes(spec: TaskSpec, data: TaskData) -> None:
    """Name the classes of a user's own data that no row to train on has, or none to validate on.

    A mean over classes (`f1_macro`) is one over the classes that rows or predictions have. It is
    therefore higher where a class is absent that no model predicts well.
    """
    is_of_benchmark = bool(spec.rows)
    if is_of_benchmark:
        return
    consequences = {
        "train": "no model learns it",
        "validation": "no score is about it, and f1_macro leaves it out",
    }
    for split, consequence in consequences.items():
        present = {row.label for row in data.splits.get(split, [])}
        absent = [name for index, name in enumerate(spec.classes) if index not in present]
        if present and absent:
            logger.warning(
                f"note: {spec.label}: no {split} row has the label {abbreviate(absent)}: {consequence}"
            )


def count_rows(names: Iterable[str], *, data_dir: Path | None) -> dict[str, dict[str, int]]:
    """Count the rows of each split that is here; nothing is downloaded for a count.

    Args:
        names: of the tasks.
        data_dir: the directory of the benchmarks' files.

    Returns:
        The number of rows of each split, by the task's name; without tasks whose rows are not here.

    Raises:
        MissingError: there is no such directory.
        UsageError: the data do not fit the task.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise _no_directory_error(data_dir)
    counts: dict[str, dict[str, int]] = {}
    for name in names:
        task = task_spec.load(name).model_copy(update={"hub": None})
        try:
            data = load(task, data_dir=data_dir, required=())
        except MissingError:
            continue
        counts[name] = {split: task.count(rows) for split, rows in data.splits.items()}
    return counts


def demo_directory() -> Path:
    """Return where the demo data are: `scripts/make_demo_data.py` generated them."""
    return registry.configs_directory() / "tasks" / "demo"


def find_directory(spec: TaskSpec, data_dir: Path | None) -> Path | None:
    """Return the directory of the task's files; None if they come from the hub."""
    if spec.local.generated:
        return demo_directory()
    if spec.local.directory and Path(spec.local.directory).is_dir():
        return Path(spec.local.directory)
    if spec.hub and not spec.local.files:
        return None
    return data_dir


# --- files


def _load_files(spec: TaskSpec, directory: Path) -> TaskData:
    """Load every split that has a file."""
    files = _files(spec.local, directory)
    splits: dict[Split, list[Row]] = {}
    for split, path in files.items():
        labelled = is_labelled(split)
        reader = spec.local.readers.get(split, spec.local.reader)
        header = spec.local.header
        if not labelled and not FORMATS[reader].numbers_columns:
            # Test files have a header line, although those of CoLA with labels have none.
            header = None
        records = read(path, reader, header, quotes=bool(spec.local.quotes))
        # A file may hold the rows of several splits.
        of_split = _with_values(records, spec.local.only.get(split, {}))
        splits[split] = parse_rows(spec, of_split, spec.local, str(path), labelled=labelled)
    for split, names in spec.local.files.items():
        if split not in files and is_labelled(split):
            file = os.path.normpath(Path(spec.local.folder, names[0]))
            logger.warning(f"note: no file {file}; the {split} split is missing")
    digests = {split: rows_digest(rows) for split, rows in splits.items()}
    origin = {split: str(path) for split, path in files.items()}
    return TaskData(splits, digests, origin)


def _with_values(records: Iterable[SourceRow], wanted: dict[str, str]) -> Iterator[SourceRow]:
    """Yield the records that have the wanted value in each column."""
    for record in records:
        if wanted.items() <= record.values.items():
            yield record


def _files(local: LocalFiles, directory: Path) -> dict[Split, Path]:
    """Find the file of each split, in the task's folder.

    The folder is the directory itself, or in it, or in a benchmark's folder in it. The first folder
    that has one of the task's files is taken: GLUE and SuperGLUE both have a folder RTE.

    Raises:
        MissingError: there is none.
    """
    folders = [directory / parent / local.folder for parent in PARENTS]
    if directory.name == local.folder:
        folders.insert(0, directory)
    for folder in folders:
        found = {}
        for split, names in local.files.items():
            existing = [folder / name for name in names if (folder / name).is_file()]
            if existing:
                found[split] = existing[0]
        if found:
            return found
    if not directory.is_dir():
        raise _no_directory_error(directory)
    files = abbreviate([names[0] for names in local.files.values()])
    raise MissingError(
        f"no folder {local.folder} with {files} in {directory}, nor in its subfolders"
        f" {', '.join(PARENTS[1:])}"
    )


def _no_directory_error(directory: Path) -> MissingError:
    """Return the error for a directory of data that is not there."""
    return MissingError(f"there is no directory {directory} (--data-dir)")


# --- the hub


def _load_hub(spec: TaskSpec, hub: HubDataset) -> TaskData:
    """Load every split of a repository."""
    splits: dict[Split, list[Row]] = {}
    load_once = cache(load_tables)
    for split, name in hub.splits.items():
        # `CONFIG/SPLIT` is a split of another configuration of the repository.
        config, _, hub_split = name.rpartition("/")
        tables, commit = load_once(hub.id, hub.revision, config or hub.config)
        labelled = is_labelled(split)
        if hub_split in tables:
            records = hub_records(tables[hub_split])
            origin = f"{hub.id}, {hub_split}"
            splits[split] = parse_rows(spec, records, hub, origin, labelled=labelled)
        elif labelled:
            raise UsageError(
                f"{hub.id} has no split '{hub_split}'; the splits are {', '.join(tables)}"
            )
    digests = {split: rows_digest(rows) for split, rows in splits.items()}
    source = {"hub": hub.id, "config": hub.config or "", "commit": commit or ""}
    return TaskData(splits, digests, source)


def load_tables(id: str, revision: str | None, config: str | None) -> tuple[Any, str | None]:  # noqa: A002
    """Return the splits of a repository's configuration, and the commit.

    Args:
        id: of the repository, or a local copy's directory.
        revision: branch, tag or commit.
        config: configuration of the repository.

    Raises:
        MissingError: neither the hub nor the local cache has the repository.
    """
    # The library takes a second to import.
    import datasets

    datasets.disable_progress_bars()
    commit = resolve_commit("dataset", id, revision)
    names = {"name": config}
    if revision == PARQUET_REVISION:
        # The hub's conversion has a folder for each configuration.
        names = {"data_dir": config}
    try:
        return datasets.load_dataset(id, revision=commit or revision, **names), commit
    except (OSError, ValueError, RuntimeError) as error:
        raise unavailable_error("dataset", id, error) from None


def hub_records(table: Any) -> Iterator[SourceRow]:
    """Yield the rows of a hub table, with class names for class indices; -1 is a hidden label."""
    names_of = class_names_of(table.features)
    for index, values in enumerate(table):
        yield SourceRow(with_class_names(values, names_of), f"row {index}")


# --- samples

# Fewer validation rows are said to be few.
_FEW_ROWS = 30


def _shuffled(rows: Sequence[Row], seed: int) -> list[int]:
    """Return the indices of rows, sorted by SHA-256 of seed and index: no library's generator decides."""

    def digest_of(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{index}".encode()).digest()

    return sorted(range(len(rows)), key=digest_of)


def _cut(data: TaskData, cut: Cut) -> TaskData:
    """Cut the validation split off the train split.

    The shuffled rows are sorted by label; every (1 / fraction)th is cut off. Each label's number of
    rows, or each range of numbers, thereby has the same fraction within one row. A row with the
    same texts as an earlier one, or of the same group, is on the side of that one.

    Raises:
        UsageError: there are too few rows.
    """
    train = data.rows("train")
    kept, validation = _split_rows(train, cut)
    origin = data.origin.get("train", "the data")
    if not kept or not validation:
        texts = len({row.sequences for row in train})
        raise UsageError(
            f"{origin}: too few different texts ({texts}) to cut off {cut.validation:g} of the rows"
            " as a validation split; give a file with validation=FILE, or a fraction that leaves"
            " rows on both sides, such as validation=0.5"
        )
    warning = ""
    if len(validation) < _FEW_ROWS:
        warning = (
            f"; warning: one validation row is {100 / len(validation):.3g} % of them; give"
            " validation=FILE or a larger fraction"
        )
    logger.info(
        f"{Path(origin).name}: {len(train)} rows: {len(kept)} train,"
        f" {len(validation)} validation{warning}"
    )
    data = data.with_split("train", kept, rows_digest(kept))
    return data.with_split("validation", validation, rows_digest(validation))


def _split_rows(train: Sequence[Row], cut: Cut) -> tuple[list[Row], list[Row]]:
    """Return the rows that are kept, and those that are cut off; see `_cut`."""
    # Rows of a group, and rows with the same texts, stay on one side: metrics are about whole groups,
    # and a model would know the texts.
    units = [row.group or row.sequences for row in train]
    # The first row of each unit.
    first_with: dict[Any, int] = {}
    for index, unit in enumerate(units):
        first_with.setdefault(unit, index)
    distinct = [index for index in _shuffled(train, cut.seed) if first_with[units[index]] == index]
    by_label = distinct
    # Rows with answers have no label, and stay in the shuffled order.
    if train[0].label is not None:
        by_label = sorted(distinct, key=lambda index: train[index].label)  # type: ignore[arg-type, return-value]
    cut_off = set()
    for at, index in enumerate(by_label):
        # The row at which the running total of the fraction reaches the next whole number.
        if int((at + 1) * cut.validation) > int(at * cut.validation):
            cut_off.add(index)
    kept = []
    validation = []
    for row, unit in zip(train, units, strict=True):
        if first_with[unit] in cut_off:
            validation.append(row)
        else:
            kept.append(row)
    return kept, validation


def few_shot_sample(
    spec: TaskSpec, rows: Sequence[Row], shots: int, seed: int
) -> tuple[list[Row], list[Row]]:
    """Draw the rows of a few-shot run (HiFi, section 4.1).

    All rows are shuffled; of each class the first `shots` rows are train, the next `shots` dev.

    Args:
        spec: the task, whose rows have classes.
        rows: of the train split.
        shots: rows per class.
        seed: of the shuffling.

    Returns:
        The rows of train and of dev.

    Raises:
        UsageError: a class has too few rows.
    """
    rows_of: Counter[Any] = Counter(row.label for row in rows)
    for index, label in enumerate(spec.classes):
        count = rows_of[index]
        if count < 2 * shots:
            raise UsageError(
                f"task {spec.label} has {count} training rows of '{label}';"
                f" {shots} shots require {2 * shots}, half for training and half for validation"
            )
    # The first rows of each class in the shuffled order, as they come.
    train = []
    dev = []
    drawn: Counter[Any] = Counter()
    for index in _shuffled(rows, seed):
        row = rows[index]
        if drawn[row.label] < shots:
            train.append(row)
        elif drawn[row.label] < 2 * shots:
            dev.append(row)
        drawn[row.label] += 1
    return train, dev


def few_shot_rows(train: Sequence[Row], dev: Sequence[Row]) -> dict[str, Any]:
    """Return the ids of a few-shot run's rows, and a SHA-256 over ids, texts and labels."""
    contents = [[row.id, row.sequences, row.label] for row in (*train, *dev)]
    return {
        "train": [row.id for row in train],
        "dev": [row.id for row in dev],
        "sha256": digest(contents, 64),
    }
