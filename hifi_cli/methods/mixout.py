"""Mixout (Lee et al., ICLR 2020): in training, columns of the weights are swapped for the pretrained ones at random."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.config.base import ConfigModel
from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder

AFTER_DROPOUT = ("query", "key", "value", "ffn")  # parts of a layer that read the residual stream, which dropout went into


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


class MixoutLinear(nn.Module):
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

    def merge(self) -> nn.Linear:
        """The Linear it computes in evaluation."""
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear


class Mixout(Method):
    """Train everything; Linear layers are mixed with their initial weights. This replaces dropout, which is 0 there."""

    class Settings(ConfigModel):
        """How and where weights are mixed."""

        p: float = Field(0.7, ge=0, lt=1)
        """Probability of the pretrained weight; EH-FT searches 0.7 to 0.9."""
        place: Literal["after-dropout", "all"] = "after-dropout"
        """`after-dropout`: the layers' Linears whose input has dropout, as the paper says; this dropout is 0 then, that of
        attention probabilities, of the last layer's output and of the task head is kept. `all`: every Linear of the model,
        including the task head (with its initial weights as the pretrained ones), and no dropout, as in the released
        example."""
        backward: Literal["exact", "released"] = "exact"
        """`exact`, or `released`: without the division by 1 - p, as in the authors' code."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
        released = self.settings.backward == "released"
        for name in self._linears(encoder):
            linear: Any = encoder.model.get_submodule(name)
            encoder.model.set_submodule(name, MixoutLinear(linear, self.settings.p, released_backward=released))
        self._dropout_rates = self._replaced_dropouts(encoder)
        self._set_dropout(encoder, dict.fromkeys(self._dropout_rates, 0.0))

    def merge(self, encoder: Encoder) -> None:
        encoder.merge_modules(MixoutLinear)
        self._set_dropout(encoder, self._dropout_rates)

    def _linears(self, encoder: Encoder) -> list[str]:
        if self.settings.place == "all":
            return [name for name, module in encoder.model.named_modules() if isinstance(module, nn.Linear)]
        return [path for layer in range(encoder.num_layers) for part in AFTER_DROPOUT for path in encoder.paths(layer, part)]

    def _replaced_dropouts(self, encoder: Encoder) -> dict[tuple[str, str], float]:
        """The dropouts in whose place Mixout stands: those that a mixed Linear reads; rates by module and attribute."""
        modules = dict(encoder.model.named_modules())
        dropouts = {(name, "p"): module.p for name, module in modules.items() if isinstance(module, nn.Dropout)}
        if self.settings.place == "all":  # some families keep the attention's rate as a number
            attribute = "attention_dropout"
            rates = {(name, attribute): getattr(module, attribute, None) for name, module in modules.items()}
            return dropouts | {place: rate for place, rate in rates.items() if isinstance(rate, float)}
        layers = range(encoder.num_layers)
        not_read = {path for at in layers for path in encoder.paths(at, "inner_dropouts")}
        not_read.add(encoder.path(layers[-1], "after_ffn"))
        backbone = set(encoder.base.modules())
        read = {name for name, module in modules.items() if module in backbone} - not_read
        return {(name, key): rate for (name, key), rate in dropouts.items() if name in read}

    def _set_dropout(self, encoder: Encoder, rates: dict[tuple[str, str], float]) -> None:
        for (name, attribute), rate in rates.items():
            setattr(encoder.model.get_submodule(name), attribute, rate)
