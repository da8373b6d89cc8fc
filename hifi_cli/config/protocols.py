"""What a protocol's YAML says, and where each value comes from that its source does not state."""

from pathlib import Path
from typing import Any, Literal

from hifi_cli.config.run_config import BasedSpec, ConfigModel, chain
from hifi_cli.errors import UsageError

Source = Literal["text", "code", "ours"]


class Unstated(ConfigModel):
    """Where a value comes from that the source of a protocol does not state.

    Attributes:
        source: the `text` of a paper, the `code` of its authors, or `ours`: chosen by this project.
        reason: what is known and why this value is taken; default: the reason that the base gives.
    """

    source: Source
    reason: str = ""


class CaseSpec(ConfigModel):
    """Configuration keys for some combinations of task, method and backbone.

    Attributes:
        tasks, methods, backbones: what the keys are for; empty: all. A method stands for those based on it too.
        config: configuration keys.
    """

    tasks: list[str] = []
    methods: list[str] = []
    backbones: list[str] = []
    config: dict[str, Any]


class ProtocolSpec(BasedSpec):
    """What a protocol's YAML says.

    Attributes:
        base: the protocol that this one changes.
        follows: what its values come from unless `unstated` says otherwise: the `text` of a paper, the `code` of its authors,
            or `ours`: chosen by this project or by you.
        task, method, backbone: used when the command line names none.
        unstated: the keys that the source does not state, and where their values come from. A protocol that follows a text or
            a code takes up every such key of its base; null: its own source states the key.
        config: configuration keys the protocol sets.
        methods: keys it sets for single methods, over their own; `*` stands for every method.
        backbones, tasks: keys it sets for single backbones and tasks, over those for every method.
        cases: keys it sets for combinations of them, over all others.
    """

    description: str
    source: str = ""
    follows: Source = "ours"
    task: str | None = None
    method: str | None = None
    backbone: str | None = None
    unstated: dict[str, Unstated | None] = {}
    config: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}
    backbones: dict[str, dict[str, Any]] = {}
    tasks: dict[str, dict[str, Any]] = {}
    cases: list[CaseSpec] = []


def protocol_chain(name: str) -> dict[Path, ProtocolSpec]:
    """The validated YAMLs of a protocol and of what it is based on, the deepest base first.

    Raises:
        UsageError: a key that a base leaves unstated is inherited without a word.
    """
    specs = chain("protocols", name, ProtocolSpec)
    origins_of_unstated(specs)
    return specs


def protocol_spec(name: str) -> ProtocolSpec:
    """A protocol with the names that it takes over from its base, used when the command line has none."""
    specs = list(protocol_chain(name).values())
    names: dict[str, Any] = {}
    for spec in specs:
        names |= {key: value for key in ("task", "method", "backbone") if (value := getattr(spec, key))}
    return specs[-1].model_copy(update=names)


def origins_of_unstated(specs: dict[Path, ProtocolSpec]) -> dict[str, Unstated]:
    """Where the value comes from of each key that a protocol or one of its bases leaves unstated.

    Args:
        specs: the deepest base first.

    Raises:
        UsageError: a protocol that follows a text or a code does not take up such a key of its base, gives no reason, or
            has null for a key that its base does not leave unstated.
    """
    origins: dict[str, Unstated] = {}
    stated: set[str] = set()
    for file, spec in specs.items():
        silent = [key for key in origins.keys() - stated - spec.unstated.keys() if spec.follows != "ours"]
        if silent:
            raise UsageError(
                f"{file}: unstated: its base does not state {', '.join(sorted(silent))}: say for each that the value is from"
                f" text, code or ours, or null where the {spec.follows} that this protocol follows states it"
            )
        for key, origin in spec.unstated.items():
            base = origins.get(key)
            if origin is None and base is None:
                raise UsageError(f"{file}: unstated: null is for a key that the base does not state, and '{key}' is none")
            if origin is None:
                stated.add(key)
                origins[key] = Unstated(source=spec.follows, reason=f"stated by {spec.source or file.stem}")
            elif reason := origin.reason or (base.reason if base else ""):
                stated.discard(key)
                origins[key] = Unstated(source=origin.source, reason=reason)
            else:
                raise UsageError(f"{file}: unstated: '{key}' has no reason; say what is known and why this value is taken")
    return origins
