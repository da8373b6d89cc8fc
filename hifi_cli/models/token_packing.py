"""Padding-free encoder layers: they compute on real tokens; only attention sees padding.

Nearly all of a layer's arithmetic treats each token by itself (Linear, LayerNorm, dropout). The
tokens of a batch are therefore packed into one long sequence before the first layer and put back
into the padded batch after the last one. The results are those of a padded batch within rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from hifi_cli.models.encoder import AttentionFunction, Encoder, additive_mask

ATTENTION = "hifi_packed"


def copy_to_device(values: Any, device: torch.device) -> Tensor:
    """Copy an array or numbers to a device; the host does not wait for a GPU (pinned memory)."""
    tensor = torch.from_numpy(np.asarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class _Pack(Function):
    """The rows of a tensor that an index names; autograd's own backward pass would add to zeros."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = padded.shape[0]
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return _scatter(gradients[0], index, ctx.rows), None


def _scatter(packed: Tensor, index: Tensor, rows: int) -> Tensor:
    """A tensor of zeros with the given rows at an index."""
    return packed.new_zeros(rows, *packed.shape[1:]).index_copy_(0, index, packed)


@dataclass(frozen=True)
class PackedBatch:
    """Where the real tokens of a padded batch are.

    Attributes:
        sequences, width: shape of the padded batch.
        index: position of each real token in the flattened padded batch, int64 [tokens].
        token_mask: which tokens are real, bool [sequences, width]; None: all of them.
    """

    sequences: int
    width: int
    index: Tensor
    token_mask: Tensor | None
    _attention_masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, token_mask: Tensor, device: torch.device) -> "PackedBatch":
        """Describe a padded batch on a device.

        Args:
            token_mask: which tokens are real, bool [sequences, width], on the CPU, so that no GPU
                has to be waited for.
        """
        sequences, width = token_mask.shape
        index = copy_to_device(token_mask.flatten().nonzero()[:, 0], device)
        mask = None if token_mask.all() else copy_to_device(token_mask, device)
        return cls(sequences, width, index, mask)

    def pack(self, padded: Tensor) -> Tensor:
        """[sequences, width, ...] to [tokens, ...]."""
        packed: Tensor = _Pack.apply(padded.flatten(0, 1), self.index)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """[tokens, ...] to [sequences, width, ...], zero where there is padding."""
        padded = _scatter(packed, self.index, self.sequences * self.width)
        return padded.view(self.sequences, self.width, *packed.shape[1:])

    def attention_mask(self, dtype: torch.dtype) -> Tensor | None:
        """What to add to attention scores, [sequences, 1, 1, width]; made once for all layers."""
        if self.token_mask is not None and dtype not in self._attention_masks:
            self._attention_masks[dtype] = additive_mask(self.token_mask, dtype)
        return self._attention_masks.get(dtype)

    def attend(
        self,
        attention: AttentionFunction,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _: Tensor | None,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        """Attention over packed tokens, computed on the padded batch.

        Args:
            attention: what computes the attention of a padded batch.
            query, key, value: [1, heads, tokens, head size].

        Returns:
            [1, tokens, heads, head size], and no weights.
        """
        packed = [states.squeeze(0).transpose(0, 1) for states in (query, key, value)]
        padded = [self.unpack(states).transpose(1, 2) for states in packed]
        output, _ = attention(module, *padded, self.attention_mask(query.dtype), **settings)
        return self.pack(output)[None], None


@contextmanager
def packed_forward(encoder: Encoder, batch: PackedBatch) -> Iterator[None]:
    """In this context, the encoder's layers compute on the real tokens of a batch only.

    The model then takes no attention mask. Afterwards nothing is left in the model.

    Raises:
        UsageError: this family computes attention by itself.
    """

    def before_layers(_: nn.Module, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        if args:
            return (batch.pack(args[0])[None], *args[1:]), settings
        return args, settings | {"hidden_states": batch.pack(settings["hidden_states"])[None]}

    def after_layers(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        output.last_hidden_state = batch.unpack(output.last_hidden_state.squeeze(0))

    config: Any = encoder.base.config
    attention_name = config._attn_implementation
    encoder.set_attention(ATTENTION, partial(batch.attend, encoder.attention_function))
    hooks = [
        encoder.layer_stack.register_forward_pre_hook(before_layers, with_kwargs=True),
        encoder.layer_stack.register_forward_hook(after_layers),
    ]
    try:
        yield
    finally:
        config._attn_implementation = attention_name
        for hook in hooks:
            hook.remove()
