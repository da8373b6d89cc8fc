"""CPU kernels (`kernels: auto`): fast dropout, attention with it, and faster matrix products.

Nothing here changes what is computed beyond rounding: dropout keeps its rate to 1 in 65,536,
evaluation is always float32, and so is every weight that trains. `kernels: torch` leaves all of it
out.
"""

import os
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.models.encoder import Encoder

ATTENTION = "hifi_attention"
# parts whose outputs go into another product; those of the others go to the residual
_BF16_OUTPUTS = ("query", "key", "value", "ffn")
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W' + b by oneDNN: PyTorch gives float32 to MKL, which is half as fast on AMD's CPUs."""
    if _ONEDNN and x.dtype == torch.float32:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return output
    return nn.functional.linear(x, weight, bias)


class _Linear(Function):
    """The product of `FastLinear.multiply`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Tensor,
        row_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        index: Tensor | None,
    ) -> Tensor:
        factor = x.to(weight.dtype).contiguous()  # oneDNN is slow on rows that lie apart
        ctx.save_for_backward(factor if rows.requires_grad else None, weight, index)
        ctx.dtypes, ctx.has_row_bias = (x.dtype, rows.dtype), row_bias is not None
        output = _multiply(factor.flatten(0, -2), weight, None if bias is None else bias.to(weight.dtype))
        # A view made here could not be changed in place, which adapters of peft do.
        return cast(Tensor, torch.ops.aten._unsafe_view(output, [*x.shape[:-1], output.shape[-1]]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor, weight, index = ctx.saved_tensors
        x_dtype, rows_dtype = ctx.dtypes
        needs_x, needs_rows, needs_row_bias, _, needs_bias, _ = ctx.needs_input_grad
        x_grad = rows_grad = row_bias_grad = bias_grad = None
        gradient = gradients[0].to(weight.dtype).contiguous()
        if needs_x:
            x_grad = _multiply(gradient, weight.T).to(x_dtype)
        gradient = gradient.flatten(0, -2)
        if needs_bias and not ctx.has_row_bias:
            bias_grad = gradient.sum(0, dtype=rows_dtype)
        if index is not None and (needs_rows or needs_row_bias):
            gradient = gradient.index_select(-1, index)
        if needs_rows:
            rows_grad = _multiply(gradient.T, factor.flatten(0, -2).T).to(rows_dtype)
        if needs_row_bias:
            row_bias_grad = gradient.sum(0, dtype=rows_dtype)
        return x_grad, rows_grad, row_bias_grad, None, bias_grad, None


class FastLinear(nn.Linear):
    """nn.Linear on this file's products, with the same parameters.

    With bfloat16 a frozen weight is cast once; autocast would cast it in every step. One that
    trains is cast for every product. Evaluation is always float32.

    Attributes:
        training_dtype: dtype of the outputs in training when its products are bfloat16 (bfloat16
            saves a cast where another product follows); None: float32 products.
    """

    def __init__(self, module: nn.Linear, *, training_dtype: torch.dtype | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = module.in_features, module.out_features
        self.weight, self.bias = module.weight, module.bias
        self.training_dtype = training_dtype
        self._cast: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight, self.bias)

    def multiply(
        self,
        x: Tensor,
        rows: Tensor,
        row_bias: Tensor | None,
        index: Tensor | None = None,
    ) -> Tensor:
        """X W' + b in one product, with gradients for x and for what trains of W and b.

        Args:
            x: [..., in].
            rows, row_bias: what may train, [rows, in] and [rows]: all of W and b, or the rows that
                `index` numbers, which W and b hold too. Without `row_bias`, b may train as a whole.
        """
        weight = self.weight.data
        if not (self.training_dtype and self.training):
            output: Tensor = _Linear.apply(x, rows, row_bias, weight, self.bias, index)
            return output
        if self._cast is None or self.weight.requires_grad:
            self._cast = weight.to(torch.bfloat16)
        cast = self._cast
        if index is not None:
            # Not in place: DeBERTa calls its projections twice in a pass, and backward needs what
            # the first call read.
            cast = cast.index_copy(0, index, rows.detach().to(torch.bfloat16))
        output = _Linear.apply(x, rows, row_bias, cast, self.bias, index)
        return output.to(self.training_dtype)


def install(encoder: Encoder, *, bf16: bool) -> None:
    """Replace a model's dropout, attention and Linear modules by fast ones with its parameters.

    Args:
        bf16: whether the products of the encoder's layers are bfloat16 in training.
    """
    # oneDNN would keep 1,024 compiled products, a third of a megabyte each, and batches by length
    # have many shapes. Those of two or three batches are enough, and compiling costs less than can
    # be measured. The first name is oneDNN's own, the second PyTorch's over it.
    for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(capacity, "64")
    layers = range(encoder.num_layers if encoder.can_pack else 0)  # rotary positions are float32
    bf16_outputs = {path for layer in layers for part in _BF16_OUTPUTS for path in encoder.paths(layer, part)}
    for name, module in list(encoder.model.named_modules()):
        if type(module) is nn.Dropout:
            encoder.model.set_submodule(name, FastDropout(module.p))
        elif type(module) is nn.Linear:
            dtype = None
            if bf16 and encoder.has_known_parts and encoder.layer_of(name) is not None:
                dtype = torch.bfloat16 if name in bf16_outputs else torch.float32
            encoder.model.set_submodule(name, FastLinear(module, training_dtype=dtype))
    if encoder.has_known_parts and encoder.module_names.interface:
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
        """True (as uint8 1) with probability 1 - p, to 1 in 65,536."""
        count = shape.numel()
        drawn = self._bits.random_raw(-(-count // 4)).view(np.uint16)[:count]
        return torch.from_numpy((drawn >= round(p * 65536)).view(np.uint8)).view(shape)


NOISE = Noise()


def _reseed(model: nn.Module, _: Any) -> None:
    if model.training:
        NOISE.reseed()


def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """X * keep * scale."""
    return keep.to(x.dtype).mul_(scale).mul_(x)


class FastDropout(nn.Dropout):
    """nn.Dropout on the noise of this file."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * NOISE.keep(x.shape, self.p).to(x.dtype).mul_(1 / (1 - self.p))


class _Attention(Function):
    """Attention with dropout; only the weights before it and a byte per entry are kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
        scores = query @ key.mT
        if mask is not None:
            scores += mask
        weights = scores.softmax(-1)
        keep = NOISE.keep(weights.shape, p)
        ctx.save_for_backward(query, key, value, weights, keep)
        ctx.scale = 1 / (1 - p)
        return _dropped(weights, keep, ctx.scale) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep = ctx.saved_tensors
        gradient = gradients[0]
        value_grad = _dropped(weights, keep, ctx.scale).mT @ gradient if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, value_grad, None, None
        weights_grad = _dropped(gradient @ value.mT, keep, ctx.scale)
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
    """Attention for transformers' interface: PyTorch's own, or with this file's dropout.

    PyTorch has no fused attention with dropout on a CPU.

    Args:
        query, key, value: [batch, heads, tokens, head size].
        attention_mask: added to the scores, [batch, 1, 1, tokens]; None: no padding.

    Returns:
        [batch, tokens, heads, head size], and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # in bf16 training, some adapters give float32; autocast does the same
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        query, key, value = (states.to(torch.bfloat16) for states in (query, key, value))
        attention_mask = None if attention_mask is None else attention_mask.to(torch.bfloat16)
    p = settings.get("dropout", 0.0)
    if p == 0:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    attended: Tensor = _Attention.apply(query * settings["scaling"], key, value, attention_mask, p)
    return attended.transpose(1, 2).contiguous(), None
