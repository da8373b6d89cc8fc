"""How far a command with several runs has come, and the time that is left for all of them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.durations import format_duration
from hifi_cli.records.run_directory import RunDirectory


class RunsProgress:
    """Counts runs, and estimates the time left from the runs that this process has trained.

    Args:
        force: whether finished runs are trained again.
    """

    def __init__(self, configs: Sequence[RunConfig], results_dir: Path, *, force: bool) -> None:
        finished = [not force and RunDirectory.of(config, results_dir).results.is_file() for config in configs]
        costs = [config.expected_cost(registry.train_rows(config.task)) for config in configs]
        self._costs = [0.0 if is_finished else cost for cost, is_finished in zip(costs, finished, strict=True)]
        self._number, self._seconds = 0, 0.0

    def line(self, name: str) -> str:
        """Return a line about the next run: `run 3 of 12: rte/bitfit/seed3, about 4:10 left for all`."""
        done, left = sum(self._costs[: self._number]), sum(self._costs[self._number :])
        time_left = f", about {format_duration(self._seconds * left / done)} left for all" if done and left else ""
        return f"run {self._number + 1} of {len(self._costs)}: {name}{time_left}"

    @contextmanager
    def next(self) -> Iterator[None]:
        """The next run, whose time is measured."""
        start = time.monotonic()
        yield
        self._seconds += time.monotonic() - start if self._costs[self._number] else 0.0
        self._number += 1
