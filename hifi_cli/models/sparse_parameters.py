"""Single entries of parameters that train while all other entries of the same tensors stay bit-identical."""

import numpy as np
import torch
from torch import Tensor, nn

_MASK = "/mask"


class SparseParameters:
    """Selected entries of parameters, as vectors of their own for the optimizer.

    Gradients are gathered from the whole tensors and updates scattered back into them, so that the optimizer's moments
    and its weight decay exist for the selected entries only: nothing can move the others.

    Attributes:
        values: the selected entries of each parameter, by its name.
    """

    def __init__(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        """Take the entries where `masks` (bool, a parameter's shape) are True."""
        self._parameters = {name: model.get_parameter(name) for name in masks}
        self._index = {name: mask.flatten().nonzero()[:, 0].to(self._parameters[name].device) for name, mask in masks.items()}
        self.values = {
            name: nn.Parameter(parameter.detach().flatten()[self._index[name]]) for name, parameter in self._parameters.items()
        }

    def gather_gradients(self) -> None:
        """Move the selected entries' gradients to `values`, and drop the others."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.values[name].grad = parameter.grad.flatten()[self._index[name]]
                parameter.grad = None

    @torch.no_grad()
    def scatter(self) -> None:
        """Write `values` into the model."""
        for name, parameter in self._parameters.items():
            parameter.view(-1).index_copy_(0, self._index[name], self.values[name])

    def delta(self) -> dict[str, Tensor]:
        """Return the values, and the masks with one bit per entry."""
        tensors = {}
        for name, value in self.values.items():
            mask = np.zeros(self._parameters[name].numel(), dtype=bool)
            mask[self._index[name].cpu().numpy()] = True
            tensors[name] = value.detach()
            tensors[name + _MASK] = torch.from_numpy(np.packbits(mask))
        return tensors

    @classmethod
    def from_delta(cls, model: nn.Module, delta: dict[str, Tensor]) -> "SparseParameters":
        """Build it from what `delta` returned, and write the values into the model."""
        masks = {}
        for key in delta:
            if key.endswith(_MASK):
                name = key.removesuffix(_MASK)
                shape = model.get_parameter(name).shape
                bits = np.unpackbits(delta[key].numpy(), count=shape.numel()).astype(bool)
                masks[name] = torch.from_numpy(bits).reshape(shape)
        sparse = cls(model, masks)
        with torch.no_grad():
            for name, value in sparse.values.items():
                value.copy_(delta[name])
        sparse.scatter()
        return sparse


def top_k_masks(scores: dict[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Masks of the entries with the highest scores: exactly `fraction` (rounded to an entry) of all tensors' entries together.

    Returns:
        bool, each in the shape of its score.
    """
    joined = torch.cat([score.flatten() for score in scores.values()])
    mask = torch.zeros(len(joined), dtype=torch.bool, device=joined.device)
    mask[joined.topk(round(fraction * len(joined))).indices] = True
    parts = mask.split([score.numel() for score in scores.values()])
    return {name: part.reshape(score.shape) for (name, score), part in zip(scores.items(), parts, strict=True)}
