"""What a run's directory says of the run: finished, damaged, failed, running, or begun."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hifi_cli.errors import SchemaError, UsageError
from hifi_cli.files import file_digest, is_locked, locked, read_with_checksum, with_checksum, write_json
from hifi_cli.records import run_files

FAILURE_SCHEMA = 1


class State(StrEnum):
    """How a run stands."""

    DONE = "done"
    DIVERGED = "diverged"
    RUNNING = "running"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"
    ABSENT = "absent"


@dataclass(frozen=True)
class Status:
    """How a run stands, and why.

    Attributes:
        results: of a finished run.
        detail: one line.
    """

    state: State
    detail: str = ""
    results: dict[str, Any] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to run."""
        return self.state in (State.DONE, State.DIVERGED)


def failure_path(directory: Path) -> Path:
    """Where a failed attempt is recorded; a new attempt removes it."""
    return directory / "failure.json"


def checkpoint_path(directory: Path) -> Path:
    """Where a run that is not finished keeps its state."""
    return directory / "checkpoints" / "last.pt"


def leftovers(directory: Path) -> list[Path]:
    """What a killed process left in a run's directory: half-written files, and the checkpoint of a run that is finished."""
    checkpoint = checkpoint_path(directory)
    temporary = [path for folder in (directory, checkpoint.parent) for path in folder.glob(".*") if path.name != ".lock"]
    finished = (directory / "results.json").is_file() and checkpoint.is_file()
    return [*temporary, *([checkpoint] if finished else [])]


def sweep(directory: Path) -> None:
    """Remove what a killed process left, unless another process is writing there."""
    if leftovers(directory):
        with locked(directory / ".lock", wait=False) as had:
            for path in leftovers(directory) if had else []:
                path.unlink(missing_ok=True)


def record_failure(directory: Path, *, exit_code: int | None, attempts: int, command: str, lines: list[str]) -> None:
    """Record a failed attempt in the run's directory, with the last lines it said."""
    content = {
        "schema": FAILURE_SCHEMA,
        "exit_code": exit_code,
        "attempts": attempts,
        "command": command,
        "lines": lines,
    }
    write_json(failure_path(directory), with_checksum(content))


def status(directory: Path, *, deltas: bool = False) -> Status:
    """How the run in a directory stands.

    Args:
        deltas: compare the delta of a finished run with its checksum; a missing one is no damage (big files stay out of git).

    Raises:
        SchemaError: the run was stored by a version with another layout; it is not damaged, and must not be replaced.
    """
    delta, failure = directory / "delta.safetensors", failure_path(directory)
    if is_locked(directory / ".lock"):
        return Status(State.RUNNING)
    if run_files.path_in(directory).is_file():
        try:
            content = run_files.read(directory)
            if deltas and delta.is_file() and content.get("delta_sha256") != file_digest(delta):
                return Status(State.DAMAGED, f"{delta} is not the file the run wrote")
        except SchemaError:
            raise
        except UsageError as error:
            return Status(State.DAMAGED, str(error))
        return Status(State(content["status"]), str(content.get("reason", "")), content)
    if failure.is_file():
        try:
            content = read_with_checksum(failure, what="failure.json", schema=FAILURE_SCHEMA)
        except UsageError as error:
            return Status(State.FAILED, str(error))
        lines = content.get("lines")
        last = lines[-1] if lines and isinstance(lines, list) else f"exit code {content.get('exit_code')}"
        return Status(State.FAILED, str(last))
    return Status(State.UNFINISHED if (directory / "config.yaml").is_file() else State.ABSENT)


def statuses(results_dir: Path) -> Iterator[tuple[Path, Status]]:
    """Every run below a results directory, in the order of their paths; a finished one away from its place is damaged."""
    runs = results_dir / "runs"
    for directory in sorted({path.parent for name in ("config.yaml", "failure.json") for path in runs.rglob(name)}):
        found = status(directory)
        try:
            if found.is_finished:
                run_files.check_location(directory, results_dir)
        except UsageError as error:
            found = Status(State.DAMAGED, str(error))
        yield directory, found
