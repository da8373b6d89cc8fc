"""The errors a user can meet: one line, what is wrong and how to fix it; each has an exit code."""


class HifiError(Exception):
    """A problem that the user can fix. Its text is the whole message, in one line."""

    exit_code = 1


class RunFailed(HifiError):
    """A run started and failed."""

    exit_code = 1


class UsageError(HifiError):
    """A wrong name, key, value or file content."""

    exit_code = 2


class MissingError(HifiError):
    """Something that the command requires is missing: data, weights, scores, a run."""

    exit_code = 3


class ConflictError(HifiError):
    """A run directory holds, or is being written by, a run of another configuration."""

    exit_code = 4


class Terminated(BaseException):
    """SIGTERM was received. Like KeyboardInterrupt, it is not an Exception."""

    exit_code = 143
