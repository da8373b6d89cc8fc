"""The sources of a run's configuration and their merge: protocol, backbone, task, method, files, command line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from hifi_cli.config import registry
from hifi_cli.config.base import check_keys, describe_error, flatten, load_with_bases, nest, parse
from hifi_cli.config.methods import MethodSpec
from hifi_cli.config.protocols import CaseSpec, ProtocolSpec, protocol_chain
from hifi_cli.config.run_config import BackboneConfig, RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.wording import number_ranges

COMMAND_LINE = "command line"
DEFAULT = "default"
Value = TypeVar("Value")


@dataclass(frozen=True)
class ConfigSource:
    """Some configuration keys and where they are set.

    Attributes:
        name: short, for `--dry-run`: `protocol laptop`, `method lora (task rte)`, `command line`.
        origin: for error messages: the file or the argument.
        values: nested as in YAML.
    """

    name: str
    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class ResolvedConfig:
    """A run's configuration, and the source of each of its keys.

    Attributes:
        set_by: name of the source by dotted key of a value or a section; a key that is not in it has its default.
    """

    config: RunConfig
    set_by: dict[str, str]

    @cached_property
    def sources(self) -> dict[str, str]:
        """Name of the source by dotted key, for every value of `config.model_dump()`, in that order."""
        return {key: _nearest_parent(key, self.set_by) or DEFAULT for key in flatten(self.config.model_dump())}


def backbone_config(name: str) -> BackboneConfig:
    """The backbone a name stands for: a shipped YAML, a local directory, or a hub id `owner/name`."""
    if path := _backbone_yaml(name):
        content = {key: value for key, value in registry.read_yaml(path).items() if key not in ("description", "config")}
        if content.get("path") and registry.is_file(name):  # a shipped one's stays relative, for installations elsewhere
            content["path"] = str((path.parent / content["path"]).resolve())
        return parse(BackboneConfig, {"name": path.stem, **content}, str(path))
    if Path(name).is_dir():
        return BackboneConfig(name=safe_name(Path(name).resolve().name), path=str(Path(name).resolve()))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return BackboneConfig(name=safe_name(name), hub=name)
    suggestion = registry.nearest(name, registry.names("backbones"))
    raise UsageError(f"unknown backbone '{name}'{suggestion} (a shipped name, a local directory or a hub id owner/name)")


def run_name(kind: str, argument: str) -> str:
    """The name that finished runs have for an argument; a user's own YAML is used for its name from then on.

    Args:
        kind: `tasks`, `methods`, `protocols` or `backbones`.
        argument: a name, the path of a YAML, or of a backbone also a directory or a hub id.

    Raises:
        MissingError: no such file.
        UsageError: no such backbone.
    """
    if kind == "backbones" and ("/" in argument or registry.is_file(argument)):
        return backbone_config(argument).name
    return registry.find(kind, argument).stem if registry.is_file(argument) else argument


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
    """The validated configuration of a run; see `ConfigResolver`."""
    resolver = ConfigResolver(task=task, method=method, backbone=backbone, protocol=protocol, files=files)
    return resolver.resolve(seed=seed, overrides=overrides).config


class ConfigResolver:
    """Merges the sources of a task and method; what its runs share is read, checked and merged once.

    Defaults < protocol < backbone < task < method, its block for the task (table 5) < the protocol's blocks for all methods,
    the backbone, the task and the method, and its cases < `files` < `overrides` (`key=value`). The base of a method or
    protocol comes before it. A two-stage method takes the keys of its first stage, and the selection of attention heads, from
    the method that it names for that stage.

    Raises:
        UsageError: an unknown name or key, or a wrong value; the message names the source and the nearest name.
        MissingError: a named file does not exist.
    """

    def __init__(self, *, task: str, method: str, backbone: str, protocol: str, files: Sequence[Path] = ()) -> None:
        self._task, self._backbone, self._protocol = task, backbone, protocol
        encoder = backbone_config(backbone)
        task_file = registry.find("tasks", task)
        self._named: dict[str, Any] = {
            "task": task_file.stem,
            "method": registry.find("methods", method).stem,
            "backbone": encoder.model_dump(),
            "protocol": registry.find("protocols", protocol).stem,
        }
        self._sources_of_named = dict.fromkeys([*self._named, "seed"], COMMAND_LINE) | _sources_of_backbone(backbone, encoder)
        self._values: dict[str, Any] = {}
        self._set_by: dict[str, ConfigSource] = {}
        for source in _sources(task_file, method, backbone, encoder.name, protocol, files):
            _merge(self._values, _checked(source).values, source, self._set_by)
        self._stage1: dict[str, ResolvedConfig] = {}

    def resolve(self, *, seed: int = 1, overrides: Sequence[str] = ()) -> ResolvedConfig:
        """The validated configuration of one run.

        Raises:
            UsageError: an override has an unknown key, or a key has a wrong value.
        """
        values, set_by = _merge({}, self._values), dict(self._set_by)
        for text in overrides:
            source = _checked_override(text)
            _merge(values, source.values, source, set_by)
        names = {key: source.name for key, source in set_by.items()}
        if values.get("stage1"):
            stage1 = self._resolve_stage1(values["stage1"])
            values["stage1"] = _merge(stage1.config.model_dump(include=set(TrainingConfig.model_fields)), values["stage1"])
            values["stage1"]["method"] = stage1.config.method  # the name, where a user gave the path of a YAML
            values["heads"] = stage1.config.heads.model_dump() | values.get("heads", {})
            of_stage1 = stage1.sources.items()
            names = {key if key.startswith("heads.") else f"stage1.{key}": name for key, name in of_stage1} | names
        try:
            config = RunConfig.model_validate({**values, **self._named, "seed": seed})
        except ValidationError as error:
            wrong_key = ".".join(map(str, error.errors()[0]["loc"]))
            wrong = _nearest_parent(wrong_key, set_by)
            raise UsageError(f"{wrong.origin if wrong else COMMAND_LINE}: {describe_error(error, RunConfig)}") from None
        return ResolvedConfig(config, names | self._sources_of_named)

    def _resolve_stage1(self, stage1: Any) -> ResolvedConfig:
        """The configuration that the method of stage 1 has as a run of its own.

        Raises:
            UsageError: no method is named, or it has two stages itself.
        """
        if not isinstance(stage1, Mapping) or not isinstance(method := stage1.get("method"), str):
            raise UsageError("stage1.method is missing: name the method of the first stage, for example stage1.method=bitfit")
        if method not in self._stage1:
            resolver = ConfigResolver(task=self._task, method=method, backbone=self._backbone, protocol=self._protocol)
            self._stage1[method] = resolver.resolve()
        if self._stage1[method].config.stage1:
            raise UsageError(f"stage1.method: '{self._stage1[method].config.method}' has two stages itself")
        return self._stage1[method]


def with_overrides(config: RunConfig, overrides: Sequence[str], *, name: str, seed: int) -> ResolvedConfig:
    """A stored configuration with another seed and other keys.

    Args:
        name: where the stored configuration comes from.

    Raises:
        UsageError: an override has an unknown key, or a key has a wrong value.
    """
    values, set_by = config.model_dump(mode="json"), dict.fromkeys(RunConfig.model_fields, name)
    for text in overrides:
        source = _checked_override(text)
        _merge(values, source.values)
        set_by |= dict.fromkeys(flatten(source.values), COMMAND_LINE)
    return ResolvedConfig(parse(RunConfig, {**values, "seed": seed}, COMMAND_LINE), set_by)


def _checked(source: ConfigSource) -> ConfigSource:
    """The source, whose keys may be set by it.

    Raises:
        UsageError: an unknown key, or one that has an option of its own.
    """
    for key in ("task", "method", "backbone", "protocol", "seed"):
        if key in source.values:
            raise UsageError(f"{source.origin}: '{key}' is set on the command line (--{key}), not here")
    check_keys(RunConfig, source.values, source.origin)
    return source


@lru_cache(maxsize=1024)
def _checked_override(text: str) -> ConfigSource:
    """The source that one `key=value` argument is; the cells of a grid share most of their texts."""
    return _checked(parse_override(text))


def _sources(
    task_file: Path,
    method: str,
    backbone: str,
    backbone_name: str,
    protocol: str,
    files: Sequence[Path],
) -> list[ConfigSource]:
    """All sources but the defaults and the overrides, in the order in which they are applied."""
    protocols, methods = protocol_chain(protocol), load_with_bases("methods", method, MethodSpec)
    task, method_names = task_file.stem, [file.stem for file in methods]
    sources = [ConfigSource(f"protocol {file.stem}", str(file), spec.config) for file, spec in protocols.items()]
    if file := _backbone_yaml(backbone):
        sources.append(ConfigSource(f"backbone {file.stem}", str(file), registry.read_yaml(file).get("config", {})))
    sources.append(ConfigSource(f"task {task}", str(task_file), registry.read_yaml(task_file).get("config", {})))
    for file, spec in methods.items():
        sources.append(ConfigSource(f"method {file.stem}", str(file), spec.config))
        sources.append(ConfigSource(f"method {file.stem} (task {task})", f"{file} (tasks: {task})", spec.tasks.get(task, {})))
    sources += _blocks_of_protocols(protocols, task, method_names, backbone_name)
    named = {"task": task, "method": method_names[-1], "backbone": backbone_name, "protocol": list(protocols)[-1].stem}
    return sources + [ConfigSource(f"-c {file}", str(file), _values_of_file(file, named)) for file in files]


def _values_of_file(file: Path, named: Mapping[str, str]) -> dict[str, Any]:
    """The keys that a `-c` file sets: some keys, or the config.yaml of a run.

    Args:
        named: task, method, backbone and protocol of the command line.

    Raises:
        UsageError: the file is that of another task, method, backbone or protocol.
    """
    content = registry.read_yaml(file)
    if not {*named, "seed"} <= content.keys():
        return content
    for key, name in named.items():
        of_file = content[key].get("name") if isinstance(content[key], dict) else content[key]
        if of_file != name:
            raise UsageError(f"{file} is the configuration of a run with {key} {of_file}, not {name}: give --{key} {of_file}")
    return {key: value for key, value in content.items() if key not in (*named, "seed")}


def _blocks_of_protocols(
    protocols: Mapping[Path, ProtocolSpec], task: str, methods: list[str], backbone: str
) -> list[ConfigSource]:
    """The protocols' keys for all methods, the backbone, the task, the method, and for combinations of these."""
    blocks = [("methods", "*"), ("backbones", backbone), ("tasks", task), *(("methods", method) for method in methods)]
    sources = []
    for block, name in blocks:
        which = "all methods" if name == "*" else f"{block.removesuffix('s')} {name}"
        for file, spec in protocols.items():
            values = getattr(spec, block).get(name, {})
            sources.append(ConfigSource(f"protocol {file.stem} ({which})", f"{file} ({block}: {name})", values))
    for file, spec in protocols.items():
        for number, case in enumerate(spec.cases, start=1):
            if _applies(case, task, methods, backbone):
                sources.append(ConfigSource(f"protocol {file.stem} (case {number})", f"{file} (case {number})", case.config))
    return sources


def _applies(case: CaseSpec, task: str, methods: list[str], backbone: str) -> bool:
    """Whether a protocol's case is for this task, for this method or one of its bases, and for this backbone."""
    pairs = ((case.tasks, [task]), (case.methods, methods), (case.backbones, [backbone]))
    return all(not listed or set(listed) & set(names) for listed, names in pairs)


def override_value(value: Any) -> str:
    """Write a value as it stands in a `key=value` override, which `parse_override` reads as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_override(text: str) -> ConfigSource:
    """The source that one `key=value` argument is; `heads.k=5` sets a key of a section, and the value is YAML.

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
    return ConfigSource(COMMAND_LINE, f"'{text}'", nest(key.strip(), content))


def _backbone_yaml(name: str) -> Path | None:
    """The backbone's YAML; a local directory and a hub id have none."""
    is_yaml = name in registry.names("backbones") or registry.is_file(name)
    return registry.find("backbones", name) if is_yaml else None


def _sources_of_backbone(name: str, backbone: BackboneConfig) -> dict[str, str]:
    source = f"backbone {backbone.name}" if _backbone_yaml(name) else COMMAND_LINE
    return {f"backbone.{key}": source if key in backbone.model_fields_set else DEFAULT for key in BackboneConfig.model_fields}


def _merge(
    target: dict[str, Any],
    values: Mapping[str, Any],
    source: ConfigSource | None = None,
    set_by: dict[str, ConfigSource] | None = None,
    prefix: str = "",
) -> dict[str, Any]:
    """Put `values` over those of `target`, section by section, and note in `set_by` which source set each dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            section = target[key] if isinstance(target.get(key), dict) else {}
            target[key] = _merge(section, value, source, set_by, f"{prefix}{key}.")
            continue
        target[key] = value
        if source and set_by is not None:
            for replaced in [name for name in set_by if name.startswith(f"{prefix}{key}.")]:
                del set_by[replaced]
            set_by[f"{prefix}{key}"] = source
    return target


def _nearest_parent(key: str, mapping: Mapping[str, Value]) -> Value | None:
    """The entry of the dotted key `a.b.c`, else of `a.b`, else of `a`."""
    while key not in mapping and "." in key:
        key = key.rpartition(".")[0]
    return mapping.get(key)


def train_arguments(
    tasks: Iterable[str],
    methods: Iterable[str],
    backbone: str,
    protocol: str,
    seeds: Iterable[int] = (),
    *,
    force: bool = False,
) -> list[str]:
    """Return the arguments of `hifi` that train every combination of tasks, methods and seeds; no seeds: the default one."""
    arguments = ["train", "--task", ",".join(tasks), "--method", ",".join(methods)]
    arguments += ["--backbone", backbone, "--protocol", protocol]
    seed_ranges = number_ranges(seeds)
    return [*arguments, *(["--seeds", seed_ranges] if seed_ranges else []), *(["--force"] if force else [])]
