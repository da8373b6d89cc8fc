"""The log of a run: metrics.jsonl, messages or a progress bar, and experiment trackers."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import RunFailed, logger
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.progress import describe_epoch
from hifi_cli.records.record import MetricsLine, StepMetrics
from hifi_cli.runs.provenance import peak_memory
from hifi_cli.text import format_duration
from hifi_cli.training import processes
from hifi_cli.training.loop import Callback, Trainer


class MetricLogger(Callback):
    """Writes the log lines of a run, shows them and sends them to trackers.

    Bar and trackers start with the training.

    Args:
        directory: of the run.
        report_to: names of trackers.
        shows_memory: whether the peak memory is that of this run alone.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        report_to: Sequence[str] = (),
        *,
        shows_memory: bool = True,
    ) -> None:
        self.config = config
        self.directory = directory
        self.report_to = report_to
        self.shows_memory = shows_memory
        self.run = config.run_label
        self.trackers: list[Any] = []
        # Whether a line could not be written, so that metrics.jsonl is to be written as a whole.
        self.is_behind = False
        # The training loss of the last line that has one.
        self.loss: float | None = None
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=2,
            disable=not processes.shows_progress(console),
        )
        self.task = self.bar.add_task(self.run, start=False, visible=False, status="")

    def tell_trackers(self, tell: Callable[[Any], None]) -> None:
        """Tell each tracker something; one that fails is named, and told nothing more.

        A server that is away, or a full disk, must not end a training.
        """
        for tracker in list(self.trackers):
            try:
                tell(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                reason = " ".join(str(error).split())
                logger.warning(f"{self.run}: {tracker.name} is told no more: {reason:.200}")

    def on_train_begin(self, trainer: Trainer) -> None:
        """Write the lines of a resumed run, which terminal and trackers got before."""
        self.trackers = start_trackers(self.report_to, self.config, self.directory)
        self.bar.start()
        step = trainer.progress.step
        history = trainer.progress.log_history
        self.directory.write_metrics(history)
        if history and isinstance(history[-1], StepMetrics):
            self.loss = history[-1].loss
        if step:
            epoch = trainer.progress.epoch + 1
            logger.info(f"{self.run}: resuming at epoch {epoch} of {self.config.epochs}")
        status = ""
        if history:
            status = self.describe(history[-1], trainer.runner.task.primary)
        self.bar.reset(
            self.task, total=trainer.plan.total, completed=step, visible=True, status=status
        )

    def on_step_end(self, trainer: Trainer) -> None:
        """Move the progress bar."""
        self.bar.update(self.task, completed=trainer.progress.step)

    def on_log(self, trainer: Trainer, line: MetricsLine) -> None:
        """Write a line, show it and send it."""
        self.write(line, trainer.progress.log_history)
        if isinstance(line, StepMetrics):
            self.loss = line.loss
        step = trainer.progress.step
        status = self.describe(line, trainer.runner.task.primary)
        values = line.model_dump(exclude={"step"}, exclude_none=True)
        self.tell_trackers(lambda tracker: tracker.log(values, step=step))
        self.bar.update(self.task, status=status)
        # The loss of steps stands beside the bar: only epochs get a line of their own.
        if isinstance(line, StepMetrics):
            logger.debug(f"{self.run}: {status}")
            return
        # Its loss is said: the next epoch has it only if a step is logged until then.
        self.loss = None
        # Evaluations count.
        seconds_per_step = trainer.seconds / step
        left = seconds_per_step * (trainer.plan.total - step)
        if not trainer.has_trained():
            status += " (warm-up only: nothing trained yet)"
        if self.shows_memory:
            peak = peak_memory(trainer.runner.device)
            status += f", peak memory {peak / 1e9:.1f} GB"
        logger.info(f"{self.run}: {status}, {format_duration(left)} left")

    def on_train_end(self, trainer: Trainer) -> None:  # noqa: ARG002
        """Remove the progress bar, and let the trackers send the rest."""
        self.bar.stop()
        self.tell_trackers(lambda tracker: tracker.finish())

    def write(self, line: MetricsLine, log_history: Sequence[MetricsLine]) -> None:
        """Write a line to metrics.jsonl, with those before it that could not be written.

        A full disk, or a directory that was removed, does not end the training: the run has all
        lines, and writes them again at its end.

        Args:
            line: the last one.
            log_history: all lines up to this one.
        """
        try:
            if self.is_behind:
                self.directory.write_metrics(log_history)
            else:
                self.directory.append_metrics(line)
            self.is_behind = False
        except (OSError, RunFailed) as error:
            # One warning is enough until a line can be written again.
            if not self.is_behind:
                logger.warning(f"{self.run}: the run goes on, but its log lacks lines: {error}")
            self.is_behind = True

    def describe(self, line: MetricsLine, primary: str) -> str:
        """Return a line in a few words.

        Args:
            primary: the task's primary metric.
        """
        if isinstance(line, StepMetrics):
            return f"step {line.step}, loss {line.loss:.4f}"
        return describe_epoch(line, self.config.epochs, primary, self.loss)


def start_trackers(names: Sequence[str], config: RunConfig, directory: RunDirectory) -> list[Any]:
    """Start accelerate's trackers with the configuration of a run.

    Seeds share a group, in trackers that have groups.

    Args:
        names: of the trackers.
        config: of the run.
        directory: of the run, for trackers that write files.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    run = config.run_label
    group = f"{config.protocol}/{config.backbone.name}/{config.task}/{config.method}"
    arguments: dict[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": directory.path},
        "wandb": {"run_name": "hifi", "name": run, "dir": directory.path, "group": group},
        "trackio": {"run_name": "hifi", "name": run, "group": group},
        "mlflow": {"experiment_name": "hifi", "run_name": run, "tags": {"group": group}},
        "swanlab": {"run_name": "hifi", "experiment_name": run, "group": group},
        "comet_ml": {"run_name": "hifi"},
        "clearml": {"project_name": f"hifi/{group}", "task_name": run},
        "aim": {"run_name": run, "logging_dir": directory.path, "experiment": group},
        "dvclive": {"dir": str(directory.path / "dvclive")},
    }
    # Trackers take nothing nested: dots stand between the keys, and text for lists and null.
    settings: dict[str, bool | int | float | str] = {}
    for key, value in flatten(config.model_dump(mode="json")).items():
        if isinstance(value, bool | int | float):
            settings[key] = value
        elif value != {}:
            settings[key] = str(value)
    trackers = []
    for name in names:
        tracker = LOGGER_TYPE_TO_CLASS[name](**arguments[name])
        tracker.start()
        tracker.store_init_configuration(settings)
        trackers.append(tracker)
    return trackers
