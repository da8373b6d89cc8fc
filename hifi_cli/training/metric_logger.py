"""The log lines of a run, written to metrics.jsonl, shown and sent to trackers; and the progress of several runs."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from accelerate import PartialState

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import EpochMetrics, MetricsLine
from hifi_cli.training import provenance
from hifi_cli.training.device import select_device
from hifi_cli.training.trainer import Callback, Trainer
from hifi_cli.wording import format_duration

logger = logging.getLogger("hifi")

_REDRAWS_PER_SECOND = 2  # each costs about a millisecond


class Throughput:
    """How fast a run goes.

    Attributes:
        total_steps: optimizer steps of the whole run.
        tokens_per_step: tokens of the training split, without padding, over the steps of an epoch.
        step: finished steps.
    """

    def __init__(self, total_steps: int, tokens_per_step: float) -> None:
        self.total_steps, self.tokens_per_step = total_steps, tokens_per_step
        self.start(0)

    def start(self, step: int) -> None:
        """Start to measure after `step` finished steps, which count for nothing: another process may have made them."""
        self.step = self._first_step = step
        self._start_time = self._last_time = time.monotonic()
        self._training_seconds, self._training_steps = 0.0, 0

    def add_training(self, step: int) -> None:
        """The time since the last call was training; `step` steps are finished."""
        now = time.monotonic()
        self._training_seconds += now - self._last_time
        self._training_steps += step - self.step
        self.step, self._last_time = step, now

    def add_evaluation(self, step: int) -> None:
        """The time since the last call was training and an evaluation: it counts for `seconds_left` alone."""
        self.step, self._last_time = step, time.monotonic()

    @property
    def tokens_per_second(self) -> float | None:
        """Training tokens, without padding and without the time of evaluations."""
        is_measured = self._training_steps and self._training_seconds
        return self._training_steps * self.tokens_per_step / self._training_seconds if is_measured else None

    @property
    def seconds_left(self) -> float | None:
        """At the mean speed so far, evaluations included."""
        steps = self.step - self._first_step
        return (time.monotonic() - self._start_time) / steps * (self.total_steps - self.step) if steps else None


class MetricLogger(Callback):
    """Takes the log lines of a run; on the main process only."""

    def __init__(
        self,
        run: str,
        config: RunConfig,
        primary: str,
        lengths: Sequence[int],
        directory: RunDirectory,
        report_to: Sequence[str] = (),
    ) -> None:
        """Start an empty metrics.jsonl.

        Args:
            run: the run's name.
            primary: the metric that is shown, on the split that selects the best epoch.
            lengths: tokens of each training example.
            report_to: names of trackers.
        """
        self.run, self.config, self.primary, self.directory = run, config, primary, directory
        self.steps_per_epoch = math.ceil(len(lengths) / config.batch_size)
        self.throughput = Throughput(config.epochs * self.steps_per_epoch, sum(lengths) / self.steps_per_epoch)
        self.epoch, self.metric, self.score, self.loss = 0, primary, math.nan, math.nan
        self.device = select_device(config.device)
        self.is_main = PartialState().is_main_process
        if self.is_main:
            directory.metrics.unlink(missing_ok=True)
        is_interactive = sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)
        has_display = self.is_main and is_interactive
        self.display = ProgressDisplay(self._title, self._status, self._fraction) if has_display else None
        self.trackers: list[Any] = []
        if self.is_main and report_to:
            from hifi_cli.training import trackers

            self.trackers = trackers.start(report_to, run, config, directory)

    def __enter__(self) -> "MetricLogger":
        if self.display:
            self.display.start()
        self.throughput.start(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.display:
            self.display.stop()
        for tracker in self.trackers:
            tracker.finish()

    def on_train_begin(self, trainer: Trainer) -> None:
        """Say where the first epoch leaves the model as it was."""
        assert trainer.phase_state
        starts_at_0 = all(factor(0) == 0 for factor in trainer.phase_state.lr_scheduler.lr_lambdas)
        if self.is_main and trainer.steps_per_epoch == 1 and starts_at_0 and not trainer.progress.step:
            logger.info(f"{self.run}: an epoch is one step, and warm-up begins with rate 0: the first epoch trains nothing")

    def on_resume(self, log_history: list[MetricsLine]) -> None:
        """Write the lines to the new metrics.jsonl; terminal and trackers got them before the run was stopped."""
        for line in log_history:
            self._write(line)
            self.throughput.start(self._step_of(line))
        if self.is_main:
            logger.info(f"{self.run}: resuming at epoch {self.epoch + 1} of {self.config.epochs}")

    def on_log(self, line: MetricsLine) -> None:
        """Write a line, show it and send it."""
        if not self.is_main:
            return
        self._write(line)
        step = self._step_of(line)
        for tracker in self.trackers:
            tracker.log({key: value for key, value in line.to_dict().items() if key != "step"}, step=step)
        if isinstance(line, EpochMetrics):
            self.throughput.add_evaluation(step)
            epoch = f"epoch {line.epoch} of {self.config.epochs}"
            logger.info(f"{self.run}: {epoch}, {', '.join(self._status())}")
        else:
            self.throughput.add_training(step)
            logger.debug(f"{self.run}: step {step}, loss {line.loss:.4f}")

    def _write(self, line: MetricsLine) -> None:
        if not self.is_main:
            return
        self.directory.append_metrics(line)
        if isinstance(line, EpochMetrics):
            self.epoch, self.score = line.epoch, line.selecting_score(self.primary)
            self.metric = self.primary if line.selection is None else f"{self.primary} on the selection split"
        else:
            self.loss = line.loss

    def _step_of(self, line: MetricsLine) -> int:
        """Finished steps when the line was logged."""
        return line.epoch * self.steps_per_epoch if isinstance(line, EpochMetrics) else line.step

    def _fraction(self) -> float:
        return self.throughput.step / self.throughput.total_steps

    def _title(self) -> str:
        """The run and the current epoch."""
        return f"{self.run}  epoch {min(self.epoch + 1, self.config.epochs)} of {self.config.epochs}"

    def _status(self) -> list[str]:
        """Score, loss, speed, memory and time left, as far as they are known."""
        speed, seconds_left = self.throughput.tokens_per_second, self.throughput.seconds_left
        is_running = self.throughput.step < self.throughput.total_steps
        return [
            *([f"{self.metric} {100 * self.score:.2f}"] if self.epoch else []),
            *([] if math.isnan(self.loss) else [f"loss {self.loss:.4f}"]),
            *([f"{speed:,.0f} tokens/s"] if speed else []),
            f"{provenance.peak_memory(self.device) / 1e9:.1f} GB",
            *([f"{format_duration(seconds_left)} left"] if seconds_left and is_running else []),
        ]


class ProgressDisplay:
    """The live display of a run on a terminal: a line with title and progress bar, and a status line; both are redrawn.

    Messages scroll above them.

    Args:
        fraction: how much of the run is finished, from 0 to 1.
    """

    def __init__(self, title: Callable[[], str], status: Callable[[], list[str]], fraction: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.title, self.status, self.fraction = title, status, fraction
        console = Console(stderr=True)
        is_terminal = console.is_terminal and not console.is_dumb_terminal
        self.live = Live(
            console=console,
            get_renderable=self.draw,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self.start = self.live.start if is_terminal else lambda: None
        self.stop = self.live.stop

    def draw(self) -> Any:
        """The two lines, as wide as the terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        first = Table.grid(padding=(0, 1), expand=True)
        first.add_column(no_wrap=True)
        first.add_column(ratio=1, min_width=8)
        first.add_row(Text(self.title(), overflow="ellipsis"), ProgressBar(total=1.0, completed=self.fraction()))
        return Group(first, Text("  " + "  ".join(self.status()), overflow="ellipsis", no_wrap=True, style="dim"))


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
