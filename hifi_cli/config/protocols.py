"""What a protocol's YAML says, and where each value comes from that its source does not state."""

from pathlib import Path
from typing import Any, Literal

from hifi_cli.config.base import BasedSpec, ConfigModel, load_with_bases

Source = Literal["text", "code", "ours"]


class Unstated(ConfigModel):
    """Where a value comes from that the source of a protocol does not state."""

    source: Source
    """The `text` of a paper, the `code` of its authors, or `ours`: chosen by this project."""
    reason: str = ""
    """What is known and why this value is used; default: the reason that the base gives."""


class CaseSpec(ConfigModel):
    """Configuration keys for some combinations of task, method and backbone."""

    tasks: list[str] = []
    """The tasks; empty: all."""
    methods: list[str] = []
    """The methods, and those based on them; empty: all."""
    backbones: list[str] = []
    """The backbones; empty: all."""
    config: dict[str, Any]
    """Configuration keys for these."""


class ProtocolSpec(BasedSpec):
    """The content of a protocol's YAML."""

    base: str | None = None
    """The protocol that this one changes."""
    description: str
    """What the protocol is, in one line."""
    source: str = ""
    """The paper or the code that the protocol is from."""
    follows: Source = "ours"
    """Where its values come from, except those under `unstated`: the `text` of a paper, the `code` of its authors, or `ours`:
    chosen by this project or by you."""
    task: str | None = None
    """The task if the command line names none."""
    method: str | None = None
    """The method if the command line names none."""
    backbone: str | None = None
    """The backbone if the command line names none."""
    unstated: dict[str, Unstated | None] = {}
    """The keys that the source does not state, and where their values come from. A protocol that follows a text or a code
    repeats every such key of its base; null: its own source states the key."""
    config: dict[str, Any] = {}
    """Configuration keys that the protocol sets."""
    methods: dict[str, dict[str, Any]] = {}
    """Keys for single methods, applied after the method's own; `*` means every method."""
    backbones: dict[str, dict[str, Any]] = {}
    """Keys for single backbones, applied after those for every method."""
    tasks: dict[str, dict[str, Any]] = {}
    """Keys for single tasks, applied after those for single backbones."""
    cases: list[CaseSpec] = []
    """Keys for combinations of task, method and backbone, applied last."""


def protocol_chain(name: str) -> dict[Path, ProtocolSpec]:
    """The validated YAMLs of a protocol and of what it is based on, the deepest base first."""
    return load_with_bases("protocols", name, ProtocolSpec)


def protocol_spec(name: str) -> ProtocolSpec:
    """A protocol with the names that it takes over from its base, used when the command line has none."""
    specs = list(protocol_chain(name).values())
    names: dict[str, Any] = {}
    for spec in specs:
        names |= {key: value for key in ("task", "method", "backbone") if (value := getattr(spec, key))}
    return specs[-1].model_copy(update=names)
