"""The YAMLs of methods and protocols: what they may say, their bases, and the code that a method names."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import model_validator

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import UsageError

# What a value comes from: the text of a paper, the code of its authors, or this project.
SourceKind = Literal["text", "code", "ours"]
MethodKind = Literal["hifi", "eh-ft", "papers", "others"]
# The kinds of methods in the order of their list, and what they are.
METHOD_KINDS: dict[MethodKind, str] = {
    "hifi": "HiFi: attention heads",
    "eh-ft": "EH-FT and LP-FT: the task head first, then everything",
    "papers": "others of the papers' tables",
    "others": "more methods",
}


class Origin(ConfigModel):
    """Where a value comes from."""

    source: SourceKind
    """The `text` of a paper, the `code` of its authors, or `ours`: chosen by this project."""
    where: str = ""
    """The place in the paper, as `HiFi, table 5`, or whose code it is."""
    reason: str = ""
    """The known facts, and why this value is used; default: what the base says of the key."""


class BasedSpec(ConfigModel):
    """The content of a YAML that may change another one of its kind."""

    base: str | None = None
    """Name of the YAML that this one changes."""
    description: str
    """The YAML's subject, in one line."""
    config: dict[str, Any] = {}
    """Configuration keys that it sets."""
    stated: dict[str, list[str]] = {}
    """Places in its source, as `HiFi, table 5`, each with the keys whose values it states.
    `tasks.NAME.KEY` is a key for one task, likewise `methods.NAME.KEY` and `backbones.NAME.KEY`;
    a section stands for all of its keys, and so does `tasks` in a method."""
    unstated: dict[str, Origin | None] = {}
    """The keys that its source does not state, written as in `stated`, and where their values
    come from. A protocol that follows a text or a code repeats every such key of its base; null:
    its own source states the key."""


# peft's adapter_config.json says these besides the options of the adapters.
NO_OPTIONS = {
    "peft_type",
    "peft_version",
    "task_type",
    "inference_mode",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "target_modules",
    "feedforward_modules",
}
# `target_modules: all-linear` of peft, in the words of our methods.
_ALL_LINEAR = ["query", "key", "value", "output", "ffn", "ffn_output"]
# Modules of a task head, which trains whole anyway, as adapter_config.json may name them.
TASK_HEAD_MODULES = {"classifier", "score", "pooler", "pre_classifier", "qa_outputs", "head"}
# Keys of the adapter_config.json of the library adapters (AdapterHub).
_OF_ADAPTERHUB = {"hidden_size", "model_class", "model_type", "config_id"}


class MethodSpec(BasedSpec):
    """The content of a method's YAML, or of an adapter_config.json of peft."""

    label: str
    """The method's name in tables."""
    source: str
    """The paper or the code that the method is from."""
    kind: MethodKind = "others"
    """Where `hifi ls methods` lists it: under a paper, a paper's comparisons, or others."""
    implementation: str
    """Its implementation: the name of a file in `hifi_cli/methods/`, or a Python file beside the YAML (`./my_method.py`)."""
    tasks: dict[str, dict[str, Any]] = {}
    """Configuration keys that it sets for single tasks (HiFi, table 5)."""
    deviations: list[str] = []
    """Differences from the paper or its released code, and choices that they leave open."""

    @model_validator(mode="before")
    @classmethod
    def _from_adapter_config(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Read an adapter_config.json as the method `peft` with its type, options and targets."""
        if "peft_type" not in content:
            if _OF_ADAPTERHUB & content.keys():
                raise ValueError(
                    "this is a file of the library adapters (AdapterHub), not of peft; hifi reads peft's,"
                    " and has the method adapter"
                )
            return content
        kind = str(content["peft_type"]).lower()
        settings: dict[str, Any] = {"type": kind, "options": _adapter_options(content)}
        targets = _adapter_targets(content)
        if targets:
            settings["targets"] = targets
        return {
            "description": f"Adapters of peft's type {kind}",
            "label": kind,
            "source": "peft",
            "implementation": "peft",
            "base": "peft",
            "config": {"settings": settings},
        }


def _adapter_options(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the adapters that an adapter_config.json describes.

    Raises:
        ValueError: an option is by the whole name of a module.
    """
    options = {}
    for key, value in content.items():
        if key not in NO_OPTIONS and value not in (None, [], {}):
            options[key] = value
    if TASK_HEAD_MODULES.issuperset(options.get("modules_to_save", ())):
        options.pop("modules_to_save", None)
    for key, value in options.items():
        if isinstance(value, dict) and any("." in name for name in value):
            raise ValueError(
                f"{key}: names with a point cannot be given; write the last part of a module's name"
            )
    return options


def _adapter_targets(content: Mapping[str, Any]) -> list[str]:
    """Return the modules that an adapter_config.json names, sorted; none: those of its type's default.

    Raises:
        ValueError: it has a regular expression.
    """
    targets = content.get("target_modules")
    if targets == "all-linear":
        targets = _ALL_LINEAR
    if isinstance(targets, str):
        raise ValueError("target_modules: write a list of module names, no regular expression")
    return sorted(targets or [])


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
    origin: Origin | None = None
    """Where their values come from; default: what `stated` and `unstated` say of the keys."""

    def is_for(self, task: str, backbone: str, methods: Sequence[str]) -> bool:
        """Return whether a run has the combination.

        Args:
            task: name of the run's task.
            backbone: name of its encoder.
            methods: names of its method and of the method's bases.
        """
        has_task = not self.tasks or task in self.tasks
        has_backbone = not self.backbones or backbone in self.backbones
        has_method = not self.methods or any(name in self.methods for name in methods)
        return has_task and has_backbone and has_method


class ProtocolSpec(BasedSpec):
    """The content of a protocol's YAML."""

    source: str = ""
    """The paper or the code that the protocol is from."""
    follows: SourceKind = "ours"
    """Where its values come from, except those under `unstated`: the `text` of a paper, the `code` of its authors, or `ours`:
    chosen by this project or by you."""
    task: str | None = None
    """The task if the command line names none."""
    method: str | None = None
    """The method if the command line names none."""
    backbone: str | None = None
    """The backbone if the command line names none."""
    methods: dict[str, dict[str, Any]] = {}
    """Keys for single methods, applied after the method's own; `*` means every method."""
    backbones: dict[str, dict[str, Any]] = {}
    """Keys for single backbones, applied after those for every method."""
    tasks: dict[str, dict[str, Any]] = {}
    """Keys for single tasks, applied after those for single backbones."""
    cases: list[CaseSpec] = []
    """Keys for combinations of task, method and backbone, applied last."""


Based = TypeVar("Based", bound=BasedSpec)


def method_spec(name: str) -> MethodSpec:
    """Return the validated YAML of a method."""
    return _read_spec(MethodSpec, registry.find("methods", name))


def _read_spec(model: type[Based], file: Path) -> Based:
    """Read the validated YAML of a method or protocol, which nobody changes."""
    spec: Based = _parsed_spec(model, registry.read_content(file), file)
    return spec


@cache
def _parsed_spec(model: type[Based], content: bytes, file: Path) -> Based:
    """Validate the content of a YAML once: the hundreds of runs of a grid share a few files."""
    return parse(model, registry.parse_yaml(content, file), str(file))


def code_file(method_file: Path) -> Path | None:
    """Return the Python file that a method's YAML names, relative to the YAML's folder; None: it names none.

    Raises:
        UsageError: the file is not in the folder of the YAML: a run could not keep a copy of both;
            or the YAML is an adapter_config.json that is not of peft, whose files name no code.
    """
    content = registry.read_yaml(method_file)
    if "peft_type" in content:
        return None
    if method_file.name.endswith(registry.ADAPTER_CONFIG):
        raise UsageError(f"{method_file}: 'peft_type' is missing: it is no configuration of peft")
    name = str(content.get("implementation", ""))
    if not name.endswith(".py"):
        return None
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UsageError(
            f"{method_file}: implementation: {name} is outside the YAML's folder; put it beside the YAML"
        )
    return Path(name)


def with_bases(kind: str, name: str, model: type[Based]) -> dict[Path, Based]:
    """Return the validated YAMLs, by file, of a method or protocol and of its bases, the deepest first.

    Args:
        kind: `methods` or `protocols`.
        name: a name, or the path of a YAML.
        model: of the content.

    Raises:
        UsageError: a YAML is based on itself.
    """
    specs: dict[Path, Based] = {}
    next_name: str | None = name
    while next_name:
        if specs:
            _check_base(name, next_name)
        file = registry.find(kind, next_name)
        if file in specs:
            raise UsageError(f"{file}: base: '{next_name}' is based on itself")
        specs[file] = _read_spec(model, file)
        next_name = specs[file].base
    return dict(reversed(specs.items()))


def _check_base(name: str, base: str) -> None:
    """Refuse the path of a base in a file that a run keeps: that path may lead anywhere.

    Raises:
        UsageError: it is one.
    """
    if isinstance(name, registry.NameWithFile) and not name.is_trusted:
        try:
            registry.plain_name(base)
        except ValueError as error:
            raise UsageError(f"{name.path}: base: {error}") from None
