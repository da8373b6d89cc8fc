"""Compacter (Mahabadi et al., NeurIPS 2021): adapters that are sums of Kronecker products."""

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import insert_adapters

# Standard deviation of the initial shared factors.
_SHARED_STD = 1e-4
# Gain of Glorot's distribution for the rank-1 factors, in the authors' code.
_GAIN = 2**0.5


class KroneckerLinear(nn.Module):
    """y = x W + b with W = sum_i A_i (x) s_i t_i, [in, out] (equations 4 and 5).

    Attributes:
        shared: the A_i, [n, n, n], one tensor for all layers.
        s: [n, in / n, 1].
        t: [n, 1, out / n].
    """

    def __init__(
        self, shared: nn.Parameter, inputs: int, outputs: int, generator: Generator
    ) -> None:
        super().__init__()
        n = len(shared)
        self.shared = shared
        self.s = nn.Parameter(_glorot((n, inputs // n, 1), generator))
        self.t = nn.Parameter(_glorot((n, 1, outputs // n), generator))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def weight(self) -> Tensor:
        """Compute W, [in, out]."""
        products = torch.einsum("iab,icd->acbd", self.shared, self.s @ self.t)
        return products.reshape(self.shared.shape[1] * self.s.shape[1], -1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight().T, self.bias)


class Compacter(Method):
    """Train Houlsby's adapters with weights that are sums of Kronecker products.

    The LayerNorms and the task head train too. The shared factors start from N(0, 1e-4), the rank-1
    factors from Glorot's uniform distribution with the gain of the authors' code, sqrt(2).
    """

    class Settings(Method.Settings):
        """Size of the compacter modules."""

        n: int = Field(4, ge=1)
        """Number of Kronecker products in a sum."""
        reduction: int = Field(32, ge=1)
        """Hidden size divided by the size of the bottleneck."""

    mergeable = False

    def prepare(self, encoder: Encoder) -> None:
        n = self.settings.n
        size = encoder.config.hidden_size
        width = size // self.settings.reduction
        if width == 0 or size % n or width % n:
            raise UsageError(
                f"settings.n={n} must divide the hidden size {size} and the bottleneck {width} that"
                f" settings.reduction={self.settings.reduction} leaves; choose others"
            )
        generator = torch.Generator().manual_seed(self.context.seed)
        initial = torch.empty(n, n, n).normal_(0, _SHARED_STD, generator=generator)
        shared = nn.Parameter(initial.to(encoder.device))

        def build() -> tuple[nn.Module, nn.Module]:
            down = KroneckerLinear(shared, size, width, generator)
            up = KroneckerLinear(shared, width, size, generator)
            return down, up

        added = insert_adapters(encoder, build)
        freeze_except(encoder, [*encoder.task_head, *added])


def _glorot(shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """Draw n matrices, uniform within Glorot's bound times the gain.

    Args:
        shape: [n, inputs, outputs].
    """
    _, inputs, outputs = shape
    bound = _GAIN * (6 / (inputs + outputs)) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
