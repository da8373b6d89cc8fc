"""Weights of a pretrained encoder, which becomes a model with a task head."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from tokenizers.processors import Sequence, TemplateProcessing
from torch import nn

from hifi_cli.config.registry import ADAPTER_CONFIG
from hifi_cli.config.run_config import BackboneConfig
from hifi_cli.errors import MissingError, UsageError, logger
from hifi_cli.files import is_lfs_pointer, read_json
from hifi_cli.hub import resolve_commit, unavailable_error
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.encoder_files import (
    encoder_digest,
    local_directory,
    no_tokenizer_error,
    resolve_source,
    weight_files,
    weights_digest_of_schema_1,
)
from hifi_cli.models.task_heads import EncoderWithTaskHead, TaskHeadSpec
from hifi_cli.tasks.kinds import AnswerSpan

# Bounds on what a config.json may describe: layers in all, and parameters for a byte of weights.
# ALBERT, whose layers share their weights, has 3 parameters a byte.
_MAX_LAYERS = 1_000
_MAX_PARAMETERS_PER_BYTE = 20
# So many parameters are allowed beside weights of any size.
_SMALL_MODEL = 10**8


@dataclass
class Pretrained:
    """A backbone read once, from which every run of a process takes its own copy.

    Attributes:
        model: with a task head.
        tokenizer: of the encoder.
        missing_keys: names of parameters without pretrained values, to be initialized from a seed.
        digest: of the encoder: of its weights, configuration and tokenizer. Records have it as
            `backbone_weights`.
        digest_of_schema_1: what records of schema 1 have there: the hub commit, or the SHA-256 of
            the weights file.
        started_from: the run whose encoder weights these are, the run that it started from, and so
            on.
    """

    model: nn.Module
    tokenizer: Any
    missing_keys: list[str]
    digest: str
    digest_of_schema_1: str
    started_from: list[dict[str, str]] = field(default_factory=list)

    @property
    def encoder(self) -> Encoder:
        """The model and its parts."""
        return Encoder(self.model)


def load_backbone(
    backbone: BackboneConfig, *, task_head: TaskHeadSpec, dropout: float | None
) -> Pretrained:
    """Read a backbone from safetensors, with a task head.

    Args:
        backbone: where it is.
        task_head: what the task requires of its task head.
        dropout: every rate in the encoder's configuration; None: those that it has.

    Raises:
        MissingError: it is not available, or its weights are not those of the encoder.
        UsageError: transformers has no model of this kind for the task.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    source, revision = resolve_source(backbone)
    commit = resolve_commit("model", source, revision)
    # There is no commit of a local copy, and none where the hub cannot be asked.
    loading_options = {
        "revision": commit or revision,
        "local_files_only": commit is None,
        "trust_remote_code": False,
    }
    if (Path(source) / ADAPTER_CONFIG).is_file():
        raise _adapter_beside(source)
    model_class, config = _class_and_config(backbone, source, loading_options, task_head, dropout)
    tokenizer = load_tokenizer(backbone, source, loading_options)
    leave_out_unknown_types(tokenizer, config, source)
    with _reading(backbone, source):
        model, missing_keys = _read_weights(model_class, source, loading_options, config)
    # transformers applies an adapter that it finds beside weights on the hub.
    if getattr(model, "_hf_peft_config_loaded", False):
        raise _adapter_beside(source)
    encoder = Encoder(model)
    if encoder.is_causal:
        # transformers finds the last token by the one for padding.
        model.config.pad_token_id = tokenizer.pad_token_id
        model.config.use_cache = False
    _check_complete(encoder, missing_keys, source)
    encoder.unfuse_qkv()
    if task_head.is_own:
        model = EncoderWithTaskHead(encoder.base, task_head)
    missing_keys |= _drawn_by_each_run(model)
    # Where the hub cannot be asked, its cache says which commit was read.
    commit_read = commit or getattr(config, "_commit_hash", None)
    digest, digest_of_schema_1 = _digests(source, commit_read)
    return Pretrained(model, tokenizer, sorted(missing_keys), digest, digest_of_schema_1)


def _digests(source: str, commit: str | None) -> tuple[str, str]:
    """Compute the digests of an encoder that was read: today's, and that of records of schema 1.

    Args:
        source: as `resolve_source` gives it.
        commit: of the hub; None for a local copy.

    Raises:
        MissingError: the files are not in the hub's cache any more.
    """
    directory = local_directory(source, commit)
    if directory is None:
        raise MissingError(f"{source}: the hub's cache does not hold what was loaded from it")
    # Records of schema 1 name an encoder of the hub by its commit, and another one by its weights.
    digest_of_schema_1 = None
    if not commit:
        digest_of_schema_1 = weights_digest_of_schema_1(directory)
    return encoder_digest(directory), digest_of_schema_1 or str(commit)


def _read_weights(
    model_class: Any, source: str, loading_options: dict[str, Any], config: Any
) -> tuple[Any, set[str]]:
    """Read a model's weights; return it with the names of the parameters that they lack."""
    model, report = model_class.from_pretrained(
        source,
        **loading_options,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
        # A classifier may have another size. An encoder's own parameter counts as lacking.
        ignore_mismatched_sizes=True,
    )
    mismatched = {name for name, *_ in report["mismatched_keys"]}
    return model, {*report["missing_keys"], *mismatched}


def _drawn_by_each_run(model: nn.Module) -> set[str]:
    """Name the classifier's parameters, which count as missing even where the weights have them."""
    # A checkpoint that was fine-tuned may hold another task's classifier. It counts as missing, so
    # that every run draws its own. ModernBERT's `head` was pretrained and stays.
    classifier = Encoder(model).classifier_names
    return {name for name in classifier if not name.startswith("head.")}


def _check_complete(encoder: Encoder, missing_keys: set[str], source: str) -> None:
    """Refuse weights that lack parameters of the encoder, which would be random.

    Raises:
        MissingError: they do.
    """
    names = {name for name, _ in encoder.model.named_parameters()} - encoder.task_head.keys()
    lacking = sorted(missing_keys & names)
    if lacking:
        raise MissingError(
            f"no usable encoder in {source}: its weights lack {len(lacking)} of the encoder's"
            f" {len(names)} parameters, first {lacking[0]}; they are of another architecture, or stored"
            " under other names"
        )


def _adapter_beside(source: str) -> MissingError:
    """Make the error for an adapter in an encoder's folder, which would change the weights."""
    return MissingError(
        f"no usable encoder in {source}: its {ADAPTER_CONFIG} is of an adapter of peft, which would"
        " change the weights; merge the adapter into them, or move its files to another folder"
    )


def load_backbone_on_meta(
    backbone: BackboneConfig, *, task_head: TaskHeadSpec, dropout: float | None
) -> nn.Module:
    """Make the model that `load_backbone` gives, without values (on the meta device), never online.

    Args:
        backbone: where it is.
        task_head: what the task requires of its task head.
        dropout: every rate in the encoder's configuration; None: those that it has.

    Raises:
        MissingError: its configuration is not available.
        UsageError: transformers has no model of this kind for the task.
    """
    source, revision = resolve_source(backbone)
    loading_options = {"revision": revision, "local_files_only": True, "trust_remote_code": False}
    model_class, config = _class_and_config(backbone, source, loading_options, task_head, dropout)
    return _on_meta(model_class, config, task_head)


def missing_keys_on_meta(backbone: BackboneConfig, model: nn.Module) -> list[str]:
    """Return the `Pretrained.missing_keys` of a backbone, by the headers of its weights' files.

    Where no weights are on this machine, a pooler counts as pretrained: most encoders' files have it.

    Args:
        backbone: where it is.
        model: as `load_backbone_on_meta` gives it.

    Raises:
        MissingError: the weights cannot be read.
    """
    missing = _drawn_by_each_run(model)
    shapes = _stored_shapes(backbone)
    if shapes and not isinstance(model, EncoderWithTaskHead):
        # Weights that lack another parameter of the encoder are refused.
        for name, parameter in Encoder(model).task_head.items():
            # A file of the bare encoder has its names without the prefix.
            inside = name.removeprefix(f"{model.base_model_prefix}.")
            shape = shapes.get(name) or shapes.get(inside)
            if shape != list(parameter.shape):
                missing.add(name)
    return sorted(missing)


def _stored_shapes(backbone: BackboneConfig) -> dict[str, list[int]]:
    """Return the shapes of a backbone's stored tensors by name; empty: none are on this machine."""
    source, revision = resolve_source(backbone)
    directory = local_directory(source, revision)
    shapes: dict[str, list[int]] = {}
    if directory is None:
        return shapes
    with _reading(backbone, source):
        for path in weight_files(directory):
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                shapes |= {name: file.get_slice(name).get_shape() for name in names}
    return shapes


def architecture_on_meta(
    architecture: Mapping[str, Any], *, task_head: TaskHeadSpec, dropout: float | None
) -> nn.Module:
    """Make the model that `load_backbone_on_meta` gives, from the sizes in a backbone's YAML.

    Args:
        architecture: `model_type` and sizes, under the names of config.json.
        task_head: what the task requires of its task head.
        dropout: every rate in the encoder's configuration; None: those of its family.

    Raises:
        UsageError: transformers has no model of this kind for the task.
    """
    config = transformers.AutoConfig.for_model(**architecture, **_settings_of_task(task_head))
    if dropout is not None:
        _set_dropout(config, dropout)
    return _on_meta(_class_of(config, task_head), config, task_head)


def _on_meta(model_class: Any, config: Any, task_head: TaskHeadSpec) -> nn.Module:
    """Make a model with the task head, without values."""
    with torch.device("meta"):
        model: nn.Module = model_class.from_config(config)
        encoder = Encoder(model)
        encoder.unfuse_qkv()
        if task_head.is_own:
            return EncoderWithTaskHead(encoder.base, task_head)
        return model


def load_tokenizer(backbone: BackboneConfig, source: str, loading_options: dict[str, Any]) -> Any:
    """Load the tokenizer of a backbone.

    Where it has no token for padding, or none between two texts, it gets its token for the end.

    Args:
        backbone: whose tokenizer it is.
        source: as `resolve_source` gives it.
        loading_options: arguments of `from_pretrained`: revision, and whether the network may be asked.

    Raises:
        MissingError: it is not available.
    """
    with _reading(backbone, source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **loading_options)
    # Without its files, transformers makes an empty one.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise no_tokenizer_error(source)
    end = tokenizer.eos_token
    if tokenizer.pad_token is None:
        tokenizer.pad_token = end
    if end and not tokenizer.num_special_tokens_to_add(pair=True):
        _put_end_between_texts(tokenizer)
    return tokenizer


def _put_end_between_texts(tokenizer: Any) -> None:
    """Make a tokenizer put its token for the end between the two texts of a pair."""
    end = tokenizer.eos_token
    template = TemplateProcessing(
        single="$A", pair=f"$A {end} $B", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    backend = tokenizer.backend_tokenizer
    processors = [template]
    # The tokenizer's own processing of tokens is still done, first.
    if backend.post_processor:
        processors.insert(0, backend.post_processor)
    backend.post_processor = Sequence(processors)


def leave_out_unknown_types(tokenizer: Any, config: Any, source: str) -> None:
    """Do without the token types of a tokenizer that numbers more of them than the encoder knows.

    Encoders such as RoBERTa know one type. With the tokenizer of another family, the second text of
    a pair would have a type that there is no embedding of.

    Args:
        tokenizer: is changed.
        config: the encoder's.
        source: where they are, for the message.
    """
    if getattr(config, "type_vocab_size", None) != 1:
        return
    if "token_type_ids" not in tokenizer.model_input_names:
        return
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if any(tokenizer("a", "b").get("token_type_ids", [])):
        logger.warning(
            f"note: {source} knows one token type, and its tokenizer numbers the second text of a"
            " pair 1: token types are not used"
        )
    tokenizer.model_input_names = names


@torch.no_grad()
def initialize_missing(model: nn.Module, missing_keys: list[str], seed: int) -> None:
    """Initialize missing parameters: weights N(0, initializer_range), biases 0, norms 1 and 0.

    Args:
        model: is changed; a task head of our own initializes itself.
        missing_keys: the names of the parameters.
        seed: of the draws, which are made on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, EncoderWithTaskHead):
        model.task_head.initialize(generator)
        return
    deviation = getattr(model.config, "initializer_range", 0.02)
    for name in missing_keys:
        parameter = model.get_parameter(name)
        is_scale = "norm" in name.lower() and name.endswith("weight")
        if parameter.dim() > 1:
            drawn = torch.empty(parameter.shape).normal_(0, deviation, generator=generator)
            parameter.copy_(drawn)
        elif is_scale:
            parameter.fill_(1.0)
        else:
            parameter.fill_(0.0)


def _class_and_config(
    backbone: BackboneConfig,
    source: str,
    loading_options: dict[str, Any],
    task_head: TaskHeadSpec,
    dropout: float | None,
) -> tuple[Any, Any]:
    """Find the auto class that makes a model for the task, and the encoder's configuration.

    The configuration has the task's labels and the run's dropout.

    Raises:
        UsageError: transformers has no such class.
    """
    check_no_pointers(source)
    _check_sizes(source)
    settings = _settings_of_task(task_head)
    with _reading(backbone, source):
        config = transformers.AutoConfig.from_pretrained(source, **loading_options, **settings)
    # A model of an encoder's type can be made a decoder by its config.json alone.
    if getattr(config, "is_decoder", False) and not type(config)().is_decoder:
        logger.warning(
            f"note: the config.json of {source} says is_decoder; it is read as an encoder, whose tokens"
            " see each other"
        )
        config.is_decoder = False
        config.add_cross_attention = False
    if dropout is not None:
        _set_dropout(config, dropout)
    return _class_of(config, task_head), config


def _settings_of_task(task_head: TaskHeadSpec) -> dict[str, Any]:
    """Return what a task sets in an encoder's configuration: its labels, and which outputs there are."""
    # A config.json may ask for other outputs than ours, as checkpoints before transformers 4 do.
    outputs = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
    labels = dict(enumerate(task_head.rules.labels))
    # Spans have no labels. By default, transformers has a logit for the first and the last token.
    if not labels or task_head.is_own:
        return outputs
    ids = {label: index for index, label in labels.items()}
    return {**outputs, "id2label": labels, "label2id": ids}


def _class_of(config: Any, task_head: TaskHeadSpec) -> Any:
    """Find the auto class of transformers that makes a model for the task.

    Raises:
        UsageError: transformers has none.
    """
    class_name = task_head.rules.transformers_class
    if task_head.is_own:
        # A head of our own stands on the encoder of a span model, which has no pooler, or on the bare
        # encoder.
        class_name = AnswerSpan.transformers_class
    auto_class = getattr(transformers, class_name)
    has_class = type(config) in auto_class._model_mapping
    if config.is_encoder_decoder or not (has_class or task_head.is_own):
        raise UsageError(
            f"transformers has no '{config.model_type}' encoder for {task_head.kind} tasks; choose"
            " another backbone or task"
        )
    return auto_class if has_class else transformers.AutoModel


def _set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout rate of an encoder's configuration."""
    for key, rate in list(vars(config).items()):
        is_dropout = "dropout" in key or "pdrop" in key
        # ESM's token_dropout is a flag.
        if is_dropout and not isinstance(rate, bool):
            setattr(config, key, dropout)


def check_no_pointers(source: str) -> None:
    """Refuse the files of a directory that was cloned without Git LFS.

    Raises:
        MissingError: a file is a pointer, not the content.
    """
    for pattern in ("*.json", "*.safetensors", "*.model", "*.txt"):
        for path in sorted(Path(source).glob(pattern)):
            if path.is_file() and is_lfs_pointer(path):
                raise MissingError(
                    f"{path} is a pointer of Git LFS, not the content: run git lfs pull in {source}"
                )


def _check_sizes(source: str) -> None:
    """Refuse a local config.json that describes a model far larger than the weights beside it.

    transformers would build that model for hours, or take all memory for it.

    Raises:
        MissingError: it does.
    """
    file = Path(source) / "config.json"
    if not file.is_file():
        return
    try:
        content = read_json(file)
    except UsageError as error:
        raise MissingError(f"no usable encoder in {source}: {error}") from None

    def size(*keys: str) -> int:
        """Read a size under one of the names that families give it; 0: there is none."""
        values = [content.get(key) for key in keys]
        return max((value for value in values if isinstance(value, int)), default=0)

    layers = size("num_hidden_layers", "n_layers", "num_layers", "n_layer")
    width = size("hidden_size", "dim", "d_model", "n_embd")
    inner = size("intermediate_size", "hidden_dim", "d_ff")
    # A layer has four matrices of attention and two of the feed-forward part.
    parameters = layers * width * (4 * width + 2 * inner)
    weights = sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))
    # A plan needs the configuration alone: there may be no weights beside it.
    fitting = _SMALL_MODEL + _MAX_PARAMETERS_PER_BYTE * weights
    if layers > _MAX_LAYERS or (weights and parameters > fitting):
        raise MissingError(
            f"no usable encoder in {source}: config.json describes {layers:,} layers of width"
            f" {width:,}, and the weights have {weights:,} bytes"
        )


@contextmanager
def _reading(backbone: BackboneConfig, source: str) -> Iterator[None]:
    """Within this context, what transformers cannot read is a MissingError with the reason.

    The files may be damaged: transformers takes JSON of any kind.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        is_directory = source != backbone.hub
        if is_directory:
            reason = str(error).strip().partition("\n")[0][:160].rstrip(".")
            raise MissingError(f"no usable encoder in {source}: {reason}") from None
        if "model.safetensors" not in str(error):
            raise unavailable_error("model", source, error) from None
        raise MissingError(
            f"{source} has no safetensors weights at this revision, and pickled ones are never read:"
            " give the revision of the hub's converted weights (backbone.revision=refs/pr/N), or a"
            " local directory with model.safetensors"
        ) from None
