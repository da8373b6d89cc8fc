"""The interface of a fine-tuning method: it prepares an encoder, and has hooks around a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.config.run_config import TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import TunedLinear

Heads = list[list[int]]
# peft's adapters store these scales as [n, 1]. They start at 1 and are vectors in all but shape:
# weight decay would pull them to 0, which removes what they scale.
_SCALES = {"ia3_l", "boft_s"}


@dataclass(frozen=True)
class MethodContext:
    """Context of a method besides its settings and the model.

    Attributes:
        heads: the selected heads, one list per layer; None unless the method needs them.
        missing_keys: names of parameters without pretrained values; every method must train them.
        seed: seeds what the method draws. Initial values are drawn on the CPU, so that they do not
            depend on the device.
        stage1_config: method and training settings of the first of two stages.
    """

    heads: Heads | None = None
    missing_keys: list[str] = field(default_factory=list)
    seed: int = 1
    stage1_config: TrainingConfig | None = None


@dataclass(frozen=True)
class Stage:
    """A part of a run, with its own optimizer and learning rate schedule.

    `Method.stages` makes it; `training/stage.py` trains it.

    Attributes:
        method: whose parameters train and whose hooks are called. It need not be the run's: EH-FT's
            first stage has the method `stage1.method`, and Diff-Pruning's first one a search.
        fraction: of the run's steps.
        training: the learning rate and the like; None: those of the run.
        prepare_model: prepares the model for this stage, from what the stage before it has left; not
            called for the first one, which `Method.prepare` prepares.
    """

    method: "Method"
    fraction: float = 1.0
    training: TrainingConfig | None = None
    prepare_model: Callable[[Encoder], None] = lambda encoder: None  # noqa: ARG005


class Method(ABC):
    """A fine-tuning method: one subclass per file in this folder. Most need `prepare` alone.

    The hooks stand in the order in which a run calls them. It calls `prepare` once, which prepares
    the model for the first of the `stages`. From the second on, a stage begins with its own
    `Stage.prepare_model`. Then each stage calls hooks of its own method: `on_stage_start`, before
    AdamW is created over `param_groups` and `clip_groups` are read. A step is: `before_step`, forward
    and backward passes with `regularization_loss`, `after_backward`, clipping of each of the
    `clip_groups`, `before_optimizer_step`, the optimizer's step, `after_optimizer_step`.

    A hook that changes a weight that does not train changes it in place, and not through `.data`: a
    GPU multiplies by copies of such weights, which it makes anew when PyTorch counts a change.
    """

    class Settings(ConfigModel):
        """The method's own settings, `settings.*` in a configuration; a method's own extends it."""

    needs_heads: ClassVar[bool] = False
    # Whether the word embedding's rows of words that occur in no train example may be left out of
    # training. The method must then read no gradient and no weight of these rows.
    may_leave_out_words: ClassVar[bool] = False
    # Whether `before_step` changes nothing that forward and backward passes read but values of
    # tensors in their place: a GPU may then repeat recorded passes. Else it records none.
    before_step_is_recordable: ClassVar[bool] = False
    # Whether a plain Hugging Face model can compute the same; `merge` makes it.
    mergeable = True

    def __init__(self, settings: Any, context: MethodContext) -> None:
        self.settings = settings
        self.context = context

    # --- before the first step of a stage: what trains

    @abstractmethod
    def prepare(self, encoder: Encoder) -> None:
        """Set `requires_grad` of all parameters, and replace modules where others are needed.

        Initial values are drawn on the CPU, so that they do not depend on the model's device. The
        model of a plan is on `meta`.
        """

    def stages(self) -> list[Stage]:
        """Return the run's stages, in order; their fractions sum to 1.

        It is called several times, also before `prepare`: the methods of the stages are always the
        same objects.
        """
        return [Stage(self)]

    def on_stage_start(self, model: nn.Module, gradients: Iterator[None]) -> None:
        """Called once when the method's stage begins, before its optimizer is created.

        A run that is continued from a checkpoint in the stage calls `load_training_state` instead.

        Args:
            model: the whole model, in training mode.
            gradients: each step through it leaves one training batch's gradient in the parameters,
                dropout on, not clipped.
        """

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimizer updates, by name."""
        return {name: value for name, value in model.named_parameters() if value.requires_grad}

    def param_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups; here: weight decay on matrices, none on vectors.

        Args:
            model: the whole model.
            weight_decay: of the stage.

        Returns:
            AdamW's keys (`params`, `weight_decay`, `lr`, ...; the default is the run's value), and
            `lr_schedule`: `run` (the default: the group follows the run's schedule) or `constant`.
            The learning rate of the first group is logged.
        """
        trained = self.trainable_parameters(model)
        by_name = dict(model.named_parameters())
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, value in trained.items():
            # A sparse method trains single entries of a matrix as a vector under the matrix's name.
            # The model's own parameter of that name says that it is a matrix, which decays.
            model_parameter = by_name.get(name, value)
            is_matrix = model_parameter.dim() > 1 and _SCALES.isdisjoint(name.split("."))
            group = matrices if is_matrix else vectors
            group.append(value)
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def clip_groups(self, model: nn.Module) -> list[list[nn.Parameter]]:
        """Return groups of parameters whose gradients are clipped by one norm; here: one of all."""
        return [list(self.trainable_parameters(model).values())]

    # --- a step

    def before_step(self, model: nn.Module, step: int, steps: range) -> None:
        """Called before a step's forward passes.

        Args:
            step: the number of the step in the run, from 0.
            steps: the numbers of all steps of the stage.
        """

    def regularization_loss(self, model: nn.Module) -> Tensor | float:  # noqa: ARG002
        """Return a term of the parameters alone that is added to the loss of every step."""
        return 0.0

    def after_backward(self, model: nn.Module) -> None:
        """Called with the gradient of the whole batch, before clipping."""

    def before_optimizer_step(self, model: nn.Module) -> None:
        """Called with the clipped gradient, before the optimizer's step."""

    def after_optimizer_step(self, model: nn.Module) -> None:
        """Called after the optimizer's step; the gradients are still there."""

    def before_evaluation(self, model: nn.Module) -> None:
        """Called before an evaluation: the model's weights must be what training has reached."""

    # --- what is stored

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what training changed: from it, `load_delta` makes the trained model again."""
        return {name: value.detach() for name, value in self.trainable_parameters(model).items()}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        """Load a delta into a prepared model that is in its last stage.

        Raises:
            UsageError: its names or shapes differ from those of this model.
        """
        copy_tensors(self.delta(model), delta)

    def training_state(self, model: nn.Module) -> dict[str, Any]:
        """Return what resuming a stage needs besides the states of optimizer and lr_scheduler."""
        return self.delta(model)

    def load_training_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load a training state in the stage that it was saved in."""
        self.load_delta(model, state)

    # --- after training

    def merge(self, encoder: Encoder) -> None:
        """Turn the model into a plain Hugging Face one with the same outputs, if mergeable."""
        encoder.merge_modules(TunedLinear)

    def unfreeze_all(self, encoder: Encoder) -> None:
        """Make all of the merged model trainable, and what the method added (EH-FT's `reserve`)."""
        self.merge(encoder)
        encoder.model.requires_grad_(True)


def copy_tensors(target: dict[str, Tensor], delta: dict[str, Tensor]) -> None:
    """Copy the tensors of a delta into those of a model, in place.

    Args:
        target: the model's, by name.
        delta: by the same names.

    Raises:
        UsageError: the names or shapes differ.
    """
    # Names and shapes are compared before anything is copied: a refused delta changes nothing.
    ours = {(name, value.shape) for name, value in target.items()}
    given = {(name, value.shape) for name, value in delta.items()}
    differing = sorted(name for name, _ in ours ^ given)
    if differing:
        raise UsageError(
            f"the delta does not fit this method and backbone: {differing[0]} is missing or has"
            " another shape"
        )
    for name, tensor in target.items():
        tensor.copy_(delta[name])
