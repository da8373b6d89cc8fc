"""The finished runs that a figure is computed from; `hifi grid` can make them, or they are trained here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hifi_cli.analysis.figure_request import FigureRequest
from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value
from hifi_cli.errors import MissingError, RunFailed
from hifi_cli.files import file_digest
from hifi_cli.grids.cells import GridCell, chooses_heads, variant
from hifi_cli.grids.jobs import Job, JobOptions, training_jobs
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult
from hifi_cli.runs import run as runs


@dataclass(frozen=True)
class RequiredRun:
    """One finished run, and the results directory it is kept in."""

    cell: GridCell
    results_dir: Path

    @property
    def config(self) -> RunConfig:
        return self.cell.config

    @property
    def directory(self) -> RunDirectory:
        return self.cell.run_directory(self.results_dir)

    @property
    def is_finished(self) -> bool:
        """Whether it finished with exactly this configuration."""
        return self.directory.results.is_file() and self.result().config_hash == self.config.hash

    @property
    def has_weights(self) -> bool:
        """Whether its trained weights are here; shared results usually have none."""
        return self.directory.delta.is_file()

    def result(self) -> RunResult:
        """Read its result; see `RunDirectory.read_result`."""
        return self.directory.read_result()

    def fingerprint(self) -> list[str]:
        """Return configuration hash and results.json digest, which identify this run."""
        return [self.config.hash, file_digest(self.directory.results)]


def required_run(
    request: FigureRequest, task: str, method: str, seed: int, varied: Mapping[str, Any] | None = None
) -> RequiredRun:
    """Return a run that a figure requires.

    Args:
        varied: keys that distinguish it from the figure's other runs of the task and method; they name its directory.
    """
    settings = tuple((key, override_value(value)) for key, value in (varied or {}).items())
    words = tuple(f"{key}={value}" for key, value in settings)
    if words:  # after those of the command line, by which they may be computed
        request = replace(request, overrides=(*request.overrides, *words, f"variant={variant(words)}"))
    config, overrides = request.config(task, method, seed), tuple(request.all_overrides())
    cost, scored = config.expected_cost(registry.train_rows(task)), chooses_heads(method)
    named = {"tasks": task, "methods": method, "protocols": request.spec.protocol}
    task, method, protocol = (registry.argument_of(kind, name) for kind, name in named.items())
    cell = GridCell(task, method, request.spec.backbone, protocol, settings, overrides, config, cost, scored)
    return RequiredRun(cell, request.resources.results_dir)


def run_per_seed(request: FigureRequest) -> list[RequiredRun]:
    """Return a run for every task, method and seed."""
    spec = request.spec
    return [required_run(request, task, method, seed) for task in spec.tasks for method in spec.methods for seed in spec.seeds]


def ensure_finished(required: Sequence[RequiredRun], request: FigureRequest) -> None:
    """Check that all required runs are finished; train the missing ones where the request says so.

    Raises:
        MissingError: some are missing; the first command is named.
        RunFailed: a run ended without a score.
    """
    missing = [run for run in required if not run.is_finished]
    if missing and not request.train:
        options = JobOptions(request.resources.results_dir, request.resources.data_dir)
        first, *others = (job.command_line(options) for job in jobs(missing))
        more = f" and {len(others)} more commands (--print shows all)" if others else ""
        raise MissingError(f"{len(missing)} of {len(required)} runs are missing: {first}{more}; --train trains them here")
    for run in missing:
        runs.run(run.config, request.resources)
    for run in required:
        if (status := run.result().status) != "done":
            raise RunFailed(f"the run in {run.directory.path} {status}: the figure cannot be drawn with it")


def ensure_weights(required: Sequence[RequiredRun], request: FigureRequest) -> None:
    """Check that finished runs have their weights; train those without again where the request says so.

    Raises:
        MissingError: some have none.
    """
    without = [run for run in required if not run.has_weights]
    if without and not request.train:
        count = f"{len(without)} of {len(required)} finished runs"
        raise MissingError(f"{count} have no weights, first {without[0].directory.delta}; --train trains these runs again")
    for run in without:
        runs.run(run.config, request.resources, force=True)


def jobs(required: Sequence[RequiredRun]) -> list[Job]:
    """Return the `hifi train` commands that make some runs; finished ones among them are trained again."""
    finished = [run.cell for run in required if run.is_finished]
    return training_jobs([run.cell for run in required], processes=1, repeated=finished)
