"""The log of a run: lines of metrics.jsonl, messages or a progress bar, and experiment trackers."""

import logging
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, format_duration
from hifi_cli.results.record import EpochMetrics, MetricsLine, RunDirectory
from hifi_cli.training import machine
from hifi_cli.training.loop import Callback, Trainer

logger = logging.getLogger("hifi")


class MetricLogger(Callback):
    """Takes the log lines of a run; on the main process only.

    Args:
        run: the run's name.
        primary: the metric that is shown, on the split that selects the best epoch.
        report_to: names of trackers.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        primary: str,
        directory: RunDirectory,
        report_to: Sequence[str] = (),
    ) -> None:
        self.run, self.config, self.primary, self.directory = run, config, primary, directory
        self.is_main = machine.is_main()
        self.trackers = start_trackers(report_to, run, config, directory) if self.is_main else []
        console = Console(stderr=True)
        is_terminal = sys.stderr.isatty() and not console.is_dumb_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=2,
            disable=not (self.is_main and is_terminal and logger.isEnabledFor(logging.INFO)),
        )

    def __enter__(self) -> "MetricLogger":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        for tracker in self.trackers:
            tracker.finish()

    def on_train_begin(self, trainer: Trainer) -> None:
        """Write the lines of a resumed run, which terminal and trackers got before."""
        self.trainer, history = trainer, trainer.progress.log_history
        if self.is_main:
            self.directory.write_metrics(history)
        if trainer.progress.step:
            epoch = trainer.progress.epoch + 1
            logger.info(f"{self.run}: resuming at epoch {epoch} of {self.config.epochs}")
        status = self.describe(history[-1]) if history else ""
        self.task = self.bar.add_task(self.run, total=trainer.total_steps, completed=trainer.progress.step, status=status)

    def on_step_end(self, trainer: Trainer) -> None:
        """Move the progress bar."""
        self.bar.update(self.task, completed=trainer.progress.step)

    def on_log(self, line: MetricsLine) -> None:
        """Write a line, show it and send it."""
        if not self.is_main:
            return
        self.directory.append_metrics(line)
        step, status = self.trainer.progress.step, self.describe(line)
        for tracker in self.trackers:
            tracker.log(line.model_dump(exclude={"step"}, exclude_none=True), step=step)
        self.bar.update(self.task, status=status)
        if isinstance(line, EpochMetrics):
            left = (time.monotonic() - self.trainer.start) / step * (self.trainer.total_steps - step)
            memory = f"{machine.peak_memory(self.trainer.runner.device) / 1e9:.1f} GB"
            status += f", {memory}, {format_duration(left)} left" if left else f", {memory}"
        logger.log(logging.INFO if isinstance(line, EpochMetrics) else logging.DEBUG, f"{self.run}: {status}")

    def describe(self, line: MetricsLine) -> str:
        """Say a line in a few words."""
        if not isinstance(line, EpochMetrics):
            return f"step {line.step}, loss {line.loss:.4f}"
        where = "" if line.selection is None else " on the selection split"
        score = f"{self.primary}{where} {100 * line.selecting_score(self.primary):.2f}"
        return f"epoch {line.epoch} of {self.config.epochs}, {score}"


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed.

    Raises:
        MissingError: the package of one is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise MissingError(f"--report-to {name}: it is not installed: pip install {name}")


def start_trackers(names: Sequence[str], run: str, config: RunConfig, directory: RunDirectory) -> list[Any]:
    """Start trackers of accelerate and give them the configuration."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    arguments: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": directory.path},
        "wandb": {"run_name": "hifi", "name": run, "dir": directory.path},
        "trackio": {"run_name": "hifi", "name": run},
    }
    # trackers take nothing nested: dots between the keys, text for lists and null
    flat = {
        key: value if isinstance(value, bool | int | float) else str(value)
        for key, value in flatten(config.model_dump(mode="json")).items()
        if value != {}
    }
    trackers = [LOGGER_TYPE_TO_CLASS[name](**arguments[name]) for name in names]
    for tracker in trackers:
        tracker.start()
        tracker.store_init_configuration(flat)
    return trackers
