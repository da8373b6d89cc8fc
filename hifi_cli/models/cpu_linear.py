"""Linear layers that are faster on a CPU: oneDNN's float32 products, and bfloat16 products in training on request."""

from functools import partial

import torch
from torch import Tensor, nn

from hifi_cli.models import row_linear
from hifi_cli.models.row_linear import RowLinear

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X W' + b. PyTorch itself gives float32 to MKL, which has half of oneDNN's rate on CPUs that are not Intel's."""
    if _ONEDNN and x.dtype == torch.float32:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return output
    return nn.functional.linear(x, weight, bias)


linear = partial(row_linear.linear, multiply=_multiply)


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
        if not (self.training_dtype and self.training):
            base_layer = self.current_base_layer()
            return linear(x, self.rows, self.row_bias, base_layer.weight, base_layer.bias, self.index)
        base_layer, self._merged_versions = self.merge(), None
        if self._cast is None:
            self._cast = base_layer.weight.to(torch.bfloat16)
        self._cast.index_copy_(0, self.index, self.rows.detach().to(torch.bfloat16))
        return linear(x, self.rows, self.row_bias, self._cast, base_layer.bias, self.index).to(self.training_dtype)
