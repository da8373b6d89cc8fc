"""HiFi (Gui & Xiao, ACL 2023): only the chosen attention heads' rows of W_Q, W_K and W_V train, and the task head."""

from functools import partial

import torch
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, task_head_names, train_only
from hifi_cli.models.cpu_linear import FastLinear, product
from hifi_cli.models.encoder import Encoder

PROJECTIONS = ("query", "key", "value")


class RowLinear(nn.Module):
    """A Linear of which only some rows train, as a parameter of their own.

    `weight` (frozen) always holds the current rows, so one product computes the layer; the gradient, the moments and
    the update exist for the tuned rows only. Masking a full gradient would cost the whole matrix's memory and time, and
    AdamW's weight decay would still move the frozen rows.

    Attributes:
        rows: [tuned rows, in], trainable.
        row_bias: [tuned rows], trainable, or None when biases stay frozen.
    """

    index: Tensor

    def __init__(self, linear: nn.Linear, rows: list[int], *, biases: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.register_buffer("index", torch.tensor(rows, device=linear.weight.device), persistent=False)
        self.rows = nn.Parameter(linear.weight.detach()[rows].clone())
        self.row_bias = nn.Parameter(linear.bias.detach()[rows].clone()) if biases and linear.bias is not None else None
        self._is_fast = isinstance(linear, FastLinear)
        self.bf16 = linear.bf16 if isinstance(linear, FastLinear) else None
        self._cast: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.synchronise()
        weight: Tensor = self.weight
        if self.training and self._cast is not None:
            weight = self._cast
        elif torch.is_autocast_enabled(x.device.type):  # a custom Function is not cast by autocast itself
            weight = weight.to(torch.get_autocast_dtype(x.device.type))
        found = product(x, self.rows, self.row_bias, weight, self.bias, self.index)
        return found.to(self.bf16) if self.bf16 else found

    @torch.no_grad()
    def synchronise(self) -> None:
        """Copy the tuned rows into the whole matrix, and into its copy for bfloat16 products."""
        self.weight.index_copy_(0, self.index, self.rows)
        if self.row_bias is not None and self.bias is not None:
            self.bias.index_copy_(0, self.index, self.row_bias)
        if self._cast is not None:
            self._cast.index_copy_(0, self.index, self.rows.to(self._cast.dtype))
        elif self.bf16 and self.training:  # what evaluation makes, training may not change
            self._cast = self.weight.to(torch.bfloat16)

    def merged(self) -> nn.Linear:
        """A plain Linear with the same output."""
        self.synchronise()
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=self.bias is not None, device="meta")
        plain = {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}
        linear.load_state_dict(plain, assign=True)
        return FastLinear(linear, bf16=self.bf16) if self._is_fast else linear


class HiFi(Method):
    """Train the rows of W_Q, W_K and W_V that belong to the chosen heads (Algorithm 3), and the task head."""

    class Settings(ConfigModel):
        """What of a head trains."""

        biases: bool = True
        """Whether the biases of the rows train too (the paper's notation omits them)."""

    needs_heads = True
    trains_parts = True

    def prepare(self, encoder: Encoder) -> None:
        heads = self.context.heads or []
        inside = all(0 <= head < encoder.num_heads for layer in heads for head in layer)
        if len(heads) != encoder.num_layers or not inside:
            shape = f"{encoder.num_layers} layers of {encoder.num_heads} heads"
            raise UsageError(f"the chosen heads are of another encoder: this one has {shape}")
        train_only(encoder, task_head_names(encoder))
        for layer, chosen in enumerate(heads):
            rows = [row for head in chosen for row in encoder.head_rows(head)]
            for part in PROJECTIONS if rows else ():
                encoder.replace(layer, part, partial(RowLinear, rows=rows, biases=self.settings.biases))

    def release(self, encoder: Encoder) -> None:
        self.merge(encoder)
        super().release(encoder)

    def merge(self, encoder: Encoder) -> None:
        for layer in range(encoder.num_layers):
            for part in PROJECTIONS:
                encoder.replace(layer, part, lambda module: module.merged() if isinstance(module, RowLinear) else module)
