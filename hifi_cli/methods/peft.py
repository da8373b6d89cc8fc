"""Methods of the peft library: adapters of any type that peft puts into modules of the encoder."""

import dataclasses
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import BaseTunerLayer

from hifi_cli.config.registry import did_you_mean
from hifi_cli.config.specs import NO_OPTIONS
from hifi_cli.errors import NO_MEMORY, UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import drawn_by, freeze_except
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import PROJECTIONS

PARTS = (*PROJECTIONS, "output", "ffn", "ffn_output")
NORMS = "norms"
# Types of plain values that a field of such a type takes.
_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
}
# Options by which initial values may be computed from the pretrained weights (PiSSA, for example),
# with a value that needs none.
_WITHOUT_WEIGHTS = {"init_lora_weights": True, "mask_fn": None}
# Options that peft applies to other parts of the model than the adapted modules or to quantized
# weights, that freeze the adapters, or that need a pass over data before the training: here they
# would do nothing, or something else. peft's files say some more that are no options of adapters.
_NOT_HERE = (
    "use_qalora",
    "inference_mode",
    "runtime_config",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "ensure_weight_tying",
    "alora_invocation_tokens",
    "arrow_config",
    "megatron_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
)
# Values of `init_lora_weights` that need such a pass.
_INITIAL_VALUES_FROM_DATA = ("eva", "corda", "lora_ga")
# Options with a value for each ending of the modules' names.
_PATTERNS = ("rank_pattern", "alpha_pattern")
# Types that train something else than modules, need the number of a task, or cannot be merged.
REFUSED = {"adaption_prompt", "lily", "poly", "shadow", "trainable_tokens"}

# These types draw their initial values where the adapted weight is. On a GPU that was by its
# generator, which no seed has set yet: each run began with other values.
DRAWS_WHERE_THE_WEIGHT_IS = ("c3a",)


class Peft(Method):
    """Train the adapters that peft adds to the chosen modules, and the task head.

    Some types rewrite the weights that they adapt when they are added (PiSSA, OLoRA): W is then
    W - B A at first, and the same is computed again when a run is reloaded.
    """

    class Settings(Method.Settings):
        """The adapters' type, their options and places."""

        type: str = "lora"
        """A type of peft (`PeftType`), for example `lora`, `ia3` or `vera`, that adapts modules:
        not those that add virtual tokens (`prompt_tuning`, `p_tuning`), or that need more than a
        batch's texts."""
        options: dict[str, Any] = {}
        """Fields of the type's configuration class in peft, for example `{r: 8, lora_alpha: 16}`;
        the others keep peft's defaults."""
        targets: list[str] = ["query", "value"]
        """The adapted modules: query, key, value, output, ffn, ffn_output, norms (every LayerNorm
        and RMSNorm of the backbone), or what names of the encoder's modules end with; encoders of
        unknown families have only the last two."""

    def adapter(self) -> tuple[str, dict[str, Any]]:
        """Return the type of peft and the fields of its configuration, as the settings say."""
        # AdaLoRA must be called in every step.
        if self.settings.type.lower() == "adalora":
            raise UsageError("settings.type=adalora: use the method adalora")
        return self.settings.type, self.settings.options

    def target_modules(self, encoder: Encoder) -> list[str]:
        """Return the names in the whole model of the modules to adapt.

        Raises:
            UsageError: no module has such a name.
        """
        names: list[str] = []
        for target in self.settings.targets:
            names.extend(modules_of(encoder, target))
        return names

    def peft_config(self, encoder: Encoder) -> Any:
        """Make peft's configuration of the adapters.

        Raises:
            UsageError: unknown type, or an option or a value that peft refuses.
        """
        kind, options = self.adapter()
        config_class = config_class_of(kind)
        check_options(encoder, options)
        modules = in_layers(encoder, self.target_modules(encoder), options)
        check_patterns(modules, options)
        check_types(config_class, options)
        if not modules:
            raise UsageError("settings.targets: names no module of the encoder")
        # peft does not get the options that are followed here: the task head trains anyway, and
        # `modules` are those of the chosen layers already.
        done_here = {"modules_to_save"}
        if options.get("layers_to_transform") is not None:
            done_here |= {"layers_to_transform", "layers_pattern"}
        given = {key: value for key, value in options.items() if key not in done_here}
        derived: dict[str, Any] = {"target_modules": modules}
        # IA3 scales the input of these, and the outputs of all others.
        if kind.lower() == "ia3":
            inner = modules_of(encoder, "ffn_output") if encoder.is_supported_family else []
            derived["feedforward_modules"] = [name for name in inner if name in modules]
        # An option that is given and derived is refused here, as a keyword that is given twice.
        with _peft_errors(kind):
            return config_class(**given, **derived)

    def prepare(self, encoder: Encoder) -> None:
        model = encoder.model
        head = encoder.task_head
        config = self.peft_config(encoder)
        model.requires_grad_(False)
        # Otherwise SHiRA's updates make PyTorch warn.
        torch.sparse.check_sparse_tensor_invariants.disable()
        # A plan's model has no values to compute with, and only its sizes matter.
        if encoder.device.type == "meta":
            for option, value in _WITHOUT_WEIGHTS.items():
                if option in vars(config):
                    setattr(config, option, value)
        tuner = PEFT_TYPE_TO_TUNER_MAPPING[config.peft_type]
        kind = config.peft_type.value.lower()
        with drawn_by(self.context.seed), drawn_on_the_cpu(encoder, kind), _peft_errors(kind):
            self.tuner: Any = tuner(model, config, adapter_name="default")
        # peft has frozen all but its own parameters. AdaLoRA's rank is one of them, but a constant.
        added = [
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and ".ranknum." not in name
        ]
        freeze_except(encoder, [*head, *added])

    @torch.no_grad()
    def merge(self, encoder: Encoder) -> None:
        # A plan's model has no values to merge.
        has_values = encoder.device.type != "meta"
        for name, module in list(encoder.model.named_modules()):
            if isinstance(module, BaseTunerLayer):
                if has_values:
                    module.merge(safe_merge=True)
                encoder.model.set_submodule(name, module.get_base_layer())
        super().merge(encoder)


def config_class_of(kind: str) -> Any:
    """Return peft's class of the configuration of a type of adapters.

    Raises:
        UsageError: peft has no such type, or one that adapts no modules.
    """
    types: dict[str, Any] = {}
    for member, config_class in PEFT_TYPE_TO_CONFIG_MAPPING.items():
        name = member.value.lower()
        if hasattr(config_class, "target_modules") and name not in REFUSED:
            types[name] = config_class
    if kind.lower() not in types:
        known = ", ".join(sorted(types))
        raise UsageError(
            f"settings.type: unknown '{kind}'{did_you_mean(kind, types)}; known are {known}"
        )
    return types[kind.lower()]


def modules_of(encoder: Encoder, target: str) -> list[str]:
    """Return the names in the whole model of the modules that a target of `Peft.Settings` means.

    Raises:
        UsageError: no module has such a name.
    """
    if target == NORMS:
        return encoder.norms
    if target in PARTS and encoder.is_supported_family:
        paths: list[str] = []
        for layer in range(encoder.num_layers):
            paths.extend(encoder.module_paths(layer, target))
        return paths
    of_backbone = set(encoder.base.modules())
    # A pooler is a module of the backbone, and a part of the task head, which trains whole.
    of_head = {name.rpartition(".")[0] for name in encoder.task_head}
    names = []
    for name, module in encoder.model.named_modules():
        can_be_adapted = module in of_backbone and name not in of_head
        # A target is whole parts of a name: `value` is not the end of `key_value`.
        if can_be_adapted and f".{name}".endswith(f".{target}"):
            names.append(name)
    if not names:
        known = (*PARTS, NORMS) if encoder.is_supported_family else (NORMS,)
        hint = f"known are {', '.join(known)}, and endings of the encoder's module names"
        raise UsageError(
            f"settings.targets: unknown '{target}'{did_you_mean(target, known)}; {hint}"
        )
    return names


def check_options(encoder: Encoder, options: dict[str, Any]) -> None:
    """Refuse options that would have no effect, or another one than in peft.

    Raises:
        UsageError: there is one; it is named.
    """
    # The modules are refused where peft would get them twice.
    about_modules = {"target_modules", "feedforward_modules"}
    for name in sorted({*_NOT_HERE, *NO_OPTIONS} - about_modules):
        if options.get(name):
            raise UsageError(f"settings.options.{name}: not supported here; remove it")
    if str(options.get("init_lora_weights")).lower() in _INITIAL_VALUES_FROM_DATA:
        raise UsageError(
            f"settings.options.init_lora_weights={options['init_lora_weights']}: not supported here,"
            " because it needs a pass over data first"
        )
    for saved in _listed(options.get("modules_to_save")):
        named = [
            name
            for name, _ in encoder.model.named_parameters()
            if f".{saved}." in f".{name}" and name not in encoder.task_head
        ]
        if named:
            raise UsageError(
                f"settings.options.modules_to_save: {saved} would stay frozen; here the adapters and the"
                " task head train: remove it"
            )


def check_types(config_class: type[Any], options: dict[str, Any]) -> None:
    """Refuse options that a class of peft does not have, and plain values of another type.

    Raises:
        UsageError: there is one; it is named.
    """
    fields = {field.name: field.type for field in dataclasses.fields(config_class)}
    for name, value in options.items():
        if name not in fields:
            raise UsageError(
                f"settings.options: {config_class.__name__} of peft has no '{name}'"
                f"{did_you_mean(name, fields)}"
            )
        # Annotations are types, or their names where a module postpones them.
        kind = str(getattr(fields[name], "__name__", fields[name]))
        wanted = _PLAIN_TYPES.get(kind)
        if wanted and type(value) not in wanted:
            raise UsageError(f"settings.options.{name}: {kind} is required, not {value!r:.60}")


def check_patterns(modules: list[str], options: dict[str, Any]) -> None:
    """Refuse values of single modules that no adapted module has.

    Raises:
        UsageError: there is such a value.
    """
    for option in _PATTERNS:
        values = options.get(option) or {}
        if not isinstance(values, dict):
            raise UsageError(
                f"settings.options.{option}: give a value for the end of a module's name, as"
                f" {{query: 4}}, not {values!r:.60}"
            )
        for ending in values:
            try:
                pattern = re.compile(rf"(.*\.)?({ending})")
            except re.error:
                raise UsageError(f"settings.options.{option}: '{ending}' is no pattern") from None
            if not any(map(pattern.fullmatch, modules)):
                raise UsageError(
                    f"settings.options.{option}: '{ending}' is the end of no adapted module's name"
                )


def in_layers(encoder: Encoder, modules: list[str], options: dict[str, Any]) -> list[str]:
    """Return those of the modules that `layers_to_transform` leaves: a layer's number, or several.

    Args:
        encoder: whose modules they are.
        modules: their names in the whole model.
        options: of the adapters.

    Raises:
        UsageError: it leaves none, or names a layer that the encoder does not have.
    """
    wanted = options.get("layers_to_transform")
    if wanted is None:
        return modules
    layers = _listed(wanted)
    kept = [module for module in modules if encoder.layer_of(module) in layers]
    all_layers = range(encoder.num_layers)
    if not kept or any(layer not in all_layers for layer in layers):
        raise UsageError(
            f"settings.options.layers_to_transform={wanted}: the encoder has the layers 0 to"
            f" {encoder.num_layers - 1}, and the targets must be in them"
        )
    return kept


def _listed(value: Any) -> list[Any]:
    """Return the values of an option that is given as a list, as one value, or not at all."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [*value]
    return [value]


@contextmanager
def drawn_on_the_cpu(encoder: Encoder, kind: str) -> Iterator[None]:
    """In this context, adapters of any type get initial values that a seed of the CPU decides.

    Args:
        encoder: gets the adapters. Its model is on the CPU meanwhile, if they would draw on a GPU.
        kind: the adapters' type.
    """
    device = encoder.device
    # All other types draw on the CPU by themselves.
    moves = kind in DRAWS_WHERE_THE_WEIGHT_IS and device.type == "cuda"
    if moves:
        encoder.model.to("cpu")
    yield
    if moves:
        encoder.model.to(device)


@contextmanager
def _peft_errors(kind: str) -> Iterator[None]:
    """In this context, peft's warnings are silent, and what it refuses is a UsageError.

    An error of the device or a lack of memory is not peft's, and stays as it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RuntimeError,
            ImportError,
        ) as error:
            if isinstance(error, torch.AcceleratorError) or NO_MEMORY.search(str(error)):
                raise
            # Most types of adapters check no option: a wrong one fails where they compute with it.
            reason = " ".join(str(error).split())
            raise UsageError(f"settings.type={kind}: peft refuses it: {reason}") from None
