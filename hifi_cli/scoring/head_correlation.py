"""Correlation between attention heads (HiFi, equations 4 to 7)."""

import torch
from torch import Tensor


def head_correlation(outputs: Tensor, token_mask: Tensor) -> Tensor:
    """r_hh' of every sample: |unbiased covariance| of the heads' token means over the head's entries (equations 5, 6).

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        token_mask: True for real tokens, False for padding, bool [samples, tokens].

    Returns:
        float64 [samples, heads, heads], symmetric, zero on the diagonal.
    """
    weight = token_mask.double() / token_mask.sum(-1, keepdim=True)
    mean = torch.einsum("bs,bhsd->bhd", weight, outputs.double())
    centered = mean - mean.mean(-1, keepdim=True)
    covariance = centered @ centered.mT / (mean.shape[-1] - 1)
    covariance.diagonal(dim1=-2, dim2=-1).zero_()
    return covariance.abs()
