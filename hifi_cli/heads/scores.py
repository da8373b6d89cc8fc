"""Outputs of attention heads, captured and masked, and their scores for each example (HiFi).

head_outputs: O_h(x)                          section 3.1; Algorithm 1, line 3
information_richness: I_h(W_h|x)              equation 2; Algorithm 1, line 4
head_correlation: r(O_h, O_h'|x)              equations 5 and 6; Algorithm 1, line 5

The file goes from the whole to its parts: `score_examples` cuts batches, `score_batches` scores each
by the two equations, and `head_outputs` captures what they are computed from. The means over the
examples (equations 1, 3, 4 and 7; Algorithm 1, line 7) are taken where scores are stored:
`HeadSelector.compute_scores` in `runs/heads.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hifi_cli.models.encoder import Encoder
from hifi_cli.tasks.encode import collate
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training import processes
from hifi_cli.training.batches import batches_by_length, in_order
from hifi_cli.training.device import tf32


def score_examples(
    encoder: Encoder,
    examples: list[EncodedExample],
    pad: dict[str, int],
    xi: float,
    batch_size: int = 32,
) -> tuple[Tensor, Tensor]:
    """Score every head for every example: its richness and its correlation with others.

    Args:
        encoder: whose heads are scored.
        examples: single sequences.
        pad: the padding value of each of the tokenizer's lists.
        xi: fraction of the sum of the singular values that the counted ones must reach (equation
            2).
        batch_size: examples that are scored at a time.

    Returns:
        The richness, int64 [examples, layers, heads], and the correlation, float64 [examples,
        layers, heads, heads], in the examples' order.
    """
    batches = batches_by_length(examples, batch_size)
    richness: list[Tensor] = []
    correlation: list[Tensor] = []
    shown = processes.progress(batches, f"scoring heads on {len(examples)} samples")
    inputs = (collate(batch.examples, pad) for batch in shown)
    with tf32(False):
        for batch_richness, batch_correlation in score_batches(encoder, inputs, xi):
            richness.append(batch_richness)
            correlation.append(batch_correlation)
    return torch.stack(in_order(batches, richness)), torch.stack(in_order(batches, correlation))


@torch.inference_mode()
def score_batches(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]], xi: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Score every head for every example, all layers together.

    Args:
        batches: as for `head_outputs`.
        xi: fraction of the sum of the singular values that the counted ones must reach (equation
            2).

    Yields:
        The richness, int64 [examples, layers, heads], and the correlation, float64 [examples,
        layers, heads, heads], on the CPU.
    """
    for outputs, token_mask in head_outputs(encoder, batches):
        richness = [information_richness(layer, token_mask, xi) for layer in outputs]
        correlation = [head_correlation(layer, token_mask) for layer in outputs]
        yield torch.stack(richness, 1).cpu(), torch.stack(correlation, 1).cpu()


# --- the scores of heads, from their outputs

# Eigenvalues are computed on the CPU, also for head outputs on a GPU. There are many small (64 x
# 64) float64 matrices, of which a GPU's solver handles only a few at a time. `make gpu-check`
# measures this assumption.
EIGENVALUE_DEVICE = torch.device("cpu")


def information_richness(outputs: Tensor, token_mask: Tensor, xi: float = 0.9) -> Tensor:
    """Count how many of the largest singular values reach the fraction `xi` of their sum.

    That is I_h(W_h|x) of each sample x (equation 2). The singular values come from the eigenvalues
    of the small Gram matrix in float64; float32 would change about one result in a hundred. Rows of
    padding are set to zero, which does not change the other singular values.

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        token_mask: True for real tokens, False for padding, bool [samples, tokens].
        xi: fraction in (0, 1].

    Returns:
        int64 [samples, heads], each from 1 to min(tokens, head size); on `EIGENVALUE_DEVICE`.
    """
    sigma = singular_values(outputs, token_mask)
    cumulative = sigma.cumsum(-1)
    # The last partial sum is the sum of all.
    bound = xi * cumulative[..., -1:]
    # The partial sums below the bound are one fewer than the values it takes to reach it.
    return 1 + (cumulative < bound).sum(-1)


def singular_values(outputs: Tensor, token_mask: Tensor) -> Tensor:
    """Compute the singular values of every head output over its real tokens, descending, float64.

    They are sigma_1 to sigma_T of section 3.2, T = min(S, D'), S the tokens and D' the head size.

    Args:
        outputs: [samples, heads, tokens, head size].
        token_mask: bool [samples, tokens].

    Returns:
        [samples, heads, min(tokens, head size)], on `EIGENVALUE_DEVICE`; samples shorter than the
        batch end in zeros.
    """
    x = outputs.double() * token_mask[:, None, :, None]
    tokens, size = x.shape[-2:]
    # Both Gram matrices have these singular values squared; the smaller one is cheaper.
    gram = x.mT @ x if size <= tokens else x @ x.mT
    # Rounding may make an eigenvalue of 0 slightly negative; the solver's order is ascending.
    return _eigenvalues(gram).clamp_min(0).sqrt().flip(-1)


def _eigenvalues(matrices: Tensor) -> Tensor:
    """Compute the eigenvalues, ascending.

    All threads share the matrices: LAPACK computes one after the other.
    """
    threads = torch.get_num_threads()
    parts = matrices.to(EIGENVALUE_DEVICE).flatten(0, -3).chunk(threads)
    with ThreadPoolExecutor(threads) as pool:
        values = list(pool.map(torch.linalg.eigvalsh, parts))
    return torch.cat(values).view(matrices.shape[:-1])


def head_correlation(outputs: Tensor, token_mask: Tensor) -> Tensor:
    """Compute r(O_h, O_h'|x) of every sample: |unbiased covariance| of the heads' token means.

    The token mean O'_h has one entry for each of the D' numbers of a head's output, and the
    covariance of two heads is over these entries (equations 5 and 6).

    Args:
        outputs: head outputs O_h, [samples, heads, tokens, head size].
        token_mask: True for real tokens, False for padding, bool [samples, tokens].

    Returns:
        float64 [samples, heads, heads], symmetric, zero on the diagonal.
    """
    weight = token_mask.double() / token_mask.sum(-1, keepdim=True)
    # O'_h of every sample and head: the mean of O_h over the sample's real tokens.
    mean = torch.einsum("bs,bhsd->bhd", weight, outputs.double())
    # The head size is the number of observations of the covariance, and one degree of freedom goes
    # to the mean.
    centered = mean - mean.mean(-1, keepdim=True)
    covariance = centered @ centered.mT / (mean.shape[-1] - 1)
    # A head's own variance is no correlation with another head.
    covariance.diagonal(dim1=-2, dim2=-1).zero_()
    return covariance.abs()


# --- the outputs of an encoder's heads


@torch.inference_mode()
def head_outputs(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]]
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Compute O_h of every head: what goes into each layer's output projection, cut per head.

    Args:
        batches: what the encoder's forward takes, with `attention_mask`; [examples, tokens] each.

    Yields:
        For every layer [examples, heads, tokens, head size], and which tokens are real, bool
        [examples, tokens].
    """
    joined_by_layer: dict[int, Tensor] = {}

    def keep(layer: int, joined: Tensor) -> None:
        joined_by_layer[layer] = joined

    encoder.model.eval()
    with _before_output_projections(encoder, keep):
        for cpu_batch in batches:
            batch = {name: values.to(encoder.device) for name, values in cpu_batch.items()}
            # The pass is run for what `keep` gets; its result is not used.
            encoder.base(**batch)
            outputs = []
            for layer in range(encoder.num_layers):
                by_head = joined_by_layer[layer].unflatten(-1, (encoder.num_heads, -1))
                outputs.append(by_head.transpose(1, 2))
            yield outputs, batch["attention_mask"].bool()


@contextmanager
def head_mask(encoder: Encoder, mask: Tensor) -> Iterator[None]:
    """In this context, multiply every head's output by its entry of a mask.

    Args:
        mask: [1, layers, heads], or [examples, layers, heads], whose gradient then is that of each
            example; an example may consist of several consecutive sequences (multiple choice). 1
            keeps a head, 0 removes it.
    """

    def multiply(layer: int, joined: Tensor) -> Tensor:
        outputs = joined.unflatten(-1, (encoder.num_heads, -1))
        factors = mask[:, layer].repeat_interleave(len(outputs) // len(mask), 0)
        masked: Tensor = outputs * factors[:, None, :, None]
        return masked.flatten(-2)

    with _before_output_projections(encoder, multiply):
        yield


@contextmanager
def _before_output_projections(
    encoder: Encoder, act: Callable[[int, Tensor], Tensor | None]
) -> Iterator[None]:
    """In this context, call `act(layer, joined)` with what goes into each layer's output projection.

    That is `joined`, the outputs of all heads side by side, [sequences, tokens, heads x head size].
    What `act` returns takes its place, unless it is None.
    """
    hooks = []
    for layer in range(encoder.num_layers):
        projection = encoder.model.get_submodule(encoder.module_path(layer, "output"))
        hooks.append(projection.register_forward_pre_hook(_hook_of_layer(layer, act)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook_of_layer(
    layer: int, act: Callable[[int, Tensor], Tensor | None]
) -> Callable[[nn.Module, tuple[Tensor]], Tensor | None]:
    """Make what PyTorch calls with a module and its inputs: a call of `act` with layer and input."""

    def hook(_: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        return act(layer, inputs[0])

    return hook
