"""A Linear of which only some rows (HiFi: Gui & Xiao, ACL 2023, Algorithm 3) or some columns train."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class _Linear(Function):
    """The product of `linear` below."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Tensor,
        row_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        index: Tensor | None,
        multiply: Multiply,
    ) -> Tensor:
        factor = x.to(weight.dtype).contiguous()  # oneDNN is slow on rows that lie apart
        ctx.save_for_backward(factor if rows.requires_grad else None, weight, index)
        ctx.dtypes, ctx.has_row_bias = (x.dtype, rows.dtype), row_bias is not None
        ctx.bias_dtype = next((value.dtype for value in (row_bias, bias) if value is not None), None)
        ctx.multiply = multiply
        output = multiply(factor.flatten(0, -2), weight, None if bias is None else bias.to(weight.dtype))
        # A view made here could not be changed in place, which adapters of peft do.
        return cast(Tensor, torch.ops.aten._unsafe_view(output, [*x.shape[:-1], output.shape[-1]]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor, weight, index = ctx.saved_tensors
        x_dtype, rows_dtype = ctx.dtypes
        needs_x, needs_rows, needs_row_bias, _, needs_bias, *_ = ctx.needs_input_grad
        x_grad = rows_grad = row_bias_grad = bias_grad = None
        gradient = gradients[0].to(weight.dtype).contiguous()
        if needs_x:
            x_grad = ctx.multiply(gradient, weight.T, None).to(x_dtype)
        gradient = gradient.flatten(0, -2)
        if needs_bias and not ctx.has_row_bias:
            bias_grad = gradient.sum(0, dtype=ctx.bias_dtype)
        if index is not None and (needs_rows or needs_row_bias):
            gradient = gradient.index_select(-1, index)
        if needs_rows:
            rows_grad = ctx.multiply(gradient.T, factor.flatten(0, -2).T, None).to(rows_dtype)
        if needs_row_bias:
            row_bias_grad = gradient.sum(0, dtype=ctx.bias_dtype)
        return x_grad, rows_grad, row_bias_grad, None, bias_grad, None, None


def linear(
    x: Tensor,
    rows: Tensor,
    row_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    index: Tensor | None = None,
    *,
    multiply: Multiply = functional.linear,
) -> Tensor:
    """Compute x W' + b in one product, with gradients for x and for what trains of W and b.

    Args:
        x: [..., in].
        rows, row_bias: what may train, [rows, in] and [rows]: all of W and b, or the rows that `index` numbers. Without
            `row_bias`, `bias` may train as a whole.
        weight, bias: what is multiplied and added, [out, in] and [out]: the current values of all rows. A bfloat16 weight
            makes it a product of bfloat16 numbers with float32 sums.
        multiply: computes each product, as `torch.nn.functional.linear` does.

    Returns:
        [..., out], in the weight's dtype.
    """
    output: Tensor = _Linear.apply(x, rows, row_bias, weight, bias, index, multiply)
    return output


class RowLinear(nn.Module):
    """Compute y = x W' + b, where only some rows of W (and of b) train, as parameters of their own.

    Gradients, AdamW's moments, weight decay and updates exist for the tuned rows only. Masking the gradient of all of W
    would cost the whole matrix's memory and time, and AdamW's weight decay would still move the frozen rows. The tuned rows
    are written into W, which is small work, so that a forward pass is one product.

    Attributes:
        base_layer: the frozen pretrained Linear, W [out, in] and b [out]. b may be made trainable as a whole.
        index: the numbers of the tuned rows, int64 [tuned rows].
        rows: the tuned rows of W, trainable, [tuned rows, in].
        row_bias: the same rows of b, trainable, [tuned rows]; None when b stays frozen or trains as a whole.
    """

    index: Tensor

    def __init__(self, base_layer: nn.Linear, rows: list[int], *, biases: bool) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.register_buffer("index", torch.tensor(rows, device=base_layer.weight.device), persistent=False)
        self.rows = nn.Parameter(base_layer.weight[rows])
        self.row_bias = nn.Parameter(base_layer.bias[rows]) if biases and base_layer.bias is not None else None
        self._merged_versions: list[int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        base_layer = self.current_base_layer()
        return linear(x, self.rows, self.row_bias, base_layer.weight.data, base_layer.bias, self.index)

    def current_base_layer(self) -> nn.Linear:
        """The base layer with the tuned rows' current values in W and b, which several passes in a row share in evaluation."""
        trained = [self.rows] if self.row_bias is None else [self.rows, self.row_bias]
        # With gradients an optimizer may follow, and fused ones change parameters without counting a new version.
        versions = None if torch.is_grad_enabled() else [parameter._version for parameter in trained]
        if versions is None or versions != self._merged_versions:
            self.merge()
        self._merged_versions = versions
        return self.base_layer

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Write the tuned rows into W and b, and return the Linear, which computes the same."""
        weight, bias = self.base_layer.weight.data, self.base_layer.bias  # `data`: no new version, so casts of W stay valid
        weight.index_copy_(0, self.index, self.rows.to(weight.dtype))
        if self.row_bias is not None:
            bias.data.index_copy_(0, self.index, self.row_bias.to(bias.dtype))
        return self.base_layer


class ColumnLinear(nn.Module):
    """Compute y = x W' + b, where only some columns of W train, as parameters of their own: the twin of RowLinear.

    Attributes:
        base_layer: the frozen pretrained Linear, W [out, in] and b [out]. b may be made trainable as a whole.
        index: the numbers of the tuned columns, int64 [tuned columns].
        columns: the tuned columns of W, trainable, [out, tuned columns].
    """

    index: Tensor

    def __init__(self, base_layer: nn.Linear, columns: list[int]) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.register_buffer("index", torch.tensor(columns, device=base_layer.weight.device), persistent=False)
        self.columns = nn.Parameter(base_layer.weight[:, columns])

    def forward(self, x: Tensor) -> Tensor:
        change = self.columns - self.base_layer.weight[:, self.index]
        output: Tensor = self.base_layer(x)
        return output + functional.linear(x[..., self.index], change.to(x.dtype)).to(output.dtype)

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Write the tuned columns into W, and return the Linear, which computes the same."""
        self.base_layer.weight.index_copy_(1, self.index, self.columns)
        return self.base_layer
