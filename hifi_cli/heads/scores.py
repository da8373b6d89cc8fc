"""Outputs of attention heads, captured and masked, and their scores (HiFi, equations 1 to 7)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hifi_cli.models.encoder import Encoder
from hifi_cli.tasks.encode import collate, evaluation_order
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training import processes
from hifi_cli.training.device import tf32


def score_examples(
    encoder: Encoder,
    examples: list[EncodedExample],
    pad: dict[str, int],
    xi: float,
    batch_size: int = 32,
) -> tuple[Tensor, Tensor]:
    """Richness and correlation of every head for every example.

    Returns:
        int64 [examples, layers, heads] and float64 [examples, layers, heads, heads], in the examples' order.
    """
    order = evaluation_order(examples, batch_size)
    shown = processes.progress(order, f"scoring heads on {len(examples)} samples")
    batches = (collate([examples[index] for index in indices], pad) for indices in shown)
    with tf32(False):
        scored = list(score_batches(encoder, batches, xi))
    back = torch.tensor([index for indices in order for index in indices]).argsort()
    richness, correlation = (torch.cat(part)[back] for part in zip(*scored, strict=True))
    return richness, correlation


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


# --- the outputs of an encoder's heads


@contextmanager
def _before_output_projections(
    encoder: Encoder, act: Callable[[int, Tensor], Any]
) -> Iterator[None]:
    """In this context, `act(layer, input)` gets what goes into each layer's output projection.

    The input is [sequences, tokens, heads x head size]; what `act` returns takes its place, unless
    it is None.
    """
    hooks = [
        encoder.model.get_submodule(encoder.module_path(layer, "output")).register_forward_pre_hook(
            lambda _, inputs, at=layer: act(at, inputs[0])
        )
        for layer in range(encoder.num_layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def head_outputs(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]]
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """O_h of every head: what goes into each layer's output projection, cut per head.

    Args:
        batches: what the encoder's forward takes, with `attention_mask`; [examples, tokens] each.

    Yields:
        For every layer [examples, heads, tokens, head size], and which tokens are real, bool
        [examples, tokens].
    """
    captured: dict[int, Tensor] = {}
    encoder.model.eval()
    with _before_output_projections(encoder, captured.__setitem__):
        for cpu_batch in batches:
            batch = {name: values.to(encoder.device) for name, values in cpu_batch.items()}
            encoder.base(**batch)
            joined = (captured[layer] for layer in range(encoder.num_layers))
            outputs = [
                states.unflatten(-1, (encoder.num_heads, -1)).transpose(1, 2) for states in joined
            ]
            yield outputs, batch["attention_mask"].bool()


@torch.inference_mode()
def score_batches(
    encoder: Encoder, batches: Iterable[Mapping[str, Tensor]], xi: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Richness and correlation of every head for every example, all layers together.

    Args:
        batches: as for `head_outputs`.
        xi: fraction of the sum of the singular values that the richness counts up to (equation 2).

    Yields:
        int64 [examples, layers, heads] and float64 [examples, layers, heads, heads], on the CPU.
    """
    for outputs, token_mask in head_outputs(encoder, batches):
        yield (
            torch.stack(
                [information_richness(layer, token_mask, xi) for layer in outputs], 1
            ).cpu(),
            torch.stack([head_correlation(layer, token_mask) for layer in outputs], 1).cpu(),
        )


@contextmanager
def head_mask(encoder: Encoder, mask: Tensor) -> Iterator[None]:
    """In this context, every head's output is multiplied by its entry of a mask.

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
