"""The typed configuration of a run: which layers make it, and what each key means."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hifi_cli import registry
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, safe_name

S = TypeVar("S", bound=BaseModel)
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BackboneConfig(Section):
    """Where the pretrained encoder comes from; exactly one of `hub`, `path` and `package`.

    Attributes:
        name: what results directories are called after.
        hub: a model id on the Hugging Face hub.
        revision: branch, tag or commit on the hub.
        path: a local directory in Hugging Face's layout.
        package: an installed Python package that carries such a directory.
        directory: that directory, inside `package` or beside the YAML.
        extra: the extra of this distribution that installs `package`.
    """

    name: str
    hub: str | None = None
    revision: str | None = None
    path: str | None = None
    package: str | None = None
    directory: str | None = None
    extra: str | None = None


class ScoringConfig(Section):
    """How heads are scored (HiFi, equations 1 to 7).

    Attributes:
        samples: training samples n.
        xi: share of the singular values' sum that counts as all the information; nearer to 1, rounding would decide.
        max_length: tokens of a sample that are read.
        seed: draws the samples.
        warm_steps: full fine-tuning steps before the forward passes (0: the pretrained encoder, Algorithm 1).
    """

    samples: int = Field(300, ge=1)
    xi: float = Field(0.9, gt=0, le=0.999)
    max_length: int = Field(128, ge=3)
    seed: int = Field(0, ge=0)
    warm_steps: int = Field(0, ge=0)


class HeadsConfig(Section):
    """How heads are chosen from their scores (HiFi, equations 8 to 10).

    Attributes:
        rank: name of the ranking; see `hifi_cli.scoring.ranking`.
        strategy: `layerwise` (every layer) or `midtop` (the upper half of the layers).
        k: heads chosen in each layer.
        damping: PageRank's d.
        epsilon: PageRank stops when a step moves the values by less.
        seed: draws the heads of `random`.
        given: heads from a file (`--heads`), one list per layer, instead of a choice by the other keys.
    """

    rank: Literal[
        "pagerank",
        "pagerank-personalized",
        "pagerank-literal",
        "pagerank-inverse",
        "richness",
        "richness-inverse",
        "correlation",
        "random",
    ] = "pagerank"
    strategy: Literal["layerwise", "midtop"] = "layerwise"
    k: int = Field(3, ge=1)
    damping: float = Field(0.85, ge=0, lt=1)
    epsilon: float = Field(1e-6, gt=0)
    seed: int = Field(0, ge=0)
    given: list[list[int]] | None = None


class RunConfig(Section):
    """Everything that decides a run's result, apart from the data themselves.

    Attributes:
        batch_size: examples per optimiser step, over all processes and accumulation parts.
        accumulation: parts a batch is computed in.
        max_length: tokens of an example that are read.
        truncation: which text of a pair loses its end when the pair is too long.
        swap_texts: the second text of a pair comes first (EH-FT's QNLI).
        stride: tokens by which windows over a context longer than `max_length` overlap.
        weight_decay: AdamW's; never applied to biases and LayerNorms.
        warmup: share of the steps over which the learning rate rises from 0.
        max_grad_norm: clips the gradient's norm; null: no clipping.
        precision: `fp32`, `bf16`, or `auto` (bf16 where a GPU supports it).
        dropout: replaces the backbone's dropout rates; null keeps them.
        selection: which examples choose the best epoch: the validation split itself, or a `holdout` cut from train.
        holdout: share of the train split that is cut off.
        report: the epoch whose model is kept and whose score stands in tables.
        shots: few-shot: train rows per class, as many others choose the epoch, and the whole train set is one batch.
        limit: use only so many training and evaluation examples (the run is marked `limited`).
        settings: the method's own settings.
    """

    task: str
    method: str
    backbone: BackboneConfig
    protocol: str
    seed: int = Field(1, ge=0)
    epochs: int = Field(3, ge=1)
    batch_size: int = Field(32, ge=1)
    eval_batch_size: int = Field(64, ge=1)
    accumulation: int = Field(1, ge=1)
    max_length: int = Field(128, ge=3)
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    swap_texts: bool = False
    stride: int = Field(128, ge=0)
    learning_rate: float = Field(2e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    adam_betas: tuple[Share, Share] = (0.9, 0.999)
    adam_epsilon: float = Field(1e-8, gt=0)
    schedule: Literal["linear", "constant"] = "linear"
    warmup: Share = 0.06
    max_grad_norm: float | None = Field(1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    dropout: Share | None = None
    selection: Literal["validation", "holdout"] = "validation"
    holdout: float = Field(0.1, gt=0, lt=1)
    report: Literal["best", "last"] = "best"
    shots: int | None = Field(None, ge=1)
    limit: int | None = Field(None, ge=1)
    log_every: int = Field(10, ge=1)
    scoring: ScoringConfig = ScoringConfig()
    heads: HeadsConfig = HeadsConfig()
    settings: dict[str, bool | int | float | str | None] = {}

    @property
    def hash(self) -> str:
        """What tells this configuration from any other; where the backbone lies is not part of it."""
        return digest(self._decisive())

    @property
    def setting_hash(self) -> str:
        """The same without the seed: what runs share that may stand in one mean."""
        return digest(self._decisive(without={"seed"}))

    def _decisive(self, without: set[str] | None = None) -> dict[str, Any]:
        content = self.model_dump(mode="json", exclude=without)
        content["backbone"] = self.backbone.name
        return content


class MethodSpec(Section):
    """What a method's YAML says.

    Attributes:
        label: the method's name in tables.
        source: where the method comes from.
        implementation: the file in `hifi_cli/methods/` that carries it out.
        config: configuration keys the method sets.
        tasks: the same, for single tasks (HiFi's Table 5).
    """

    description: str
    label: str
    source: str
    implementation: str
    config: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}


class ProtocolSpec(Section):
    """What a protocol's YAML says.

    Attributes:
        task, method, backbone: used when the command line names none.
        unstated: the keys the paper is silent about, with the reason for the value taken.
        config: configuration keys the protocol sets.
        tasks: the same, for single tasks.
        methods: keys it sets for single methods, over their own; `*` stands for every method.
    """

    description: str
    source: str = ""
    task: str | None = None
    method: str | None = None
    backbone: str | None = None
    unstated: dict[str, str] = {}
    config: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}
    methods: dict[str, dict[str, Any]] = {}


class Layer(BaseModel):
    """Some configuration keys and where they were written."""

    origin: str
    values: dict[str, Any]


def parse(model: type[S], value: Mapping[str, Any], origin: str) -> S:
    """Validate `value` as `model`.

    Raises:
        UsageError: names `origin` and the key, and suggests the nearest known one.
    """
    _refuse_unknown_keys(model, value, origin)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UsageError(f"{origin}: {_first_problem(error)}") from None


def method_spec(name: str) -> MethodSpec:
    """The validated YAML of a method."""
    return parse(MethodSpec, registry.load("methods", name), str(registry.find("methods", name)))


def protocol_spec(name: str) -> ProtocolSpec:
    """The validated YAML of a protocol."""
    return parse(ProtocolSpec, registry.load("protocols", name), str(registry.find("protocols", name)))


def backbone_config(name: str) -> BackboneConfig:
    """The backbone a name stands for: a shipped YAML, a local directory, or a hub id `owner/name`."""
    if name in registry.names("backbones") or registry.is_file(name):
        path = registry.find("backbones", name)
        content = {key: value for key, value in registry.read_yaml(path).items() if key not in ("description", "config")}
        if content.get("path"):
            content["path"] = str(path.parent / content["path"])
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

    Built-in defaults < protocol, its block for the task < backbone < task < method, its block for the task (Table 5)
    < the protocol's blocks for the method < `files` < `overrides` (`key=value`).

    Raises:
        UsageError: an unknown name or key, or a value that does not fit; the origin and the nearest name are told.
        MissingError: a named file is not there.
    """
    protocol_file, method_file = registry.find("protocols", protocol), registry.find("methods", method)
    rules, recipe = protocol_spec(protocol), method_spec(method)
    task_file = registry.find("tasks", task)
    layers = [
        Layer(origin=str(protocol_file), values=rules.config),
        Layer(origin=f"{protocol_file} (tasks: {task_file.stem})", values=rules.tasks.get(task_file.stem, {})),
        *_config_of_backbone(backbone),
        Layer(origin=str(task_file), values=registry.read_yaml(task_file).get("config", {})),
        Layer(origin=str(method_file), values=recipe.config),
        Layer(origin=f"{method_file} (tasks: {task_file.stem})", values=recipe.tasks.get(task_file.stem, {})),
        Layer(origin=f"{protocol_file} (methods: '*')", values=rules.methods.get("*", {})),
        Layer(origin=f"{protocol_file} (methods: {method})", values=rules.methods.get(method_file.stem, {})),
        *(Layer(origin=str(file), values=registry.read_yaml(file)) for file in files),
        *(parse_override(text) for text in overrides),
    ]
    names: dict[str, Any] = {
        "task": task_file.stem,
        "method": method_file.stem,
        "backbone": backbone_config(backbone).model_dump(),
        "protocol": protocol_file.stem,
        "seed": seed,
    }
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key in names:
            if key in layer.values:
                raise UsageError(f"{layer.origin}: '{key}' is set on the command line (--{key}), not here")
        _refuse_unknown_keys(RunConfig, layer.values, layer.origin)
        _merge(merged, layer.values, layer.origin, origins)
    try:
        return RunConfig.model_validate({**merged, **names})
    except ValidationError as error:
        first = error.errors()[0]
        origin = next((origins[key] for key in _prefixes(first["loc"]) if key in origins), "command line")
        raise UsageError(f"{origin}: {_first_problem(error)}") from None


def parse_override(text: str) -> Layer:
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
    return Layer(origin=f"'{text}'", values=content)


def _config_of_backbone(name: str) -> list[Layer]:
    if name not in registry.names("backbones") and not registry.is_file(name):
        return []
    path = registry.find("backbones", name)
    return [Layer(origin=str(path), values=registry.read_yaml(path).get("config", {}))]


def _merge(target: dict[str, Any], values: Mapping[str, Any], origin: str, origins: dict[str, str], at: str = "") -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            into = target.setdefault(key, {})
            if isinstance(into, dict):
                _merge(into, value, origin, origins, f"{at}{key}.")
                continue
        target[key] = value
        origins[f"{at}{key}"] = origin


def _refuse_unknown_keys(model: type[BaseModel], values: Any, origin: str, at: str = "") -> None:
    if not isinstance(values, Mapping):
        raise UsageError(f"{origin}: {at or 'the whole'} must be a mapping of keys to values")
    for key, value in values.items():
        if key not in model.model_fields:
            known = [f"{at}{field}" for field in _all_keys(model)]
            raise UsageError(f"{origin}: unknown key '{at}{key}'{registry.nearest(f'{at}{key}', known)}")
        inner = model.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            _refuse_unknown_keys(inner, value, origin, f"{at}{key}.")


def _all_keys(model: type[BaseModel], at: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{at}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{at}{name}.")
    return keys


def _prefixes(location: tuple[int | str, ...]) -> list[str]:
    parts = [str(part) for part in location]
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}, not {first['input']!r:.60}" if first["type"] != "missing" else f"'{where}' is missing"
