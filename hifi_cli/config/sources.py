"""Where a run's configuration comes from: layers of keys, merged once, each value with its layer.

Defaults < protocol < backbone < task < method and its block for the task < the protocol's blocks
< files < `key=value`.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from hifi_cli.config import registry
from hifi_cli.config.base import describe_error, first_problem, flatten, nested, parse
from hifi_cli.config.origins import OriginFinder
from hifi_cli.config.run_config import DEFAULT, BackboneConfig, RunConfig, TrainingConfig
from hifi_cli.config.specs import MethodSpec, Origin, ProtocolSpec, method_spec, with_bases
from hifi_cli.errors import UsageError
from hifi_cli.files import safe_name
from hifi_cli.run_paths import is_run_directory

COMMAND_LINE = "command line"
# The names of the layers of files that `-c` gives begin with this.
_FILE_LAYER = "-c "
DEFAULT_PROTOCOL = "hifi"
# Together they name a run: a YAML that has all of them is a run's config.yaml. They are options,
# not settings.
_NAMES_OF_A_RUN = ("task", "method", "backbone", "protocol", "seed")


class Layer(NamedTuple):
    """Some keys of the configuration, and what sets them.

    Attributes:
        name: what sets the keys, as `--dry-run` and errors name it: `protocol laptop`,
            `method lora (task rte)`, `-c FILE`, `command line`.
        keys: nested as in YAML.
        origins: where the value of each dotted key comes from, if a YAML says it.
    """

    name: str
    keys: Mapping[str, Any]
    origins: Mapping[str, Origin | None] = {}


class LayeredValue(NamedTuple):
    """A value of the configuration, with what set it.

    Attributes:
        value: as the YAML or the command line has it.
        layer: name of the layer that set it.
        origin: where the value comes from, if a YAML says it.
    """

    value: Any
    layer: str
    origin: Origin | None = None


# --- the configuration of a run


def resolve(
    *,
    task: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
    seed: int | None = None,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    origin: str = COMMAND_LINE,
) -> RunConfig:
    """Return the validated configuration of a run; what is not given is named by the protocol.

    The base of a method or protocol comes before it. A two-stage method takes the keys of its first
    stage, and the selection of attention heads, from the method that it names for that stage.

    Args:
        task: name of a task, or the path of its YAML; likewise method, backbone and protocol.
        method: see `task`.
        backbone: also a local directory, or a hub id `owner/name`.
        protocol: see `task`; None: `hifi`.
        seed: the run's own; None: what the YAMLs say, or 1.
        files: YAMLs with keys; the first may be the config.yaml of a run, which is a whole
            configuration and names all of the above.
        overrides: `key=value` of the command line.
        origin: what these are called in messages, where a YAML has some of them.

    Raises:
        UsageError: an unknown name or key, or a wrong value; the message names the layer and the
            nearest name.
        MissingError: a named file does not exist.
    """
    given = {"task": task, "method": method, "backbone": backbone, "protocol": protocol}
    # Files come before the command line, whose words win.
    changes = [Layer(f"{_FILE_LAYER}{file.name}", registry.read_yaml(file)) for file in files]
    # Only the first file may be a whole configuration: the others change it.
    is_repetition = bool(changes) and names_a_run(changes[0].keys)
    changes += [Layer(origin, parse_override(text)) for text in overrides]
    _refuse_names(changes[1:] if is_repetition else changes)
    if seed is not None:
        changes.append(Layer(COMMAND_LINE, {"seed": seed}))
    if not is_repetition:
        return _resolve_names(given, changes)
    if any(given.values()):
        raise UsageError(
            f"{files[0]} repeats a run, which decides --task, --method, --backbone and"
            " --protocol: leave them out, or set keys by key=value"
        )
    return _resolve_whole(changes)


def names_a_run(keys: Mapping[str, Any]) -> bool:
    """Return whether keys of a YAML are a whole configuration, as config.yaml of a run has it."""
    return all(name in keys for name in _NAMES_OF_A_RUN)


def _refuse_names(layers: Iterable[Layer]) -> None:
    """Refuse a name of a run among settings.

    Raises:
        UsageError: there is one, which is an option.
    """
    for layer in layers:
        for name in _NAMES_OF_A_RUN:
            if name in layer.keys:
                raise UsageError(f"{layer.name}: '{name}' is no setting: give it as --{name}")


def _resolve_whole(layers: Iterable[Layer]) -> RunConfig:
    """Return the configuration of a run's config.yaml, the first layer, with changes in the others."""
    return _validated(_with_files_of_names(_merge(layers)))


def _resolve_names(given: Mapping[str, str | None], changes: Iterable[Layer]) -> RunConfig:
    """Return the configuration that the YAMLs of some names make.

    Args:
        given: task, method, backbone and protocol, where the command line names them.
        changes: what the command line sets besides.

    Raises:
        UsageError: a name is unknown or missing, or a value is wrong.
    """
    protocols = with_bases("protocols", given["protocol"] or DEFAULT_PROTOCOL, ProtocolSpec)
    names = _names(given, protocols)
    yamls = _Yamls(
        protocols,
        _backbone_keys(names["backbone"].value),
        registry.find("tasks", names["task"].value),
    )
    # The name of the backbone stands here as a text; the layer of its YAML replaces it by a
    # section.
    layers = []
    for key, named in names.items():
        layers.append(Layer(named.layer, {key: registry.name_of(named.value)}))
    layers += yamls.layers(names["method"].value)
    layers += changes
    merged = _with_files_of_names(_with_stage1(layers, yamls))
    defaults = _origins_of_defaults(names["method"].value, merged, yamls)
    return _validated(merged, defaults)


def _names(
    given: Mapping[str, str | None], protocols: Mapping[Path, ProtocolSpec]
) -> dict[str, LayeredValue]:
    """Return task, method, backbone and protocol: given, or else named by the protocol or its base.

    Raises:
        UsageError: one is named nowhere.
    """
    names = {"protocol": LayeredValue(DEFAULT_PROTOCOL, DEFAULT)}
    for file, spec in protocols.items():
        usual = spec.model_dump(include={*given}, exclude_none=True)
        for key, name in usual.items():
            names[key] = LayeredValue(name, f"protocol {file.stem}")
    for key, given_name in given.items():
        if given_name:
            names[key] = LayeredValue(given_name, COMMAND_LINE)
    for key in given:
        if key not in names:
            named = names["protocol"].value
            raise UsageError(f"--{key} is required: protocol {named} names none")
    return names


def _with_stage1(layers: Sequence[Layer], yamls: "_Yamls") -> dict[str, LayeredValue]:
    """Return the merged layers, which lie over the keys of the first stage's method if they name one.

    Raises:
        UsageError: there are keys of a first stage without a method, or the method has two stages.
    """
    merged = _merge(layers)
    if not any(key.startswith("stage1.") for key in merged):
        return merged
    named = _with_files_of_names(merged).get("stage1.method", LayeredValue(None, DEFAULT))
    # The layers are merged twice: first to learn which method the first stage has, then over the
    # keys that this method has as a run of its own. So every layer wins over them.
    return _merge(layers, start=_stage1_keys(named, yamls))


def _stage1_keys(named: LayeredValue, yamls: "_Yamls") -> dict[str, LayeredValue]:
    """Return the keys that the method of stage 1 has as a run of its own, as keys of a two-stage run.

    Raises:
        UsageError: no method is named, it has two stages itself, or a file of settings names it by a path.
    """
    method = named.value
    if not isinstance(method, str):
        raise UsageError(
            "stage1.method is missing: name the method of the first stage, for example"
            " stage1.method=bitfit"
        )
    if not isinstance(method, registry.NameWithFile):
        # A path in a file of `-c` is not the user's word: that file may be of a run of others.
        try:
            registry.plain_name(method)
        except ValueError as error:
            raise UsageError(f"{named.layer}: stage1.method: {error}") from None
    keys: dict[str, LayeredValue] = {}
    for key, value in _merge(yamls.layers(method)).items():
        section = key.partition(".")[0]
        if key.startswith("stage1."):
            raise UsageError(f"stage1.method: '{method}' has two stages itself")
        if section == "heads":
            # Heads are selected once for both stages, so that the section belongs to the run.
            keys[key] = value
        elif section in TrainingConfig.model_fields:
            keys[f"stage1.{key}"] = value
    return keys


def _with_files_of_names(merged: Mapping[str, LayeredValue]) -> dict[str, LayeredValue]:
    """Return the values with names that carry the paths of their files, where the user named own ones.

    The user named what the command line says, and what the YAMLs say that it names. A file given
    with `-c` may be that of a run of others: a path in it stays a text, which `RunConfig` refuses.
    """
    result = dict(merged)
    for key, as_name in (
        ("stage1.method", registry.name_of),
        ("heads.rank", registry.name_of_code),
    ):
        named = merged.get(key)
        if named is None or not isinstance(named.value, str):
            continue
        if not named.layer.startswith(_FILE_LAYER):
            result[key] = named._replace(value=as_name(named.value))
    return result


def repeats_run(config: RunConfig) -> bool:
    """Return whether a configuration is that of a run's config.yaml, which `-c` named."""
    return config.layer_of("task").startswith(_FILE_LAYER)


# --- the layers


@dataclass(frozen=True)
class _Yamls:
    """The YAMLs of a run, except those of methods: a two-stage run asks for the layers of two methods.

    Attributes:
        protocols: the protocol and its bases by their files, the deepest base first.
        backbone: the keys that the backbone sets.
        task_file: the task's YAML.
    """

    protocols: Mapping[Path, ProtocolSpec]
    backbone: Mapping[str, Any]
    task_file: Path

    def layers(self, method_name: str) -> Iterator[Layer]:
        """Yield what the YAMLs set, with those of a method; later layers win.

        The origins in the layers change no value: `--dry-run` prints them.
        """
        finder = self.origin_finder(method_name)
        yield from self._own_keys(finder)
        # A protocol's blocks come after the method's own keys, because a paper's setting for one
        # method or task wins over the method's usual one. Its cases, which may name several
        # conditions at once, come last.
        yield from self._blocks(finder, "methods", "*", "all methods")
        yield from self._blocks(finder, "backbones", finder.backbone, f"backbone {finder.backbone}")
        yield from self._blocks(finder, "tasks", finder.task, f"task {finder.task}")
        for name, _ in finder.methods:
            yield from self._blocks(finder, "methods", name, f"method {name}")
        yield from self._cases(finder)

    def origin_finder(self, method_name: str) -> OriginFinder:
        """Return what finds where the values of a run with a method come from."""
        methods = with_bases("methods", method_name, MethodSpec)
        return OriginFinder(
            list(self.protocols.values()),
            [(file.stem, method) for file, method in methods.items()],
            self.task_file.stem,
            self.backbone["backbone"]["name"],
        )

    def _own_keys(self, finder: OriginFinder) -> Iterator[Layer]:
        """Yield the keys that each YAML sets for all of its runs: protocol, backbone, task, method.

        Args:
            finder: finds where the values come from; it has the method and its bases.
        """
        for index, (file, protocol) in enumerate(self.protocols.items()):
            keys = protocol.config
            yield Layer(f"protocol {file.stem}", keys, finder.of_protocol(index, "", keys))
        yield Layer(f"backbone {finder.backbone}", self.backbone, finder.of_others(self.backbone))
        keys = registry.read_yaml(self.task_file).get("config", {})
        yield Layer(f"task {finder.task}", keys, finder.of_others(keys))
        for index, (name, method) in enumerate(finder.methods):
            keys = method.config
            origins = finder.of_method(index, keys, for_task=False)
            yield Layer(f"method {name}", keys, origins)
            keys = method.tasks.get(finder.task, {})
            origins = finder.of_method(index, keys, for_task=True)
            yield Layer(f"method {name} (task {finder.task})", keys, origins)

    def _blocks(self, finder: OriginFinder, section: str, name: str, words: str) -> Iterator[Layer]:
        """Yield what the protocols set for one name.

        Args:
            finder: finds where the values come from.
            section: `methods`, `backbones` or `tasks`.
            name: what is looked for there.
            words: what the names of the layers call it.
        """
        for index, (file, protocol) in enumerate(self.protocols.items()):
            block = getattr(protocol, section).get(name, {})
            origins = finder.of_protocol(index, f"{section}.{name}", block)
            yield Layer(f"protocol {file.stem} ({words})", block, origins)

    def _cases(self, finder: OriginFinder) -> Iterator[Layer]:
        """Yield what the protocols set for the combination of the run's task, encoder and method.

        Args:
            finder: finds where the values come from.
        """
        method_names = [name for name, _ in finder.methods]
        for index, (file, protocol) in enumerate(self.protocols.items()):
            for number, case in enumerate(protocol.cases, start=1):
                if case.is_for(finder.task, finder.backbone, method_names):
                    origins = finder.of_protocol(index, "", case.config, case.origin)
                    name = f"protocol {file.stem} (case {number})"
                    yield Layer(name, case.config, origins)


def _merge(
    layers: Iterable[Layer], start: Mapping[str, LayeredValue] | None = None
) -> dict[str, LayeredValue]:
    """Return the values of all layers by dotted key: later layers over earlier ones, all over `start`.

    A value replaces a section, and the other way round; an empty section changes nothing.
    """
    result = dict(start or {})
    for layer in layers:
        for key, value in flatten(layer.keys).items():
            # Keys are dotted paths. This key may replace a section (its keys `within`), or a value
            # that stands where its section would be (`around`).
            within = [other for other in result if other.startswith(f"{key}.")]
            if value == {} and within:
                continue
            # `stage1=null` removes the section's keys, and a later `stage1.method=bitfit` removes
            # the null.
            around = [other for other in result if key.startswith(f"{other}.")]
            for other in within + around:
                del result[other]
            result[key] = LayeredValue(value, layer.name, layer.origins.get(key))
    return result


# --- the validated configuration


def _validated(
    merged: Mapping[str, LayeredValue], origins_of_defaults: Mapping[str, Origin] | None = None
) -> RunConfig:
    """Return the configuration with these values, which knows what set each of them.

    Args:
        merged: the values by dotted key.
        origins_of_defaults: where the values of keys come from that are not among them.

    Raises:
        UsageError: a key or value is wrong; the message begins with what set it.
    """
    # The lists in the values are those of the YAMLs, which other runs share.
    values = {key: copy.deepcopy(layered.value) for key, layered in merged.items()}
    layers = {key: layered.layer for key, layered in merged.items()}
    try:
        config = RunConfig.model_validate(nested(values))
    except ValidationError as error:
        key = ".".join(map(str, first_problem(error)["loc"]))
        layer = _layer_of_problem(key, layers)
        raise UsageError(f"{layer}: {describe_error(error, RunConfig)}") from None
    # A stored run may have such a name: only a new one is refused.
    if config.variant and is_run_directory(config.variant):
        raise UsageError(
            f"{layers['variant']}: variant={config.variant} would lie in the directory of a usual"
            " run: take another name"
        )
    origins_of_values = {key: layered.origin for key, layered in merged.items()}
    return config.with_layers(layers, {**(origins_of_defaults or {}), **origins_of_values})


def _layer_of_problem(wrong: str, layers: dict[str, str]) -> str:
    """Return the layer that set a wrong key.

    If pydantic names a section, it is the layer of the section's last key. If it names a part of a
    value, such as an item of a list, it is the layer of the value.
    """
    # Reversed, because the last layer that set something there is the one to blame.
    for key, layer in reversed(layers.items()):
        is_part = f"{wrong}.".startswith(f"{key}.")
        is_section = f"{key}.".startswith(f"{wrong}.")
        if is_part or is_section:
            return layer
    return COMMAND_LINE


def _origins_of_defaults(
    method: str, merged: Mapping[str, LayeredValue], yamls: _Yamls
) -> dict[str, Origin]:
    """Return what the YAMLs of a run say of the keys that none of them sets.

    Args:
        method: name of the method.
        merged: the values of all layers, which name the method of the first stage if there is one.
        yamls: the others of the run.
    """
    origins = yamls.origin_finder(method).of_defaults()
    stage1 = merged.get("stage1.method")
    if stage1 is not None and isinstance(stage1.value, str):
        for key, origin in yamls.origin_finder(stage1.value).of_defaults().items():
            if key.partition(".")[0] in TrainingConfig.model_fields:
                origins[f"stage1.{key}"] = origin
    return origins


# --- key=value


def override_value(value: Any) -> str:
    """Write a value as it stands in a `key=value` override, which `parse_override` reads as YAML."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def parse_override(text: str) -> dict[str, Any]:
    """Return the keys that one `key=value` argument sets, nested.

    `heads.k=5` is `{"heads": {"k": 5}}`; the value is read as YAML.

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
    return nested({key.strip(): content})


# --- names on the command line

# Owners of old hub models, which people still name without one.
HUB_OWNERS = {
    "bert-base-uncased": "google-bert",
    "bert-base-cased": "google-bert",
    "bert-large-uncased": "google-bert",
    "bert-base-multilingual-cased": "google-bert",
    "distilbert-base-uncased": "distilbert",
    "distilbert-base-cased": "distilbert",
    "distilroberta-base": "distilbert",
    "xlm-roberta-large": "FacebookAI",
    "albert-base-v2": "albert",
    "camembert-base": "almanach",
}


def backbone_config(name: str) -> BackboneConfig:
    """Return the backbone that a name stands for: a YAML, a local directory, or a hub id `owner/name`."""
    return parse(BackboneConfig, _backbone_keys(name)["backbone"], f"backbone {name}")


def _backbone_keys(name: str) -> dict[str, Any]:
    """Return the configuration keys that a backbone sets: `backbone` itself, and those in its YAML.

    Raises:
        UsageError: it is none of what `backbone_config` takes.
    """
    if name in registry.names("backbones") or registry.is_yaml_path(name):
        return _keys_of_backbone_yaml(name)
    if Path(name).is_dir():
        path = Path(name).resolve()
        return {"backbone": {"name": safe_name(path.name), "path": str(path)}}
    if name in HUB_OWNERS:
        return {"backbone": {"name": name, "hub": f"{HUB_OWNERS[name]}/{name}"}}
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return {"backbone": {"name": safe_name(name), "hub": name}}
    # Neither a shipped name nor a hub id has these characters.
    if name.startswith((".", "/", "~")):
        raise UsageError(f"backbone {name}: there is no such directory here")
    suggestion = registry.did_you_mean(name, [*registry.names("backbones"), *HUB_OWNERS])
    raise UsageError(
        f"unknown backbone '{name}'{suggestion}"
        " (a shipped name, a local directory or a hub id owner/name)"
    )


def _keys_of_backbone_yaml(name: str) -> dict[str, Any]:
    """Return the configuration keys that a shipped backbone, or a user's own YAML, sets."""
    file = registry.find("backbones", name)
    content = registry.read_yaml(file)
    keys: dict[str, Any] = content.pop("config", {})
    content.pop("description", None)
    content.pop("architecture", None)
    if content.get("path") and registry.is_yaml_path(name):
        # The path in a shipped YAML stays relative, for installations elsewhere.
        content["path"] = str((file.parent / content["path"]).resolve())
    return {**keys, "backbone": {"name": file.stem, **content}}


def architecture_of(backbone: BackboneConfig) -> dict[str, Any] | None:
    """Return the sizes of a hub's encoder that a shipped YAML has, so that no file of it is needed.

    Returns:
        `model_type` and sizes, under the names of config.json; None: no YAML has those of the
        encoder, or the revision may be another one.
    """
    if backbone.hub is None or backbone.revision is not None:
        return None
    for name in registry.names("backbones"):
        content = registry.load("backbones", name)
        if content.get("hub") == backbone.hub and "architecture" in content:
            return dict(content["architecture"])
    return None


def stored_name(kind: str, argument: str) -> str:
    """Return the name that finished runs have for an argument; that of a user's own YAML has its file.

    Args:
        kind: `tasks`, `methods`, `protocols` or `backbones`.
        argument: a name, the path of a YAML, or of a backbone also a directory or a hub id.

    Raises:
        MissingError: no such file.
        UsageError: no such backbone, or a YAML is none of its kind.
    """
    if kind == "backbones" and ("/" in argument or registry.is_yaml_path(argument)):
        return backbone_config(argument).name
    name = registry.name_of(argument)
    # The user's own file is read now, so that what is wrong in it is said before any work is done.
    if registry.own_file(name) and kind == "methods":
        method_spec(name)
    if registry.own_file(name) and kind == "protocols":
        with_bases("protocols", name, ProtocolSpec)
    return name
