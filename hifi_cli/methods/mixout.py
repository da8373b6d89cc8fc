"""Mixout (Lee et al., ICLR 2020): in training, columns of the weights are swapped for the pretrained ones at random."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.config import Section
from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder

PLACES = {  # parts of a layer
    "after-dropout": ("query", "key", "value", "ffn"),  # they read a residual stream that dropout went into
    "all": ("query", "key", "value", "output", "ffn", "ffn_output"),
}


class _ReleasedBackward(Function):
    """The mixed weight; backwards only the mask, without the division by 1 - p."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pretrained: Tensor, kept: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(kept)
        return _mixed(weight, pretrained, kept, p)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return gradients[0] * kept, None, None, None


def _mixed(weight: Tensor, pretrained: Tensor, kept: Tensor, p: float) -> Tensor:
    return (torch.where(kept.bool(), weight, pretrained) - p * pretrained) / (1 - p)


class MixLinear(nn.Module):
    """A Linear whose weight, in training, is ((1 - m) w0 + m w - p w0) / (1 - p), m ~ Bernoulli(1 - p) per input column.

    Its expectation over m is w. In evaluation it is a plain Linear; the bias is not mixed.
    """

    pretrained: Tensor

    def __init__(self, linear: nn.Linear, p: float, *, released_backward: bool) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("pretrained", linear.weight.detach().clone(), persistent=False)
        self.p, self.released_backward = p, released_backward

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return nn.functional.linear(x, self.weight, self.bias)
        kept = torch.empty(self.weight.shape[1], device=x.device).bernoulli_(1 - self.p)
        mix: Any = _ReleasedBackward.apply if self.released_backward else _mixed
        return nn.functional.linear(x, mix(self.weight, self.pretrained, kept, self.p), self.bias)

    def plain(self) -> nn.Linear:
        """The Linear it computes in evaluation."""
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear


class Mixout(Method):
    """Train everything, with the layers' Linears mixed with their pretrained weights."""

    class Settings(Section):
        """How and where weights are mixed.

        Attributes:
            p: probability of the pretrained weight; EH-FT searches 0.7 to 0.9.
            place: `after-dropout`: the Linears that read what dropout went into, as the paper says; `all`: every Linear
                of the layers, dropout off in them, as the released example does.
            backward: `exact`, or `released`: the authors' code leaves out the division by 1 - p.
        """

        p: float = Field(0.7, ge=0, lt=1)
        place: Literal["after-dropout", "all"] = "after-dropout"
        backward: Literal["exact", "released"] = "exact"

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
        released = self.settings.backward == "released"
        self._replace(encoder, lambda linear: MixLinear(linear, self.settings.p, released_backward=released))
        if self.settings.place == "all":
            for module in encoder.layers.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0

    def release(self, encoder: Encoder) -> None:
        self.merge(encoder)
        super().release(encoder)

    def merge(self, encoder: Encoder) -> None:
        self._replace(encoder, lambda module: module.plain() if isinstance(module, MixLinear) else module)

    def _replace(self, encoder: Encoder, build: Callable[[Any], nn.Module]) -> None:
        for layer in range(encoder.num_layers):
            for part in PLACES[self.settings.place]:
                encoder.replace(layer, part, build)
