"""Options that a command would silently ignore are refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hifi_cli.errors import UsageError

LISTS = frozenset(
    {"task", "tasks", "method", "methods", "seeds", "include", "exclude", "report_to", "status", "tables", "claims"}
)  # parameters of options that take a list with commas


def refuse_repeated(parameters: Iterable[Any]) -> None:
    """Refuse an option that takes a list and is given twice: only the last one would count.

    Args:
        parameters: the parameters of all given words, in their order.

    Raises:
        UsageError: there is one.
    """
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.name in seen and parameter.param_type_name == "option":
            option = parameter.opts[0]
            raise UsageError(f"{option} is given twice: give it once, with commas ({option} ONE,OTHER)")
        seen |= LISTS & {parameter.name}


def refuse_unused(command: str, given: Mapping[str, Any]) -> None:
    """Refuse options that have no effect on what a command prints.

    Args:
        command: with the word that decides what it prints.
        given: values of these options by parameter, None or False where they are not given.

    Raises:
        UsageError: one is given.
    """
    options = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and value is not False]
    if options:
        raise UsageError(f"{command} does not use {' and '.join(options)}: leave {'it' if len(options) == 1 else 'them'} out")


def keys_of_options(given: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The `key=value` texts that options stand for (--limit 32: limit=32).

    Args:
        given: values of these options by key, None where they are not given.

    Raises:
        UsageError: one of `overrides` sets such a key too.
    """
    from hifi_cli.config.base import flatten
    from hifi_cli.config.sources import parse_override

    given = {key: value for key, value in given.items() if value is not None}
    for text in overrides:
        for key in given.keys() & flatten(parse_override(text).values):
            option = f"--{key.rpartition('.')[2].replace('_', '-')}"
            raise UsageError(f"'{text}': {option} {given[key]} sets '{key}' too: give one of them")
    return [f"{key}={value}" for key, value in given.items()]
