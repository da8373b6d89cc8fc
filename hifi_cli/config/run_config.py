"""The typed configuration of a run: every key with its type, its default and its meaning."""

from collections.abc import Mapping
from math import isfinite
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from hifi_cli.config.base import (
    MAX_COUNT,
    ConfigModel,
    KnownAs,
    NonNegativeCount,
    PositiveCount,
    RunName,
    Seed,
    StoredName,
    UnitInterval,
    flatten,
)
from hifi_cli.config.decides import Decides, Effect, values_that_decide
from hifi_cli.config.epoch_rule import EpochChoice, EpochRule
from hifi_cli.config.registry import NameWithFile, plain_name
from hifi_cli.config.specs import Origin
from hifi_cli.digests import digest
from hifi_cli.run_paths import relative_run_path, run_path_of

# The keys whose values name something registered, or a file of the user's own by its name alone.
KEYS_OF_NAMES = ("task", "method", "protocol", "backbone.name", "heads.rank", "stage1.method")
# The layer of a value that no YAML and no user sets.
DEFAULT = "default"

# Rankings by one value per head that is measured on the model (`hifi_cli.heads.measures`). The
# highest are preferred.
MeasuredRanking = Literal["gradient", "ablation", "fisher", "confidence", "entropy", "output-norm"]
# All rankings. Those that are not measured follow from the scores of equations 1 to 7
# (`hifi_cli.heads.ranking`).
Ranking = Literal[
    "pagerank",
    "pagerank-personalized",
    "pagerank-literal",
    "pagerank-inverse",
    "richness",
    "richness-inverse",
    "correlation",
    "random",
    "first",
    MeasuredRanking,
]


def _ranking_name(rank: Any, check: ValidatorFunctionWrapHandler) -> str:
    """Return the name of a ranking of the project, or of a user's own file, which is no path."""
    if isinstance(rank, NameWithFile):
        return rank
    if isinstance(rank, str) and rank.endswith(".py"):
        return plain_name(rank)
    return str(check(rank))


# The name of a ranking, or that of a file of the user's own, which carries its path unless a run has
# stored it.
RankingName = Annotated[Ranking, WrapValidator(_ranking_name), PlainSerializer(lambda rank: rank)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# The deepest setting, `settings.options.rank_pattern`, has so many mappings within one another.
_SETTINGS_DEPTH = 3
_TYPES_OF_SETTINGS = (bool, int, float, str, type(None))
_TYPES_IN_LISTS = (str, int)


# The effects of most keys; the others name theirs at the field.
NOTHING = Decides()
RUN = Decides("run")
# Where the encoder is, which is in no hash: its digest says which one it was.
ENCODER_FILES = Decides("tokens", "encoder")
PROTOCOL = Decides("run", "protocol")
TEXTS = Decides("run", "tokens", "protocol")
TRAINING = Decides("run", "warm-up", "protocol")
SCORED_ROWS = Decides("run", "protocol", "scored rows")
COMPARED = Decides("run", "protocol", "comparison")

# Values of `kernels` that older files have, and what they mean today.
KERNELS_BEFORE = {"graphs": "auto"}


def _kernels_of_today(kernels: str) -> str:
    """Return what a value of `kernels` means: those of older files have another name today."""
    return KERNELS_BEFORE.get(kernels, kernels)


# It replaces the directories above a local encoder, in a study that was packed on another
# machine. No shipped encoder lies there.
ELSEWHERE = "elsewhere/"


class BackboneConfig(ConfigModel):
    """Where the pretrained encoder comes from; exactly one of `hub`, `path` and `package`."""

    name: Annotated[StoredName, Decides("run", "tokens", "encoder")]
    """Its name in tables and results directories."""
    hub: Annotated[str | None, ENCODER_FILES] = None
    """A model id on the Hugging Face hub."""
    revision: Annotated[str | None, ENCODER_FILES] = None
    """Branch, tag or commit on the hub."""
    path: Annotated[str | None, ENCODER_FILES] = None
    """A local directory in Hugging Face's layout; a relative path starts at the YAML's directory."""
    # A name without points: to look for a.b, Python would import a, and so run its code.
    package: Annotated[str | None, ENCODER_FILES] = Field(None, pattern=r"^\w+$")
    """An installed top-level Python package that contains such a directory."""
    directory: Annotated[str | None, ENCODER_FILES] = None
    """The directory, inside `package` or relative to the YAML."""
    extra: Annotated[str | None, ENCODER_FILES] = None
    """The extra of this distribution that installs `package`, or the library of the extra's name that the tokenizer needs."""


class ScoringConfig(ConfigModel):
    """How attention heads are scored (HiFi, equations 1 to 7)."""

    samples: Annotated[PositiveCount, SCORED_ROWS] = 300
    """Number of training examples, n."""
    xi: Annotated[float, SCORED_ROWS] = Field(0.9, gt=0, le=0.999)
    """The richness I_h of a head is the number of largest singular values whose sum reaches this fraction of the total;
    rounding would decide above 0.999."""
    max_length: Annotated[int, SCORED_ROWS] = Field(128, ge=8, le=MAX_COUNT)
    """Tokens per example; longer examples are truncated."""
    seed: Annotated[Seed, SCORED_ROWS] = 0
    """Seed that draws the examples."""
    warm_steps: Annotated[NonNegativeCount, SCORED_ROWS] = 0
    """Steps of full fine-tuning, with the run's own learning rate and schedule, before the heads are scored; 0 scores the
    pretrained encoder (Algorithm 1)."""


class HeadsConfig(ConfigModel):
    """How attention heads are selected by their scores (HiFi, equations 8 to 10)."""

    rank: Annotated[RankingName, PROTOCOL] = "pagerank"
    """How heads are ranked; the highest are selected. `./my_ranking.py` is a file of your own with a function `rank` or
    `measure`, as those in `hifi_cli/heads/ranking.py` and `measures.py`, in the directory where hifi runs or below; not in
    a file of `-c`, which may be that of others."""
    strategy: Annotated[Literal["layerwise", "midtop", "global"], PROTOCOL] = "layerwise"
    """`layerwise`: k heads in every layer; `midtop`: k heads in each layer of the upper half; `global`: as many heads
    as `layerwise`, those with the largest fraction of their layer's total value."""
    k: Annotated[PositiveCount, PROTOCOL] = 3
    """Heads per layer (`global`: on average)."""
    damping: Annotated[float, PROTOCOL] = Field(0.85, ge=0, lt=1)
    """PageRank's damping factor d."""
    epsilon: Annotated[float, PROTOCOL] = Field(1e-6, gt=0)
    """PageRank stops when an iteration changes the values by less."""
    seed: Annotated[Seed | None, PROTOCOL] = None
    """Seed of the ranking `random`; null: the run's own seed, so that each run draws other heads."""
    given: Annotated[list[list[int]] | None, PROTOCOL] = Field(None, min_length=1)
    """Heads of your own, counted from 0, a list for each layer: heads.given=[[0,3],[],[1]], or a file with `--heads`. The other
    keys then have no effect."""

    def selection_arguments(self, run_seed: int) -> dict[str, Any]:
        """Return all that decides a selection besides the scores.

        There is a `seed` only where one draws: other rankings do not depend on it.

        Args:
            run_seed: the seed of the run, which draws where the section names none.
        """
        how = self.model_dump(exclude={"given", "seed"})
        if self.rank == "random":
            how["seed"] = self.seed_of_random(run_seed)
        return how

    def seed_of_random(self, run_seed: int) -> int:
        """Return the seed of the ranking `random`: the section's own, or else that of the run."""
        return run_seed if self.seed is None else self.seed


class TaskHeadConfig(ConfigModel):
    """The task head (classifier) on top of the encoder."""

    kind: Annotated[Literal["pooler", "mlp"], TRAINING] = "pooler"
    """`pooler`: the head that Hugging Face uses for the model family (BERT: pooler and linear; RoBERTa: dense, tanh, linear);
    `mlp`: EH-FT's two linear layers on the last hidden state of the first token."""
    width: Annotated[int, TRAINING] = Field(2048, ge=1, le=1 << 16)
    """Hidden units of `mlp`."""
    activation: Annotated[Literal["none", "relu"], TRAINING] = "none"
    """Activation between the two layers of `mlp`: EH-FT's text does not say one, its code has a ReLU."""
    init_std: Annotated[float, TRAINING] = Field(0.005, gt=0)
    """Standard deviation of the initial weights of `mlp`."""
    one_logit: Annotated[bool, TRAINING] = False
    """One logit and binary cross-entropy for tasks of two classes (`mlp` only)."""

    @model_validator(mode="after")
    def _mlp_has_one_logit(self) -> Self:
        if self.one_logit and self.kind != "mlp":
            raise ValueError("one_logit requires kind: mlp")
        return self


def _check_setting(value: Any, within: str = "", depth: int = 1) -> Any:
    """Return a setting of a method: a plain value, a list of some, or a few mappings of such.

    Args:
        within: dotted key of the value within the setting.
        depth: how many mappings it is in.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, Mapping):
        if depth == _SETTINGS_DEPTH:
            raise ValueError(
                f"{within} is a mapping within {depth} others, which no setting is. A name with points"
                " is read as several names: write the part behind its last point"
            )
        for name, inner in value.items():
            _check_setting(inner, f"{within}.{name}".removeprefix("."), depth + 1)
        return value
    where = f"{within} must be ".lstrip()
    if not _is_plain_setting(value):
        raise ValueError(
            f"{where}a number, a text, true, false, null, or a list of texts or of whole numbers, not"
            f" {value!r:.60}"
        )
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{where}a finite number, not {value}")
    return value


def _is_plain_setting(value: Any) -> bool:
    """Return whether a value is a number, a text, true, false or null, or a list of parts of one type."""
    if not isinstance(value, list):
        return type(value) in _TYPES_OF_SETTINGS
    types = {type(part) for part in value}
    return len(types) <= 1 and types.issubset(_TYPES_IN_LISTS)


class TrainingConfig(ConfigModel):
    """The method and its optimizer: what each stage of a two-stage run sets separately."""

    method: Annotated[RunName, PROTOCOL]
    """Name of the fine-tuning method."""
    learning_rate: Annotated[float, TRAINING, KnownAs("lr")] = Field(2e-5, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: Annotated[float, TRAINING] = Field(0.01, ge=0)
    """Weight decay of AdamW; not applied to biases and LayerNorms."""
    # YAML has lists and no tuples, so that a list is taken for one.
    adam_betas: Annotated[tuple[Beta, Beta], Field(strict=False), TRAINING] = (0.9, 0.999)
    """Betas of AdamW."""
    adam_epsilon: Annotated[float, TRAINING] = Field(1e-8, gt=0)
    """Epsilon of AdamW."""
    schedule: Annotated[
        Literal["linear", "cosine", "constant"], TRAINING, KnownAs("lr_scheduler_type")
    ] = "linear"
    """Learning rate after the warm-up: `linear` or `cosine` (half a period) decay to `final_factor`, or `constant`."""
    warmup: Annotated[UnitInterval, TRAINING, KnownAs("warmup_ratio")] = 0.06
    """Fraction of the steps over which the learning rate rises from 0."""
    hold_steps: Annotated[NonNegativeCount, TRAINING] = 0
    """Number of first steps that run at `hold_factor` times the learning rate, also during the warm-up."""
    hold_factor: Annotated[UnitInterval, TRAINING] = 0.05
    """Factor on the learning rate in the first `hold_steps` steps."""
    final_factor: Annotated[UnitInterval, TRAINING] = 0.0
    """Factor on the learning rate at the end of a linear or cosine decay."""
    max_grad_norm: Annotated[float | None, TRAINING] = Field(1.0, gt=0)
    """Gradients are clipped to this norm; null: no clipping."""
    settings: Annotated[dict[str, Annotated[Any, AfterValidator(_check_setting)]], PROTOCOL] = {}
    """The method's own settings; `hifi ls METHOD` lists them."""


class RunConfig(TrainingConfig):
    """Every setting of a run."""

    task: Annotated[RunName, RUN]
    """Name of the task."""
    backbone: Annotated[BackboneConfig, Decides("run", "tokens", "encoder")]
    """The pretrained encoder."""
    protocol: Annotated[StoredName, RUN]
    """Name of the protocol."""
    start_from: Annotated[str | None, Decides("run", "encoder", "protocol")] = None
    """The directory of a finished run whose encoder weights, pooler included, this run starts from instead of the pretrained
    ones; the task's classifier is new. The run must have the same backbone and a method that can be merged."""
    seed: Annotated[Seed, Decides("run", "warm-up")] = 1
    """Seed of the task head, the data order, dropout and whatever else the run draws."""
    epochs: Annotated[
        PositiveCount,
        Decides("run", "warm-up", "protocol", "comparison"),
        KnownAs("num_train_epochs", "num_epochs", "num_epoch"),
    ] = 3
    """Passes over the train split."""
    patience: Annotated[PositiveCount | None, PROTOCOL, KnownAs("early_stopping_patience")] = None
    """Early stopping: training ends after this many epochs without a better score on the selection split, of a two-stage run
    in its second stage; the learning rate follows the schedule of all `epochs`. null: never."""
    label_smoothing: Annotated[float, TRAINING, KnownAs("label_smoothing_factor")] = Field(
        0.0, ge=0, lt=1
    )
    """Part of the target probability that is spread over all classes in training (tasks with cross-entropy over classes)."""
    class_weights: Annotated[Literal["balanced"] | list[float] | None, TRAINING] = None
    """Weight of each class in the training loss, in label order, which is then the weighted mean over a batch; or
    `balanced`: n / (classes * n_c) by the counts n_c of the training examples, as in scikit-learn. null: all equal."""
    layer_decay: Annotated[float, TRAINING] = Field(1.0, gt=0, le=1)
    """Layer-wise learning rate decay d: the task head has the learning rate, layer l of L (counted from 1) d^(L + 1 - l)
    times that, and the embeddings d^(L + 1) times, as in BEiT's code (ELECTRA's has one more factor d for all but the task
    head); in both stages of a two-stage method."""
    batch_size: Annotated[
        PositiveCount, TRAINING, KnownAs("per_device_train_batch_size", "train_batch_size")
    ] = 32
    """Examples per optimizer step, over all processes and micro-batches."""
    eval_batch_size: Annotated[PositiveCount, RUN, KnownAs("per_device_eval_batch_size")] = 64
    """Examples per batch in evaluation."""
    gradient_accumulation_steps: Annotated[PositiveCount, Decides("run", "warm-up")] = 1
    """Micro-batches that a batch is split into, to save memory."""
    max_length: Annotated[
        int, Decides("run", "tokens", "warm-up", "protocol"), KnownAs("max_seq_length", "max_len")
    ] = Field(128, ge=8, le=MAX_COUNT)
    """Tokens per example; longer examples are truncated."""
    truncation: Annotated[
        Literal["longest_first", "only_first", "only_second"], Decides("run", "tokens", "protocol")
    ] = "longest_first"
    """Which text of a pair is truncated when the pair is too long."""
    swap_texts: Annotated[bool, TEXTS] = False
    """Whether the second text of a pair comes first (EH-FT's QNLI)."""
    stride: Annotated[NonNegativeCount, TEXTS] = 128
    """Tokens by which the windows over a context longer than `max_length` overlap (SQuAD)."""
    device: Annotated[str, Decides("encoder", "computation")] = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$"
    )
    """Where the run computes: `cpu`, `cuda`, `cuda:N`, or `auto`: the first visible GPU, or the CPU of a machine without one.
    It is not part of the hash: a run may be resumed elsewhere."""
    precision: Annotated[
        Literal["auto", "fp32", "bf16"],
        Decides("run", "encoder", "warm-up", "protocol", "comparison", "computation"),
    ] = "fp32"
    """`fp32`, `bf16`, or `auto`: bf16 where the hardware has it. bf16 is used for matrix products in training only; trainable
    weights and evaluation stay in fp32."""
    tf32: Annotated[bool, Decides("run", "warm-up", "protocol", "computation")] = False
    """Whether a GPU's fp32 matrix products in training may round their factors to TF32. Evaluation never does."""
    deterministic: Annotated[bool, Decides("run", "protocol", "computation")] = False
    """Whether a run on a GPU repeats bit for bit, with slower kernels where the fast ones add in no fixed order. A run on a CPU
    always does, with the same number of threads."""
    kernels: Annotated[
        Literal["auto", "torch", "graphs"],
        AfterValidator(_kernels_of_today),
        Decides("run", "encoder", "warm-up", "computation"),
    ] = "auto"
    """`auto`: on a CPU faster dropout and attention; on a GPU attention without padding in bf16 (and in fp32 where it has no
    dropout), and on one GPU recorded training steps (see `record_steps`); equal within rounding, with other dropout masks.
    `torch`: stock PyTorch modules alone. `graphs`: another name of `auto`."""
    record_steps: Annotated[bool, Decides("computation")] = True
    """Whether one GPU repeats recorded training steps as CUDA graphs, with `kernels=auto` and where method and encoder
    allow it; the log says what does not. `false` launches the kernels of the same steps one by one, for a comparison or if a
    recording fails: the same numbers, more slowly (docs/performance.md). It is not part of the hash, and the record
    says how many steps were repeated."""
    padding_free: Annotated[bool, Decides("run", "warm-up", "computation")] = True
    """Compute the encoder's layers on real tokens only: batches are padded at most inside attention (see `kernels`). Equal to
    padded batches within rounding, with other dropout masks. No effect on encoders with attention of their own
    (DeBERTa, MPNet) and on decoders."""
    train_sampling_strategy: Annotated[Literal["random", "group_by_length"], TRAINING] = "random"
    """`random` batches, as in both papers, or `group_by_length`: batches of examples of similar length, with less padding."""
    dropout: Annotated[float | None, Decides("run", "encoder", "warm-up", "protocol")] = Field(
        None, ge=0, lt=1
    )
    """Replaces the backbone's dropout rates; null: keeps them."""
    selection: Annotated[
        Literal["validation", "holdout"],
        Decides("run", "protocol", "comparison", "scored rows"),
    ] = "validation"
    """The examples that choose the best epoch: the `validation` split, or a `holdout` part of the train split, which is then
    used neither for training nor for scoring heads."""
    holdout: Annotated[float, PROTOCOL] = Field(0.1, gt=0, lt=1)
    """Fraction of the train split that is held out."""
    report: Annotated[EpochChoice, COMPARED] = "best"
    """The score in tables: of the `best` epoch or of the `last` one, whose model is saved; or `max`, the highest over all
    epochs of all stages on the reported split, as EH-FT's code logs it; the model of the best epoch is saved."""
    primary_metric: Annotated[str | None, COMPARED] = None
    """The metric that chooses the best epoch and is shown in tables; null: the task's own."""
    shots: Annotated[PositiveCount | None, Decides("run", "scored rows")] = None
    """Few-shot: training rows per class. As many other rows choose the best epoch, and the train set is one batch."""
    limit: Annotated[
        PositiveCount | None, Decides("run", "comparison"), KnownAs("max_train_samples")
    ] = None
    """Use at most this many examples of each split, but not to score heads; the run is flagged `limited`."""
    log_every: Annotated[PositiveCount, RUN, KnownAs("logging_steps")] = 10
    """Steps between two log lines."""
    variant: Annotated[str | None, NOTHING] = None
    """Name of a run with other settings, to keep it beside the usual one. It has a directory level of its own and is not
    counted in tables."""
    scoring: Annotated[ScoringConfig, SCORED_ROWS] = ScoringConfig()
    """How attention heads are scored."""
    heads: Annotated[HeadsConfig, PROTOCOL] = HeadsConfig()
    """How attention heads are selected."""
    task_head: Annotated[TaskHeadConfig, TRAINING] = TaskHeadConfig()
    """The task head."""
    stage1: Annotated[TrainingConfig | None, PROTOCOL] = None
    """The first stage of a two-stage method. Keys not set here are taken from its method under the same protocol."""

    # See `with_layers`.
    _layers: dict[str, str] = PrivateAttr({})
    _origins: dict[str, Origin | None] = PrivateAttr({})

    def with_layers(self, layers: Mapping[str, str], origins: Mapping[str, Origin | None]) -> Self:
        """Return the same configuration, which knows what set each key.

        The layers stand beside the configuration, not in it: two equal configurations may come about
        in two ways.

        Args:
            layers: the name of the layer that set each dotted key.
            origins: what the YAMLs say of where its value comes from: also of a key that none of them
                sets, or of its section.
        """
        config = self.model_copy()
        config._layers = dict(layers)
        config._origins = dict(origins)
        return config

    def layer_of(self, key: str) -> str:
        """Return the layer that set a dotted key or its section: `protocol laptop`, `command line`, `default`, ..."""
        while key not in self._layers and "." in key:
            key = key.rpartition(".")[0]
        return self._layers.get(key, DEFAULT)

    def origin_of(self, key: str) -> Origin | None:
        """Return where the value of a dotted key comes from: a paper, its authors' code, or this project.

        None: no YAML says it, or the user set the key.
        """
        while key not in self._origins and "." in key:
            key = key.rpartition(".")[0]
        return self._origins.get(key)

    def values_that_decide(self, effect: Effect) -> dict[str, Any]:
        """Return the values of the keys with an effect, by dotted key, as JSON holds them."""
        return values_that_decide(RunConfig, self.model_dump(mode="json"), effect)

    @property
    def config_hash(self) -> str:
        """Hash of every setting of the run, also of those that change no score, as `log_every`.

        Variant, device, `record_steps`, and where backbone and results are, are no part of it.
        """
        return config_hash_of(self.model_dump(mode="json"))

    @property
    def stage_configs(self) -> list[TrainingConfig]:
        """The settings of each stage, in order: this configuration alone, or `stage1` before it."""
        if self.stage1 is None:
            return [self]
        return [self.stage1, self]

    @property
    def setting_hash(self) -> str:
        """Hash of the configuration without its seed: equal for runs whose scores may be averaged."""
        return config_hash_of(self.model_dump(mode="json", exclude={"seed"}))

    @property
    def run_path(self) -> PurePath:
        """Path of the run in a results directory."""
        return run_path_of(
            protocol=self.protocol,
            backbone=self.backbone.name,
            task=self.task,
            method=self.method,
            variant=self.variant,
            seed=self.seed,
            shots=self.shots,
        )

    @property
    def run_label(self) -> str:
        """Name of the run in messages: task, method, variant if it has one, and seed."""
        parts = (self.task, self.method, self.variant, f"seed{self.seed}")
        return "/".join(part for part in parts if part)

    @property
    def epoch_rule(self) -> EpochRule:
        """The rule by which the run chooses the epoch that it keeps, and its score in tables."""
        return EpochRule(self.report, "few-shot" if self.shots else self.selection)

    @property
    def heads_vary_with_seed(self) -> bool:
        """Whether runs that differ only in their seed may tune different heads, because it draws or scores them anew."""
        if self.heads.given:
            return False
        if self.heads.rank == "random":
            return self.heads.seed is None
        holds_rows_out = self.selection == "holdout" and not self.shots
        return holds_rows_out or self.scoring.warm_steps > 0


def paths_in_place_of_names(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of a configuration as in config.yaml under which a path stands for a name, with the reason."""
    values = flatten(content)
    problems: dict[str, str] = {}
    for key in KEYS_OF_NAMES:
        name = values.get(key)
        if isinstance(name, str):
            try:
                plain_name(name)
            except ValueError as error:
                problems[key] = str(error)
    return problems


def without_places(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as in config.yaml without the places of a machine, for other machines.

    The hash does not depend on them, and the record has the digests of the encoder and of the run
    that it started from.

    Returns:
        The same, but for the encoder's directory, of which the name is left behind `ELSEWHERE`, and
        the place of `start_from`, which begins at `runs/`.
    """
    shared = dict(content)
    path = PurePath(content["backbone"].get("path") or "")
    # The path in a shipped YAML is relative.
    if path.is_absolute():
        shared["backbone"] = {**content["backbone"], "path": f"{ELSEWHERE}{path.name}"}
    if content.get("start_from"):
        shared["start_from"] = relative_run_path(content["start_from"])
    return shared


def config_hash_of(content: Mapping[str, Any]) -> str:
    """`RunConfig.config_hash` of a configuration as in config.yaml.

    Every key is hashed, also at its default, and also one that changes no score, or none beyond
    rounding (`log_every`, `eval_batch_size`, `kernels`). Only `variant`, `device`, `record_steps` and
    the place of the backbone's files are left out. A place of runs counts from `runs/` on, and `heads.seed` only where
    it draws.
    """
    hashed = values_that_decide(RunConfig, content, "run")
    # Every other ranking chooses the same heads whatever the seed.
    if content["heads"]["rank"] != "random":
        hashed["heads.seed"] = 0
    # The same run may lie in two results directories, on two machines.
    if content.get("start_from"):
        hashed["start_from"] = relative_run_path(content["start_from"])
    return digest(hashed)
