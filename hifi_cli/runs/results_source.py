"""What can be pushed or pulled from a results directory: finished runs, heads, scores and tables, each checked."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from hifi_cli.errors import HifiError, MissingError, UsageError
from hifi_cli.files import bytes_digest, file_digest, read_json
from hifi_cli.records.head_files import HeadImportance, HeadScores, HeadSelection
from hifi_cli.records.run_directory import RunDirectory, run_directories
from hifi_cli.runs.run_code import refuse_code

_TABLES = (".md", ".tex", ".csv", ".json", ".txt")  # formats without code


@dataclass(frozen=True)
class StoredContent:
    """The content of a file that is pushed or pulled.

    Attributes:
        source: the file, or its content where a push or pull makes it.
    """

    source: Path | bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content."""
        return bytes_digest(self.source) if isinstance(self.source, bytes) else file_digest(self.source)

    @property
    def git_blob_id(self) -> str:
        """The SHA-1 by which git names the content."""
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Item:
    """A run, or a file of heads, of scores or with a table; all of it is copied or nothing.

    Attributes:
        path: in the results directory.
        source: where it is now.
        contents: by the path in the results directory; results.json is last.
        problem: why it is not copied.
    """

    path: str
    source: Path
    contents: dict[str, StoredContent] = field(default_factory=dict)
    problem: str = ""


def items(results_dir: Path, *, only: Iterable[str] = (), weights: bool = False, trust: bool = False) -> list[Item]:
    """Everything in a results directory that can be pushed or pulled, sorted by path, runs last.

    Args:
        only: patterns of paths in the results directory, as `fnmatch` reads them; empty: everything.
        weights: the deltas too.
        trust: runs whose own files name code too.

    Raises:
        MissingError: there is nothing.
    """
    files = [
        *sorted((results_dir / "heads").glob("*/*/*.json")),
        *sorted((results_dir / "scores").glob("*/*/*.json")),
        *sorted(path for path in (results_dir / "tables").glob("*") if path.suffix in _TABLES),
    ]
    directories = [directory for directory in run_directories(results_dir) if directory.results.is_file()]
    patterns = list(only)
    paths = [
        path
        for path in (*files, *(directory.path for directory in directories))
        if not patterns or any(fnmatch(path.relative_to(results_dir).as_posix(), pattern) for pattern in patterns)
    ]
    if not paths:
        matching = f" that match {' or '.join(patterns)}" if patterns else ""
        raise MissingError(f"no finished runs, heads, scores or tables in {results_dir}{matching}")
    return [_item(path, results_dir, weights, trust) for path in paths]


def _item(path: Path, results_dir: Path, weights: bool, trust: bool) -> Item:
    name = path.relative_to(results_dir).as_posix()
    try:
        contents = dict(_contents(path, results_dir, weights, trust))
    except HifiError as error:
        return Item(name, path, problem=str(error))
    return Item(name, path, {file.as_posix(): content for file, content in contents.items()})


def _contents(path: Path, results_dir: Path, weights: bool, trust: bool) -> Iterator[tuple[Path, StoredContent]]:
    """The contents of a run or a file, by path in the results directory, after a check.

    Raises:
        MissingError: the weights of a run are requested and not there.
        UsageError: a file is damaged, or a run's own files name code that is not trusted.
    """
    if path.is_file():
        match path.relative_to(results_dir).parts[0]:
            case "heads":
                HeadSelection.read(path)
            case "scores":
                (HeadImportance if "rank" in read_json(path, what="scores") else HeadScores).read(path)
        yield path.relative_to(results_dir), _content(path, results_dir)
        return
    directory = RunDirectory(path)
    result = directory.read_result(results_dir)
    refuse_code(directory, trust=trust)
    files = directory.stored_files()
    if weights and result.delta_sha256:
        if not directory.delta.is_file():
            raise MissingError(f"no {directory.delta}, and --weights asks for it")
        if file_digest(directory.delta) != result.delta_sha256:
            raise UsageError(f"{directory.delta} is not the file that the run wrote; train the run again with --force")
        files.insert(0, directory.delta)
    for file in files:
        yield file.relative_to(results_dir), _content(file, results_dir)


def _content(file: Path, results_dir: Path) -> StoredContent:
    """The content of a file.

    Raises:
        UsageError: its name or a link leads out of its directory: it could be any file of this machine.
    """
    if ".." in file.parts[len(results_dir.parts) :] or not file.resolve().is_relative_to(_root(results_dir)):
        raise UsageError(f"{file} leads to a file outside of {results_dir}; put the file itself there")
    return StoredContent(file)


def _root(results_dir: Path) -> Path:
    """The directory that links may lead to: the hub's cache holds the files of a snapshot in a directory beside it."""
    folder = results_dir.resolve()
    return folder.parents[1] if folder.parent.name == "snapshots" else folder
