"""Adapters of the peft library in an encoder: which modules get one, how it is added, and how it is merged."""

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hifi_cli.config.registry import nearest
from hifi_cli.errors import UsageError
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import PROJECTIONS

PARTS = (*PROJECTIONS, "output", "ffn", "ffn_output")
NORMS = "norms"
SET_BY_TARGETS = ("target_modules", "feedforward_modules", "modules_to_save", "task_type", "inference_mode", "peft_type")
WITHOUT_WEIGHTS = {"init_lora_weights": True, "mask_fn": None}  # options whose other values need the weights' values
REFUSED = {
    "adaption_prompt": "peft has it for LLaMA, Mistral and GPT-2 only",
    "lily": "its adapters choose experts for each input and cannot be merged",
    "poly": "it needs the number of a task with every batch",
    "shadow": "it needs a second model beside the encoder",
    "trainable_tokens": "it trains rows of the embeddings, which a list of tokens selects",
    "xlora": "it mixes trained LoRA adapters, which must be there already",
}


def target_modules(encoder: Encoder, targets: list[str]) -> list[str]:
    """The names in the whole model of the modules to adapt.

    Args:
        targets: parts of a layer (`PARTS`), `norms` (every LayerNorm or RMSNorm of the backbone), or what names of modules end
            with, which any encoder has.

    Raises:
        UsageError: no module has such a name.
    """
    backbone = {name: module for name, module in encoder.model.named_modules() if module in set(encoder.base.modules())}
    chosen: list[str] = []
    for target in targets:
        if target in PARTS and encoder.has_known_parts:
            modules = [path for layer in range(encoder.num_layers) for path in encoder.paths(layer, target)]
        elif target == NORMS:
            modules = [name for name, module in backbone.items() if encoder.is_norm(module)]
        else:
            modules = [name for name in backbone if name.endswith(f".{target}")]
        if not modules:
            known = (*PARTS, NORMS)
            hint = f"known are {', '.join(known)}, and endings of the encoder's module names"
            raise UsageError(f"settings.targets: unknown '{target}'{nearest(target, known)}; {hint}")
        chosen += modules
    return chosen


def peft_config(encoder: Encoder, kind: str, options: dict[str, Any], modules: list[str]) -> Any:
    """The peft configuration of an adapter type.

    Args:
        kind: a value of peft's `PeftType`, in any case.
        options: fields of the type's configuration class.
        modules: names of the modules to adapt. Of the second Linear of a feed-forward network IA3 scales the input.

    Raises:
        UsageError: unknown type or option, or a value that does not fit.
    """
    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING

    types = {member.value.lower(): member for member in PeftType if member in PEFT_TYPE_TO_CONFIG_MAPPING}
    kind = kind.lower()
    if kind not in types:
        raise UsageError(f"settings.type: unknown '{kind}'{nearest(kind, types)}; known are {', '.join(sorted(types))}")
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING[types[kind]]
    fields = {field.name for field in dataclasses.fields(config_class)}
    if "target_modules" not in fields or types[kind] not in PEFT_TYPE_TO_TUNER_MAPPING or kind in REFUSED:
        reason = REFUSED.get(kind, "it adds virtual tokens to the input instead of adapting modules; see prefix-tuning")
        raise UsageError(f"settings.type={kind} does not work here: {reason}")
    for option in options:
        if option in SET_BY_TARGETS:
            raise UsageError(f"settings.options.{option} is derived from settings.targets: change those")
        if option not in fields:
            raise UsageError(f"settings.options: peft's {config_class.__name__} has no '{option}'{nearest(option, fields)}")
    derived: dict[str, Any] = {"target_modules": modules}
    if "feedforward_modules" in fields:
        inner = target_modules(encoder, ["ffn_output"]) if encoder.has_known_parts else []
        derived["feedforward_modules"] = [name for name in inner if name in modules]
    with _peft_errors(kind):
        return config_class(**options, **derived)


def add_adapters(encoder: Encoder, config: Any, seed: int) -> tuple[Any, list[str]]:
    """Add adapters to the encoder, in place; nothing else trains afterwards.

    Args:
        config: from `peft_config`.
        seed: of the adapters' initial values.

    Returns:
        peft's tuner, and the names of the parameters that peft trains.

    Raises:
        UsageError: the type does not fit the encoder; with peft's reason.
    """
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    encoder.model.requires_grad_(False)
    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch's default: unless stated, SHiRA's updates make it warn
    if any(parameter.is_meta for parameter in encoder.model.parameters()):  # only sizes matter
        for option in WITHOUT_WEIGHTS.keys() & vars(config).keys():
            setattr(config, option, WITHOUT_WEIGHTS[option])
    device = encoder.device
    if device.type == "cuda":  # PiSSA's random projection draws where the weights are, and an SVD's signs depend on the device
        encoder.model.to("cpu")
    with torch.random.fork_rng(devices=[]), _peft_errors(config.peft_type.value.lower()):
        torch.default_generator.manual_seed(seed)
        tuner = PEFT_TYPE_TO_TUNER_MAPPING[config.peft_type](encoder.model, config, adapter_name="default")
    if device.type == "cuda":
        encoder.model.to(device)
    return tuner, [name for name, parameter in encoder.model.named_parameters() if parameter.requires_grad]


@torch.no_grad()
def merge_adapters(encoder: Encoder) -> None:
    """Write every adapter into the module that it adapts, and put that module back in its place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(encoder.model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            encoder.model.set_submodule(name, module.get_base_layer())


@contextmanager
def _peft_errors(kind: str) -> Iterator[None]:
    """Within this context, peft's warnings are silent and what it refuses is a UsageError with its reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"settings.type={kind}: peft refuses it: {reason}") from None
