"""Modules that methods put into an encoder: tuned rows, columns and entries of weights; adapters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from hifi_cli.models.encoder import Encoder

# A delta has the mask of a parameter under its name and this ending.
_MASK = "/mask"


class TunedLinear(nn.Module):
    """A Linear of which some rows or columns have parameters, or a module, of their own.

    `merge` of a subclass writes what trained into W and b, and returns the Linear.

    Attributes:
        base_layer: the frozen pretrained Linear, W [out, in] and b [out]. b may train as a whole.
        index: the numbers of these rows or columns, int64.
    """

    index: Tensor

    def __init__(self, base_layer: nn.Linear, numbers: list[int]) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        index = torch.tensor(numbers, device=base_layer.weight.device)
        self.register_buffer("index", index, persistent=False)


class _RowProduct(Function):
    """x W' + b in one product, with gradients for x and for some rows of W and b.

    `index` numbers these rows. `rows` and `row_bias` hold them, which W and b hold too. b may train
    as a whole instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Tensor,  # noqa: ARG004
        row_bias: Tensor | None,  # noqa: ARG004
        weight: Tensor,
        bias: Tensor | None,
        index: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, index)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, index = ctx.saved_tensors
        needs_x, _, needs_row_bias, _, needs_bias, _ = ctx.needs_input_grad
        gradient = gradients[0]
        # All rows of W read x, the tuned and the frozen ones.
        x_grad = gradient @ weight if needs_x else None
        of_tokens = gradient.flatten(0, -2)
        bias_grad = of_tokens.sum(0) if needs_bias and not needs_row_bias else None
        # Here HiFi saves time and memory: the gradient of W exists for the tuned rows alone.
        of_rows = of_tokens.index_select(-1, index)
        rows_grad = of_rows.T @ x.flatten(0, -2)
        row_bias_grad = of_rows.sum(0) if needs_row_bias else None
        # One gradient for each argument of `forward`: the weight is frozen, and the index is none.
        return x_grad, rows_grad, row_bias_grad, None, bias_grad, None


class RowLinear(TunedLinear):
    """Compute y = x W' + b, where only some rows of W (and of b) train, as parameters of their own.

    HiFi tunes the rows of a head's W_Q, W_K and W_V (Gui & Xiao, ACL 2023, Algorithm 3). Gradients,
    AdamW's moments, weight decay and updates exist for the tuned rows only. Masking the gradient of
    all of W would cost the whole matrix's memory and time, and AdamW's weight decay would still
    move the frozen rows.

    Attributes:
        rows: the tuned rows of W, trainable, [tuned rows, in].
        row_bias: the same rows of b, trainable, [tuned rows]; None if b is frozen or trains whole.
    """

    def __init__(self, base_layer: nn.Linear, rows: list[int], *, biases: bool) -> None:
        super().__init__(base_layer, rows)
        self.rows = nn.Parameter(base_layer.weight[rows])
        has_bias = biases and base_layer.bias is not None
        self.row_bias = nn.Parameter(base_layer.bias[rows]) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        # The tuned rows are copied into W, so that the layer is one product, as it was before.
        self.merge()
        device = x.device.type
        # Autocast does not reach the backward pass of a Function of our own: x, W and b are cast
        # here.
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        # DeBERTa calls its projections twice in a pass, and so merges twice before the backward
        # pass: autograd must not see the weight itself, but `data`.
        weight = self.base_layer.weight.data.to(x.dtype)
        bias = None if self.base_layer.bias is None else self.base_layer.bias.to(x.dtype)
        return self.multiply(x, rows=self.rows, row_bias=self.row_bias, weight=weight, bias=bias)

    def multiply(
        self,
        x: Tensor,
        *,
        rows: Tensor,
        row_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Compute x W' + b, with gradients for the tuned rows of W and b.

        Args:
            rows, row_bias: get the gradients.
            weight, bias: W and b; they have the values of `rows` and `row_bias` already.
        """
        output: Tensor = _RowProduct.apply(
            x.to(weight.dtype), rows, row_bias, weight, bias, self.index
        )
        return output

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        weight = self.base_layer.weight
        bias = self.base_layer.bias
        weight.index_copy_(0, self.index, self.rows.to(weight.dtype))
        if self.row_bias is not None:
            bias.index_copy_(0, self.index, self.row_bias.to(bias.dtype))
        return self.base_layer


class ColumnLinear(TunedLinear):
    """Compute y = x W' + b, where only some columns of W train, as RowLinear does for rows.

    Attributes:
        columns: the tuned columns of W, trainable, [out, tuned columns].
    """

    def __init__(self, base_layer: nn.Linear, columns: list[int]) -> None:
        super().__init__(base_layer, columns)
        self.columns = nn.Parameter(base_layer.weight[:, columns])

    def forward(self, x: Tensor) -> Tensor:
        # W keeps its pretrained columns, and only their change is added: autograd then gives the
        # columns their gradient, without a Function like that of the rows.
        change = self.columns - self.base_layer.weight[:, self.index]
        output = self.base_layer(x)
        return output + functional.linear(x[..., self.index], change.to(x.dtype)).to(output.dtype)

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        self.base_layer.weight.index_copy_(1, self.index, self.columns)
        return self.base_layer


class WordRows:
    """The rows of a word embedding W whose words occur in training, as a parameter of their own.

    The other rows have gradient 0 in every step: AdamW would only shrink them, by weight decay, all
    by the same factor. Gradient, moments, clipping and updates exist for `rows` only.

    Args:
        embedding: has W.
        word_ids: the words that occur.

    Attributes:
        rows: what trains instead of W, [words that occur, width]; `merge` copies it into W.
    """

    def __init__(self, embedding: nn.Embedding, word_ids: set[int]) -> None:
        ids = sorted(word_ids)
        # The padding's row gets no gradient, as in the embedding itself.
        self._padding = None
        if embedding.padding_idx in word_ids:
            self._padding = ids.index(embedding.padding_idx)
        self._weight = embedding.weight
        self._index = torch.tensor(ids, device=self._weight.device)
        self.rows = nn.Parameter(self._weight.detach()[self._index])
        # AdamW's weight decay of the other rows since the last `merge`.
        self._pending_decay = 1.0
        self._hook = embedding.register_forward_hook(self._embed_occurring)

    def replace_in(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters with `rows` in the place of W."""
        return [self.rows if parameter is self._weight else parameter for parameter in parameters]

    def count_decay(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Count AdamW's weight decay of a step; a hook that the optimizer calls before each."""
        for group in optimizer.param_groups:
            if any(parameter is self.rows for parameter in group["params"]):
                self._pending_decay *= 1 - group["lr"] * group["weight_decay"]

    @torch.no_grad()
    def merge(self) -> None:
        """Bring all of W to what training has reached."""
        # The decay is meant for the other rows. Those of `rows` are shrunk too, and then replaced.
        self._weight.mul_(self._pending_decay)
        self._pending_decay = 1.0
        self._weight.index_copy_(0, self._index, self.rows)

    def state_dict(self) -> dict[str, Any]:
        """Return what continuing needs besides W."""
        return {"rows": self.rows.detach(), "pending_decay": self._pending_decay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of the same words."""
        self.rows.data.copy_(state["rows"])
        self._pending_decay = state["pending_decay"]

    def close(self) -> None:
        """Merge, and let the embedding read W again."""
        self.merge()
        self._hook.remove()

    def _embed_occurring(
        self, embedding: nn.Module, args: tuple[Tensor, ...], _: Tensor
    ) -> Tensor | None:
        """In training, what takes the place of the embedding's output."""
        # An evaluation reads all of W, which `merge` has brought up to date: its texts may have
        # words that no train example has.
        if not embedding.training:
            return None
        # The index is sorted, so that a token id's place in it is the row of the word.
        places = torch.searchsorted(self._index, args[0])
        return functional.embedding(places, self.rows, self._padding)


class BottleneckAdapter(nn.Module):
    """A sub-layer's last module f with a bottleneck: h + up(GELU(down(h))), where h = f(x)."""

    def __init__(self, base_layer: nn.Module, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.adapter = nn.ModuleDict({"down": down, "up": up})

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.base_layer(x)
        return hidden + self.adapter["up"](functional.gelu(self.adapter["down"](hidden)))


def insert_adapters(
    encoder: Encoder, build: Callable[[], tuple[nn.Module, nn.Module]]
) -> list[str]:
    """Put a new adapter behind both sub-layers of every layer, before residual and LayerNorm.

    Args:
        build: makes an adapter's down and up projection.

    Returns:
        The names of the parameters that train: the adapters', and the backbone's LayerNorms.
    """
    for layer in range(encoder.num_layers):
        for part in ("after_attention", "after_ffn"):
            down, up = build()
            adapter = partial(
                BottleneckAdapter, down=down.to(encoder.device), up=up.to(encoder.device)
            )
            encoder.replace_module(layer, part, adapter)
    norms = set(encoder.norms)
    trained = []
    for name, _ in encoder.model.named_parameters():
        module, _, _ = name.rpartition(".")
        if ".adapter." in name or module in norms:
            trained.append(name)
    return trained


class SparseParameters:
    """Selected entries of parameters, as vectors of their own for the optimizer.

    Gradients are gathered from the whole tensors and updates scattered back into them, so that the
    optimizer's moments and its weight decay exist for the selected entries only: nothing can move
    the others.

    Attributes:
        values: the selected entries of each parameter, by its name.
        masks: which entries these are, one bit per entry of the parameter, by its name and `/mask`.
    """

    def __init__(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        """Take the entries where `masks` (bool, a parameter's shape) are True."""
        self._parameters = {name: model.get_parameter(name) for name in masks}
        self._index: dict[str, Tensor] = {}
        self.values: dict[str, nn.Parameter] = {}
        self.masks: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            mask = masks[name].flatten()
            index = mask.nonzero()[:, 0].to(parameter.device)
            self._index[name] = index
            self.values[name] = nn.Parameter(parameter.detach().flatten()[index])
            # torch stores a bool in a byte, and a delta is to be small.
            self.masks[name + _MASK] = torch.from_numpy(np.packbits(mask.cpu().numpy()))

    @staticmethod
    def masks_of_delta(model: nn.Module, delta: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the flat masks that a delta has, by the parameters' names."""
        masks = {}
        for name, bits in delta.items():
            if name.endswith(_MASK):
                parameter = name.removesuffix(_MASK)
                size = model.get_parameter(parameter).numel()
                mask = np.unpackbits(bits.numpy(), count=size)
                masks[parameter] = torch.from_numpy(mask).bool()
        return masks

    def gather_gradients(self) -> None:
        """Move the selected entries' gradients to `values`, and drop the others."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.values[name].grad = parameter.grad.flatten()[self._index[name]]
                parameter.grad = None

    @torch.no_grad()
    def scatter(self) -> None:
        """Write `values` into the model."""
        for name, parameter in self._parameters.items():
            parameter.view(-1).index_copy_(0, self._index[name], self.values[name])


def top_k_masks(scores: dict[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Make flat masks of the entries with the highest scores, of all tensors together.

    Args:
        scores: of every entry, by the tensors' names.
        fraction: of the entries; exactly so many, rounded to an entry, even where scores tie.
    """
    joined = torch.cat([score.flatten() for score in scores.values()])
    highest = joined.topk(round(fraction * len(joined))).indices
    mask = torch.zeros(len(joined), dtype=torch.bool, device=joined.device)
    mask[highest] = True
    parts = mask.split([score.numel() for score in scores.values()])
    return dict(zip(scores, parts, strict=True))
