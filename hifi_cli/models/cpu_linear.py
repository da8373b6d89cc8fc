"""Linear layers that are faster on a CPU: oneDNN's float32 products, and bfloat16 products in training on request."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.models.row_linear import RowLinear

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W' + b. PyTorch itself gives float32 to MKL, which has half of oneDNN's rate on CPUs that are not Intel's."""
    if _ONEDNN and x.dtype == torch.float32:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return output
    return nn.functional.linear(x, weight, bias)


class _Linear(Function):
    """The product of `linear` below."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, row_bias: Tensor | None, weight: Tensor, bias: Tensor | None, index: Tensor | None
    ) -> Tensor:
        factor = x.to(weight.dtype).contiguous()  # oneDNN is slow on rows that lie apart
        ctx.save_for_backward(factor if rows.requires_grad else None, weight, index)
        ctx.dtypes = x.dtype, rows.dtype, row_bias.dtype if row_bias is not None else None
        return _multiply(factor, weight, None if bias is None else bias.to(weight.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor, weight, index = ctx.saved_tensors
        x_dtype, rows_dtype, bias_dtype = ctx.dtypes
        needs_x, needs_rows, needs_bias, *_ = ctx.needs_input_grad
        x_grad = rows_grad = bias_grad = None
        gradient = gradients[0].to(weight.dtype).contiguous()
        if needs_x:
            x_grad = _multiply(gradient, weight.T).to(x_dtype)
        gradient = gradient.flatten(0, -2)
        if index is not None and (needs_rows or needs_bias):
            gradient = gradient.index_select(-1, index)
        if needs_rows:
            rows_grad = _multiply(gradient.T, factor.flatten(0, -2).T).to(rows_dtype)
        if needs_bias:
            bias_grad = gradient.sum(0, dtype=bias_dtype)
        return x_grad, rows_grad, bias_grad, None, None, None


def linear(
    x: Tensor, rows: Tensor, row_bias: Tensor | None, weight: Tensor, bias: Tensor | None, index: Tensor | None = None
) -> Tensor:
    """Compute x W' + b on a CPU, with gradients for x and for what trains of W and b.

    Args:
        x: [..., in].
        rows, row_bias: what may train, [rows, in] and [rows]: all of W and b, or the rows that `index` numbers.
        weight, bias: what is multiplied and added, [out, in] and [out]: the current values of all rows. A bfloat16 weight
            makes it a product of bfloat16 numbers with float32 sums.

    Returns:
        [..., out], in the weight's dtype.
    """
    output: Tensor = _Linear.apply(x, rows, row_bias, weight, bias, index)
    return output


class FastLinear(nn.Linear):
    """nn.Linear on this file's products, with the same parameters.

    With bfloat16 a frozen weight is cast once; autocast would cast it in every step. One that trains is cast for every
    product: fused optimizers change weights without counting a new version of them. Evaluation is always float32.

    Attributes:
        training_dtype: dtype of the outputs in training when its products are bfloat16 (bfloat16 saves a cast where another
            product follows); None: float32 products.
    """

    def __init__(self, module: nn.Linear, *, training_dtype: torch.dtype | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = module.in_features, module.out_features
        self.weight, self.bias = module.weight, module.bias
        self.training_dtype = training_dtype
        self._cast: Tensor | None = None
        self._version = -1

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training_dtype and self.training):
            return linear(x, self.weight, self.bias, self.weight.detach(), self.bias)
        if self._cast is None or self.weight.requires_grad or self._version != self.weight._version:
            self._cast, self._version = self.weight.detach().to(torch.bfloat16), self.weight._version
        return linear(x, self.weight, self.bias, self._cast, self.bias).to(self.training_dtype)


class FastRowLinear(RowLinear):
    """RowLinear in one product: the base layer's W and b always hold the tuned rows' current values.

    The gradient of W is computed for the tuned rows only. With bfloat16, W is cast once, and the tuned rows in every step.
    """

    def __init__(self, base_layer: FastLinear, rows: list[int], *, biases: bool) -> None:
        super().__init__(base_layer, rows, biases=biases)
        self.training_dtype = base_layer.training_dtype
        self._cast: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        base_layer = self.merge()
        if not (self.training_dtype and self.training):
            return linear(x, self.rows, self.row_bias, base_layer.weight, base_layer.bias, self.index)
        if self._cast is None:
            self._cast = base_layer.weight.to(torch.bfloat16)
        self._cast.index_copy_(0, self.index, self.rows.detach().to(torch.bfloat16))
        return linear(x, self.rows, self.row_bias, self._cast, base_layer.bias, self.index).to(self.training_dtype)
