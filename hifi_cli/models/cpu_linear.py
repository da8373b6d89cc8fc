"""Matrix products of a processor, faster: oneDNN's float32, and bfloat16 for training where a run asks for it."""

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

# 1,024 compiled products are kept otherwise, a third of a megabyte each, and batches by length have many shapes: those of
# two or three batches are enough, and compiling costs less than can be measured.
for _capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and PyTorch's over it
    os.environ.setdefault(_capacity, "64")

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W' + b. PyTorch itself gives float32 to MKL, which has half of oneDNN's rate on processors that are not Intel's."""
    if _ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu":
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return nn.functional.linear(x, weight, bias)


class _Product(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, row_bias: Tensor | None, weight: Tensor, bias: Tensor | None, index: Tensor | None
    ) -> Tensor:
        factor = x.to(weight.dtype).contiguous()  # oneDNN is slow on rows that lie apart
        ctx.save_for_backward(factor if rows.requires_grad else None, weight, index)
        ctx.kinds = x.dtype, rows.dtype, row_bias.dtype if row_bias is not None else None
        return _multiply(factor, weight, None if bias is None else bias.to(weight.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor, weight, index = ctx.saved_tensors
        of_x, of_rows, of_bias, *_ = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * 6
        gradient = gradients[0].to(weight.dtype).contiguous()
        if of_x:
            found[0] = _multiply(gradient, weight.T).to(ctx.kinds[0])
        gradient = gradient.flatten(0, -2)
        if index is not None and (of_rows or of_bias):
            gradient = gradient.index_select(-1, index)
        if of_rows:
            found[1] = _multiply(gradient.T, factor.flatten(0, -2).T).to(ctx.kinds[1])
        if of_bias:
            found[2] = gradient.sum(0, dtype=ctx.kinds[2])
        return tuple(found)


def product(
    x: Tensor, rows: Tensor, row_bias: Tensor | None, weight: Tensor, bias: Tensor | None, index: Tensor | None = None
) -> Tensor:
    """X W' + b, with gradients for x and for what trains of W and b.

    Args:
        x: [..., in].
        rows, row_bias: what may train, [rows, in] and [rows]: all of W and b, or the rows that `index` numbers.
        weight, bias: what is multiplied and added, [out, in] and [out]: the current values of all rows; a bfloat16 weight
            makes it a product of bfloat16 numbers with float32 sums.

    Returns:
        [..., out], of the weight's kind.
    """
    result: Tensor = _Product.apply(x, rows, row_bias, weight, bias, index)
    return result


class FastLinear(nn.Linear):
    """A Linear on the products of this file; on other devices than the processor PyTorch's own.

    With bfloat16 a frozen weight is cast once; autocast would cast it in every step. One that trains is cast for every
    product: fused optimisers change weights without counting a new version of them. Evaluation is always float32.

    Attributes:
        bf16: None, or the kind of number that training's results have (bfloat16 saves a cast where another product follows).
    """

    def __init__(self, linear: nn.Linear, *, bf16: torch.dtype | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.bf16 = bf16
        self._cast: Tensor | None = None
        self._version = -1

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return nn.functional.linear(x, self.weight, self.bias)
        if not (self.bf16 and self.training):
            return product(x, self.weight, self.bias, self.weight.detach(), self.bias)
        if self._cast is None or self.weight.requires_grad or self._version != self.weight._version:
            self._cast, self._version = self.weight.detach().to(torch.bfloat16), self.weight._version
        return product(x, self.weight, self.bias, self._cast, self.bias).to(self.bf16)
