"""A Linear of which only some rows (HiFi: Gui & Xiao, ACL 2023, Algorithm 3) or some columns train."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RowLinear(nn.Module):
    """Compute y = x W' + b, where only some rows of W (and of b) train, as parameters of their own.

    Gradients, AdamW's moments, weight decay and updates exist for the tuned rows only. Masking the gradient of all of W
    would cost the whole matrix's memory and time, and AdamW's weight decay would still move the frozen rows.

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

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base_layer(x)
        bias = self.row_bias if self.row_bias is not None or self.base_layer.bias is None else self.base_layer.bias[self.index]
        bias = None if bias is None else bias.to(x.dtype)  # the base layer may have fewer bits than what trains
        return output.index_copy(-1, self.index, functional.linear(x, self.rows.to(x.dtype), bias).to(output.dtype))

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Write the tuned rows into W and b, and return the Linear, which computes the same."""
        weight, bias = self.base_layer.weight, self.base_layer.bias
        weight.index_copy_(0, self.index, self.rows.to(weight.dtype))
        if self.row_bias is not None:
            bias.index_copy_(0, self.index, self.row_bias.to(bias.dtype))
        return self.base_layer


class ColumnLinear(nn.Module):
    """Compute y = x W' + b, where only some columns of W train, as parameters of their own, as RowLinear does for rows.

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
