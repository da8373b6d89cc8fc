"""The interface between fine-tuning methods and the trainer, and the lookup of a method by its name."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from torch import Generator, Tensor, device, nn, no_grad

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.config.methods import code_file, method_spec
from hifi_cli.config.registry import nearest
from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, file_digest
from hifi_cli.heads.ranking import check_k
from hifi_cli.models.encoder import Encoder

Heads = list[list[int]]
ENTRY_POINTS = "hifi.methods"  # group of the methods that other packages install
_SCALES = {"ia3_l", "boft_s"}  # of peft: [n, 1], but vectors that start at 1, not matrices


@dataclass(frozen=True)
class MethodContext:
    """What a method knows besides its settings and the model.

    Attributes:
        heads: the selected heads, one list per layer; None unless the method needs them.
        missing_keys: names of parameters without pretrained values; every method must train them.
        seed: of the parameters that the method adds to the model.
        stage1: the training settings of the first of two stages.
    """

    heads: Heads | None = None
    missing_keys: list[str] = field(default_factory=list)
    seed: int = 1
    stage1: TrainingConfig | None = None


@dataclass(frozen=True)
class Phase:
    """A part of a run, with its own optimizer and learning rate schedule.

    Attributes:
        method: whose parameters train and whose hooks are called.
        fraction: of the run's steps.
        training: the learning rate and the like; None: those of the run.
        prepare_model: prepares the model for this phase; not called for the first phase, which `Method.prepare` prepares.
    """

    method: "Method"
    fraction: float = 1.0
    training: TrainingConfig | None = None
    prepare_model: Callable[[Encoder], None] = lambda encoder: None  # noqa: ARG005


class Method:
    """A fine-tuning method: one subclass per file in this folder.

    A run calls `prepare` once; then the trainer goes through `phases`, each with an AdamW over `param_groups`. A training step
    is, in this order: `before_step`, forward and backward passes (with `regularization_loss`), `after_backward`, clipping of
    each of `clip_groups`, `before_optimizer_step`, the step of optimizer and lr_scheduler, `after_optimizer_step`. `delta` and
    `load_delta` are inverse to each other; `merge` turns the model back into plain Hugging Face modules.
    """

    class Settings(ConfigModel):
        """The method's own settings, `settings.*` in a configuration."""

    needs_heads: ClassVar[bool] = False
    trains_subparameters: ClassVar[bool] = False  # slices of the model's own parameters, under other names
    mergeable = True  # whether a plain Hugging Face model computes the same, which `merge` makes

    def __init__(self, settings: Any, context: MethodContext) -> None:
        self.settings = settings
        self.context = context

    def prepare(self, encoder: Encoder) -> None:
        """Set `requires_grad` of all parameters, and replace modules if the method needs other ones."""
        raise NotImplementedError

    def phases(self) -> list[Phase]:
        """The run's phases, in order; their fractions sum to 1."""
        return [Phase(self)]

    def on_phase_start(self, model: nn.Module, gradients: Iterator[None]) -> None:
        """Called once before the first step of the method's phase.

        Args:
            gradients: each step through it leaves one training batch's gradient in the parameters, dropout on, not clipped.
        """

    def set_steps(self, steps: range) -> None:
        """Called before the first step of the method's phase, and again when it is resumed.

        Args:
            steps: the numbers of the phase's steps within the run, as `before_step` gets them.
        """

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer updates, by name."""
        return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def trainable_counts(self, model: nn.Module) -> dict[str, int]:
        """The number of trainable elements by parameter; where training chooses them, only the sum is known before."""
        return {name: parameter.numel() for name, parameter in self.trainable_parameters(model).items()}

    def param_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """The optimizer's parameter groups; here: weight decay on matrices and slices of them, none on vectors.

        Returns:
            AdamW's keys (`params`, `weight_decay`, `lr`, ...; the default is the run's value), and `lr_schedule`: `run` (the
            default: the group follows the run's schedule) or `constant`. The learning rate of the first group is logged.
        """
        dimensions = {name: parameter.dim() for name, parameter in model.named_parameters()}
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, parameter in self.trainable_parameters(model).items():
            is_matrix = dimensions.get(name, parameter.dim()) > 1 and not _SCALES.intersection(name.split("."))
            (matrices if is_matrix else vectors).append(parameter)
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        """Parameters whose gradients are clipped together, each group to the run's `max_grad_norm`; here: one group of all."""
        return [list(self.trainable_parameters(model).values())]

    def before_step(self, model: nn.Module, step: int) -> None:
        """Called before a step's forward passes; `step` counts all finished steps of the run."""

    def regularization_loss(self, model: nn.Module) -> Tensor | float:  # noqa: ARG002
        """A term of the parameters alone that is added to the loss of every step."""
        return 0.0

    def after_backward(self, model: nn.Module) -> None:
        """Called with the gradient of the whole batch, before clipping."""

    def before_optimizer_step(self, model: nn.Module) -> None:
        """Called with the clipped gradient, before the optimizer's step."""

    def after_optimizer_step(self, model: nn.Module) -> None:
        """Called after the optimizer's step; the gradients are still there."""

    def before_evaluation(self, model: nn.Module) -> None:
        """Called before the model is evaluated, in the middle of a phase too: its weights must be what training has reached."""

    def unfreeze_all(self, encoder: Encoder) -> None:
        """Make all parameters of the merged model trainable, including those that the method added (EH-FT with `reserve`)."""
        self.merge(encoder)
        encoder.model.requires_grad_(True)

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """What training changed: `load_delta` makes the trained model from it and the pretrained one."""
        return {name: value.detach() for name, value in self.trainable_parameters(model).items()}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        """Load a delta into a prepared model that is in its last phase.

        Raises:
            UsageError: its names or shapes differ from those of this model.
        """
        copy_tensors(self.delta(model), delta)

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        """What resuming a phase needs besides the states of optimizer and lr_scheduler; also asked for after `load_delta`."""
        return self.delta(model)

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Load a training state in the phase that it was saved in."""
        self.load_delta(model, state)

    def peft_config(self, encoder: Encoder) -> Any:  # noqa: ARG002
        """Peft's configuration of the adapters that the method adds to an encoder; None if they are not peft's alone."""
        return None

    def merge(self, encoder: Encoder) -> None:
        """Turn the model into a plain Hugging Face one with the same outputs, if the method is mergeable."""


def copy_tensors(target: dict[str, Tensor], delta: dict[str, Tensor]) -> None:
    """Copy the tensors of a delta into those of a model, in place.

    Raises:
        UsageError: the names or shapes differ.
    """
    if target.keys() != delta.keys():
        differing = sorted(target.keys() ^ delta.keys())
        raise UsageError(f"the delta does not fit this method and backbone: {differing[0]} (and {len(differing) - 1} more)")
    for name, tensor in target.items():
        if tensor.shape != delta[name].shape:
            raise UsageError(f"the delta does not fit this backbone: {name} has shape {tuple(delta[name].shape)}")
        tensor.copy_(delta[name])


def implementation_of(method: str) -> type[Method]:
    """The Method subclass that implements a method.

    Raises:
        UsageError: there is none, or it is code of a run directory that the user does not trust.
    """
    file = registry.find("methods", method)
    if code := code_file(file):
        registry.check_trusted(file, str(code))
        return _from_file(file.parent / code)
    return implementation(method_spec(method).implementation)


def implementation(name: str) -> type[Method]:
    """The Method subclass in `hifi_cli/methods/<name>.py`, or that an installed package offers as an entry point of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in _shipped_implementations():
        return _entry_point(name)
    return _only_method(importlib.import_module(f"hifi_cli.methods.{name}"))


def _only_method(module: ModuleType) -> type[Method]:
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise UsageError(f"{module.__file__} must define exactly one subclass of Method, not {len(classes)}")
    return classes[0]


def _from_file(path: Path) -> type[Method]:
    """The Method subclass in a user's file. A file is executed once, and again only after it has changed."""
    if not path.is_file():
        raise UsageError(f"no file {path}, which a method's YAML names as its implementation")
    name = f"{path.stem}_{digest([str(path.resolve()), file_digest(path)])}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise UsageError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return _only_method(sys.modules[name])


@cache
def _shipped_implementations() -> list[str]:
    return [path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "base"]


def _entry_point(name: str) -> type[Method]:
    """Only what the user has installed is imported: a results directory can name an entry point, and cannot bring code."""
    offered = {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name not in offered:
        raise UsageError(
            f"unknown implementation '{name}'{nearest(name, [*_shipped_implementations(), *offered])} (a file in"
            " hifi_cli/methods/, a Python file beside the YAML as ./NAME.py, or"
            f" an entry point of group {ENTRY_POINTS} in an installed package)"
        )
    method = offered[name].load()
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UsageError(f"entry point {name} of group {ENTRY_POINTS} ({offered[name].value}) is not a subclass of Method")
    return method


def needs_heads(config: RunConfig) -> bool:
    """Whether a run tunes selected heads, in either of its stages."""
    return any(implementation_of(stage.method).needs_heads for stage in config.stages)


def check_settings(config: RunConfig) -> None:
    """Refuse settings that the method of a run, or of its first stage, does not have.

    Raises:
        UsageError: unknown setting, or a wrong value.
    """
    for stage in config.stages:
        settings = implementation_of(stage.method).Settings
        parse(settings, stage.settings, f"method {stage.method}, settings")


def placeholder_heads(config: RunConfig, encoder: Encoder) -> Heads | None:
    """The configured heads, or as many heads as would be chosen: sizes and costs do not depend on which; None without any."""
    if not needs_heads(config) or config.heads.given:
        return config.heads.given
    check_k(config.heads.k, encoder.num_heads)
    lowest = encoder.num_layers // 2 if config.heads.strategy == "midtop" else 0
    return [list(range(config.heads.k)) if layer >= lowest else [] for layer in range(encoder.num_layers)]


def build(training: TrainingConfig, context: MethodContext) -> Method:
    """Build the method of a run or of a stage from its validated settings.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    method_class = implementation_of(training.method)
    settings = parse(method_class.Settings, training.settings, f"method {training.method}, settings")
    if method_class.needs_heads and context.heads is None:
        raise UsageError(f"method {training.method} needs selected heads")
    return method_class(settings, context)


def attach(config: RunConfig, encoder: Encoder, heads: Heads | None, missing_keys: list[str]) -> Method:
    """Build the method of a run and let it prepare the model.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    method = build(config, MethodContext(heads, missing_keys, config.seed, config.stage1))
    method.prepare(encoder)
    return method


def load_final_delta(method: Method, encoder: Encoder, delta: dict[str, Tensor]) -> None:
    """Load the delta of a finished run into a prepared model.

    Raises:
        UsageError: the delta does not fit.
    """
    prepare_last_phase(method, encoder)
    with no_grad():
        method.load_delta(encoder.model, delta)


def prepare_last_phase(method: Method, encoder: Encoder, current_phase: int = 0) -> None:
    """Prepare a model that is in phase `current_phase`, counted from 0, for the last phase of its method."""
    for phase in method.phases()[current_phase + 1 :]:
        phase.prepare_model(encoder)


def freeze_except(encoder: Encoder, names: Iterable[str]) -> None:
    """Make the named parameters trainable and freeze all others."""
    trainable = set(names)
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(name in trainable)


def task_head_names(encoder: Encoder) -> list[str]:
    """The names of the task head's parameters."""
    return [name for name, _ in encoder.task_head_parameters()]


def rows_of_heads(encoder: Encoder, heads: Heads | None) -> list[list[int]]:
    """The rows of W_Q, W_K and W_V of each layer that belong to the selected heads.

    Raises:
        UsageError: the heads are of another encoder, or one is given twice.
    """
    is_inside = all(0 <= head < encoder.num_heads for layer in heads or [] for head in layer)
    if heads is None or len(heads) != encoder.num_layers or not is_inside:
        shape = f"{encoder.num_layers} layers of {encoder.num_heads} heads"
        raise UsageError(f"the chosen heads are of another encoder: this one has {shape}")
    if any(len(set(layer)) < len(layer) for layer in heads):
        raise UsageError("a head is chosen twice in a layer")
    return [[row for head in layer for row in encoder.head_rows(head)] for layer in heads]


def names_without_pretrained_values(encoder: Encoder, missing_keys: Iterable[str]) -> list[str]:
    """The names of the parameters on top of the backbone, and of those in it that are not pretrained (a new pooler)."""
    backbone, without_value = f"{encoder.model.base_model_prefix}.", set(missing_keys)
    names = [name for name, _ in encoder.model.named_parameters()]
    return [name for name in names if not name.startswith(backbone) or name in without_value]


def seeded_generator(seed: int) -> Generator:
    """Return a CPU generator for initial values, which depends on the run's seed alone: they are the same on every device."""
    return Generator().manual_seed(seed)


def step_generator(seed: int, step: int, on: device) -> Generator:
    """Return a device's generator for one step. It depends on seed and step: a resumed run and all processes draw the same."""
    return Generator(on).manual_seed(seed * 1_000_003 + step)
