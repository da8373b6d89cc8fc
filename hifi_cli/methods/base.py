"""What a fine-tuning method is, and how one is found: the contract between methods and the training loop."""

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Generator, Tensor, nn, no_grad

from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.config.methods import method_spec
from hifi_cli.config.run_config import RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.models.encoder import Encoder

Heads = list[list[int]]


@dataclass(frozen=True)
class MethodContext:
    """What a method may know besides the model.

    Attributes:
        heads: the chosen heads, one list per layer; None unless the method needs them.
        missing_keys: names of parameters without pretrained values, which no method may leave untrained.
        seed: draws what the method adds to the model.
        stage1: how the first of two stages trains.
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
        """Decide what trains (`requires_grad`), and change modules where the method wants others."""
        raise NotImplementedError

    def phases(self) -> list[Phase]:
        """The run's phases, in order; their fractions sum to 1."""
        return [Phase(self)]

    def on_phase_start(self, model: nn.Module, gradients: Iterator[None]) -> None:
        """Called once before the first step of the method's phase.

        Args:
            gradients: each step through it leaves one training batch's gradient in the parameters, dropout on, not clipped.
        """

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """What the optimizer moves, by name."""
        return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def param_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """The optimizer's groups; here: weight decay on matrices (and parts of matrices), none on biases and LayerNorms.

        Returns:
            AdamW's own keys (`params`, `weight_decay`, `lr`, ...; the run's value stands in for an absent one), and
            `lr_schedule`: `run` (the default: the group's rate follows the run's schedule) or `constant`. The first group's
            rate is the one that is logged.
        """
        dimensions = {name: parameter.dim() for name, parameter in model.named_parameters()}
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, value in self.trainable_parameters(model).items():
            groups[dimensions.get(name, value.dim()) > 1].append(value)
        decay = {True: weight_decay, False: 0.0}
        return [{"params": found, "weight_decay": decay[matrix]} for matrix, found in groups.items() if found]

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        """Parameters whose gradients are clipped together, each group to the run's `max_grad_norm`; here: all that train."""
        return [list(self.trainable_parameters(model).values())]

    def before_step(self, model: nn.Module, step: int) -> None:
        """Called before a step's forward passes; `step` counts all finished steps of the run."""

    def regularization_loss(self, model: nn.Module) -> Tensor | float:  # noqa: ARG002
        """A term added to the loss of every step."""
        return 0.0

    def after_backward(self, model: nn.Module) -> None:
        """Called with the whole batch's gradient, before it is clipped."""

    def before_optimizer_step(self, model: nn.Module) -> None:
        """Called with the clipped gradient, before the optimizer's step."""

    def after_optimizer_step(self, model: nn.Module) -> None:
        """Called after the optimizer's step."""

    def unfreeze_all(self, encoder: Encoder) -> None:
        """Let everything train from here on, what the method added included (EH-FT's reserve)."""
        encoder.model.requires_grad_(True)

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """What training changed, enough for `load_delta` to make the trained model from the pretrained one."""
        return {name: value.detach() for name, value in self.trainable_parameters(model).items()}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        """Put a delta into a prepared model, in the state of its last phase.

        Raises:
            UsageError: its names or shapes are not those of this model.
        """
        copy_tensors(self.delta(model), delta)

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        """What a resumed phase needs of the method, beside the optimizer's own state."""
        return self.delta(model)

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Take up a training state in the phase it was made in."""
        self.load_delta(model, state)

    def merge(self, encoder: Encoder) -> None:
        """Make the model a plain Hugging Face one with the same outputs, as far as that is possible."""


def copy_tensors(wanted: dict[str, Tensor], delta: dict[str, Tensor]) -> None:
    """Copy a delta's tensors into a model's.

    Raises:
        UsageError: the names or shapes differ.
    """
    if wanted.keys() != delta.keys():
        differing = sorted(wanted.keys() ^ delta.keys())
        raise UsageError(f"the delta does not fit this method and backbone: {differing[0]} (and {len(differing) - 1} more)")
    for name, value in wanted.items():
        if value.shape != delta[name].shape:
            raise UsageError(f"the delta does not fit this backbone: {name} is {tuple(delta[name].shape)} there")
        value.copy_(delta[name])


def implementation(name: str) -> type[Method]:
    """The Method subclass in `hifi_cli/methods/<name>.py`."""
    module = importlib.import_module(f"hifi_cli.methods.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    ]
    assert len(found) == 1, f"{module.__file__} must define exactly one Method"
    return found[0]


def needs_heads(config: RunConfig) -> bool:
    """Whether a run tunes chosen heads, in either of its stages."""
    stages: list[TrainingConfig] = [config, *([config.stage1] if config.stage1 else [])]
    return any(implementation(method_spec(stage.method).implementation).needs_heads for stage in stages)


def build(training: TrainingConfig, context: MethodContext) -> Method:
    """The method of a run or of a stage, its settings validated.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    chosen = implementation(method_spec(training.method).implementation)
    settings = parse(chosen.Settings, training.settings, f"method {training.method}, settings")
    if chosen.needs_heads and context.heads is None:
        raise UsageError(f"method {training.method} needs chosen heads")
    return chosen(settings, context)


def load_final_delta(method: Method, encoder: Encoder, delta: dict[str, Tensor]) -> None:
    """Bring a prepared model into the state of a finished run.

    Raises:
        UsageError: the delta does not fit.
    """
    prepare_last_phase(method, encoder)
    with no_grad():
        method.load_delta(encoder.model, delta)


def prepare_last_phase(method: Method, encoder: Encoder, phase: int = 0) -> None:
    """Bring a model from the state of a phase, counted from 0, into that of the last: what trains then is the method's."""
    for following in method.phases()[phase + 1 :]:
        following.prepare_model(encoder)


def freeze_except(encoder: Encoder, names: Iterable[str]) -> None:
    """Freeze everything but the named parameters."""
    chosen = set(names)
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(name in chosen)


def task_head_names(encoder: Encoder) -> list[str]:
    """The names of the task head's parameters."""
    return [name for name, _ in encoder.task_head_parameters()]


def names_without_pretrained_values(encoder: Encoder, missing_keys: Iterable[str]) -> list[str]:
    """The names of the parameters on top of the backbone, and of those in it without pretrained values (a fresh pooler)."""
    backbone, without_value = f"{encoder.model.base_model_prefix}.", set(missing_keys)
    names = [name for name, _ in encoder.model.named_parameters()]
    return [name for name in names if not name.startswith(backbone) or name in without_value]


def generator(seed: int) -> Generator:
    """Random numbers of a method's own, that follow from the run's seed alone."""
    return Generator().manual_seed(seed)


def step_generator(seed: int, step: int) -> Generator:
    """Random numbers of one step that follow from seed and step, so that a resumed run and every process draw the same."""
    return generator(seed * 1_000_003 + step)
