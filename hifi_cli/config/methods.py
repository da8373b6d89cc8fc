"""The content of a method's YAML."""

from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import BasedSpec, parse
from hifi_cli.errors import UsageError


class MethodSpec(BasedSpec):
    """The content of a method's YAML."""

    base: str | None = None
    """The method whose configuration this one changes."""
    description: str
    """What the method does, in one line."""
    label: str
    """The method's name in tables."""
    source: str
    """The paper or the code that the method is from."""
    implementation: str
    """What implements it: the name of a file in `hifi_cli/methods/`, or a Python file beside the YAML (`./my_method.py`)."""
    config: dict[str, Any] = {}
    """Configuration keys that the method sets."""
    tasks: dict[str, dict[str, Any]] = {}
    """Configuration keys that it sets for single tasks (HiFi, table 5)."""
    deviations: list[str] = []
    """Differences from the paper or its released code, and choices that they leave open."""


def method_spec(name: str) -> MethodSpec:
    """The validated YAML of a method."""
    return parse(MethodSpec, registry.load("methods", name), str(registry.find("methods", name)))


def code_file(method_file: Path) -> Path | None:
    """The Python file that a method's YAML names, relative to the YAML's folder; None if it names another implementation.

    Raises:
        UsageError: the file is not in the folder of the YAML: a run could not keep a copy of both.
    """
    name = str(registry.read_yaml(method_file).get("implementation", ""))
    if not name.endswith(".py"):
        return None
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UsageError(f"{method_file}: implementation: {name} is outside the YAML's folder; put it beside the YAML")
    return Path(name)
