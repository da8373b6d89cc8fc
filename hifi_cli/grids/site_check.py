"""Whether a site's YAML fits Parsl's classes, found out without starting anything."""

import inspect
from collections.abc import Mapping
from typing import Any

from hifi_cli.config import registry
from hifi_cli.errors import UsageError, logger
from hifi_cli.grids.cluster import launcher_of, load_site

# Arguments of Parsl's executor that `site_executor` sets, and no site's YAML.
_GIVEN_BY_HIFI = {"label": "", "provider": None}


def check_site(site: str) -> None:
    """Compare a site's names with those of Parsl's classes: provider, launcher and executor.

    No class is instantiated: a provider would look for its cluster. Values are not compared.

    Args:
        site: its name, or the path of its YAML.

    Raises:
        MissingError: no such file.
        UsageError: there is no such class, or an argument is unknown or missing.
    """
    spec = load_site(site)
    try:
        from parsl import HighThroughputExecutor, launchers, providers
    except ImportError:
        logger.warning(
            f"note: Parsl is not installed here, so the names in site {site} are not checked"
        )
        return
    launcher = launcher_of(spec.provider)
    if launcher:
        _check_class(f"site {site}, launcher", launchers, launcher)
    _check_class(f"site {site}, provider", providers, spec.provider)
    _check_arguments(
        f"site {site}, executor", HighThroughputExecutor, spec.executor, _GIVEN_BY_HIFI
    )


def _check_class(place: str, module: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse a class that a module of Parsl does not have, or arguments that it does not take."""
    names = [name for name in dir(module) if name.endswith(("Provider", "Launcher"))]
    kind = arguments.get("kind")
    if kind not in names:
        suggestion = registry.did_you_mean(str(kind), names)
        raise UsageError(f"{place}: Parsl has no class '{kind}'{suggestion}")
    given = {key: value for key, value in arguments.items() if key != "kind"}
    _check_arguments(f"{place} {kind}", getattr(module, kind), given, {})


def _check_arguments(
    place: str, parsls_class: Any, arguments: Mapping[str, Any], others: Mapping[str, Any]
) -> None:
    """Refuse arguments that a class does not take, and their lack where it requires them.

    Args:
        place: for the message.
        parsls_class: the class.
        arguments: those of the YAML.
        others: those that this program gives.
    """
    parameters = inspect.signature(parsls_class).parameters
    for name in arguments:
        if name not in parameters or name in others:
            suggestion = registry.did_you_mean(name, set(parameters) - set(others))
            raise UsageError(f"{place}: unknown argument '{name}'{suggestion}")
    for name, parameter in parameters.items():
        is_given = name in arguments or name in others
        if _is_required(parameter) and not is_given:
            raise UsageError(f"{place}: the argument '{name}' is required")


def _is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a class requires an argument: it has a name and no default; `*args` has neither."""
    has_name = parameter.kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return has_name and parameter.default is inspect.Parameter.empty
