"""Options that name finished runs: a user's own YAML stands for the name that its runs have."""

from hifi_cli.cli import options
from hifi_cli.config.sources import run_name


def run_names(kind: str, text: str | None) -> list[str]:
    """The names that finished runs have for the words of a list with commas, which may be paths of the user's own YAMLs.

    Raises:
        MissingError: no such file.
        UsageError: no such backbone.
    """
    return [run_name(kind, word) for word in options.names(text)]


def only_run_name(kind: str, argument: str | None) -> str | None:
    """The name that finished runs have for one argument; None where it is not given.

    Raises:
        MissingError: no such file.
        UsageError: no such backbone.
    """
    return argument and run_name(kind, argument)
