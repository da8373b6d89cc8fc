"""CPU kernels (`kernels: auto`): fast dropout, and attention with it.

Nothing here changes what is computed beyond rounding; dropout keeps its rate to 1 in 65,536.
`kernels: torch` leaves all of it out.
"""

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.models.encoder import Encoder

ATTENTION = "hifi_attention"


def install(encoder: Encoder) -> None:
    """Replace a model's dropout and attention by this file's."""
    # By itself, oneDNN keeps 1,024 compiled products, a third of a megabyte each, and batches by
    # length have many shapes. The products of a few batches are enough, since packed batches have
    # few sizes (`PackedBatch.spare`). The first name is oneDNN's own, the second PyTorch's over it.
    for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(capacity, "64")
    for name, module in list(encoder.model.named_modules()):
        # Only PyTorch's own: a subclass may do something else.
        if type(module) is nn.Dropout:
            encoder.model.set_submodule(name, FastDropout(module.p))
    if encoder.is_supported_family and encoder.module_names.interface:
        encoder.set_attention(ATTENTION, attention)
    encoder.model.register_forward_pre_hook(_reseed)


class Noise:
    """Random bits for dropout, seeded anew from torch's generator by every training pass.

    PyTorch draws a double per entry on a CPU, which takes a fifth of a fine-tuning step; 16 bits
    are enough here.
    """

    def __init__(self) -> None:
        self._bits = np.random.SFC64(0)

    def reseed(self) -> None:
        """Begin a new stream: the noise of a forward pass follows from torch's generator alone."""
        self._bits = np.random.SFC64(int(torch.randint(2**62, ()).item()))

    def keep(self, shape: torch.Size, p: float) -> Tensor:
        """Draw what dropout keeps.

        Args:
            shape: of the result.
            p: rate of the dropout.

        Returns:
            uint8, 1 with probability 1 - p, to 1 in 65,536, and else 0.
        """
        count = shape.numel()
        # A draw has 64 bits, and an entry needs 16.
        draws = -(-count // 4)
        numbers = self._bits.random_raw(draws).view(np.uint16)[:count]
        is_kept = numbers >= round(p * 65536)
        return torch.from_numpy(is_kept.view(np.uint8)).view(shape)


# One stream for all modules of a process: a forward pass draws from it in the order of the layers.
NOISE = Noise()


def _reseed(model: nn.Module, _: Any) -> None:
    """Begin the noise of a training pass; a hook before the forward pass."""
    if model.training:
        NOISE.reseed()


class FastDropout(nn.Dropout):
    """nn.Dropout on the noise of this file."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # A kept value is divided by 1 - p, so that its expectation is x.
        scales = NOISE.keep(x.shape, self.p).to(x.dtype).mul_(1 / (1 - self.p))
        return x * scales


class _Attention(Function):
    """Attention with dropout; only the weights before it and a byte per entry are kept.

    It computes in float32 also where other products are bf16: oneDNN would compile a bf16 product
    for each of its many shapes.

    Q, K and V are [batch, heads, tokens, head size], Q already scaled; the mask is added to the
    scores [batch, heads, tokens, tokens]. The result has the shape of V.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float
    ) -> Tensor:
        scores = query @ key.mT
        if mask is not None:
            scores += mask
        weights = scores.softmax(-1)
        keep = NOISE.keep(weights.shape, p)
        ctx.save_for_backward(query, key, value, weights, keep)
        ctx.scale = 1 / (1 - p)
        # Dropout divides what it keeps by 1 - p. The values are scaled instead of the weights,
        # because there are fewer of them.
        return (weights * keep) @ (value * ctx.scale)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep = ctx.saved_tensors
        # The factor of dropout is that of `forward`, for all three gradients.
        gradient = gradients[0] * ctx.scale
        value_grad = (weights * keep).mT @ gradient if ctx.needs_input_grad[2] else None
        # In the lowest layer that trains, a method may tune W_V alone: nothing that Q and K depend
        # on trains then.
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, value_grad, None, None
        # Gradients of the weights before dropout, and of the scores before the softmax.
        weights_grad = (gradient @ value.mT).mul_(keep)
        scores_grad = torch._softmax_backward_data(weights_grad, weights, -1, weights.dtype)
        return scores_grad @ key, scores_grad.mT @ query, value_grad, None, None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention for transformers' interface: PyTorch's own, or with this file's dropout.

    PyTorch has no fused attention with dropout on a CPU.

    Args:
        module: the layer's.
        query, key, value: [batch, heads, tokens, head size]; K and V may have fewer heads.
        attention_mask: added to the scores, [batch, 1, 1, tokens]; None: no padding.
        settings: `scaling`, the factor on the scores; `dropout`, the rate of the attention weights;
            others that PyTorch's own attention takes.

    Returns:
        [batch, tokens, heads, head size], and no weights.
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    # In bf16 training, some adapters give float32. Autocast does the same.
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        query, key, value = (states.to(torch.bfloat16) for states in (query, key, value))
        attention_mask = None if attention_mask is None else attention_mask.to(torch.bfloat16)
    p = settings.get("dropout", 0.0)
    # Without dropout, as in every evaluation, PyTorch has a fused kernel.
    if p == 0:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    # With grouped queries, several heads share a head of K and V.
    heads_per_key = query.shape[1] // key.shape[1]
    key = repeat_kv(key, heads_per_key)
    value = repeat_kv(value, heads_per_key)
    attended: Tensor = _Attention.apply(query * settings["scaling"], key, value, attention_mask, p)
    return attended.transpose(1, 2).contiguous(), None
