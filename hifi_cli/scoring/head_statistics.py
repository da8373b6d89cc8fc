"""Statistics of attention probabilities and head outputs by which heads can be ranked; no labels are needed."""

import torch
from torch import Tensor


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
