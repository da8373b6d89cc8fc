"""The content of a method's YAML."""

from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import BasedSpec, parse


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
    """The file in `hifi_cli/methods/` that implements it, or an entry point of group `hifi.methods`."""
    config: dict[str, Any] = {}
    """Configuration keys that the method sets."""
    tasks: dict[str, dict[str, Any]] = {}
    """Configuration keys that it sets for single tasks (HiFi, table 5)."""
    deviations: list[str] = []
    """Differences from the paper or its released code, and choices that they leave open."""


def method_spec(name: str) -> MethodSpec:
    """The validated YAML of a method."""
    return parse(MethodSpec, registry.load("methods", name), str(registry.find("methods", name)))
