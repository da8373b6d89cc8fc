"""Information richness of attention heads (HiFi, equations 1 to 3)."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_WORTH_SHARING = 16  # rows of a matrix below which starting threads takes longer than they save


def information_richness(outputs: Tensor, real: Tensor, xi: float = 0.9) -> Tensor:
    """I_h of every sample and head: how many singular values carry the share `xi` of their sum (equation 2).

    The singular values come from the eigenvalues of the small Gram matrix in float64. In float32 that would change
    about one index in a hundred; rows of padding are set to zero, which leaves the other singular values as they are.

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        real: which tokens are real, bool [samples, tokens].
        xi: share in (0, 1].

    Returns:
        int64 [samples, heads], each from 1 to min(tokens, head size).
    """
    sigma = singular_values(outputs, real)
    cumulative = sigma.cumsum(-1)
    return 1 + (cumulative < xi * cumulative[..., -1:]).sum(-1)


def singular_values(outputs: Tensor, real: Tensor) -> Tensor:
    """Singular values of every head output over its real tokens, descending, float64.

    Args:
        outputs: [samples, heads, tokens, head size].
        real: bool [samples, tokens].

    Returns:
        [samples, heads, min(tokens, head size)]; samples shorter than the batch end in zeros.
    """
    x = outputs.double() * real[:, None, :, None]
    gram = x.mT @ x if x.shape[-1] <= x.shape[-2] else x @ x.mT
    return _eigenvalues(gram).clamp_min(0).sqrt().flip(-1)


def _eigenvalues(matrices: Tensor) -> Tensor:
    """Ascending; on a processor, where LAPACK takes one matrix after the other, shared out to all threads."""
    threads = torch.get_num_threads()
    if threads == 1 or matrices.device.type != "cpu" or matrices.shape[-1] < _WORTH_SHARING:
        found: Tensor = torch.linalg.eigvalsh(matrices)
        return found
    flat = matrices.flatten(0, -3)
    with ThreadPoolExecutor(threads) as pool:
        return torch.cat(list(pool.map(torch.linalg.eigvalsh, flat.chunk(threads)))).view(matrices.shape[:-1])
