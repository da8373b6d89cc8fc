"""Padding-free encoder layers: they compute on real tokens; at most attention sees padding.

Nearly all of a layer's arithmetic treats each token by itself (Linear, LayerNorm, dropout). The
tokens of a batch are therefore packed into one long sequence after the embeddings and put back
into the padded batch after the last layer. The results are those of a padded batch within rounding.

Attention computes on padded groups of sequences: on a CPU on groups of similar length, whose
attention weights stay in a core's cache; on a GPU on the whole batch, or by kernels that take
sequences of any length. Tests, which have no GPU, put a reference in the place of
`varlen_attention`; `scripts/gpu_check` compares it on one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from hifi_cli.models.encoder import AttentionFunction, Encoder

ATTENTION = "hifi_packed"
# attention weights of a group and head: with 12 heads two megabytes, which a core's cache holds
GROUP_SIZE = 40_000


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


def real_token_index(token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """`index` and `offsets` of a PackedBatch, on the device of the mask [sequences, width]."""
    ends = token_mask.sum(1).cumsum(0)
    return token_mask.flatten().nonzero()[:, 0], functional.pad(ends, (1, 0)).int()


@dataclass(frozen=True)
class PaddingLayout:
    """Where the real tokens of padded sequences are.

    Attributes:
        index: position of each real token in the flattened padded sequences, int64 [tokens].
        token_mask: which tokens are real, bool [sequences, width].
    """

    index: Tensor
    token_mask: Tensor
    _attention_masks: dict[tuple[torch.dtype, int | None], Tensor] = field(
        default_factory=dict, init=False
    )

    @property
    def has_padding(self) -> bool:
        """Whether some tokens of the padded sequences are not real."""
        return len(self.index) < self.token_mask.numel()

    def pack(self, padded: Tensor) -> Tensor:
        """[sequences, width, ...] to [tokens, ...]."""
        packed: Tensor = _Pack.apply(padded.flatten(0, 1), self.index)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """[tokens, ...] to [sequences, width, ...], zero where there is padding."""
        padded = _scatter(packed, self.index, self.token_mask.numel())
        return padded.view(*self.token_mask.shape, *packed.shape[1:])

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
                positions = torch.arange(visible.shape[-1], device=visible.device)
                visible = visible & ((positions[:, None] - positions).abs() < window)
            mask = torch.zeros_like(visible, dtype=dtype)
            mask.masked_fill_(~visible, torch.finfo(dtype).min)
            self._attention_masks[dtype, window] = mask
        return self._attention_masks.get((dtype, window))


@dataclass(frozen=True)
class PackedBatch(PaddingLayout):
    """Where the real tokens of a padded batch are, and on what attention computes.

    Attributes:
        offsets: where each sequence begins in the packed one, and where the last one ends, int32
            [sequences + 1]; None: attention computes on the groups.
        longest: tokens of the longest sequence.
        groups: places of the packed tokens, one part after the other, in padded sequences of
            similar length; none: the batch is one group.
    """

    offsets: Tensor | None = None
    longest: int = 0
    groups: Sequence[PaddingLayout] = ()

    @classmethod
    def of(cls, token_mask: Tensor, device_mask: Tensor, *, varlen: bool = False) -> "PackedBatch":
        """Describe a padded batch.

        Args:
            token_mask: which tokens are real, [sequences, width], on the CPU, so that no GPU has to
                be waited for.
            device_mask: the same on the model's device.
            varlen: whether `varlen_attention` may compute attention.
        """
        lengths = token_mask.sum(1)
        if varlen:
            index, offsets = (
                copy_to_device(each, device_mask.device) for each in real_token_index(token_mask)
            )
            return cls(index, device_mask.bool(), offsets, int(lengths.max()))
        if device_mask.device.type == "cpu":
            lengths, order = lengths.sort(stable=True)
            places = torch.arange(token_mask.numel()).view_as(token_mask)[order]
            groups = [_padded_group(group) for group in _groups_by_length(lengths.tolist())]
            return cls(places[token_mask[order].bool()], token_mask.bool(), groups=groups)
        index, _ = real_token_index(token_mask)
        return cls(copy_to_device(index, device_mask.device), device_mask.bool())

    @property
    def spare(self) -> int:
        """Rows of zeros after the packed tokens: at most a sixteenth, and none in float32.

        In bf16, a CPU compiles products of each new shape for milliseconds; so they have few.
        """
        tokens = len(self.index)
        multiple = 1 << max(tokens.bit_length() - 5, 0)
        return -tokens % multiple if torch.is_autocast_enabled("cpu") else 0

    @property
    def position_ids(self) -> Tensor:
        """Position of each packed token in its sequence, [1, tokens and spare rows]."""
        return functional.pad(self.index % self.token_mask.shape[1], (0, self.spare))[None]

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
        """Attention over packed tokens, by `varlen_attention` or on padded groups.

        Args:
            attention: what computes the attention of a padded batch.
            query, key, value: [1, heads, tokens, head size]; K and V may have fewer heads.

        Returns:
            [1, tokens, heads, head size], and no weights.
        """
        from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

        window, dropout = settings.get("sliding_window"), settings.get("dropout", 0.0)
        # under autocast, some adapters and rotary positions give float32
        dtype = (
            torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
        )
        has_kernel = (
            attention is sdpa_attention_forward  # Prefix-Tuning's own adds keys to each sequence
            # the float32 kernel has no two-sided windows, and see `varlen_attention` for dropout
            and (dtype != torch.float32 or (window is None and dropout == 0))
        )
        if self.offsets is not None and has_kernel:
            repeats = query.shape[1] // key.shape[1]
            whole = query, repeat_kv(key, repeats), repeat_kv(value, repeats)
            q, k, v = (states.squeeze(0).transpose(0, 1).to(dtype) for states in whole)
            output = varlen_attention(
                *(q, k, v, self.offsets, self.longest),
                dropout=dropout,
                scale=settings.get("scaling"),
                window=window,
            )
            return output[None], None
        groups = self.groups or [self]
        sizes = [*(len(group.index) for group in groups), self.spare]
        tokens = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        queries, keys, values = (each.split(sizes) if self.groups else [each] for each in tokens)
        outputs = []
        for group, *states in zip(
            groups, queries, keys, values, strict=False
        ):  # no group has the spare rows
            padded = (group.unpack(each).transpose(1, 2) for each in states)
            mask = group.attention_mask(query.dtype, window)
            output, _ = attention(module, *padded, mask, **settings)
            outputs.append(group.pack(output))
        output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return _with_rows(output, self.spare)[None], None


def _with_rows(packed: Tensor, spare: int) -> Tensor:
    """A tensor with rows of zeros at its end."""
    return torch.cat((packed, packed.new_zeros(spare, *packed.shape[1:]))) if spare else packed


def _groups_by_length(lengths: list[int]) -> Iterator[list[int]]:
    """Split ascending lengths into groups of sequences with little padding and few weights."""
    group: list[int] = []
    for length in lengths:
        if group and (len(group) + 1) * length**2 > GROUP_SIZE:
            yield group
            group = []
        group.append(length)
    yield group


def _padded_group(lengths: list[int]) -> PaddingLayout:
    """The places of sequences of given lengths that are padded at their end."""
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return PaddingLayout(real_token_index(token_mask)[0], token_mask)


def has_varlen_kernels(device: torch.device, head_size: int) -> bool:
    """Whether `varlen_attention` can compute: on NVIDIA's GPUs from Ampere on, for usual heads."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    is_recent = is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
    return is_recent and head_size % 8 == 0 and head_size <= 128


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    longest: int,
    *,
    dropout: float,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Attention within each sequence of a packed batch, by PyTorch's CUDA kernels.

    bfloat16 by FlashAttention, float32 by the memory-efficient kernel. The latter must not get
    dropout: forward and backward would drop different weights (pytorch#115590).

    Args:
        query, key, value: [tokens, heads, head size].
        offsets: int32 [sequences + 1]; sequence i has the tokens offsets[i] to offsets[i + 1] - 1.
        longest: tokens of the longest sequence, or more, up to all tokens.
        window: tokens attend to those less than this many positions away; None: to all.

    Returns:
        [tokens, heads, head size].

    Raises:
        ValueError: dropout or a window in float32.
    """
    lengths = offsets, offsets, longest, longest
    if query.dtype == torch.float32:
        if dropout or window is not None:
            raise ValueError("attention in float32 has no dropout and no window")
        batch = (states.unsqueeze(0) for states in (query, key, value))
        for_backward = torch.is_grad_enabled()
        output, *_ = torch.ops.aten._efficient_attention_forward(
            *batch, None, *lengths, 0.0, 0, for_backward, scale=scale
        )
        return output.squeeze(0)
    reach = None if window is None else window - 1
    output, *_ = torch.ops.aten._flash_attention_forward(
        *(query, key, value),
        *lengths,
        dropout,
        False,  # causal
        False,  # no mask for debugging
        scale=scale,
        window_size_left=reach,
        window_size_right=reach,
    )
    return output


@contextmanager
def packed_forward(encoder: Encoder, batch: PackedBatch) -> Iterator[None]:
    """In this context, the encoder's layers compute on the real tokens of a batch only.

    Afterwards nothing is left in the model, nor in transformers.

    Raises:
        UsageError: this family computes attention by itself.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def before_base(_: nn.Module, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        positions = {"position_ids": batch.position_ids} if encoder.module_names.rotary else {}
        return args, settings | {"attention_mask": None} | positions

    def after_embeddings(_: nn.Module, __: tuple[Any, ...], padded: Tensor) -> Tensor:
        return _with_rows(batch.pack(padded), batch.spare)[None]

    def after_layers(_: nn.Module, __: tuple[Any, ...], packed: Tensor) -> Tensor:
        return batch.unpack(packed[0, : len(batch.index)])

    config: Any = encoder.base.config
    attention_name = config._attn_implementation
    # no mask function has this name: transformers then makes no mask [tokens, tokens]
    ALL_ATTENTION_FUNCTIONS[ATTENTION] = partial(batch.attend, encoder.attention_function)
    config._attn_implementation = ATTENTION
    try:
        with (
            encoder.base.register_forward_pre_hook(before_base, with_kwargs=True),
            encoder.embeddings.register_forward_hook(after_embeddings),
            encoder.layers[-1].register_forward_hook(after_layers),
        ):
            yield
    finally:
        config._attn_implementation = attention_name
        del ALL_ATTENTION_FUNCTIONS[ATTENTION]  # it holds tensors of the batch
