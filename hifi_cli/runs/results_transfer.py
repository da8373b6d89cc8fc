"""Push finished runs, heads, scores and tables to another results directory or pull them from it; nothing is overwritten."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from hifi_cli.errors import ConflictError
from hifi_cli.files import atomic_path, file_digest, locked
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs.results_source import Item, StoredContent


class TransferState(StrEnum):
    """What became of a run or a file."""

    COPIED = "copied"
    SAME = "same"
    """It was there before, with the same content."""
    CONFLICT = "conflict"
    """Other content is at the same path."""
    REFUSED = "refused"
    """It is damaged, or names code that is not trusted."""


@dataclass(frozen=True)
class Transfer:
    """What became of a run or a file.

    Attributes:
        path: in the results directory.
        files: the copied files, by path in the results directory.
        problem: why it was not copied.
    """

    path: str
    state: TransferState
    files: list[str] = field(default_factory=list)
    problem: str = ""


class Destination(Protocol):
    """Where items are copied to."""

    def __contains__(self, path: str) -> bool:
        """Whether there is a file at a path in the results directory."""

    def is_same(self, path: str, content: StoredContent) -> bool:
        """Whether the file at a path has this content."""

    def location(self, path: str) -> str:
        """A path as messages name it."""

    def add(self, items: list[tuple[Item, list[str]]]) -> None:
        """Store the named files of each item."""


@dataclass(frozen=True)
class DirectoryDestination:
    """A local results directory."""

    root: Path

    def __contains__(self, path: str) -> bool:
        return (self.root / path).exists()

    def is_same(self, path: str, content: StoredContent) -> bool:
        """Whether the file at a path has this content."""
        return (self.root / path).is_file() and file_digest(self.root / path) == content.sha256

    def location(self, path: str) -> str:
        """A path as messages name it."""
        return str(self.root / path)

    def add(self, items: list[tuple[Item, list[str]]]) -> None:
        """Copy files, each atomically; results.json comes last, so that a run that was copied in part is not finished.

        Raises:
            ConflictError: another process is writing the run, or a file appeared meanwhile.
        """
        for item, paths in items:
            is_run = item.source.is_dir()
            lock = RunDirectory(self.root / item.path).lock if is_run else self.root / ".lock"
            with locked(lock, wait=not is_run) as is_held:
                if not is_held:
                    raise ConflictError(f"another process is writing {lock.parent}; wait for it and repeat the command")
                for path in paths:
                    self._write(path, item.contents[path])

    def _write(self, path: str, content: StoredContent) -> None:
        target = self.root / path
        with atomic_path(target) as temporary:
            if isinstance(content.source, bytes):
                temporary.write_bytes(content.source)
            else:
                shutil.copyfile(content.source, temporary)
            if target.exists() and file_digest(target) != file_digest(temporary):
                raise ConflictError(f"{target} was written by another process meanwhile; repeat the command")


def transfer(items: Iterable[Item], destination: Destination, *, dry_run: bool = False) -> list[Transfer]:
    """Copy every item that is not there yet. What is there is never changed.

    Args:
        dry_run: only say what would be copied.

    Returns:
        What became of each item: an item of which one file differs from the file at its place is not copied at all.
    """
    transfers, new = [], []
    for item in items:
        planned = _plan(item, destination)
        transfers.append(planned)
        if planned.state is TransferState.COPIED:
            new.append((item, planned.files))
    if new and not dry_run:
        destination.add(new)
    return transfers


def _plan(item: Item, destination: Destination) -> Transfer:
    if item.problem:
        return Transfer(item.path, TransferState.REFUSED, problem=item.problem)
    present = [path for path in item.contents if path in destination]
    differing = [path for path in present if not destination.is_same(path, item.contents[path])]
    if differing:
        source = item.contents[differing[-1]].source
        here = source if isinstance(source, Path) else item.source / Path(differing[-1]).name
        return Transfer(item.path, TransferState.CONFLICT, problem=f"{here} differs from {destination.location(differing[-1])}")
    new = [path for path in item.contents if path not in present]
    return Transfer(item.path, TransferState.COPIED if new else TransferState.SAME, new)
