"""The status of a run, as its directory shows it: finished, damaged, failed, running, or begun."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hifi_cli.errors import UsageError
from hifi_cli.files import file_digest, is_locked
from hifi_cli.results.directory import RunDirectory, run_directories
from hifi_cli.results.record import Failure, RunResult


class RunState(StrEnum):
    """How far a run has come."""

    DONE = "done"
    DIVERGED = "diverged"
    RUNNING = "running"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"
    ABSENT = "absent"


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come, and why.

    Attributes:
        detail: one line.
        result: of a finished run.
    """

    state: RunState
    detail: str = ""
    result: RunResult | None = None

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to run."""
        return self.state in (RunState.DONE, RunState.DIVERGED)


def status(directory: RunDirectory, *, results_dir: Path | None = None, check_delta: bool = False) -> RunStatus:
    """The status of the run in a directory.

    Args:
        results_dir: a finished run at another path than its configuration's in this directory is damaged.
        check_delta: check the delta of a finished run, see `_is_delta_of`. A missing one is no damage: large files stay out
            of git.
    """
    if not directory.path.is_dir():
        return RunStatus(RunState.ABSENT)
    problem = ""
    if directory.results.is_file():
        try:
            result = directory.read_result(results_dir)
        except UsageError as error:
            problem = str(error)
        else:
            if not check_delta or _is_delta_of(result, directory):
                return RunStatus(RunState(result.status), result.reason, result)
            problem = f"{directory.delta} is not the file the run wrote"
    if is_locked(directory.lock):
        return RunStatus(RunState.RUNNING)
    if problem:
        return RunStatus(RunState.DAMAGED, problem)
    if directory.failure.is_file():
        try:
            failure = Failure.read(directory.failure)
        except UsageError as error:
            return RunStatus(RunState.FAILED, str(error))
        return RunStatus(RunState.FAILED, failure.lines[-1] if failure.lines else f"exit code {failure.exit_code}")
    return RunStatus(RunState.UNFINISHED if directory.config_file.is_file() else RunState.ABSENT)


def _is_delta_of(result: RunResult, directory: RunDirectory) -> bool:
    """Whether the delta is the file that the run wrote, or missing.

    A delta of the stored size that is not newer than results.json, which is written after it, is not read: a grid checks
    thousands of large files when it starts. Commands that use a delta always compare its SHA-256.
    """
    try:
        delta = directory.delta.stat()
    except FileNotFoundError:
        return True
    if result.delta_bytes is not None and delta.st_size != result.delta_bytes:
        return False
    if result.delta_bytes is not None and delta.st_mtime_ns <= directory.results.stat().st_mtime_ns:
        return True
    return file_digest(directory.delta) == result.delta_sha256


def statuses(results_dir: Path) -> Iterator[tuple[RunDirectory, RunStatus]]:
    """The status of every run in a results directory, sorted by path."""
    for directory in run_directories(results_dir):
        yield directory, status(directory, results_dir=results_dir)
