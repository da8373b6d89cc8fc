"""Where a run's configuration comes from: layers of keys, merged once, so that every value knows the layer that set it.

Defaults < protocol < backbone < task < method and its block for the task < the protocol's blocks < files < `key=value`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ValidationError

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, describe_error, first_problem, flatten, nested, parse
from hifi_cli.config.run_config import BackboneConfig, RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name

COMMAND_LINE = "command line"
DEFAULT = "default"
HUB_OWNERS = {  # of the hub's first models, which everyone names without
    **dict.fromkeys(
        (
            "bert-base-uncased",
            "bert-base-cased",
            "bert-large-uncased",
            "bert-base-multilingual-cased",
        ),
        "google-bert",
    ),
    **dict.fromkeys(
        ("distilbert-base-uncased", "distilbert-base-cased", "distilroberta-base"), "distilbert"
    ),
    "xlm-roberta-large": "FacebookAI",
    "albert-base-v2": "albert",
    "camembert-base": "almanach",
}
NAMING_KEYS = (
    "task",
    "method",
    "backbone",
    "protocol",
    "seed",
)  # set by options of the command line
Source = Literal["text", "code", "ours"]


class BasedSpec(ConfigModel):
    """The content of a YAML that may change another one of its kind."""

    base: str | None = None
    """Name of the YAML that this one changes."""
    description: str
    """What it is, in one line."""
    config: dict[str, Any] = {}
    """Configuration keys that it sets."""


class MethodSpec(BasedSpec):
    """The content of a method's YAML."""

    label: str
    """The method's name in tables."""
    source: str
    """The paper or the code that the method is from."""
    implementation: str
    """What implements it: the name of a file in `hifi_cli/methods/`, or a Python file beside the YAML (`./my_method.py`)."""
    tasks: dict[str, dict[str, Any]] = {}
    """Configuration keys that it sets for single tasks (HiFi, table 5)."""
    deviations: list[str] = []
    """Differences from the paper or its released code, and choices that they leave open."""


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
    methods: dict[str, dict[str, Any]] = {}
    """Keys for single methods, applied after the method's own; `*` means every method."""
    backbones: dict[str, dict[str, Any]] = {}
    """Keys for single backbones, applied after those for every method."""
    tasks: dict[str, dict[str, Any]] = {}
    """Keys for single tasks, applied after those for single backbones."""
    cases: list[CaseSpec] = []
    """Keys for combinations of task, method and backbone, applied last."""


Based = TypeVar("Based", bound=BasedSpec)


@dataclass(frozen=True)
class Layer:
    """Some configuration keys and where they are set.

    Attributes:
        name: short, for `--dry-run`: `protocol laptop`, `method lora (task rte)`, `command line`.
        origin: for error messages: the file or the argument.
        values: nested as in YAML.
    """

    name: str
    origin: str
    values: Mapping[str, Any]


Merged = dict[str, tuple[Any, Layer]]  # by dotted key: a value, and the layer that set it


@dataclass(frozen=True)
class ResolvedConfig:
    """A run's configuration, and by dotted key the name of the layer that set each of its values."""

    config: RunConfig
    sources: dict[str, str]


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
        raise UsageError(
            f"{method_file}: implementation: {name} is outside the YAML's folder; put it beside the YAML"
        )
    return Path(name)


def protocol_chain(name: str) -> dict[Path, ProtocolSpec]:
    """The validated YAMLs of a protocol and of what it is based on, the deepest base first."""
    return _load_with_bases("protocols", name, ProtocolSpec)


def names_of_protocol(name: str) -> dict[str, str]:
    """The task, method and backbone that a protocol, or else its base, names for a command line without them."""
    specs = protocol_chain(name).values()
    return {
        key: named
        for spec in specs
        for key in ("task", "method", "backbone")
        if (named := getattr(spec, key))
    }


def _load_with_bases(kind: str, name: str, model: type[Based]) -> dict[Path, Based]:
    """The validated YAML of a method or protocol and those it is based on, by file; the deepest base comes first.

    Raises:
        UsageError: a YAML is based on itself.
    """
    specs: dict[Path, Based] = {}
    next_name: str | None = name
    while next_name:
        file = registry.find(kind, next_name)
        if file in specs:
            raise UsageError(f"{file}: base: '{next_name}' is based on itself")
        specs[file] = parse(model, registry.read_yaml(file), str(file))
        next_name = specs[file].base
    return dict(reversed(specs.items()))


def backbone_config(name: str) -> BackboneConfig:
    """The backbone a name stands for: a shipped YAML, a local directory, or a hub id `owner/name`."""
    if path := _backbone_yaml(name):
        content = {
            key: value
            for key, value in registry.read_yaml(path).items()
            if key not in ("description", "config")
        }
        if content.get("path") and registry.is_file(
            name
        ):  # a shipped one's stays relative, for installations elsewhere
            content["path"] = str((path.parent / content["path"]).resolve())
        return parse(BackboneConfig, {"name": path.stem, **content}, str(path))
    if Path(name).is_dir():
        return BackboneConfig(
            name=safe_name(Path(name).resolve().name), path=str(Path(name).resolve())
        )
    if name in HUB_OWNERS:
        return BackboneConfig(name=name, hub=f"{HUB_OWNERS[name]}/{name}")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return BackboneConfig(name=safe_name(name), hub=name)
    suggestion = registry.nearest(name, [*registry.names("backbones"), *HUB_OWNERS])
    raise UsageError(
        f"unknown backbone '{name}'{suggestion} (a shipped name, a local directory or a hub id owner/name)"
    )


def _backbone_yaml(name: str) -> Path | None:
    """The backbone's YAML; a local directory and a hub id have none."""
    is_yaml = name in registry.names("backbones") or registry.is_file(name)
    return registry.find("backbones", name) if is_yaml else None


def run_name(kind: str, argument: str) -> str:
    """The name that finished runs have for an argument; that of a user's own YAML carries its file.

    Args:
        kind: `tasks`, `methods`, `protocols` or `backbones`.
        argument: a name, the path of a YAML, or of a backbone also a directory or a hub id.

    Raises:
        MissingError: no such file.
        UsageError: no such backbone.
    """
    if kind == "backbones" and ("/" in argument or registry.is_file(argument)):
        return backbone_config(argument).name
    if registry.is_file(argument):
        registry.find(kind, argument)  # refuses one that is not there
    return registry.name_of(argument)


def resolve(
    *,
    task: str,
    method: str,
    backbone: str,
    protocol: str,
    seed: int = 1,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
) -> RunConfig:
    """The validated configuration of a run; see `resolve_with_sources`."""
    names = {"task": task, "method": method, "backbone": backbone, "protocol": protocol}
    return resolve_with_sources(**names, seed=seed, files=files, overrides=overrides).config


def resolve_with_sources(
    *,
    task: str,
    method: str,
    backbone: str,
    protocol: str,
    seed: int = 1,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
) -> ResolvedConfig:
    """Merge and validate the layers of a run, each over those before it.

    The base of a method or protocol comes before it. A two-stage method takes the keys of its first stage, and the selection
    of attention heads, from the method that it names for that stage.

    Raises:
        UsageError: an unknown name or key, or a wrong value; the message names the layer and the nearest name.
        MissingError: a named file does not exist.
    """
    encoder, protocols, task_file = (
        backbone_config(backbone),
        protocol_chain(protocol),
        registry.find("tasks", task),
    )
    layers_of = partial(_layers, protocols, encoder.name, _backbone_yaml(backbone), task_file)
    methods = _load_with_bases("methods", method, MethodSpec)
    given = [
        *(Layer(f"-c {file}", str(file), registry.read_yaml(file)) for file in files),
        *map(parse_override, overrides),
    ]
    _refuse_names(given)
    merged = _merge([*layers_of(methods), *given])
    arguments = {"task": task, "method": method, "protocol": protocol}
    names: dict[str, Any] = {key: registry.name_of(name) for key, name in arguments.items()} | {
        "seed": seed
    }
    if any(key.startswith("stage1.") for key in merged):
        first = merged.get("stage1.method", (None,))[0]
        if not isinstance(first, str):
            raise UsageError(
                "stage1.method is missing: name the method of the first stage, for example stage1.method=bitfit"
            )
        stage1 = _load_with_bases("methods", first, MethodSpec)
        merged = _over_stage1(merged, _merge(layers_of(stage1)), registry.name_of(first))
    of_encoder = f"backbone {encoder.name}" if _backbone_yaml(backbone) else COMMAND_LINE
    named = [Layer(of_encoder, of_encoder, {"backbone": encoder.model_dump(exclude_unset=True)})]
    return _validated(_merge([*named, Layer(COMMAND_LINE, COMMAND_LINE, names)], merged))


def with_overrides(
    config: RunConfig, overrides: Sequence[str], *, name: str, seed: int
) -> ResolvedConfig:
    """A stored configuration with another seed and other keys.

    Args:
        name: where the stored configuration comes from.

    Raises:
        UsageError: an override has an unknown key, or a key has a wrong value.
    """
    given = [parse_override(text) for text in overrides]
    _refuse_names(given)
    return _validated(_merge([Layer(name, name, config.model_dump() | {"seed": seed}), *given]))


def _layers(
    protocols: Mapping[Path, ProtocolSpec],
    backbone: str,
    backbone_file: Path | None,
    task_file: Path,
    methods: Mapping[Path, MethodSpec],
) -> Iterator[Layer]:
    """What the YAMLs set, later layers over earlier ones; in protocols, keys for combinations of names come last."""
    task, method_names = task_file.stem, [file.stem for file in methods]
    for file, protocol in protocols.items():
        yield Layer(f"protocol {file.stem}", str(file), protocol.config)
    for kind, yaml_file in (("backbone", backbone_file), ("task", task_file)):
        if yaml_file:
            yield Layer(
                f"{kind} {yaml_file.stem}",
                str(yaml_file),
                registry.read_yaml(yaml_file).get("config", {}),
            )
    for file, method in methods.items():
        yield Layer(f"method {file.stem}", str(file), method.config)
        yield Layer(
            f"method {file.stem} (task {task})",
            f"{file} (tasks: {task})",
            method.tasks.get(task, {}),
        )
    blocks = [
        ("methods", "*"),
        ("backbones", backbone),
        ("tasks", task),
        *(("methods", method) for method in method_names),
    ]
    for block, name in blocks:
        which = "all methods" if name == "*" else f"{block.removesuffix('s')} {name}"
        for file, protocol in protocols.items():
            yield Layer(
                f"protocol {file.stem} ({which})",
                f"{file} ({block}: {name})",
                getattr(protocol, block).get(name, {}),
            )
    for file, protocol in protocols.items():
        for number, case in enumerate(protocol.cases, start=1):
            pairs = (
                (case.tasks, [task]),
                (case.methods, method_names),
                (case.backbones, [backbone]),
            )
            if all(not listed or set(listed) & set(names) for listed, names in pairs):
                yield Layer(
                    f"protocol {file.stem} (case {number})", f"{file} (case {number})", case.config
                )


def _refuse_names(layers: Iterable[Layer]) -> None:
    for layer in layers:
        for key in NAMING_KEYS:
            if key in layer.values:
                raise UsageError(
                    f"{layer.origin}: '{key}' is set on the command line (--{key}), not here"
                )


def _merge(layers: Iterable[Layer], merged: Merged | None = None) -> Merged:
    """The keys of all layers, later ones over earlier ones; a value replaces a section, and the other way round."""
    merged = dict(merged or {})
    for layer in layers:
        for key, value in flatten(layer.values).items():
            _set(merged, key, value, layer)
    return merged


def _set(merged: Merged, key: str, value: Any, layer: Layer) -> None:
    within = [other for other in merged if other.startswith(f"{key}.")]
    if value == {} and within:  # an empty section changes nothing
        return
    for other in [*within, *(other for other in merged if key.startswith(f"{other}."))]:
        del merged[other]
    merged[key] = value, layer


def _over_stage1(merged: Merged, alone: Merged, method: str) -> Merged:
    """The merged keys over those that the method of stage 1 has as a run of its own.

    Raises:
        UsageError: that method has two stages itself.
    """
    if any(key.startswith("stage1.") for key in alone):
        raise UsageError(f"stage1.method: '{method}' has two stages itself")
    result: Merged = {}
    for key, (value, layer) in alone.items():
        section = key.partition(".")[0]
        if section == "heads" or section in TrainingConfig.model_fields:
            result[key if section == "heads" else f"stage1.{key}"] = value, layer
    for key, (value, layer) in merged.items():
        _set(
            result, key, method if key == "stage1.method" else value, layer
        )  # the name, not the path
    return result


def _validated(merged: Merged) -> ResolvedConfig:
    try:
        config = RunConfig.model_validate(
            nested({key: value for key, (value, _) in merged.items()})
        )
    except ValidationError as error:
        wrong = first_problem(error)
        key = ".".join(map(str, wrong["loc"]))
        set_by = _layer_of(key, merged)
        inside = [
            layer.origin for other, (_, layer) in merged.items() if other.startswith(f"{key}.")
        ]
        origin = set_by.origin if set_by else [COMMAND_LINE, *inside][-1]
        raise UsageError(f"{origin}: {describe_error(error, RunConfig)}") from None
    layers = {key: _layer_of(key, merged) for key in flatten(config.model_dump())}
    return ResolvedConfig(
        config, {key: layer.name if layer else DEFAULT for key, layer in layers.items()}
    )


def _layer_of(key: str, merged: Merged) -> Layer | None:
    """The layer that set the dotted key `a.b.c`, or else the section `a.b`, or else `a`."""
    while key not in merged and "." in key:
        key = key.rpartition(".")[0]
    return merged[key][1] if key in merged else None


def override_value(value: Any) -> str:
    """Write a value as it stands in a `key=value` override, which `parse_override` reads as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_override(text: str) -> Layer:
    """The layer that one `key=value` argument is; `heads.k=5` sets a key of a section, and the value is YAML.

    Raises:
        UsageError: no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"'{text}': key=value is expected, for example learning_rate=1e-4")
    try:
        content: Any = yaml.load(value, Loader=registry.YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"'{text}': the value is not valid YAML") from None
    return Layer(COMMAND_LINE, f"'{text}'", nested({key.strip(): content}))
