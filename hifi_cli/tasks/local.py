"""Rows from files in the official download's layout: TSV without quoting, read strictly."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks.spec import Dataset, LocalFiles, Row, Split, TaskSpec

logger = logging.getLogger("hifi")


def load(spec: TaskSpec, data_dir: Path) -> Dataset:
    """Read every split that is there; train and validation must be.

    Raises:
        MissingError: no such folder or file.
        UsageError: a line does not fit; file and line are named.
    """
    folder = find_folder(spec.local, data_dir)
    splits: dict[Split, list[Row]] = {}
    fingerprint: dict[str, str] = {}
    origin: dict[str, str] = {}
    for split, name in spec.local.files.items():
        path = folder / name
        if path.is_file():
            splits[split] = list(_rows(path, spec, labelled=split != "test"))
            fingerprint[split] = hashlib.sha256(path.read_bytes()).hexdigest()
            origin[split] = str(path)
            official = spec.rows.get(split)
            if official and len(splits[split]) != official:
                logger.warning(f"warning: {path}: {len(splits[split])} rows, the official {split} split has {official}")
            logger.debug(f"{path}: {len(splits[split])} rows")
        elif split != "test":
            raise MissingError(f"no file {path}")
    return Dataset(splits, fingerprint, origin)


def find_folder(local: LocalFiles, data_dir: Path) -> Path:
    """The task's folder below `data_dir`, which may be the download's root or the folder above it.

    Raises:
        MissingError: none there.
    """
    for candidate in (data_dir / local.folder, data_dir / "glue" / local.folder, data_dir / "glue_data" / local.folder):
        if candidate.is_dir():
            return candidate
    raise MissingError(f"no folder {local.folder} (nor glue/{local.folder}) in {data_dir}")


def _rows(path: Path, spec: TaskSpec, *, labelled: bool) -> Iterator[Row]:
    lines = _lines(path)
    if not lines:
        raise UsageError(f"{path} is empty")
    header = spec.local.header if labelled else None
    first = 0
    if header is None:
        header, first = lines[0].split("\t"), 1
    if first == len(lines):
        raise UsageError(f"{path} has a header and no rows")
    column = {name: _column(path, header, spec.local.columns.get(name, name)) for name in spec.inputs}
    label_at = _column(path, header, spec.local.columns.get("label", "label")) if labelled else None
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise UsageError(f"{path}, line {number}: {len(cells)} columns, {len(header)} are wanted ({', '.join(header)})")
        texts = tuple(cells[column[name]] for name in spec.inputs)
        if not all(text.strip() for text in texts):
            empty = next(name for name, text in zip(spec.inputs, texts, strict=True) if not text.strip())
            raise UsageError(f"{path}, line {number}: {empty} is empty")
        label = None if label_at is None else parse_label(spec, cells[label_at], f"{path}, line {number}")
        yield Row(str(number - first - 1), texts, label)


def parse_label(spec: TaskSpec, word: str, where: str) -> int | float:
    """A label as it is written in a file, as class index or number.

    Raises:
        UsageError: not one of the task's labels, or no number in its range.
    """
    if spec.kind == "classification":
        words = spec.local.labels or spec.labels
        if word not in words:
            raise UsageError(f"{where}: unknown label '{word[:40]}'; known are {', '.join(words)}")
        return words.index(word)
    low, high = spec.value_range or (float("-inf"), float("inf"))
    try:
        value = float(word)
    except ValueError:
        raise UsageError(f"{where}: the label '{word[:40]}' is not a number") from None
    if not low <= value <= high:
        raise UsageError(f"{where}: the label {word} is not in [{low:g}, {high:g}]")
    return value


def _lines(path: Path) -> list[str]:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: not UTF-8") from None
    notes = []
    if text.startswith("\ufeff"):
        notes.append("a byte-order mark")
        text = text[1:]
    if "\r\n" in text:
        notes.append("CRLF line ends")
        text = text.replace("\r\n", "\n")
    if notes:
        logger.warning(f"note: {path} has {' and '.join(notes)}; read as plain UTF-8 with LF")
    # Not splitlines(): U+2028 and the like are part of a sentence, not the end of a row.
    return text.removesuffix("\n").split("\n") if text.strip() else []


def _column(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise UsageError(f"{path}, line 1: no column '{name}'; there are {', '.join(header)[:120]}")
    return header.index(name)
