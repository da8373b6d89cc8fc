"""Finished runs that a figure is drawn from: found, named by the command that makes them, or trained here."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hifi_cli.analysis.base import Request
from hifi_cli.config import RunConfig
from hifi_cli.errors import MissingError, RunFailed
from hifi_cli.files import file_digest, read_json
from hifi_cli.runs import run as runs
from hifi_cli.runs.directory import RunDirectory


@dataclass(frozen=True)
class Need:
    """One finished run.

    Attributes:
        results_dir: where it is kept.
        words: the `key=value` arguments that make its configuration.
        backbone: as it was named on the command line.
    """

    config: RunConfig
    results_dir: Path
    words: tuple[str, ...]
    backbone: str

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.of(self.config, self.results_dir)

    @property
    def is_there(self) -> bool:
        """Whether it finished, with just this configuration."""
        return self.directory.results.is_file() and self.results()["config_hash"] == self.config.hash

    def results(self) -> dict[str, Any]:
        """Its results.json.

        Raises:
            MissingError: it is not finished.
        """
        return read_json(self.directory.results, what="results.json of a finished run")

    def fingerprint(self) -> list[str]:
        """What tells this run from any other of its configuration."""
        return [self.config.hash, file_digest(self.directory.results)]


def need(asked: Request, task: str, method: str, seed: int, *, extra: dict[str, Any], results_dir: Path) -> Need:
    """A run that a figure needs."""
    return Need(asked.config(task, method, seed, extra), results_dir, tuple(asked.words(extra)), asked.spec.backbone)


def supply(wanted: Sequence[Need], asked: Request) -> None:
    """See that all runs are there; train those that are missing where the request says so.

    Raises:
        MissingError: some are missing; the first command is named.
        RunFailed: a run ended without a score.
    """
    missing = [one for one in wanted if not one.is_there]
    if missing and not asked.train:
        first = commands(missing, asked.workspace.data_dir)
        more = f" and {len(first) - 1} more commands (--print shows all)" if len(first) > 1 else ""
        raise MissingError(f"{len(missing)} of {len(wanted)} runs are missing: {first[0]}{more}; --train trains them here")
    for one in missing:
        runs.run(one.config, replace(asked.workspace, results_dir=one.results_dir))
    for one in wanted:
        if one.results()["status"] != "done":
            raise RunFailed(f"the run in {one.directory.path} {one.results()['status']}: the figure cannot be drawn with it")


def commands(wanted: Iterable[Need], data_dir: Path | None) -> list[str]:
    """The `hifi train` lines that make some runs, one for all seeds of a cell."""
    seeds: dict[tuple[str, ...], list[int]] = {}
    for one in wanted:
        config = one.config
        options = {
            "--task": config.task,
            "--method": config.method,
            "--backbone": one.backbone,
            "--protocol": config.protocol,
            "--results-dir": str(one.results_dir),
            "--data-dir": str(data_dir) if data_dir else None,
        }
        words = [word for name, value in options.items() if value for word in (name, value)]
        seeds.setdefault((*words, *one.words), []).append(config.seed)
    return [shlex.join(["hifi", "train", *words, "--seeds", ",".join(map(str, found))]) for words, found in seeds.items()]
