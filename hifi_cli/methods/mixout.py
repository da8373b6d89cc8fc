"""Mixout (Lee et al., ICLR 2020): training swaps random columns for the pretrained ones."""

import itertools
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder, linear_of

# Parts of a layer that read the residual stream, which has dropout.
AFTER_DROPOUT = ("query", "key", "value", "ffn")


class MixoutLinear(nn.Module):
    """A Linear whose weight, in training, is ((1 - m) w0 + m w - p w0) / (1 - p) (equation 5).

    m ~ Bernoulli(1 - p) is drawn per input column. Its expectation over m is w. In evaluation it is
    a plain Linear; the bias is not mixed.
    """

    pretrained: Tensor

    def __init__(self, linear: nn.Linear, p: float, *, released_backward: bool) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.register_buffer("pretrained", linear.weight.detach().clone(), persistent=False)
        self.p = p
        self.released_backward = released_backward

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return nn.functional.linear(x, self.weight, self.bias)
        kept = torch.empty(self.weight.shape[1], device=x.device).bernoulli_(1 - self.p)
        mixed = torch.where(kept.bool(), self.weight, self.pretrained) - self.p * self.pretrained
        mixed = mixed / (1 - self.p)
        if self.released_backward:
            # The added term is 0, so the value stays. The gradient comes from `masked` alone: it is
            # masked and not divided by 1 - p, as in the authors' code.
            masked = self.weight * kept
            mixed = mixed.detach() + (masked - masked.detach())
        return nn.functional.linear(x, mixed, self.bias)

    def merge(self) -> nn.Linear:
        """Return the Linear that it computes in evaluation."""
        return linear_of(self.weight, self.bias)


class Mixout(Method):
    """Train everything; Linear layers are mixed with their initial weights, instead of dropout."""

    may_leave_out_words = True

    class Settings(Method.Settings):
        """How and where weights are mixed."""

        p: float = Field(0.7, ge=0, lt=1)
        """Probability of the pretrained weight; EH-FT searches 0.7 to 0.9."""
        place: Literal["after-dropout", "all"] = "after-dropout"
        """`after-dropout`: the layers' Linears whose input has dropout, as the paper says; this
        dropout is 0 then, that of attention probabilities, of the last layer's output and of the
        task head is kept. `all`: every Linear of the model, including the task head (with its
        initial weights as the pretrained ones), and no dropout, as in the released example."""
        backward: Literal["exact", "released"] = "exact"
        """`exact`, or `released`: without the division by 1 - p, as in the authors' code."""

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
        # Mixout stands in the place of dropout, not beside it. The rates are kept for `merge`: a
        # merged model has its family's dropout again.
        self._dropouts = []
        for module, key in self._replaced_dropouts(encoder):
            rate = getattr(module, key)
            self._dropouts.append((module, key, rate))
            setattr(module, key, 0.0)
        released = self.settings.backward == "released"
        for name in self._mixed_linears(encoder):
            linear: Any = encoder.model.get_submodule(name)
            mixed = MixoutLinear(linear, self.settings.p, released_backward=released)
            encoder.model.set_submodule(name, mixed)

    def merge(self, encoder: Encoder) -> None:
        encoder.merge_modules(MixoutLinear)
        for module, key, rate in self._dropouts:
            setattr(module, key, rate)

    def _mixed_linears(self, encoder: Encoder) -> list[str]:
        """Return the names of the Linear layers whose weights are mixed."""
        if self.settings.place == "all":
            return [
                name
                for name, module in encoder.model.named_modules()
                if isinstance(module, nn.Linear)
            ]
        paths: list[str] = []
        for layer, part in itertools.product(range(encoder.num_layers), AFTER_DROPOUT):
            paths.extend(encoder.module_paths(layer, part))
        return paths

    def _replaced_dropouts(self, encoder: Encoder) -> list[tuple[nn.Module, str]]:
        """Return the dropouts that Mixout replaces: each a module and the name of its rate."""
        if self.settings.place == "all":
            return _all_dropouts(encoder)
        # No mixed Linear reads what these drop: attention probabilities, the inner states of the
        # feed-forward network, and the last layer's output.
        not_read: list[str] = []
        for layer in range(encoder.num_layers):
            not_read.extend(encoder.module_paths(layer, "inner_dropouts"))
        not_read.append(encoder.module_path(encoder.num_layers - 1, "after_ffn"))
        kept = {encoder.model.get_submodule(path) for path in not_read}
        dropouts = [module for module in encoder.base.modules() if isinstance(module, nn.Dropout)]
        return [(module, "p") for module in dropouts if module not in kept]


def _all_dropouts(encoder: Encoder) -> list[tuple[nn.Module, str]]:
    """Return every dropout of a model: each a module and the name of its rate."""
    found = []
    for module in encoder.model.modules():
        # Some families keep the rate of attention as a number in the layer.
        for key in ("p", "attention_dropout"):
            if isinstance(getattr(module, key, None), float):
                found.append((module, key))
    return found
