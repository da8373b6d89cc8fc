"""HiFi with adapters of peft: the rows of the chosen attention heads are adapted."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hifi_cli.methods.base import Method
from hifi_cli.methods.common import rows_of_heads
from hifi_cli.methods.peft import Peft
from hifi_cli.models.encoder import Encoder, linear_of
from hifi_cli.models.modules import TunedLinear


class AdaptedRows(TunedLinear):
    """Compute y = x W' + b, where some rows of W are a Linear of their own, which peft adapts.

    Attributes:
        rows: a Linear of these rows of W and b, [adapted rows, in].
    """

    def __init__(self, base_layer: nn.Linear, rows: list[int]) -> None:
        super().__init__(base_layer, rows)
        bias = None if base_layer.bias is None else base_layer.bias[rows]
        self.rows = linear_of(base_layer.weight[rows], bias)

    def forward(self, x: Tensor) -> Tensor:
        output = self.base_layer(x)
        return output.index_copy(-1, self.index, self.rows(x).to(output.dtype))

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        self.base_layer.weight.index_copy_(0, self.index, self.rows.weight)
        if self.base_layer.bias is not None:
            self.base_layer.bias.index_copy_(0, self.index, self.rows.bias)
        return self.base_layer


class HiFiPeft(Peft):
    """Train adapters of the chosen heads' rows of W_Q, W_K and W_V, and the task head.

    The rows of a projection that belong to the chosen heads are one matrix, which gets one adapter:
    a LoRA update of rank r is B A with B [rows of the chosen heads, r] and A [r, hidden size]. All
    other rows stay as they are.
    """

    class Settings(Method.Settings):
        """The adapters' type, their options and places."""

        type: Literal["lora", "ia3"] = "lora"
        """peft's `lora` (with its option `use_dora`: DoRA) or `ia3`, which scales the outputs of
        the rows."""
        options: dict[str, Any] = {}
        """Fields of the type's configuration class in peft, for example `{r: 8, lora_alpha: 16}`;
        the others keep peft's defaults."""
        targets: list[Literal["query", "key", "value"]] = ["query", "value"]
        """The adapted projections."""

    needs_heads = True

    def prepare(self, encoder: Encoder) -> None:
        for layer, rows in enumerate(rows_of_heads(encoder, self.context.heads)):
            for part in self.settings.targets:
                if rows[part]:
                    encoder.replace_module(layer, part, partial(AdaptedRows, rows=rows[part]))
        super().prepare(encoder)

    def target_modules(self, encoder: Encoder) -> list[str]:
        return [
            f"{name}.rows"
            for name, module in encoder.model.named_modules()
            if isinstance(module, AdaptedRows)
        ]
