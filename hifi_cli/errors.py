"""The errors that a user can meet, each with an exit code, and the logger of messages.

An error is one line: what is wrong, and how to fix it.
"""

import logging
import re
import signal

logger = logging.getLogger("hifi")
# Parts of torch's message where memory is missing: it raises a RuntimeError then, on a CPU too.
NO_MEMORY = re.compile("allocate memory|out of memory")
# Stands before each warning in the log of a command that a grid starts, by which the grid finds it.
WARNING_MARK = "warning: "


class HifiError(Exception):
    """A problem that the user can fix. Its text is the whole message, in one line."""

    exit_code = 1


class RunFailed(HifiError):
    """A run started and failed."""


class RecordingFailed(RunFailed):
    """A GPU could not record a training step; its process can train nothing more.

    The exit code tells a grid that the run is worth another try without recorded steps.
    """

    exit_code = 5


class UsageError(HifiError):
    """A wrong name, key, value or file content."""

    exit_code = 2


class PlaceTaken(UsageError):
    """A directory that was to be written is there by now: another process was faster."""


class MissingError(HifiError):
    """Something that the command requires is missing: data, weights, scores, a run."""

    exit_code = 3


class ConflictError(HifiError):
    """A run directory holds, or is being written by, a run of another configuration."""

    exit_code = 4


class Terminated(BaseException):
    """A signal told the process to stop. Like KeyboardInterrupt, it is not an Exception.

    Args:
        number: the signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"
