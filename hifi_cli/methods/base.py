"""What a fine-tuning method is, and how one is found: the contract between methods and the training loop."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from hifi_cli.config import RunConfig, Section, method_spec, parse
from hifi_cli.errors import UsageError
from hifi_cli.models.encoder import Encoder

Heads = list[list[int]]


@dataclass(frozen=True)
class Context:
    """What a method may know besides the model.

    Attributes:
        heads: the chosen heads, one list per layer; None unless the method needs them.
        fresh: names of parameters without pretrained values, which no method may leave untrained.
    """

    heads: Heads | None = None
    fresh: list[str] = field(default_factory=list)


class Method:
    """A fine-tuning method: one subclass per file in this folder.

    The loop calls `prepare` once, then asks for `param_groups`, and calls the hooks in every step. `delta` and
    `load_delta` are inverse to each other; `merge` turns the model back into plain Hugging Face modules.
    """

    class Settings(Section):
        """The method's own settings, `settings.*` in a configuration."""

    needs_heads: ClassVar[bool] = False

    def __init__(self, settings: Any, context: Context) -> None:
        self.settings = settings
        self.context = context

    def prepare(self, encoder: Encoder) -> None:
        """Decide what trains (`requires_grad`), and change modules where the method wants others."""
        raise NotImplementedError

    def param_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """The optimiser's groups: weight decay on matrices, none on biases and LayerNorms."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() > 1]
        vectors = [parameter for parameter in trained if parameter.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def extra_loss(self, model: nn.Module) -> Tensor | float:  # noqa: ARG002
        """A term added to the loss of every step."""
        return 0.0

    def after_backward(self, model: nn.Module) -> None:
        """Called with the whole batch's gradient, before it is clipped."""

    def after_step(self, model: nn.Module) -> None:
        """Called after the optimiser's step."""

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """What training changed, enough for `load_delta` to make the trained model from the pretrained one."""
        return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        """Put a delta into a prepared model.

        Raises:
            UsageError: its names or shapes are not those of this model.
        """
        wanted = self.delta(model)
        if wanted.keys() != delta.keys():
            differing = sorted(wanted.keys() ^ delta.keys())
            raise UsageError(f"the delta does not fit this method and backbone: {differing[0]} (and {len(differing) - 1} more)")
        for name, value in wanted.items():
            if value.shape != delta[name].shape:
                raise UsageError(f"the delta does not fit this backbone: {name} is {tuple(delta[name].shape)} there")
            value.copy_(delta[name])

    def merge(self, encoder: Encoder) -> None:
        """Make the model a plain Hugging Face one with the same outputs; nothing to do where no module was changed."""


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


def method_class(config: RunConfig) -> type[Method]:
    """The implementation a run's method names."""
    return implementation(method_spec(config.method).implementation)


def build(config: RunConfig, context: Context) -> Method:
    """The method of a run, its settings validated.

    Raises:
        UsageError: unknown setting, or a value that does not fit.
    """
    chosen = method_class(config)
    settings = parse(chosen.Settings, config.settings, f"method {config.method}, settings")
    if chosen.needs_heads and context.heads is None:
        raise UsageError(f"method {config.method} needs chosen heads")
    return chosen(settings, context)


def train_only(encoder: Encoder, names: Iterable[str]) -> None:
    """Freeze everything but the named parameters."""
    chosen = set(names)
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(name in chosen)


def head_names(encoder: Encoder) -> list[str]:
    """The names of the task head's parameters."""
    return [name for name, _ in encoder.head_parameters()]
