"""Random parameters (EH-FT, section 4.4): a control for the choice that BitFit makes."""

import numpy as np
import torch
from torch import Tensor, nn

from hifi_cli.config.base import PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.common import SparseMethod, freeze_except
from hifi_cli.models.encoder import Encoder


class RandomParameters(SparseMethod):
    """Train single weights of the layers, drawn uniformly by the run's seed, and the task head."""

    class Settings(SparseMethod.Settings):
        """How many weights train."""

        count: PositiveCount | None = None
        """Number of weights over all layers together; null: as many as the layers have biases."""

    def prepare(self, encoder: Encoder) -> None:
        sizes = {
            name: encoder.model.get_parameter(name).numel() for name in encoder.layer_parameters
        }
        biases = sum(size for name, size in sizes.items() if "bias" in name)
        count = self.settings.count or biases
        total = sum(sizes.values())
        if not 0 < count <= total:
            raise UsageError(
                f"settings.count={count}: set settings.count to a number from 1 to {total}, the"
                " layers' weights"
            )
        masks = random_masks(sizes, count, self.context.seed)
        freeze_except(encoder, [*encoder.task_head, *masks])
        self.choose(encoder.model, masks)

    def after_backward(self, model: nn.Module) -> None:  # noqa: ARG002
        self.chosen.gather_gradients()


def random_masks(sizes: dict[str, int], count: int, seed: int) -> dict[str, Tensor]:
    """Draw flat masks of entries of all tensors together; tensors without one are left out.

    Args:
        sizes: entries of each tensor, by name.
        count: entries that are drawn, uniformly and each at most once.
        seed: of the draw.
    """
    total = sum(sizes.values())
    # The entries of all tensors are numbered one after the other, so that each has the same chance,
    # however large its tensor is.
    chosen = np.random.default_rng(seed).choice(total, count, replace=False, shuffle=False)
    mask = torch.zeros(total, dtype=torch.bool)
    mask[torch.from_numpy(chosen)] = True
    parts = zip(sizes, mask.split(list(sizes.values())), strict=True)
    return {name: part for name, part in parts if part.any()}
