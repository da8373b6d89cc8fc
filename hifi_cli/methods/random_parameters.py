"""Random parameters (EH-FT, section 4.4): a control for the choice that BitFit makes."""

import numpy as np
import torch
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel, PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, copy_tensors, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.sparse_parameters import SparseParameters


class RandomParameters(Method):
    """Train single weights of the encoder's layers, drawn uniformly with the run's seed, and the task head."""

    class Settings(ConfigModel):
        """How many weights train."""

        count: PositiveCount | None = None
        """Number of weights over all layers together; null: as many as the layers have biases, which BitFit trains."""

    trains_subparameters = True

    def prepare(self, encoder: Encoder) -> None:
        self._head = task_head_names(encoder)
        sizes = {name: encoder.model.get_parameter(name).numel() for name in encoder.layer_parameters}
        count = self.settings.count or sum(size for name, size in sizes.items() if "bias" in name)
        if not 0 < count <= sum(sizes.values()):
            given = f"settings.count={count}" if count else f"this '{encoder.model_type}' encoder has no biases to count"
            raise UsageError(f"{given}: set settings.count to a number from 1 to {sum(sizes.values())}, the layers' weights")
        masks = _random_masks(sizes, count, self.context.seed)
        freeze_except(encoder, [*self._head, *masks])
        self._chosen = SparseParameters(encoder.model, masks)

    def trainable_parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {name: model.get_parameter(name) for name in self._head} | self._chosen.values

    def after_backward(self, model: nn.Module) -> None:  # noqa: ARG002
        self._chosen.gather_gradients()

    def after_optimizer_step(self, model: nn.Module) -> None:  # noqa: ARG002
        self._chosen.scatter()

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        return {name: model.get_parameter(name).detach() for name in self._head} | self._chosen.delta()

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        self._chosen = SparseParameters.from_delta(model, delta)
        copy_tensors(self.delta(model), delta)


def _random_masks(sizes: dict[str, int], count: int, seed: int) -> dict[str, Tensor]:
    """Return flat masks of `count` different entries of all tensors together; tensors without one are left out."""
    chosen = np.sort(np.random.default_rng(seed).choice(sum(sizes.values()), count, replace=False, shuffle=False))
    masks, start = {}, 0
    for name, size in sizes.items():
        index = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + size)] - start
        if len(index):
            masks[name] = torch.zeros(size, dtype=torch.bool)
            masks[name][torch.from_numpy(index)] = True
        start += size
    return masks
