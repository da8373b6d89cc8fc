"""The typed configuration of a run: what each key means."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, safe_name

S = TypeVar("S", bound=BaseModel)
Based = TypeVar("Based", bound="BasedSpec")
UnitInterval = Annotated[float, Field(ge=0, le=1)]
_ADDED_LATER: dict[str, Any] = {"primary_metric": None}  # keys that stored runs lack, with the value that means what they did
MOST_SEED = 2**32 - 1  # numpy's bound; torch takes more
MOST_RUNS = 100_000  # of one command; the largest search of either paper has some hundreds
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
_MOST = 10**9  # of anything that is counted: far more than is ever meant, far less than what overflows in a library
Count = Annotated[int, Field(ge=1, le=_MOST)]
CountFromZero = Annotated[int, Field(ge=0, le=_MOST)]


class ConfigModel(BaseModel):
    """A part of the configuration: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BackboneConfig(ConfigModel):
    """Where the pretrained encoder comes from; exactly one of `hub`, `path` and `package`.

    Attributes:
        name: what results directories are called after.
        hub: a model id on the Hugging Face hub.
        revision: branch, tag or commit on the hub.
        path: a local directory in Hugging Face's layout; a relative one lies beside the YAML.
        package: an installed Python package, not one inside another, that carries such a directory.
        directory: that directory, inside `package` or beside the YAML.
        extra: the extra of this distribution that installs `package`.
    """

    name: str
    hub: str | None = None
    revision: str | None = None
    path: str | None = None
    package: str | None = Field(None, pattern=r"^\w+$")  # to look for a.b, Python imports a
    directory: str | None = None
    extra: str | None = None


class ScoringConfig(ConfigModel):
    """How heads are scored (HiFi, equations 1 to 7).

    Attributes:
        samples: training samples n.
        xi: share of the singular values' sum that counts as all the information; nearer to 1, rounding would decide.
        max_length: tokens of a sample that are read.
        seed: draws the samples.
        warm_steps: full fine-tuning steps before the forward passes (0: the pretrained encoder, Algorithm 1).
    """

    samples: Count = 300
    xi: float = Field(0.9, gt=0, le=0.999)
    max_length: int = Field(128, ge=3, le=_MOST)
    seed: Seed = 0
    warm_steps: CountFromZero = 0


class HeadsConfig(ConfigModel):
    """How heads are chosen from their scores (HiFi, equations 8 to 10).

    Attributes:
        rank: name of the ranking; see `hifi_cli.scoring.ranking`.
        strategy: `layerwise` (every layer), `midtop` (the upper half of the layers) or `global` (as many heads as
            `layerwise` over the whole model, each layer as many as its heads deserve).
        k: heads chosen in each layer (`global`: on average).
        damping: PageRank's d.
        epsilon: PageRank stops when a step moves the values by less.
        seed: draws the heads of `random`; null: the run's own seed, so that every seed has a draw of its own.
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
    strategy: Literal["layerwise", "midtop", "global"] = "layerwise"
    k: Count = 3
    damping: float = Field(0.85, ge=0, lt=1)
    epsilon: float = Field(1e-6, gt=0)
    seed: Seed | None = None
    given: list[list[int]] | None = None

    def selection_arguments(self, run_seed: int) -> dict[str, Any]:
        """The arguments of `choose_heads`, `seed` among them only where one draws: other rankings do not depend on it."""
        how = self.model_dump(exclude={"given", "seed"})
        if self.rank == "random":
            how["seed"] = run_seed if self.seed is None else self.seed
        return how


class TaskHeadConfig(ConfigModel):
    """The task head.

    Attributes:
        kind: `pooler`: Hugging Face's own head of the family (BERT: pooler and linear; RoBERTa: dense, tanh and linear);
            `mlp`: EH-FT's two linear layers on the raw last state of the first token.
        width: hidden units of `mlp`.
        activation: between the two layers of `mlp`: the paper names none, its code has a ReLU.
        init_std: standard deviation of the weights of `mlp`.
        one_logit: a task of two classes gets one logit and binary cross-entropy (`mlp` only).
    """

    kind: Literal["pooler", "mlp"] = "pooler"
    width: int = Field(2048, ge=1, le=1 << 16)
    activation: Literal["none", "relu"] = "none"
    init_std: float = Field(0.005, gt=0)
    one_logit: bool = False


class TrainingConfig(ConfigModel):
    """What trains and how: the part of a configuration that two stages of one run may have each for itself.

    Attributes:
        weight_decay: AdamW's; never applied to biases and LayerNorms.
        schedule: after the warm-up: `linear` decay to `final_factor`, or `constant`.
        warmup: share of the steps over which the learning rate rises from 0.
        hold_steps: the first steps, at `hold_factor` of the learning rate whatever the warm-up says.
        final_factor: share of the learning rate at the end of a linear decay.
        max_grad_norm: clips the gradient's norm; null: no clipping.
        settings: the method's own settings.
    """

    method: str
    learning_rate: float = Field(2e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    adam_betas: tuple[UnitInterval, UnitInterval] = (0.9, 0.999)
    adam_epsilon: float = Field(1e-8, gt=0)
    schedule: Literal["linear", "constant"] = "linear"
    warmup: UnitInterval = 0.06
    hold_steps: CountFromZero = 0
    hold_factor: UnitInterval = 0.05
    final_factor: UnitInterval = 0.0
    max_grad_norm: float | None = Field(1.0, gt=0)
    settings: dict[str, bool | int | float | str | list[str] | None] = {}


class RunConfig(TrainingConfig):
    """Everything that decides a run's result, apart from the data themselves.

    Attributes:
        batch_size: examples per optimiser step, over all processes and accumulation parts.
        accumulation: parts a batch is computed in.
        max_length: tokens of an example that are read.
        truncation: which text of a pair loses its end when the pair is too long.
        swap_texts: the second text of a pair comes first (EH-FT's QNLI).
        stride: tokens by which windows over a context longer than `max_length` overlap.
        precision: `fp32`, `bf16`, or `auto` (bf16 where the hardware multiplies such matrices). With bf16 only
            training's products are: weights that train and every evaluation stay fp32 on a processor; a GPU has autocast.
        train_sampling_strategy: `random` batches, as both papers have them; `group_by_length`: batches of examples of like
            length, which need less padding (transformers' name for both).
        reuse_frozen: layers below the lowest one that trains run once per example, not in every epoch; there is no dropout in
            them then. What they give stays in memory (4 bytes x hidden size for every token of the train split). Nothing
            changes for a method that trains the lowest layer.
        dropout: replaces the backbone's dropout rates; null keeps them.
        selection: which examples choose the best epoch: the validation split itself, or a `holdout` cut from train, on which
            neither training nor the scoring of heads looks.
        holdout: share of the train split that is cut off.
        report: the score that stands in tables: of the `best` epoch or of the `last`, whose model is kept; or `max`, the
            highest of all epochs of all stages on the reported split (what EH-FT's code logs), the best epoch's model kept.
        primary_metric: chooses the epoch and stands in tables, one of the task's metrics; null: the task's own.
        shots: few-shot: train rows per class, as many others choose the epoch, and the whole train set is one batch.
        limit: use only so many training and evaluation examples (the run is marked `limited`).
        variant: names this setting where runs of several settings stand side by side (a search): a directory level of
            their own, out of the tables' means.
        stage1: the first stage of a two-stage method; keys it does not set are those its method has under the same protocol.
    """

    task: str
    backbone: BackboneConfig
    protocol: str
    seed: Seed = 1
    epochs: Count = 3
    batch_size: Count = 32
    eval_batch_size: Count = 64
    gradient_accumulation_steps: Count = 1
    max_length: int = Field(128, ge=3, le=_MOST)
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    swap_texts: bool = False
    stride: CountFromZero = 128
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    train_sampling_strategy: Literal["random", "group_by_length"] = "random"
    reuse_frozen: bool = False
    dropout: UnitInterval | None = None
    selection: Literal["validation", "holdout"] = "validation"
    holdout: float = Field(0.1, gt=0, lt=1)
    report: Literal["best", "last", "max"] = "best"
    primary_metric: str | None = None
    shots: Count | None = None
    limit: Count | None = None
    log_every: Count = 10
    variant: str | None = None
    scoring: ScoringConfig = ScoringConfig()
    heads: HeadsConfig = HeadsConfig()
    task_head: TaskHeadConfig = TaskHeadConfig()
    stage1: TrainingConfig | None = None

    @property
    def hash(self) -> str:
        """What tells this configuration from any other; where the backbone and the run lie is not part of it."""
        return config_hash_of(self.model_dump(mode="json"))

    @property
    def setting_hash(self) -> str:
        """The same without the seed: what runs share that may stand in one mean."""
        return config_hash_of(self.model_dump(mode="json", exclude={"seed"}))

    @property
    def run_path(self) -> PurePath:
        """Where a results directory keeps the run."""
        return run_path_of(self.model_dump(mode="json"))

    @property
    def heads_vary_with_seed(self) -> bool:
        """Whether runs that differ in their seed alone may tune different heads: it draws them, or decides what is scored."""
        if self.heads.given is not None:
            return False
        if self.heads.rank == "random":
            return self.heads.seed is None
        return self.scoring.warm_steps > 0 or (self.selection == "holdout" and not self.shots)


def config_hash_of(content: Mapping[str, Any]) -> str:
    """`RunConfig.hash` of a configuration as config.yaml holds it, also one written before the latest keys were added."""
    decisive = {key: value for key, value in content.items() if key != "variant"}
    decisive["backbone"] = content["backbone"]["name"]
    if content["heads"]["rank"] != "random":  # its seed draws nothing, so it tells no runs apart
        decisive["heads"] = {**content["heads"], "seed": 0}
    return digest({key: value for key, value in decisive.items() if key not in _ADDED_LATER or value != _ADDED_LATER[key]})


def run_path_of(content: Mapping[str, Any]) -> PurePath:
    """`RunConfig.place` of such a configuration: `runs/<protocol>/<backbone>/<task>/<method>[/<variant>]/seed<k>`."""
    shots, variant = content.get("shots"), content.get("variant")
    task = f"{content['task']}-{shots}-shot" if shots else content["task"]  # both may be run by one protocol
    parts = (content["protocol"], content["backbone"]["name"], task, content["method"], *([variant] if variant else []))
    return PurePath("runs", *map(safe_name, parts), f"seed{content['seed']}")


class BasedSpec(ConfigModel):
    """What the YAML of something says that may change another of its kind.

    Attributes:
        base: the one that this one changes.
    """

    base: str | None = None


class MethodSpec(BasedSpec):
    """What a method's YAML says.

    Attributes:
        label: the method's name in tables.
        source: where the method comes from.
        base: the method whose configuration this one's changes: Full-FT for what ends as full fine-tuning, for example.
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


def parse(model: type[S], value: Mapping[str, Any], origin: str) -> S:
    """Validate `value` as `model`.

    Raises:
        UsageError: names `origin` and the key, and suggests the nearest known one.
    """
    refuse_unknown_keys(model, value, origin)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UsageError(f"{origin}: {first_problem(error)}") from None


def refuse_too_many(runs: int) -> None:
    """Refuse a command of more runs than anybody means.

    Raises:
        UsageError: there are more than `MOST_RUNS`.
    """
    if runs > MOST_RUNS:
        raise UsageError(f"{runs:,} runs; one command has at most {MOST_RUNS:,}: name fewer tasks, methods, seeds or values")


def method_spec(name: str) -> MethodSpec:
    """The validated YAML of a method."""
    return parse(MethodSpec, registry.load("methods", name), str(registry.find("methods", name)))


def chain(kind: str, name: str, model: type[Based]) -> dict[Path, Based]:
    """The validated YAMLs of a method or protocol and of what it is based on, the deepest base first.

    Raises:
        UsageError: something is based on itself.
    """
    found: dict[Path, Based] = {}
    following: str | None = name
    while following:
        file = registry.find(kind, following)
        if file in found:
            raise UsageError(f"{file}: base: '{following}' is based on itself")
        found[file] = parse(model, registry.read_yaml(file), str(file))
        following = found[file].base
    return dict(reversed(found.items()))


def refuse_unknown_keys(model: type[BaseModel], values: Any, origin: str, at: str = "") -> None:
    """Refuse a key that the model does not have, and suggest the nearest.

    Raises:
        UsageError: names `origin` and the key.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{origin}: {at or 'the whole'} must be a mapping of keys to values")
    for key, value in values.items():
        if key not in model.model_fields:
            known = [f"{at}{field}" for field in _all_keys(model)]
            raise UsageError(f"{origin}: unknown key '{at}{key}'{registry.nearest(f'{at}{key}', known)}")
        inner = _section(model.model_fields[key].annotation)
        if inner and value is not None:
            refuse_unknown_keys(inner, value, origin, f"{at}{key}.")


def _all_keys(model: type[BaseModel], at: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{at}{name}")
        inner = _section(field.annotation)
        keys += _all_keys(inner, f"{at}{name}.") if inner else []
    return keys


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model behind an annotation, optional or not; None where a plain value or a container of models stands."""
    alternatives = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else ()
    kinds = [kind for kind in (annotation, *alternatives) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None


def first_problem(error: ValidationError) -> str:
    """The first error in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}, not {first['input']!r:.60}" if first["type"] != "missing" else f"'{where}' is missing"
