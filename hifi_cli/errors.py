"""The errors a user can meet: one line that says what is wrong and how to mend it, and an exit code each."""


class HifiError(Exception):
    """A problem the user can mend; its text is the whole message, one line."""

    exit_code = 1


class RunFailed(HifiError):
    """A run started and did not come to a usable end."""

    exit_code = 1


class UsageError(HifiError):
    """A wrong name, key, value or file content."""

    exit_code = 2


class SchemaError(UsageError):
    """A stored file whose layout this version does not know; it must not be replaced as a damaged one may be."""


class MissingError(HifiError):
    """Something the command needs is not there: data, weights, scores, a run."""

    exit_code = 3


class ConflictError(HifiError):
    """A run directory holds, or is being written by, a run of another configuration."""

    exit_code = 4


class Terminated(BaseException):
    """SIGTERM came, as schedulers send it before they take a machine back; like KeyboardInterrupt no error to catch."""

    exit_code = 143
