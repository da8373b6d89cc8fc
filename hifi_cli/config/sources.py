"""The layers that make a run's configuration: protocol, backbone, task, method, files and overrides, later ones winning."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hifi_cli.config import registry
from hifi_cli.config.base import check_keys, describe_error, load_with_bases, parse
from hifi_cli.config.methods import MethodSpec
from hifi_cli.config.protocols import CaseSpec, protocol_chain
from hifi_cli.config.run_config import BackboneConfig, RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name


class ConfigSource(BaseModel):
    """Some configuration keys and where they were written."""

    origin: str
    values: dict[str, Any]


def backbone_config(name: str) -> BackboneConfig:
    """The backbone a name stands for: a shipped YAML, a local directory, or a hub id `owner/name`."""
    if name in registry.names("backbones") or registry.is_file(name):
        path = registry.find("backbones", name)
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
    """Merge the layers, later ones winning, into one validated configuration.

    Built-in defaults < protocol < backbone < task < method, its block for the task (Table 5) < the protocol's blocks for
    all methods, the backbone, the task and the method, and its cases < `files` < `overrides` (`key=value`). What a method
    or protocol is based on comes before it.

    Raises:
        UsageError: an unknown name or key, or a value that does not fit; the origin and the nearest name are told.
        MissingError: a named file is not there.
    """
    protocol_file, method_file = registry.find("protocols", protocol), registry.find("methods", method)
    protocols, methods = protocol_chain(protocol), load_with_bases("methods", method, MethodSpec)
    encoder = backbone_config(backbone)
    task_file = registry.find("tasks", task)
    names_of_methods = [file.stem for file in methods]
    layers = [
        *(ConfigSource(origin=str(file), values=rules.config) for file, rules in protocols.items()),
        *_config_of_backbone(backbone),
        ConfigSource(origin=str(task_file), values=registry.read_yaml(task_file).get("config", {})),
        *(
            ConfigSource(origin=f"{file}{where}", values=values)
            for file, recipe in methods.items()
            for where, values in (("", recipe.config), (f" (tasks: {task_file.stem})", recipe.tasks.get(task_file.stem, {})))
        ),
        *(
            ConfigSource(origin=f"{file} ({block}: {name})", values=getattr(rules, block).get(name, {}))
            for block, name in (
                ("methods", "*"),
                ("backbones", encoder.name),
                ("tasks", task_file.stem),
                *(("methods", name) for name in names_of_methods),
            )
            for file, rules in protocols.items()
        ),
        *(
            ConfigSource(origin=f"{file} (case {number})", values=case.config)
            for file, rules in protocols.items()
            for number, case in enumerate(rules.cases, start=1)
            if _is_of(case, task_file.stem, names_of_methods, encoder.name)
        ),
        *(ConfigSource(origin=str(file), values=registry.read_yaml(file)) for file in files),
        *(parse_override(text) for text in overrides),
    ]
    names: dict[str, Any] = {
        "task": task_file.stem,
        "method": method_file.stem,
        "backbone": encoder.model_dump(),
        "protocol": protocol_file.stem,
        "seed": seed,
    }
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key in names:
            if key in layer.values:
                raise UsageError(f"{layer.origin}: '{key}' is set on the command line (--{key}), not here")
        check_keys(RunConfig, layer.values, layer.origin)
        _merge(merged, layer.values, layer.origin, origins)
    if merged.get("stage1"):
        alone = _stage1(merged["stage1"], task=task, backbone=backbone, protocol=protocol)
        inherited = alone.model_dump(include=set(TrainingConfig.model_fields))
        _merge(inherited, merged["stage1"], "", {})
        merged["stage1"] = inherited
        merged["heads"] = alone.heads.model_dump() | merged.get("heads", {})
    try:
        return RunConfig.model_validate({**merged, **names})
    except ValidationError as error:
        first = error.errors()[0]
        origin = next((origins[key] for key in _prefixes(first["loc"]) if key in origins), "command line")
        raise UsageError(f"{origin}: {describe_error(error, RunConfig)}") from None


def _is_of(case: CaseSpec, task: str, methods: list[str], backbone: str) -> bool:
    """Whether a case of a protocol is one of this task, this method (or one that it is based on) and this backbone."""
    pairs = ((case.tasks, [task]), (case.methods, methods), (case.backbones, [backbone]))
    return all(not named or set(named) & set(own) for named, own in pairs)


def _stage1(given: Any, *, task: str, backbone: str, protocol: str) -> RunConfig:
    """The configuration that the method of stage 1 has alone.

    Raises:
        UsageError: no method is named, or it has two stages itself.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("method"), str):
        raise UsageError("stage1.method is missing: name the method of the first stage, for example stage1.method=bitfit")
    first = resolve(task=task, method=given["method"], backbone=backbone, protocol=protocol)
    if first.stage1:
        raise UsageError(f"stage1.method: '{first.method}' has two stages itself")
    return first


def override_value(value: Any) -> str:
    """Write a value as it stands in a `key=value` override, which `parse_override` reads as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_override(text: str) -> ConfigSource:
    """A layer from one `key=value` argument; `heads.k=5` reaches into a section, the value is YAML.

    Raises:
        UsageError: no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"'{text}': key=value is wanted, for example learning_rate=1e-4")
    try:
        content: Any = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"'{text}': the value is not valid YAML") from None
    for part in reversed(key.strip().split(".")):
        content = {part: content}
    return ConfigSource(origin=f"'{text}'", values=content)


def _config_of_backbone(name: str) -> list[ConfigSource]:
    if name not in registry.names("backbones") and not registry.is_file(name):
        return []
    path = registry.find("backbones", name)
    return [ConfigSource(origin=str(path), values=registry.read_yaml(path).get("config", {}))]


def _merge(target: dict[str, Any], values: Mapping[str, Any], origin: str, origins: dict[str, str], at: str = "") -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            into = target.setdefault(key, {})
            if isinstance(into, dict):
                _merge(into, value, origin, origins, f"{at}{key}.")
                continue
        target[key] = value
        origins[f"{at}{key}"] = origin


def _prefixes(location: tuple[int | str, ...]) -> list[str]:
    parts = [str(part) for part in location]
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
