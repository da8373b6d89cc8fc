"""The outputs of an encoder's attention heads: captured, scored, masked; and their attention."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hifi_cli.heads.scores import head_correlation, information_richness
from hifi_cli.models.encoder import Encoder


@contextmanager
def _before_output_projections(encoder: Encoder, act: Callable[[int, Tensor], Any]) -> Iterator[None]:
    """In this context, `act(layer, input)` gets what goes into each layer's output projection.

    The input is [sequences, tokens, heads x head size]; what `act` returns takes its place, unless
    it is None.
    """
    hooks = [
        encoder.output_projection(layer).register_forward_pre_hook(lambda _, inputs, at=layer: act(at, inputs[0]))
        for layer in range(encoder.num_layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def head_outputs(encoder: Encoder, batches: Iterable[Mapping[str, Tensor]]) -> Iterator[tuple[list[Tensor], Tensor]]:
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
            outputs = [states.unflatten(-1, (encoder.num_heads, -1)).transpose(1, 2) for states in joined]
            yield outputs, batch["attention_mask"].bool()


@torch.inference_mode()
def score_batches(encoder: Encoder, batches: Iterable[Mapping[str, Tensor]], xi: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Richness and correlation of every head for every example, all layers together.

    Args:
        batches: as for `head_outputs`.
        xi: fraction of the sum of the singular values that the richness counts up to (equation 2).

    Yields:
        int64 [examples, layers, heads] and float64 [examples, layers, heads, heads], on the CPU.
    """
    for outputs, token_mask in head_outputs(encoder, batches):
        yield (
            torch.stack([information_richness(layer, token_mask, xi) for layer in outputs], 1).cpu(),
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


@torch.inference_mode()
def attention_probabilities(encoder: Encoder, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """Attention probabilities of every head, of the eager implementation: others return none.

    Args:
        batch: as for `head_outputs`.

    Returns:
        For every layer [examples, heads, tokens, tokens].
    """
    base: Any = encoder.base
    previous = base.config._attn_implementation
    encoder.model.eval()
    base.set_attn_implementation("eager")
    try:
        inputs = {name: values.to(encoder.device) for name, values in batch.items()}
        return list(base(**inputs, output_attentions=True).attentions)
    finally:
        base.set_attn_implementation(previous)
