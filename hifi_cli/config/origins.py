"""Where the values of a run come from: a paper, the code of its authors, or this project.

The YAMLs of methods and protocols say it beside the values, under `stated` and `unstated`, and so
do the cases of a protocol.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hifi_cli.config.base import flatten
from hifi_cli.config.specs import MethodSpec, Origin, ProtocolSpec, SourceKind

# The parts of a protocol with keys for single names.
_BLOCKS = ("tasks", "methods", "backbones")
# Notes of a YAML on its keys: by the key, with the block it is in, as `methods.lora.settings`.
Notes = Mapping[str, Origin]
# Where each of some keys comes from; None: no YAML says it.
Origins = dict[str, Origin | None]


def notes_of_method(spec: MethodSpec) -> Notes:
    """Return what a method's YAML says of where its values come from."""
    notes = _stated(spec.stated, "text")
    for key, origin in spec.unstated.items():
        if origin is not None:
            notes[key] = origin
    return notes


def notes_of_protocol(spec: ProtocolSpec, inherited: Notes) -> Notes:
    """Return what a protocol's YAML says of where its values come from.

    Args:
        spec: the content of the YAML.
        inherited: what its bases say of their keys; an origin without a reason has the reason there.
    """
    source: SourceKind = "text"
    if spec.follows == "code":
        source = "code"
    notes = _stated(spec.stated, source)
    for key, origin in spec.unstated.items():
        if origin is None:
            origin = Origin(source=spec.follows, where=spec.source)
        elif not origin.reason and key in inherited:
            base = inherited[key]
            where = origin.where or base.where
            origin = Origin(source=origin.source, where=where, reason=base.reason)
        notes[key] = origin
    return notes


def _stated(places: Mapping[str, Sequence[str]], source: SourceKind) -> dict[str, Origin]:
    """Return the origin of each key that a place of a source states."""
    notes = {}
    for place, keys in places.items():
        for key in keys:
            notes[key] = Origin(source=source, where=place)
    return notes


@dataclass(frozen=True)
class OriginFinder:
    """Finds where the values of one run, or of the method of its first stage, come from.

    A value is described by the YAML that sets it, or by a protocol that is based on that YAML. A
    protocol may also say something of a key that it leaves to the defaults or to another YAML: that
    the paper's text has no batch size for a task, or what the authors' library does.

    Attributes:
        protocols: the protocol and its bases, the deepest base first.
        methods: likewise the method and its bases, each with its name.
        task: name of the task.
        backbone: name of the encoder.
    """

    protocols: Sequence[ProtocolSpec]
    methods: Sequence[tuple[str, MethodSpec]]
    task: str
    backbone: str

    @cached_property
    def _protocol_notes(self) -> list[Notes]:
        """The notes of each protocol, the deepest base first."""
        found: list[Notes] = []
        inherited: dict[str, Origin] = {}
        for spec in self.protocols:
            notes = notes_of_protocol(spec, inherited)
            found.append(notes)
            inherited |= notes
        return found

    @cached_property
    def _method_notes(self) -> list[Notes]:
        """The notes of each of the methods' YAMLs, the deepest base first."""
        return [notes_of_method(spec) for _, spec in self.methods]

    @cached_property
    def _scopes(self) -> list[str]:
        """The blocks of a protocol for this run, the most specific first."""
        of_methods = [f"methods.{name}" for name, _ in reversed(self.methods)]
        return [*of_methods, f"tasks.{self.task}", f"backbones.{self.backbone}"]

    @cached_property
    def _blocks_of_scopes(self) -> list[tuple[str, int, Collection[str]]]:
        """Each scope with the index of each protocol, the last one first, and the keys that it sets there."""
        blocks: list[tuple[str, int, Collection[str]]] = []
        for scope in self._scopes:
            section, _, name = scope.partition(".")
            for index in reversed(range(len(self.protocols))):
                block = getattr(self.protocols[index], section).get(name, {})
                blocks.append((scope, index, flatten(block).keys()))
        return blocks

    def of_protocol(
        self, index: int, block: str, keys: Mapping[str, Any], of_case: Origin | None = None
    ) -> Origins:
        """Return where the keys come from that a protocol sets.

        Args:
            index: of the protocol among all, the deepest base first.
            block: the part of its YAML, as `methods.lora`; empty: its keys for all runs.
            keys: nested as in YAML.
            of_case: what a case of the protocol says of all of its keys.
        """
        origins: Origins = {}
        for key in flatten(keys):
            found = of_case or self._remark(key, index)
            if found is None and block:
                found = self._said_by_protocols(block, key, index)
            if found is None:
                found = self._said_by_protocols("", key, index)
            origins[key] = found or self._origin_of_protocol(index)
        return origins

    def of_method(self, index: int, keys: Mapping[str, Any], *, for_task: bool) -> Origins:
        """Return where the keys come from that a method's YAML sets.

        Args:
            index: of the YAML among the method's bases, the deepest first.
            keys: nested as in YAML.
            for_task: whether they are its keys for the run's task.
        """
        block = f"tasks.{self.task}" if for_task else ""
        origins: Origins = {}
        for key in flatten(keys):
            origins[key] = self._remark(key, 0) or self._said_by_methods(block, key, index)
        return origins

    def of_others(self, keys: Mapping[str, Any]) -> Origins:
        """Return what the protocols say of the keys that the YAML of a task or a backbone sets."""
        usual = [spec.backbone for spec in self.protocols if spec.backbone]
        origins: Origins = {}
        for key in flatten(keys):
            origins[key] = self._remark(key, 0)
            # A protocol's notes on its backbone say nothing about another one.
            if key.startswith("backbone.") and usual[-1:] == [self.backbone]:
                origins[key] = self._said_by_protocols("", key, 0)
        return origins

    def of_defaults(self) -> dict[str, Origin]:
        """Return what the YAMLs say of any key that none of them sets."""
        found: dict[str, Origin] = {}
        # Later notes win: those of a protocol over those of a method, and those of a block for the
        # run over those for all runs.
        for notes in [*self._method_notes, *self._protocol_notes]:
            for key, origin in notes.items():
                # The YAML of a backbone says all that is not a default.
                if key.partition(".")[0] not in (*_BLOCKS, "backbone"):
                    found[key] = origin
        for scope in reversed(self._scopes):
            for notes in self._protocol_notes:
                for key, origin in notes.items():
                    if key.startswith(f"{scope}."):
                        found[key.removeprefix(f"{scope}.")] = origin
        return found

    def _remark(self, key: str, lowest: int) -> Origin | None:
        """Return what a protocol says of a key for the run's method, task or backbone, without setting it there.

        Args:
            lowest: index of the first protocol that may speak; bases say nothing of what a protocol
                sets that is based on them.
        """
        for scope, index, keys_set in self._blocks_of_scopes:
            if index < lowest or key in keys_set:
                continue
            origin = _said(self._protocol_notes[index], scope, key)
            if origin is not None:
                return origin
        return None

    def _said_by_protocols(self, block: str, key: str, lowest: int) -> Origin | None:
        """Return what the protocols from index `lowest` on say of a key in a block; later ones win."""
        for notes in reversed(self._protocol_notes[lowest:]):
            origin = _said(notes, block, key)
            if origin is not None:
                return origin
        return None

    def _said_by_methods(self, block: str, key: str, lowest: int) -> Origin | None:
        """Return what the methods from index `lowest` on say of a key in a block; later ones win."""
        for notes in reversed(self._method_notes[lowest:]):
            origin = _said(notes, block, key)
            if origin is None and block:
                origin = notes.get("tasks")
            if origin is not None:
                return origin
        return None

    def _origin_of_protocol(self, index: int) -> Origin | None:
        """Return where the values of a protocol come from of which no YAML says more."""
        spec = self.protocols[index]
        if spec.follows == "ours" or not spec.source:
            return None
        return Origin(source=spec.follows, where=spec.source)


def _said(notes: Notes, block: str, key: str) -> Origin | None:
    """Return what a YAML says of a key in one of its blocks, or of the section that the key is in."""
    name = key
    while name:
        origin = notes.get(f"{block}.{name}" if block else name)
        if origin is not None:
            return origin
        name = name.rpartition(".")[0]
    return None
