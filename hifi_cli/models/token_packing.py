"""Padding-free encoder layers: they compute on real tokens; only attention sees padding.

Nearly all of a layer's arithmetic treats each token by itself (Linear, LayerNorm, dropout). The
tokens of a batch are therefore packed into one long sequence after the embeddings and put back
into the padded batch after the last layer. The results are those of a padded batch within rounding.
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

from hifi_cli.models.encoder import AttentionFunction, Encoder

ATTENTION = "hifi_packed"


def copy_to_device(values: Any, device: torch.device) -> Tensor:
    """Copy an array or numbers to a device; the host does not wait for a GPU (pinned memory)."""
    tensor = torch.from_numpy(np.asarray(values))
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else tensor.to(device)
    )


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
        token_mask: which tokens are real, bool [sequences, width].
        has_padding: whether some are not.
    """

    sequences: int
    width: int
    index: Tensor
    token_mask: Tensor
    has_padding: bool
    _attention_masks: dict[tuple[torch.dtype, int | None], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, token_mask: Tensor, device_mask: Tensor) -> "PackedBatch":
        """Describe a padded batch.

        Args:
            token_mask: which tokens are real, [sequences, width], on the CPU, so that no GPU has to
                be waited for.
            device_mask: the same on the model's device.
        """
        index = copy_to_device(token_mask.flatten().nonzero()[:, 0], device_mask.device)
        has_padding = len(index) < token_mask.numel()
        sequences, width = device_mask.shape
        return cls(sequences, width, index, device_mask.bool(), has_padding)

    def pack(self, padded: Tensor) -> Tensor:
        """[sequences, width, ...] to [tokens, ...]."""
        packed: Tensor = _Pack.apply(padded.flatten(0, 1), self.index)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """[tokens, ...] to [sequences, width, ...], zero where there is padding."""
        padded = _scatter(packed, self.index, self.sequences * self.width)
        return padded.view(self.sequences, self.width, *packed.shape[1:])

    @property
    def position_ids(self) -> Tensor:
        """Position of each packed token in its sequence, [1, tokens]."""
        return (self.index % self.width)[None]

    def attention_mask(self, dtype: torch.dtype, window: int | None) -> Tensor | None:
        """What to add to attention scores, made once for all layers.

        Args:
            window: tokens attend to those less than this many positions away; None: to all.

        Returns:
            [sequences, 1, width or 1, width].
        """
        if (dtype, window) not in self._attention_masks and (
            self.has_padding or window is not None
        ):
            visible = self.token_mask[:, None, None]
            if window is not None:
                positions = torch.arange(self.width, device=visible.device)
                visible = visible & ((positions[:, None] - positions).abs() < window)
            mask = torch.zeros_like(visible, dtype=dtype)
            mask.masked_fill_(~visible, torch.finfo(dtype).min)
            self._attention_masks[dtype, window] = mask
        return self._attention_masks.get((dtype, window))

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
        mask = self.attention_mask(query.dtype, settings.get("sliding_window"))
        output, _ = attention(module, *padded, mask, **settings)
        return self.pack(output)[None], None


@contextmanager
def packed_forward(encoder: Encoder, batch: PackedBatch) -> Iterator[None]:
    """In this context, the encoder's layers compute on the real tokens of a batch only.

    Afterwards nothing is left in the model.

    Raises:
        UsageError: this family computes attention by itself.
    """
    from transformers import AttentionInterface

    def before_base(_: nn.Module, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        positions = {"position_ids": batch.position_ids} if encoder.module_names.rotary else {}
        return args, settings | {"attention_mask": None} | positions

    def after_embeddings(_: nn.Module, __: tuple[Any, ...], padded: Tensor) -> Tensor:
        return batch.pack(padded)[None]

    def after_layers(_: nn.Module, __: tuple[Any, ...], packed: Tensor) -> Tensor:
        return batch.unpack(packed.squeeze(0))

    config: Any = encoder.base.config
    attention_name = config._attn_implementation
    # no mask function has this name: transformers then makes no mask [tokens, tokens]
    AttentionInterface.register(ATTENTION, partial(batch.attend, encoder.attention_function))
    config._attn_implementation = ATTENTION
    hooks = [
        encoder.base.register_forward_pre_hook(before_base, with_kwargs=True),
        encoder.embeddings.register_forward_hook(after_embeddings),
        encoder.layers[-1].register_forward_hook(after_layers),
    ]
    try:
        yield
    finally:
        config._attn_implementation = attention_name
        for hook in hooks:
            hook.remove()
