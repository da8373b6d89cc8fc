"""The attempts of a grid to train one cell: which command comes next, and what an exit code means."""

import signal
from collections.abc import Sequence
from pathlib import Path

from hifi_cli import stopping
from hifi_cli.errors import ConflictError, RecordingFailed, logger
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.watch import RunWatch
from hifi_cli.locks import is_held_by_a_process
from hifi_cli.records.layout import RunDirectory

# Exit codes of a run told to stop, as by a cluster that wants its node back.
_STOPPED_CLEANLY = [128 + number for number in (signal.SIGINT, *stopping.SIGNALS)]
# Those of processes that were told before they could listen.
_STOPPED_EARLY = [-number for number in stopping.SIGNALS]
_STOPPED = (*_STOPPED_CLEANLY, *_STOPPED_EARLY)
# A command was refused so often, without another process: the directory holds another run.
_CONFLICTS = 3


class Attempts:
    """The attempts to train one cell, each of them a command.

    Attributes:
        watch: the run, as its files show it.
        log: the file to which all commands of the cell append what they print.

    Args:
        cell: the run to train.
        directory: of the run.
        log: see above.
        retries: how often a failed command is repeated.
    """

    def __init__(self, cell: GridCell, directory: RunDirectory, log: Path, retries: int) -> None:
        self.cell = cell
        self.log = log
        self.watch = RunWatch(cell, directory, log)
        self._directory = directory
        self._retries = retries
        self._has_had_command = False
        # Whether a command may have replaced the former result and left a checkpoint.
        self._goes_on = False
        # False: a GPU could not record the steps. The cell trains again without a recording, which
        # is no part of its configuration.
        self._records_steps = True
        self._failures = 0
        self._conflicts = 0

    @property
    def label(self) -> str:
        """The run, as messages name it."""
        return self.cell.config.run_label

    def is_trained_elsewhere(self) -> bool:
        """Return whether a process that is not of this grid trains the cell."""
        return is_held_by_a_process(self._directory.lock)

    def next_command(self, where: Sequence[str], *, force: bool) -> list[str]:
        """Return the command of the next attempt, which is about to start.

        Args:
            where: options that name data and results.
            force: whether the cell is trained though it has a result.
        """
        if not self._has_had_command:
            # Lines that another grid has printed until now do not belong to this one's command.
            self.watch = RunWatch(self.cell, self._directory, self.log)
            self._has_had_command = True
        # A command that goes on has no --force, which would throw the checkpoint away. Where the one
        # before was stopped before it could remove the former result, there is nothing to go on with.
        replaces = force and (not self._goes_on or self._directory.results.is_file())
        command = self.cell.command(where, force=replaces)
        if not self._records_steps:
            # The last value of a key counts.
            command.append("record_steps=false")
        return command

    def note_failure(self, code: int) -> None:
        """Note that a command has ended without a result.

        Args:
            code: the command's exit code.
        """
        if code == RecordingFailed.exit_code and self._records_steps:
            self._records_steps = False
            logger.info(f"{self.label}: its steps cannot be recorded; once more without")
            return
        if code == ConflictError.exit_code:
            # Another process trains the cell, or has trained it when the command looked. So the command
            # is repeated a few times before the directory counts as that of another run.
            if self.is_trained_elsewhere():
                return
            self._conflicts += 1
            if self._conflicts < _CONFLICTS:
                return
        self._goes_on = True
        if code not in _STOPPED:
            self._failures += 1

    @property
    def are_over(self) -> bool:
        """Whether the cell has failed for good."""
        return self._failures > self._retries

    def reason(self, code: int) -> str:
        """Return why the last command failed: the signal that killed it, its error, or its last line.

        Args:
            code: the command's exit code.
        """
        if code == -signal.SIGKILL:
            return "killed by SIGKILL (too little memory?)"
        if code < 0:
            return f"killed by {_name_of_signal(-code)}"
        said = self.watch.printed_lines()
        # Another grid may append to the same file at the same time: its progress is no reason.
        errors = [line for line in said if line.startswith("hifi: ")]
        if errors:
            return errors[-1]
        if said:
            return said[-1]
        return f"exit code {code}"


def _name_of_signal(number: int) -> str:
    """Return the name of a signal; real-time signals have numbers alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
