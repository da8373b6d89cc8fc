"""Parts that methods share: sparse training, freezing, rows of heads, generators by a seed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Generator, Tensor, device, nn

from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Heads, Method, MethodContext
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import PROJECTIONS
from hifi_cli.models.modules import SparseParameters


class SparseMethod(Method):
    """A method that trains single entries of some parameters, which a subclass passes to `choose`.

    A subclass calls `chosen.gather_gradients()` before or after the clipping.

    Attributes:
        chosen: the entries; none before `choose`.
    """

    def __init__(self, settings: Any, context: MethodContext) -> None:
        super().__init__(settings, context)
        # A method may choose its entries only when its stage begins. Until then it has none, so that
        # every other method of this class can be called.
        self.choose(nn.Module(), {})

    def choose(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        """Train the entries of a model's parameters where the masks are True, and no others.

        Args:
            masks: by a parameter's name, bool, as many entries as the parameter has.
        """
        self.chosen = SparseParameters(model, masks)

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        whole = super().trainable_parameters(model)
        chosen = self.chosen.values
        # The optimizer gets the vector of a matrix's chosen entries in the place of the matrix,
        # under the same name.
        others = {name: value for name, value in whole.items() if name not in chosen}
        return others | chosen

    def after_optimizer_step(self, model: nn.Module) -> None:  # noqa: ARG002
        self.chosen.scatter()

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        return super().delta(model) | self.chosen.masks

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        # The masks come first: they say which entries the vectors of the delta are.
        self.choose(model, SparseParameters.masks_of_delta(model, delta))
        super().load_delta(model, delta)
        self.chosen.scatter()


# --- what methods share


def freeze_except(encoder: Encoder, names: Iterable[str]) -> None:
    """Make the named parameters trainable and freeze all others."""
    trainable = set(names)
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(name in trainable)


def names_without_pretrained_values(encoder: Encoder, missing_keys: Iterable[str]) -> list[str]:
    """Return the classifier's parameters, and others without pretrained values (a new pooler).

    Args:
        encoder: the model and its parts.
        missing_keys: the parameters that no weights file has.
    """
    without = {*encoder.classifier_names, *missing_keys}
    return [name for name, _ in encoder.model.named_parameters() if name in without]


def rows_of_heads(encoder: Encoder, heads: Heads | None) -> list[dict[str, list[int]]]:
    """Return the rows of W_Q, W_K and W_V, by part, of each layer's selected heads.

    Raises:
        UsageError: the heads are of another encoder, or one is given twice.
    """
    if heads is None or not _fits(heads, encoder):
        raise UsageError(
            f"the chosen heads are of another encoder: this one has {encoder.num_layers} layers of"
            f" {encoder.num_heads} heads"
        )
    if any(len(set(layer)) < len(layer) for layer in heads):
        raise UsageError("a head is chosen twice in a layer")
    return [{part: _rows(encoder, layer, part) for part in PROJECTIONS} for layer in heads]


def _fits(heads: Heads, encoder: Encoder) -> bool:
    """Whether an encoder has these layers and heads."""
    if len(heads) != encoder.num_layers:
        return False
    return all(0 <= head < encoder.num_heads for head in chain.from_iterable(heads))


def _rows(encoder: Encoder, heads: list[int], part: str) -> list[int]:
    """Return the rows of one projection that belong to some heads of a layer, each once."""
    rows: list[int] = []
    for head in heads:
        rows.extend(encoder.head_rows(head, part))
    # Heads of one group share rows of W_K and W_V.
    return list(dict.fromkeys(rows))


def step_generator(seed: int, step: int, on: device) -> Generator:
    """Make a generator for one step, so that a resumed run and all processes draw the same in it.

    Args:
        seed: of the method.
        step: the number of the step in the run.
        on: the device that draws.
    """
    # The factor exceeds the steps of any usual run, so that no two seeds share a generator.
    return Generator(on).manual_seed(seed * 1_000_003 + step)


@contextmanager
def drawn_by(seed: int) -> Iterator[None]:
    """In this context, what draws by PyTorch's own generator of the CPU draws by a seed.

    Args:
        seed: of the method.
    """
    # `fork_rng` sets the CPU's generator back afterwards, and here no GPU's: `torch.manual_seed`
    # would leave those changed.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
