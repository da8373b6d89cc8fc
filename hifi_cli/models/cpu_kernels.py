"""The same layers, faster on a processor: dropout from a fast generator, attention on it, and faster matrix products.

Nothing here changes what is computed beyond rounding: dropout keeps its rate to 1 in 65,536, evaluation is always float32,
and so is every weight that trains.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.models.cpu_linear import FastLinear
from hifi_cli.models.encoder import Encoder

ATTENTION = "hifi_attention"


class Noise:
    """Random bits for dropout: a stream that is seeded afresh for every step from torch's generator.

    PyTorch draws a double per entry on a processor, which takes a fifth of a fine-tuning step; 16 bits are enough here.
    """

    def __init__(self) -> None:
        self._bits: np.random.SFC64 | None = None

    def reseed(self) -> None:
        """Begin a new stream, so that a step's noise follows from torch's generator alone."""
        self._bits = np.random.SFC64(int(torch.randint(2**62, ()).item()))

    def keep(self, shape: torch.Size, p: float) -> Tensor:
        """True (as uint8 1) with probability 1 - p, to 1 in 65,536."""
        if self._bits is None:
            self.reseed()
        assert self._bits is not None
        count = shape.numel()
        drawn = self._bits.random_raw(-(-count // 4)).view(np.uint16)[:count]
        return torch.from_numpy((drawn >= round(p * 65536)).view(np.uint8)).view(shape)


NOISE = Noise()


def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """X * keep * scale."""
    return keep.to(x.dtype).mul_(scale).mul_(x)


class _Dropout(Function):
    """x * keep / (1 - p), with one byte per entry kept for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return _dropped(x, keep, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        return _dropped(gradients[0], keep, ctx.scale), None, None


def dropout(x: Tensor, p: float) -> Tensor:
    """Dropout in training; on other devices than the processor PyTorch's own."""
    if p == 0:
        return x
    if x.device.type != "cpu":
        return nn.functional.dropout(x, p)
    result: Tensor = _Dropout.apply(x, NOISE.keep(x.shape, p), 1 / (1 - p))
    return result


class FastDropout(nn.Dropout):
    """nn.Dropout on the noise of this file."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


class _Attention(Function):
    """Attention with dropout on its weights; of the two kinds of weights one and a byte per entry are kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
        scores = query @ key.mT
        if mask is not None:
            scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        keep = NOISE.keep(weights.shape, p)
        ctx.save_for_backward(query, key, value, weights, keep)
        ctx.scale = 1 / (1 - p)
        return _dropped(weights, keep, ctx.scale) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep = ctx.saved_tensors
        gradient = gradients[0]
        of_value = _dropped(weights, keep, ctx.scale).mT @ gradient if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, of_value, None, None
        of_weights = _dropped(gradient @ value.mT, keep, ctx.scale)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        return of_scores @ key, of_scores.mT @ query, of_value, None, None


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention for transformers' attention interface: its own where no dropout applies, else with the noise of this file.

    PyTorch has no fused attention with dropout on a processor.

    Args:
        query, key, value: [batch, heads, tokens, head size].
        attention_mask: bool, True where a token may attend, [batch, 1, tokens, tokens]; None: everywhere.

    Returns:
        [batch, tokens, heads, head size], and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    p = how.get("dropout", 0.0)
    if p == 0 or query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, attention_mask, **how)
    attended: Tensor = _Attention.apply(query * how["scaling"], key, value, attention_mask, p)
    return attended.transpose(1, 2).contiguous(), None


_INNER = ("query", "key", "value", "ffn")  # their results go into another product, the others' to the residual


def install(encoder: Encoder) -> None:
    """Make an encoder's dropout, attention and products fast."""
    for name, module in list(encoder.model.named_modules()):
        if type(module) is nn.Dropout:
            encoder.model.set_submodule(name, FastDropout(module.p))
        elif type(module) is nn.Linear:
            encoder.model.set_submodule(name, FastLinear(module))
    if encoder.names.interface:
        encoder.use_attention(ATTENTION, attend)


def use_bf16(encoder: Encoder) -> None:
    """Let the fast products of an encoder's layers be bfloat16 while it trains."""
    inner = {encoder.path(layer, part) for layer in range(encoder.num_layers) for part in _INNER}
    for name, module in encoder.model.named_modules():
        if isinstance(module, FastLinear) and encoder.layer_of(name) is not None:
            module.bf16 = torch.bfloat16 if name in inner and encoder.names.interface else torch.float32


def wants_bf16(precision: str) -> bool:
    """Whether `precision` (fp32, bf16, auto) means bfloat16 here; `auto`: where the hardware multiplies such matrices."""
    if precision != "auto":
        return precision == "bf16"
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
