"""Finished runs, as tables and comparisons read them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hifi_cli.config.choices import Score
from hifi_cli.records.run_directory import RunDirectory, finished_runs
from hifi_cli.records.run_result import RunResult


@dataclass(frozen=True)
class RunRecord:
    """A finished run."""

    directory: RunDirectory
    result: RunResult

    @property
    def cell(self) -> tuple[str, str]:
        """Method and task."""
        return self.result.method, self.result.task

    @property
    def shots(self) -> str:
        """Training rows per class of a few-shot run, or `full`."""
        return "full" if self.result.shots is None else str(self.result.shots)

    @property
    def conditions(self) -> dict[str, object]:
        """What runs of different methods must share for a comparison of their scores to make sense."""
        result = self.result
        return {
            "epochs": result.epochs.total if result.epochs else None,
            "shots": self.shots,
            "reported epoch": result.report,
            "selection": result.selection,
            "precision": result.precision,
            "limit": result.limit,
            "data": result.data,
            "split": result.split,
        }

    @property
    def identity(self) -> dict[str, object]:
        """What runs of one method must share, apart from the seed, for a mean over them to make sense."""
        return {
            **self.conditions,
            "heads": self.result.heads_sha256,
            "primary metric": self.result.primary_metric,
            "settings": self.result.setting_hash,
        }

    def score(self, name: Score | None, metric: str | None = None) -> float | None:
        """A metric at the `last`, `best` or `max` epoch, as a fraction of 1.

        Args:
            name: None: the epoch that the run's protocol reports.
            metric: None: the primary one.

        Returns:
            None where the run did not keep that number: another metric's epochs are read from metrics.jsonl.
        """
        result = self.result
        name = name or result.report
        if metric is None or metric == result.primary_metric:
            return result.score(name)
        if name == ("last" if result.report == "last" else "best"):  # the model that was kept
            return result.metrics.get(metric)
        epochs = self.directory.read_epochs() if self.directory.metrics.is_file() else {}
        values = {number: line.metrics[metric] for number, line in epochs.items() if metric in line.metrics}
        if not values:
            return None
        return max(values.values()) if name == "max" else values.get(result.epoch(name))

    @property
    def flags(self) -> list[str]:
        """What sets the run apart from an ordinary one: `diverged`, or `collapsed`, `limited` or both."""
        if not self.result.is_done:
            return [self.result.status]
        flags = {"collapsed": self.result.collapsed, "limited": self.result.limited}
        return [name for name, is_set in flags.items() if is_set]


@dataclass(frozen=True)
class Results:
    """A results directory, whose runs are read once and at the first need."""

    directory: Path

    @cached_property
    def records(self) -> list[RunRecord]:
        """All finished runs, sorted by path.

        Raises:
            UsageError: a run is damaged, or at another path than its configuration's.
        """
        return [RunRecord(directory, result) for directory, result in finished_runs(self.directory)]

    @property
    def names(self) -> dict[str, set[str]]:
        """The methods and tasks that were run."""
        return {
            "methods": {record.result.method for record in self.records},
            "tasks": {record.result.task for record in self.records},
        }
