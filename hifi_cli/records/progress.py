"""The progress of a run that has no result yet, as its metrics.jsonl has it."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from hifi_cli.records.record import EpochMetrics, MetricsLine, StepMetrics, metrics_line
from hifi_cli.text import format_number


@dataclass(frozen=True)
class RunProgress:
    """The progress of an unfinished run.

    Attributes:
        step: the last optimizer step that has a line; 0: none yet.
        loss: the training loss of that line.
        last_epoch: the line of the last finished epoch; None: no epoch has ended.
        steps_per_epoch: optimizer steps of an epoch; None: no epoch has ended. A line of steps
            stands for several of them, so that the true number may be a few steps higher.
        written: when the last line was written, in seconds since 1970.
        file_number: of the file with the lines; each process that trains the run begins another one.
    """

    step: int = 0
    loss: float | None = None
    last_epoch: EpochMetrics | None = None
    steps_per_epoch: float | None = None
    written: float = 0.0
    file_number: int = 0

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return self.last_epoch.epoch if self.last_epoch else 0

    def after(self, line: MetricsLine) -> "RunProgress":
        """Return the progress of a run after one more line."""
        if isinstance(line, StepMetrics):
            return replace(self, step=line.step, loss=line.loss)
        steps_per_epoch = self.steps_per_epoch
        if self.step and line.epoch:
            steps_per_epoch = self.step / line.epoch
        return replace(self, last_epoch=line, steps_per_epoch=steps_per_epoch)

    def describe(self, epochs: int, primary: str) -> str:
        """Return in a few words how far the run is.

        Args:
            epochs: of the whole run.
            primary: the metric that is its score.
        """
        if self.last_epoch is not None:
            return describe_epoch(self.last_epoch, epochs, primary, self.loss)
        if self.loss is not None:
            return f"epoch 0 of {epochs}, loss {self.loss:.4f}"
        return "no step yet"


def describe_epoch(line: EpochMetrics, epochs: int, primary: str, loss: float | None) -> str:
    """Return in a few words what an epoch came to.

    Args:
        line: of the epoch.
        epochs: of the whole run.
        primary: the metric that is the run's score.
        loss: the last training loss; None: not known.
    """
    text = f"epoch {line.epoch} of {epochs}"
    name = primary
    if line.selection is not None:
        name = f"{primary} on the selection split"
    # A task whose YAML was changed meanwhile may have another metric than the line.
    if line.selection is not None or primary in line.metrics:
        text += f", {name} {format_number(100 * line.selecting_score(primary), '.2f')}"
    if loss is not None:
        text += f", loss {loss:.4f}"
    return text


class ProgressReader:
    """Reads the metrics.jsonl of a run that trains, each time only what is new in it.

    Args:
        metrics: the run's metrics.jsonl, which need not be there yet.
    """

    def __init__(self, metrics: Path) -> None:
        self.metrics = metrics
        self._progress = RunProgress()
        self._bytes_read = 0

    def read(self) -> RunProgress | None:
        """Read the lines that were written since the last call.

        A line that is still being written is left for the next call, and a damaged one left out.

        Returns:
            The progress by all lines so far; None where the file cannot be read.
        """
        try:
            with self.metrics.open("rb") as file:
                return self._read_on(file)
        except (OSError, UnicodeDecodeError):
            return None

    def _read_on(self, file: BinaryIO) -> RunProgress:
        """Read an open file from where the last call ended."""
        status = os.fstat(file.fileno())
        # A run that begins anew, or goes on from its checkpoint, writes another file.
        is_another = status.st_ino != self._progress.file_number
        if is_another or status.st_size < self._bytes_read:
            self._progress = RunProgress(file_number=status.st_ino)
            self._bytes_read = 0
        file.seek(self._bytes_read)
        whole_lines, end, _ = file.read().rpartition(b"\n")
        self._bytes_read += len(whole_lines) + len(end)
        progress = self._progress
        for text in whole_lines.decode("utf-8").splitlines():
            try:
                progress = progress.after(metrics_line(json.loads(text)))
            except (ValueError, TypeError):
                continue
        self._progress = replace(progress, written=status.st_mtime)
        return self._progress
