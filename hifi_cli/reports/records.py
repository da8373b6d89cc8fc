"""Finished runs, read from their results.json files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import read_json


@dataclass(frozen=True)
class Record:
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
    def setting(self) -> str:
        """What runs must share, apart from the seed, for a mean over them to make sense."""
        return str(self.content["setting_hash"])

    def score(self, which: str | None) -> float:
        """The primary metric at the `last`, `best` or `max` epoch; None: the one its protocol reports."""
        return float(self.content["scores"][which or self.content["report"]])

    @property
    def unusable(self) -> str | None:
        """Why the run must not enter a mean unasked: `diverged`, `collapsed` or `limited`."""
        if self.content["status"] != "done":
            return str(self.content["status"])
        return next((mark for mark in ("collapsed", "limited") if self.content[mark]), None)


_NEEDED = {
    "status", "task", "method", "backbone", "protocol", "seed", "primary_metric",
    "report", "scores", "params", "setting_hash", "collapsed", "limited",
}  # fmt: skip


def read(results_dir: Path) -> Iterator[Record]:
    """Every finished run below a results directory, in the order of their paths.

    Raises:
        UsageError: a results.json is damaged.
    """
    for path in sorted((results_dir / "runs").glob("*/*/*/*/seed*/results.json")):
        content = read_json(path, what="results.json")
        missing = _NEEDED - content.keys()
        if missing:
            raise UsageError(f"{path} is damaged ('{min(missing)}' is missing); train the run again with --force")
        yield Record(path.parent, content)
