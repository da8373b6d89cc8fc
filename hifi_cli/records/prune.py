"""Weights of finished runs that are dropped to save disk, while records and predictions stay.

A pruned run counts in every table, comparison and claim. It cannot be evaluated or exported any
more, and no other run can start from it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hifi_cli.errors import ConflictError, MissingError, UsageError
from hifi_cli.records.layout import RunDirectory, unfinished_runs
from hifi_cli.records.record import Pruned
from hifi_cli.records.study import Study
from hifi_cli.run_paths import relative_run_path


@dataclass(frozen=True)
class Pruning:
    """Which weights can go.

    Attributes:
        sizes: bytes of the weights of each run that can be pruned, by its path.
        kept: why others are not pruned, by their path.
    """

    sizes: dict[str, int]
    kept: dict[str, str]


def find_prunable(study: Study, paths: Collection[str]) -> Pruning:
    """Find which of some finished runs have weights that no other run needs.

    Args:
        study: a results directory.
        paths: of the runs, from `runs/` on.

    Raises:
        UsageError: the study is packed, and has no weights.
        MissingError: a path is not that of a finished run.
    """
    if study.is_packed:
        raise UsageError(f"{study.directory} is a packed study, which has no weights")
    dependents = _dependents(study)
    sizes: dict[str, int] = {}
    kept: dict[str, str] = {}
    for path in paths:
        if path not in study.results:
            raise MissingError(f"{path} is no finished run in {study.directory}")
        delta = RunDirectory(study.directory / path).delta
        if path in dependents:
            kept[path] = f"{dependents[path]} starts from it"
        elif not delta.is_file():
            kept[path] = "it has no weights"
        else:
            sizes[path] = delta.stat().st_size
    return Pruning(sizes, kept)


def prune(study: Study, paths: Sequence[str]) -> None:
    """Remove the weights of runs that `find_prunable` found, and note in each run that they were.

    Raises:
        ConflictError: another process is writing a run.
    """
    for path in paths:
        directory = RunDirectory(study.directory / path)
        with directory.hold() as is_held:
            if not is_held:
                raise ConflictError(f"another process is writing {directory.path}; wait for it")
            result = directory.read_result()
            note = Pruned(
                delta_sha256=str(result.delta_sha256), delta_bytes=int(result.delta_bytes or 0)
            )
            # The note comes first, so that no kill leaves a run without weights and without a reason.
            note.write(directory.pruned)
            directory.delta.unlink(missing_ok=True)


def _dependents(study: Study) -> dict[str, str]:
    """Return a run that starts from a run, finished or not, by that run's path."""
    dependents: dict[str, str] = {}
    for path, result in study.results.items():
        for link in result.started_from:
            dependents.setdefault(link["run"], path)
        start = result.config.get("start_from")
        if start:
            dependents.setdefault(relative_run_path(start), path)
    for directory in unfinished_runs(study.directory):
        start = directory.read_config().start_from
        if start:
            name = directory.path.relative_to(study.directory).as_posix()
            dependents.setdefault(relative_run_path(start), name)
    return dependents


def path_in_study(study: Study, run: Path) -> str:
    """Return the path of a run's directory as the study has it, from `runs/` on.

    Raises:
        UsageError: the directory is not in the study.
    """
    try:
        return run.resolve().relative_to(study.directory.resolve()).as_posix()
    except ValueError:
        raise UsageError(f"{run} is not in {study.directory}") from None
