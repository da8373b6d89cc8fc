"""Records the tensor operations of a computation and repeats them, as a CUDA graph does on a GPU.

A recording knows tensors, operations and the numbers that Python computed meanwhile. It does not
know the Python code: a repetition repeats every choice, every shape and every number of the
recording. Only values that lie in the recorded tensors can be new.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# The host waits for the result of these operations: for a number, or for the shape of a tensor.
# So it does where `selects_by_mask`.
WAITS_FOR_RESULT = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "histc",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
_TAKES_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_")
# `torch.tensor` calls it with a tensor of the host's own numbers.
_FROM_NUMBERS = "lift_fresh"


def selects_by_mask(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an operation takes as many entries of a tensor as are true in a mask."""
    if name not in _TAKES_INDICES:
        return False
    indices = [index for index in arguments[1] if index is not None]
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


class _Call(NamedTuple):
    """One recorded operation: what was called with what, and the tensors that it returned."""

    operation: Any
    arguments: tuple[Any, ...]
    settings: dict[str, Any]
    results: list[Any]


class RecordedOperations(TorchDispatchMode):
    """Records every operation that is computed in its context.

    The operations are computed meanwhile, too. A CUDA graph does not do that: who records in the
    place of one computes without need, and `replay` computes again.

    Attributes:
        calls: the operations, in order.
        host_reads: names of the operations whose result the host waited for. A CUDA graph cannot
            record them. Reading a tensor of the host's own numbers is none of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.host_reads: list[str] = []
        self._memory_of_the_host: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settings = kwargs or {}
        results = func(*args, **settings)
        if func.overloadpacket.__name__ == _FROM_NUMBERS:
            self._memory_of_the_host.add(results.data_ptr())
        if self._waits_for_the_device(func, args):
            self.host_reads.append(func.overloadpacket.__name__)
        # Detached tensors share the memory, and keep no part of autograd's graph alive.
        self.calls.append(
            _Call(func, _detached(args), _detached(settings), tree_leaves(_detached(results)))
        )
        return results

    @torch.no_grad()
    def replay(self) -> None:
        """Compute every operation again: from what its tensors hold now, into the same memory."""
        for call in self.calls:
            results = tree_leaves(call.operation(*call.arguments, **call.settings))
            for recorded, result in zip(call.results, results, strict=True):
                if not isinstance(result, Tensor):
                    continue
                # A view, or a tensor that the operation changed, has the new values already.
                if result.data_ptr() != recorded.data_ptr():
                    recorded.copy_(result)

    def _waits_for_the_device(self, operation: Any, arguments: tuple[Any, ...]) -> bool:
        name = operation.overloadpacket.__name__
        if selects_by_mask(name, arguments):
            return True
        if name == "_local_scalar_dense":
            return arguments[0].data_ptr() not in self._memory_of_the_host
        return name in WAITS_FOR_RESULT


def _detached(values: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, values)


def attention_within_sequences(
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
    """What `varlen_attention` computes, on any device; the host reads nothing of `offsets`."""
    places = torch.arange(len(query), device=query.device)
    sequences = torch.searchsorted(offsets[1:].contiguous(), places, right=True)
    is_visible = sequences[:, None] == sequences
    if window is not None:
        distances = (places[:, None] - places).abs()
        is_visible = is_visible & (distances < window)
    # [tokens, heads, head size] to [heads, tokens, head size]
    query, key, value = (states.transpose(0, 1) for states in (query, key, value))
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = (query @ key.mT) * scale
    weights = scores.masked_fill(~is_visible, -torch.inf).softmax(-1)
    output = functional.dropout(weights, dropout) @ value
    return output.transpose(0, 1)
