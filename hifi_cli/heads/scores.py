"""Scores of attention heads: information richness and correlation (HiFi, equations 1 to 7), and other statistics of them.

None of them needs labels.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

# Also for head outputs on a GPU, whose solver handles only a few of the many small (64 x 64) float64 matrices at a time.
# That is an assumption, which `make gpu-check` measures.
EIGENVALUE_DEVICE = torch.device("cpu")


def information_richness(outputs: Tensor, token_mask: Tensor, xi: float = 0.9) -> Tensor:
    """I_h of every sample and head: how many of the largest singular values reach the fraction `xi` of the sum (equation 2).

    The singular values come from the eigenvalues of the small Gram matrix in float64; float32 would change about one
    result in a hundred. Rows of padding are set to zero, which does not change the other singular values.

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        token_mask: True for real tokens, False for padding, bool [samples, tokens].
        xi: fraction in (0, 1].

    Returns:
        int64 [samples, heads], each from 1 to min(tokens, head size); on `EIGENVALUE_DEVICE`.
    """
    sigma = singular_values(outputs, token_mask)
    cumulative = sigma.cumsum(-1)
    return 1 + (cumulative < xi * cumulative[..., -1:]).sum(-1)


def singular_values(outputs: Tensor, token_mask: Tensor) -> Tensor:
    """Singular values of every head output over its real tokens, descending, float64.

    Args:
        outputs: [samples, heads, tokens, head size].
        token_mask: bool [samples, tokens].

    Returns:
        [samples, heads, min(tokens, head size)], on `EIGENVALUE_DEVICE`; samples shorter than the batch end in zeros.
    """
    x = outputs.double() * token_mask[:, None, :, None]
    gram = x.mT @ x if x.shape[-1] <= x.shape[-2] else x @ x.mT
    return _eigenvalues(gram).clamp_min(0).sqrt().flip(-1)


def _eigenvalues(matrices: Tensor) -> Tensor:
    """Return the eigenvalues, ascending. All threads share the matrices: LAPACK computes one after the other."""
    threads = torch.get_num_threads()
    parts = matrices.to(EIGENVALUE_DEVICE).flatten(0, -3).chunk(threads)
    with ThreadPoolExecutor(threads) as pool:
        return torch.cat(list(pool.map(torch.linalg.eigvalsh, parts))).view(matrices.shape[:-1])


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


def confidence(probabilities: Tensor, token_mask: Tensor, separator_mask: Tensor) -> Tensor:
    """Mean over the tokens of a head's largest attention probability (Voita et al. 2019, section 4).

    Attention to the end-of-sentence symbol does not count there; here it is the separator of an encoder's inputs, to which
    many heads attend where they have nothing else to do.

    Args:
        probabilities: attention of each token to each token, [samples, heads, tokens, tokens].
        token_mask: True for real tokens, False for padding, bool [samples, tokens].
        separator_mask: True for separators, bool [samples, tokens].

    Returns:
        float64 [samples, heads], each from 0 to 1.
    """
    counted = (token_mask & ~separator_mask)[:, None, None, :]
    return _token_mean((probabilities.double() * counted).amax(-1), token_mask)


def attention_entropy(probabilities: Tensor, token_mask: Tensor) -> Tensor:
    """Mean over the tokens of the entropy of a head's attention, in nats: high for heads that attend to many tokens.

    Args:
        probabilities: as for `confidence`; zero for padding.
        token_mask: as for `confidence`.

    Returns:
        float64 [samples, heads], each from 0 to the logarithm of the number of tokens.
    """
    p = probabilities.double()
    return _token_mean(-torch.xlogy(p, p).sum(-1), token_mask)


def output_norm(outputs: Tensor, token_mask: Tensor) -> Tensor:
    """Mean over the tokens of the Euclidean norm of a head's output.

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        token_mask: as for `confidence`.

    Returns:
        float64 [samples, heads].
    """
    return _token_mean(outputs.double().norm(dim=-1), token_mask)


def _token_mean(values: Tensor, token_mask: Tensor) -> Tensor:
    """Mean of [samples, heads, tokens] over the real tokens."""
    weights = token_mask.double() / token_mask.sum(-1, keepdim=True)
    return torch.einsum("bs,bhs->bh", weights, values)
