"""One Linear for query, key and value (ModernBERT's Wqkv) as three."""

from typing import Any

import torch
from torch import Tensor, nn


class QKVLinear(nn.Module):
    """A Linear whose rows are query, key and value, as one Linear for each, so that methods can change them."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        weights = fused.weight.detach().chunk(3)
        biases = [None] * 3 if fused.bias is None else fused.bias.detach().chunk(3)
        self.query, self.key, self.value = (_linear_of(*part) for part in zip(weights, biases, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.query(x), self.key(x), self.value(x)], -1)

    def join(self) -> nn.Linear:
        """The Linear that computes the same."""
        parts: list[Any] = [self.query, self.key, self.value]
        bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        return _linear_of(torch.cat([part.weight.detach() for part in parts]), bias)


def _linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A Linear with copies of the given values."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone())
    return linear
