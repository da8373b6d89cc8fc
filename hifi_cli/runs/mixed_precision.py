"""Training in bfloat16: torch.autocast over weights that train, and frozen weights that are cast once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class FrozenCasts:
    """bfloat16 copies of the frozen parameters of Linear layers.

    torch.autocast itself casts a frozen weight in every forward pass: it remembers only casts of weights that train. The
    results are the same, bit for bit. The float32 parameters stay in memory, because scores are those of the float32 model.
    """

    def __init__(self, model: nn.Module) -> None:
        # Only plain Linears: other modules may compute with their weights before a product, in float32.
        linears = (module for module in model.modules() if type(module) is nn.Linear)
        self._parameters = [value for module in linears for value in module.parameters() if not value.requires_grad]
        self._casts: list[Tensor] = []
        self._versions: list[int] = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside this block, which holds both the forward and the backward pass, the parameters are the bfloat16 copies."""
        versions = [parameter._version for parameter in self._parameters]
        if versions != self._versions:  # the first time, or something wrote to a parameter
            self._versions, self._casts = versions, [value.detach().to(torch.bfloat16) for value in self._parameters]
        values = [parameter.data for parameter in self._parameters]
        try:
            self._set(self._casts)
            yield
        finally:
            self._set(values)

    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data = value


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside this block, a GPU's float32 matrix products may round their factors to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
