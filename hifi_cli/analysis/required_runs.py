"""Finished runs that a figure is drawn from: cells of a grid, which can make them; or trained here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.analysis.base import FigureRequest
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, RunFailed
from hifi_cli.files import file_digest
from hifi_cli.grids import jobs
from hifi_cli.grids.cells import Cell, variant
from hifi_cli.grids.grid_spec import word
from hifi_cli.grids.jobs import Places
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import run as runs


@dataclass(frozen=True)
class Need:
    """One finished run, and where it is kept."""

    cell: Cell
    results_dir: Path

    @property
    def config(self) -> RunConfig:
        return self.cell.config

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.of(self.config, self.results_dir)

    @property
    def is_there(self) -> bool:
        """Whether it finished, with just this configuration."""
        return self.directory.results.is_file() and self.results()["config_hash"] == self.config.hash

    def results(self) -> dict[str, Any]:
        """Its results.json; see `hifi_cli.records.run_files.read`."""
        return self.directory.read_results()

    def fingerprint(self) -> list[str]:
        """What tells this run from any other of its configuration."""
        return [self.config.hash, file_digest(self.directory.results)]


def need(asked: FigureRequest, task: str, method: str, seed: int, varied: Mapping[str, Any] | None = None) -> Need:
    """A run that a figure needs.

    Args:
        varied: keys that tell it from the figure's other runs of the task and method; they name its directory.
    """
    settings = tuple((key, word(value)) for key, value in (varied or {}).items())
    extra = {**varied, "variant": variant([f"{key}={value}" for key, value in settings])} if varied else {}
    config, words = asked.config(task, method, seed, extra), tuple(asked.words(extra))
    cell = Cell(task, method, asked.spec.backbone, asked.spec.protocol, settings, words, config)
    return Need(cell, asked.resources.results_dir)


def supply(wanted: Sequence[Need], asked: FigureRequest) -> None:
    """See that all runs are there; train those that are missing where the request says so.

    Raises:
        MissingError: some are missing; the first command is named.
        RunFailed: a run ended without a score.
    """
    missing = [one for one in wanted if not one.is_there]
    if missing and not asked.train:
        first = commands(missing, asked.resources.data_dir)
        more = f" and {len(first) - 1} more commands (--print shows all)" if len(first) > 1 else ""
        raise MissingError(f"{len(missing)} of {len(wanted)} runs are missing: {first[0]}{more}; --train trains them here")
    for one in missing:
        runs.run(one.config, asked.resources)
    for one in wanted:
        if one.results()["status"] != "done":
            raise RunFailed(f"the run in {one.directory.path} {one.results()['status']}: the figure cannot be drawn with it")


def commands(wanted: Sequence[Need], data_dir: Path | None) -> list[str]:
    """The `hifi train` lines that make some runs."""
    found = jobs.training_jobs([one.cell for one in wanted], processes=1)
    return [job.line(Places(wanted[0].results_dir, data_dir)) for job in found]
