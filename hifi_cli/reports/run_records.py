"""Finished runs, read from their results.json files."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import read_jsonl
from hifi_cli.records import run_files


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes:
        path: its directory.
        content: its results.json.
    """

    path: Path
    content: dict[str, Any]

    @property
    def cell(self) -> tuple[str, str]:
        """Method and task."""
        return self.content["method"], self.content["task"]

    @property
    def epochs(self) -> int | None:
        """Epochs it was trained for; None when it did not come to its end."""
        total = (self.content.get("epochs") or {}).get("total")
        return None if total is None else int(total)

    @property
    def shots(self) -> str:
        """Training rows per class of a few-shot run, or `full`."""
        if self.content.get("selection") != "few-shot":
            return "full"
        directory = self.path.parent.parent.name  # tells the shots of a run that was stored before results.json did
        return str(self.content.get("shots") or directory.removeprefix(f"{self.content['task']}-").removesuffix("-shot"))

    @property
    def conditions(self) -> dict[str, Any]:
        """What runs of different methods must share for a comparison of their scores to make sense."""
        content = self.content
        return {
            "epochs": self.epochs,
            "shots": self.shots,
            "reported epoch": content["report"],
            "selection": content.get("selection"),
            "limit": content.get("limit", content["limited"]),
            "data": content.get("data"),
            "split": content.get("split"),
        }

    @property
    def identity(self) -> dict[str, Any]:
        """What runs of one method must share, apart from the seed, for a mean over them to make sense."""
        content = self.content
        return {
            **self.conditions,
            "heads": content.get("heads_sha256"),
            "primary metric": content["primary_metric"],
            "settings": content["setting_hash"],
        }

    def score(self, which: str | None, metric: str | None = None) -> float | None:
        """A metric at the `last`, `best` or `max` epoch, as a share of 1.

        Args:
            which: None: the epoch its protocol reports.
            metric: None: the primary one.

        Returns:
            None where the run did not keep that number: another metric's epochs are read from metrics.jsonl.
        """
        which = which or self.content["report"]
        if metric is None or metric == self.content["primary_metric"]:
            return float(self.content["scores"][which])
        if which == ("last" if self.content["report"] == "last" else "best"):  # the model that was kept
            value = self.content["metrics"].get(metric)
            return None if value is None else float(value)
        values = self._epochs_of(metric)
        if not values:
            return None
        return max(values.values()) if which == "max" else values.get(self.content["epochs"][which])

    def _epochs_of(self, metric: str) -> dict[int, float]:
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return {}
        lines = read_jsonl(path, what="metrics")
        try:
            return {int(line["epoch"]): float(line[metric]) for line in lines if "epoch" in line and metric in line}
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path} is damaged ({error}); train the run again with --force") from None

    @property
    def marks(self) -> list[str]:
        """What sets the run apart from an ordinary one: `diverged`, or `collapsed`, `limited` or both."""
        if self.content["status"] != "done":
            return [str(self.content["status"])]
        return [mark for mark in ("collapsed", "limited") if self.content[mark]]


@dataclass(frozen=True)
class Results:
    """A results directory, whose runs are read once and at the first need."""

    directory: Path

    @cached_property
    def records(self) -> list[RunRecord]:
        """All finished runs."""
        return list(read(self.directory))

    @property
    def names(self) -> dict[str, set[str]]:
        """The methods and tasks that were run."""
        return {
            "methods": {one.content["method"] for one in self.records},
            "tasks": {one.content["task"] for one in self.records},
        }


def read(results_dir: Path) -> Iterator[RunRecord]:
    """Every finished run below a results directory, in the order of their paths.

    Raises:
        UsageError: a run is damaged, or does not lie at its own place.
    """
    for path in sorted((results_dir / "runs").glob("*/*/*/*/seed*/results.json")):
        content = run_files.read(path.parent)
        run_files.check_location(path.parent, results_dir)
        yield RunRecord(path.parent, content)
