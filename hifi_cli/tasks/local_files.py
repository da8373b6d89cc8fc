"""Load a task's rows from files in the layout of the official download."""

import logging
from collections.abc import Iterable
from pathlib import Path

from hifi_cli.errors import MissingError
from hifi_cli.files import file_digest
from hifi_cli.tasks import readers, row_formats
from hifi_cli.tasks.readers import RawRecord
from hifi_cli.tasks.task_spec import REQUIRED_SPLITS, Label, LocalFiles, Row, Split, TaskData, TaskSpec, is_labelled

logger = logging.getLogger("hifi")
PARENTS = (".", "glue", "glue_data", "superglue", "super_glue", "SuperGLUE")  # usual names of the downloads' root directories


def load(spec: TaskSpec, data_dir: Path, *, required: Iterable[Split] = REQUIRED_SPLITS) -> TaskData:
    """Load every split that has a file.

    Raises:
        MissingError: no such folder, or no file of a `required` split.
        UsageError: a line is invalid; the message names file and line.
    """
    folder = find_folder(spec.local, data_dir)
    splits: dict[Split, list[Row]] = {}
    origin: dict[str, str] = {}
    for split, names in spec.local.files.items():
        expected = folder / (names if isinstance(names, str) else names[0])
        path = split_file(spec.local, split, folder)
        if path:
            splits[split] = _rows(path, spec, labelled=is_labelled(split))
            origin[split] = str(path)
            warn_about_row_count(spec, split, spec.count(splits[split]), str(path))
            logger.debug(f"{path}: {len(splits[split])} rows")
        elif split in required:
            of_what = "that the task names" if spec.local.directory else "of the official download"
            raise MissingError(f"no file {expected}; the {split} split {of_what} is required")
        elif is_labelled(split):
            logger.warning(f"note: no file {expected}; the {split} split is missing")
    return TaskData(splits, fingerprint(spec, data_dir), origin)


def fingerprint(spec: TaskSpec, data_dir: Path) -> dict[Split, str]:
    """Return the SHA-256 of each split's file.

    Raises:
        MissingError: no such folder.
    """
    folder = find_folder(spec.local, data_dir)
    files = {split: split_file(spec.local, split, folder) for split in spec.local.files}
    return {split: file_digest(path) for split, path in files.items() if path}


def warn_about_row_count(spec: TaskSpec, split: Split, count: int, origin: str) -> None:
    """Log a warning if a split does not have its official number of rows."""
    official = spec.rows.get(split)
    if official and count != official:
        logger.warning(f"warning: {origin}: {count} rows, the official {split} split has {official} ({count - official:+d})")


def split_file(local: LocalFiles, split: Split, folder: Path) -> Path | None:
    """Return the file of a split in the task's folder; None if there is none."""
    names = local.files[split]
    paths = [folder / name for name in ([names] if isinstance(names, str) else names)]
    return next((path for path in paths if path.is_file()), None)


def find_folder(local: LocalFiles, data_dir: Path) -> Path:
    """Find the task's folder: `data_dir` itself, a folder in it, or a folder in one of the benchmark folders in it.

    Of several the first one that has one of the task's files: GLUE and SuperGLUE both have a folder RTE.

    Raises:
        MissingError: there is no such folder.
    """
    candidates = [data_dir] if data_dir.name == local.folder else []
    candidates += [data_dir / parent / local.folder for parent in PARENTS]
    folders = [folder for folder in candidates if folder.is_dir()]
    if not folders:
        raise MissingError(f"no folder {local.folder} in {data_dir}, nor in its subfolders {', '.join(PARENTS[1:])}")
    with_files = (folder for folder in folders if any(split_file(local, split, folder) for split in local.files))
    return next(with_files, folders[0])


def _rows(path: Path, spec: TaskSpec, *, labelled: bool) -> list[Row]:
    records = readers.read(path, spec.local, labelled=labelled, skip_incomplete=spec.skip_incomplete)
    with_label = labelled and spec.has_label_column
    labelled_records = ((record, _label(spec, record) if with_label else None) for record in records)
    return row_formats.parse_rows(spec, labelled_records, spec.local.columns, str(path), labelled=labelled)


def _label(spec: TaskSpec, record: RawRecord) -> Label:
    value = row_formats.label_value(row_formats.CheckedRecord(spec, record, spec.local.columns))
    return row_formats.parse_label(spec, value, spec.local.labels or spec.labels, record.where)
