"""Adapters of peft: which modules of an encoder get one, and how it is added and merged."""

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
# Types for decoders, those that need more than a batch's texts, and one for embeddings of tokens.
UNSUITED = {"adaption_prompt", "lily", "poly", "shadow", "trainable_tokens"}
# Options whose other values need the weights' values.
WITHOUT_WEIGHTS = {"init_lora_weights": True, "mask_fn": None}


def target_modules(encoder: Encoder, targets: list[str]) -> list[str]:
    """The names in the whole model of the modules to adapt.

    Args:
        targets: parts of a layer (`PARTS`), `norms` (every LayerNorm or RMSNorm of the backbone),
            or what names of modules end with, which any encoder has.

    Raises:
        UsageError: no module has such a name.
    """
    backbone = set(encoder.base.modules())
    names = [name for name, module in encoder.model.named_modules() if module in backbone]
    chosen: list[str] = []
    for target in targets:
        if target in PARTS and encoder.has_known_parts:
            modules = [path for layer in range(encoder.num_layers) for path in encoder.paths(layer, target)]
        elif target == NORMS:
            modules = encoder.norms
        else:
            modules = [name for name in names if name.endswith(f".{target}")]
        if not modules:
            known = (*PARTS, NORMS)
            hint = f"known are {', '.join(known)}, and endings of the encoder's module names"
            raise UsageError(f"settings.targets: unknown '{target}'{nearest(target, known)}; {hint}")
        chosen += modules
    return chosen


def peft_config(encoder: Encoder, kind: str, options: dict[str, Any], modules: list[str]) -> Any:
    """The peft configuration of an adapter type.

    Args:
        kind: a value of peft's `PeftType`, in any case; not those that add virtual tokens to the
            input.
        options: fields of the type's configuration class.
        modules: names of the modules to adapt. Of the second Linear of a feed-forward network IA3
            scales the input.

    Raises:
        UsageError: unknown type or option, or a value that does not fit.
    """
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    types = {member.value.lower(): config_class for member, config_class in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    fields_of = {name: {field.name for field in dataclasses.fields(types[name])} for name in types}
    known = sorted(name for name in types.keys() - UNSUITED if "target_modules" in fields_of[name])
    if kind.lower() not in known:
        raise UsageError(f"settings.type: unknown '{kind}'{nearest(kind, known)}; known are {', '.join(known)}")
    config_class, fields = types[kind.lower()], fields_of[kind.lower()]
    for option in options.keys() - fields:
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
    torch.sparse.check_sparse_tensor_invariants.disable()  # else SHiRA's updates make PyTorch warn
    device = encoder.device
    if device.type == "meta":  # only sizes matter
        for option in WITHOUT_WEIGHTS.keys() & vars(config).keys():
            setattr(config, option, WITHOUT_WEIGHTS[option])
    elif device.type == "cuda":  # an SVD's signs and random draws depend on the device
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
    """In this context, peft's warnings are silent, and what it refuses is a UsageError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (ValueError, TypeError, NotImplementedError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"settings.type={kind}: peft refuses it: {reason}") from None
