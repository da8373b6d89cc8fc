"""Padding-free encoder layers: they compute on real tokens; at most attention sees padding.

Nearly all of a layer's arithmetic treats each token by itself (Linear, LayerNorm, dropout). The
tokens of a batch are therefore packed into one long sequence after the embeddings and put back
into the padded batch after the last layer. The results are those of a padded batch within rounding.

A forward pass (`ModelRunner.logits`) describes its batch by `PackedBatch.of`, and runs the model in the
context `packed_forward`, whose hooks pack and unpack, and let `packed_attention` compute.

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
# The attention weights of a group, in one head. With 12 heads they take two megabytes, which a
# core's cache holds.
GROUP_SIZE = 40_000


@contextmanager
def packed_forward(encoder: Encoder, batch: "PackedBatch") -> Iterator[None]:
    """In this context, the encoder's layers compute on the real tokens of a batch only.

    Afterwards nothing is left in the model, nor in transformers.

    Raises:
        UsageError: this family computes attention by itself.
    """

    def before_base(_: nn.Module, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        # `packed_attention` knows where the sequences are: no mask is made for the padded batch.
        settings = settings | {"attention_mask": None}
        # Other families add positions in the embeddings, which still see the padded batch.
        if encoder.module_names.rotary:
            settings["position_ids"] = batch.position_ids
        return args, settings

    def before_embeddings(_: nn.Module, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        # The embeddings still see the padded batch, and must not get the positions of the packed one.
        # NomicBERT of transformers 5.8 hands them on, and takes the types of its tokens by them.
        if encoder.module_names.rotary and "position_ids" in settings:
            width = batch.token_mask.shape[1]
            positions = torch.arange(width, device=batch.token_mask.device)
            settings = settings | {"position_ids": positions[None]}
        return args, settings

    def after_embeddings(_: nn.Module, __: tuple[Any, ...], padded: Tensor) -> Tensor:
        return _with_zero_rows(batch.pack(padded), batch.spare)[None]

    def after_layers(_: nn.Module, __: tuple[Any, ...], packed: Tensor) -> Tensor:
        return batch.unpack(packed[0, : len(batch.index)])

    attention = partial(packed_attention, batch, encoder.attention_function)
    with (
        encoder.attention_replaced(ATTENTION, attention),
        encoder.base.register_forward_pre_hook(before_base, with_kwargs=True),
        encoder.embeddings.register_forward_pre_hook(before_embeddings, with_kwargs=True),
        encoder.embeddings.register_forward_hook(after_embeddings),
        encoder.layers[-1].register_forward_hook(after_layers),
    ):
        yield


# --- where the real tokens of a batch are


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
        """Take the real tokens: [sequences, width, ...] to [tokens, ...]."""
        packed: Tensor = _Pack.apply(padded.flatten(0, 1), self.index)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """Undo `pack`: [tokens, ...] to [sequences, width, ...], zero where there is padding."""
        padded = _scatter(packed, self.index, self.token_mask.numel())
        return padded.view(*self.token_mask.shape, *packed.shape[1:])

    def attention_mask(self, dtype: torch.dtype, window: int | None) -> Tensor | None:
        """Return what is added to attention scores; it is made once for all layers.

        Args:
            dtype: of the mask.
            window: tokens attend to those less than this many positions away; None: to all.

        Returns:
            [sequences, 1, width or 1, width]; None if every token attends to every other.
        """
        # Without a mask, PyTorch may choose a faster attention kernel.
        if not self.has_padding and window is None:
            return None
        if (dtype, window) not in self._attention_masks:
            self._attention_masks[dtype, window] = self._new_attention_mask(dtype, window)
        return self._attention_masks[dtype, window]

    def _new_attention_mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """Make the mask that `attention_mask` returns, 0 where a token is seen."""
        # [sequences, 1, 1, width]: for all heads and all queries.
        visible = self.token_mask[:, None, None]
        if window is not None:
            positions = torch.arange(visible.shape[-1], device=visible.device)
            # [width, width]: of each query from each key.
            distances = (positions[:, None] - positions).abs()
            visible = visible & (distances < window)
        mask = torch.zeros_like(visible, dtype=dtype)
        # The lowest finite number hides a token, as in transformers. With -inf, a padding token that
        # has no token in its window would get NaN.
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)


@dataclass(frozen=True)
class PackedBatch(PaddingLayout):
    """Where the real tokens of a padded batch are, and on what attention computes.

    Attributes:
        offsets: where each sequence begins in the packed one, and where the last one ends, int32
            [sequences + 1]; None: attention computes on the groups.
        longest: tokens of the longest sequence.
        groups: the layouts of groups of sequences of similar length, whose tokens follow one
            another in the packed sequence; none: the batch is one group.
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
        device = device_mask.device
        if device.type == "cpu" and not varlen:
            return cls._in_groups(token_mask)
        index, offsets = real_token_index(token_mask)
        index = copy_to_device(index, device)
        if not varlen:
            return cls(index, device_mask.bool())
        longest = int(token_mask.sum(1).max())
        return cls(index, device_mask.bool(), copy_to_device(offsets, device), longest)

    @classmethod
    def _in_groups(cls, token_mask: Tensor) -> "PackedBatch":
        """Describe a padded batch on a CPU: its sequences are packed by length, in groups.

        Args:
            token_mask: which tokens are real, [sequences, width].
        """
        # The shortest sequence is packed first.
        lengths, order = token_mask.sum(1).sort(stable=True)
        # The place of each token in the flattened batch, the sequences by length: [sequences, width].
        places = torch.arange(token_mask.numel()).view_as(token_mask)[order]
        index = places[token_mask[order].bool()]
        groups = [_padded_group(group) for group in _groups_by_length(lengths.tolist())]
        return cls(index, token_mask.bool(), groups=groups)

    @property
    def spare(self) -> int:
        """Zero rows after the packed tokens: at most a sixteenth of them, and none in float32.

        In bf16, oneDNN compiles its products for milliseconds for each new shape. Rounding the
        number of rows up leaves few shapes.
        """
        if not torch.is_autocast_enabled("cpu"):
            return 0
        tokens = len(self.index)
        # A power of two between a 32nd and a 16th of the tokens: sixteen sizes per doubling.
        multiple = 1 << max(tokens.bit_length() - 5, 0)
        return -tokens % multiple

    @property
    def position_ids(self) -> Tensor:
        """Position of each packed token in its sequence, [1, tokens and spare rows]."""
        positions = self.index % self.token_mask.shape[1]
        return functional.pad(positions, (0, self.spare))[None]


def _groups_by_length(lengths: list[int]) -> Iterator[list[int]]:
    """Split ascending lengths into groups with little padding, and few attention weights."""
    group: list[int] = []
    for length in lengths:
        # Lengths ascend, so that the whole group would be padded to this one, and each of its
        # sequences would have length**2 attention weights in a head.
        attention_weights = (len(group) + 1) * length**2
        # A sequence that is too long by itself is a group of one.
        if group and attention_weights > GROUP_SIZE:
            yield group
            group = []
        group.append(length)
    yield group


def _padded_group(lengths: list[int]) -> PaddingLayout:
    """Return the layout of sequences of given lengths that are padded at their end."""
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    index, _ = real_token_index(token_mask)
    return PaddingLayout(index, token_mask)


def real_token_index(token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `index` and `offsets` of a PackedBatch.

    Two sequences of 2 and 1 real tokens, padded to a width of 3, have the index [0, 1, 3] and the
    offsets [0, 2, 3].

    Args:
        token_mask: which tokens are real, [sequences, width].

    Returns:
        int64 [tokens] and int32 [sequences + 1], on the device of the mask.
    """
    index = token_mask.flatten().nonzero()[:, 0]
    ends = token_mask.sum(1).cumsum(0)
    offsets = functional.pad(ends, (1, 0)).int()
    return index, offsets


# --- rows of tensors


class _Pack(Function):
    """Take the rows of a tensor that an index names.

    An index names each row once, so that the backward pass can copy the gradients. That of
    `index_select`, whose index may repeat, would add them to zeros one by one.
    """

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
    """Return a tensor of zeros with the given rows at an index.

    Args:
        packed: the rows, [tokens, ...].
        index: the place of each row, int64 [tokens].
        rows: of the result.
    """
    return packed.new_zeros(rows, *packed.shape[1:]).index_copy_(0, index, packed)


def _with_zero_rows(packed: Tensor, spare: int) -> Tensor:
    """Return a tensor with `spare` rows of zeros at its end."""
    if not spare:
        return packed
    zeros = packed.new_zeros(spare, *packed.shape[1:])
    return torch.cat((packed, zeros))


def copy_to_device(values: Any, device: torch.device) -> Tensor:
    """Copy an array or numbers to a device; the host does not wait for a GPU (pinned memory)."""
    tensor = torch.from_numpy(np.asarray(values))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


# --- attention over packed tokens


def packed_attention(
    batch: PackedBatch,
    attention: AttentionFunction,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute attention over packed tokens: by a kernel for any lengths, or on padded groups.

    It is an `AttentionFunction` once batch and attention are given. The mask is ignored: transformers
    gives none, because `packed_forward` takes it away.

    Args:
        batch: where the tokens are.
        attention: computes the attention of a padded batch.
        module: the layer's.
        query, key, value: [1, heads, tokens and spare rows, head size]; K and V may have fewer
            heads.
        settings: `scaling`, `dropout`, `sliding_window` and others of `attention`.

    Returns:
        [1, tokens and spare rows, heads, head size], and no weights.
    """
    dropout = settings.get("dropout", 0.0)
    window = settings.get("sliding_window")
    # Under autocast, some adapters and rotary positions give float32.
    dtype = query.dtype
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
    if batch.offsets is not None and _has_kernel(attention, dtype, dropout, window):
        scale = settings.get("scaling")
        output = attend_by_kernel(
            batch, query, key, value, dtype=dtype, dropout=dropout, scale=scale, window=window
        )
    else:
        output = attend_in_groups(batch, attention, module, query, key, value, **settings)
    return output, None


def _has_kernel(
    attention: AttentionFunction, dtype: torch.dtype, dropout: float, window: int | None
) -> bool:
    """Whether `varlen_attention` computes the same as a function on padded batches."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # Prefix-Tuning's own attention adds keys to each sequence.
    if attention is not sdpa_attention_forward:
        return False
    # The kernel for float32 has no two-sided windows; see `varlen_attention` for its dropout.
    return dtype != torch.float32 or (window is None and dropout == 0)


def attend_by_kernel(
    batch: PackedBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    dtype: torch.dtype,
    dropout: float,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Compute attention within each sequence of a batch that has `offsets`, by `varlen_attention`.

    Args:
        query, key, value: [1, heads, tokens, head size]; K and V may have fewer heads.
        dtype: that the kernel computes in.
        dropout: rate of the attention weights.
        scale: factor on the scores; None: 1 / sqrt(head size).
        window: tokens attend to those less than this many positions away; None: to all.

    Returns:
        [1, tokens, heads, head size].
    """
    from transformers.integrations.sdpa_attention import repeat_kv

    assert batch.offsets is not None
    # The kernels have as many heads in K and V as in Q.
    heads_per_key = query.shape[1] // key.shape[1]
    key = repeat_kv(key, heads_per_key)
    value = repeat_kv(value, heads_per_key)
    # The kernels take [tokens, heads, head size].
    q, k, v = (states.squeeze(0).transpose(0, 1).to(dtype) for states in (query, key, value))
    output = varlen_attention(
        q, k, v, batch.offsets, batch.longest, dropout=dropout, scale=scale, window=window
    )
    return output[None]


def attend_in_groups(
    batch: PackedBatch,
    attention: AttentionFunction,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **settings: Any,
) -> Tensor:
    """Compute attention on padded groups of a batch's sequences, one after the other.

    Args:
        batch: where the tokens are, and in which groups.
        attention: computes the attention of a padded batch.
        module: the layer's.
        query, key, value: [1, heads, tokens and spare rows, head size]; K and V may have fewer
            heads.
        settings: those of `attention`.

    Returns:
        [1, tokens and spare rows, heads, head size].
    """
    window = settings.get("sliding_window")
    # Without groups, the batch itself is the layout of all sequences.
    groups: Sequence[PaddingLayout] = batch.groups or [batch]
    queries = _split(query, batch)
    keys = _split(key, batch)
    values = _split(value, batch)
    outputs = []
    for group, q, k, v in zip(groups, queries, keys, values, strict=True):
        # From [tokens, heads, head size] to [sequences, heads, width, head size].
        padded = (group.unpack(states).transpose(1, 2) for states in (q, k, v))
        mask = group.attention_mask(query.dtype, window)
        output, _ = attention(module, *padded, mask, **settings)
        outputs.append(group.pack(output))
    joined = outputs[0]
    if len(outputs) > 1:
        joined = torch.cat(outputs)
    return _with_zero_rows(joined, batch.spare)[None]


def _split(states: Tensor, batch: PackedBatch) -> Sequence[Tensor]:
    """Split packed states among the groups of a batch.

    Args:
        states: of Q, K or V, [1, heads, tokens and spare rows, head size].
        batch: has the groups.

    Returns:
        [tokens, heads, head size] of each group; no group has the spare rows.
    """
    packed = states.squeeze(0).transpose(0, 1)
    if not batch.groups:
        return [packed]
    sizes = [len(group.index) for group in batch.groups]
    *parts, _spare_rows = packed.split([*sizes, batch.spare])
    return parts


def has_varlen_kernels(device: torch.device, head_size: int) -> bool:
    """Whether `varlen_attention` can compute: on NVIDIA's GPUs from Ampere on, for usual heads."""
    # AMD's GPUs have the type "cuda" too.
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    is_recent = torch.cuda.get_device_capability(device) >= (8, 0)
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
    """Compute attention within each sequence of a packed batch, by PyTorch's CUDA kernels.

    FlashAttention computes bfloat16, and the memory-efficient kernel float32. The latter must not
    get dropout: forward and backward would drop different weights (pytorch#115590).

    Args:
        query, key, value: [tokens, heads, head size], with as many heads in K and V as in Q.
        offsets: int32 [sequences + 1]; sequence i has the tokens offsets[i] to offsets[i + 1] - 1.
        longest: tokens of the longest sequence, or more, up to all tokens.
        dropout: rate of the attention weights.
        scale: factor on the scores; None: 1 / sqrt(head size).
        window: tokens attend to those less than this many positions away; None: to all.

    Returns:
        [tokens, heads, head size].

    Raises:
        ValueError: dropout or a window in float32.
    """
    if query.dtype == torch.float32:
        if dropout or window is not None:
            raise ValueError("attention in float32 has no dropout and no window")
        return _efficient_attention(query, key, value, offsets, longest, scale)
    # The kernel counts the tokens that are seen on each side, without the token itself, which `window`
    # counts too.
    reach = None if window is None else window - 1
    output, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        # Queries and keys are of the same tokens.
        offsets,
        offsets,
        longest,
        longest,
        dropout,
        # Not causal, and no mask for debugging.
        False,
        False,
        scale=scale,
        window_size_left=reach,
        window_size_right=reach,
    )
    return output


def _efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    longest: int,
    scale: float | None,
) -> Tensor:
    """Call PyTorch's memory-efficient kernel, without bias, dropout and causal mask.

    The arguments are those of `varlen_attention`.
    """
    # To the kernel, the packed tokens are a batch of one sequence, with offsets in it.
    output, *_ = torch.ops.aten._efficient_attention_forward(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        bias=None,
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        dropout_p=0.0,
        # Not causal.
        custom_mask_type=0,
        # The backward pass reads them.
        compute_log_sumexp=torch.is_grad_enabled(),
        scale=scale,
    )
    return output.squeeze(0)
