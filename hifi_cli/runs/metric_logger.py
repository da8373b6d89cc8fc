"""Watching a run: its log lines go to metrics.jsonl, to the terminal and to trackers.

Everything is made from the lines that the loop logs anyway; the loop itself waits for nothing and counts nothing.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from accelerate import PartialState

from hifi_cli.config.run_config import RunConfig
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import provenance, trackers
from hifi_cli.runs.progress_display import ProgressDisplay

logger = logging.getLogger("hifi")


class Throughput:
    """How fast a run goes.

    Attributes:
        steps: optimiser steps of the whole run.
        tokens_per_step: tokens of the training split, without padding, over the steps of an epoch.
        done: finished steps.
    """

    def __init__(self, steps: int, tokens_per_step: float) -> None:
        self.steps, self.tokens_per_step = steps, tokens_per_step
        self.done = 0
        self.resume(0)

    def resume(self, done: int) -> None:
        """Measure from here on: what was done before was done by another process."""
        self.done = self._first = done
        self._began = self._last = time.monotonic()
        self._seconds, self._counted = 0.0, 0

    def step(self, done: int) -> None:
        """So many steps are finished."""
        now = time.monotonic()
        self._seconds += now - self._last
        self._counted += done - self.done
        self.done, self._last = done, now

    def evaluated(self, done: int) -> None:
        """So many steps are finished and an evaluation has just ended: nobody knows how long it took, so nothing is counted."""
        self.done, self._last = done, time.monotonic()

    @property
    def tokens_per_second(self) -> float | None:
        """Training tokens, without padding and without the time of evaluations."""
        return self._counted * self.tokens_per_step / self._seconds if self._counted and self._seconds else None

    @property
    def seconds_left(self) -> float | None:
        """As the run has gone so far, evaluations included."""
        fresh = self.done - self._first
        return (time.monotonic() - self._began) / fresh * (self.steps - self.done) if fresh else None


class MetricLogger:
    """Takes a run's log lines, as the loop's `log`; on the main process only."""

    def __init__(
        self,
        run: str,
        config: RunConfig,
        primary: str,
        lengths: Sequence[int],
        directory: RunDirectory,
        report_to: Sequence[str] = (),
    ) -> None:
        """Begin a run's metrics.jsonl.

        Args:
            run: the run in a word.
            primary: the metric that is shown.
            lengths: tokens of each training example.
            report_to: names of trackers.
        """
        self.run, self.config, self.primary, self.directory = run, config, primary, directory
        self.steps_per_epoch = math.ceil(len(lengths) / config.batch_size)
        self.pace = Throughput(config.epochs * self.steps_per_epoch, sum(lengths) / self.steps_per_epoch)
        self.shown: dict[str, Any] = {"epoch": 0}
        self.is_main = PartialState().is_main_process
        if self.is_main:
            directory.metrics.unlink(missing_ok=True)
        is_wanted = sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)
        self.view = ProgressDisplay(self._title, self._figures, self._share) if self.is_main and is_wanted else None
        self.trackers = trackers.start(report_to, run, config, directory) if self.is_main and report_to else []

    def __enter__(self) -> "MetricLogger":
        if self.view:
            self.view.start()
        self.pace.resume(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.view:
            self.view.stop()
        for tracker in self.trackers:
            tracker.finish()

    def __call__(self, line: dict[str, Any], again: bool) -> None:
        """Take a line.

        Args:
            again: it is from before a resumption: it belongs in the new metrics.jsonl, and was told already.
        """
        if not self.is_main:
            return
        with self.directory.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.shown |= {"epoch": line["epoch"], "score": line[self.primary]} if "epoch" in line else {"loss": line["loss"]}
        done = line["step"] if "step" in line else line["epoch"] * self.steps_per_epoch
        if again:
            self.pace.resume(done)
            return
        for tracker in self.trackers:
            tracker.log({key: value for key, value in line.items() if key != "step"}, step=done)
        if "epoch" in line:
            self.pace.evaluated(done)
            epoch = f"epoch {line['epoch']} of {self.config.epochs}"
            logger.info(f"{self.run}: {epoch}, {', '.join(self._figures())}")
        else:
            self.pace.step(done)
            logger.debug(f"{self.run}: step {done}, loss {line['loss']:.4f}")

    def _share(self) -> float:
        return self.pace.done / self.pace.steps

    def _title(self) -> str:
        """The run, and the epoch under way."""
        return f"{self.run}  epoch {min(self.shown['epoch'] + 1, self.config.epochs)} of {self.config.epochs}"

    def _figures(self) -> list[str]:
        """Score, loss, speed, memory and time left, as far as they are known."""
        shown, speed, left = self.shown, self.pace.tokens_per_second, self.pace.seconds_left
        return [
            *([f"{self.primary} {100 * shown['score']:.2f}"] if "score" in shown else []),
            *([f"loss {shown['loss']:.4f}"] if "loss" in shown else []),
            *([f"{speed:,.0f} tokens/s"] if speed else []),
            f"{provenance.peak_memory() / 1e9:.1f} GB",
            *([f"{clock(left)} left"] if left and self.pace.done < self.pace.steps else []),
        ]


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
