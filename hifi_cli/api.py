"""HiFi without the command line: score, choose and tune attention heads of any Hugging Face encoder.

scores = score_heads(model, batches)
heads = select_heads(scores, k=3)
tune_heads(model, heads)     # train it with any loop or Trainer, then
merge_heads(model)           # a plain Hugging Face model again
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hifi_cli.config.base import parse
from hifi_cli.config.run_config import HeadsConfig, ScoringConfig
from hifi_cli.errors import UsageError
from hifi_cli.heads.ranking import ChosenHeads, rank_heads, select_top_heads
from hifi_cli.heads.scores import score_batches
from hifi_cli.methods.base import MethodContext
from hifi_cli.methods.common import rows_of_heads
from hifi_cli.methods.hifi import HiFi
from hifi_cli.models.encoder import Encoder

_INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")


@dataclass(frozen=True)
class ScoredHeads:
    """The result of `score_heads`.

    Attributes:
        richness: I_h, mean over the samples, float64 [layers, heads].
        correlation: r_hh', mean over the samples, float64 [layers, heads, heads]; symmetric, zero on the diagonal.
        samples: how many samples the means are over.
    """

    richness: NDArray[np.float64]
    correlation: NDArray[np.float64]
    samples: int


def score_heads(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], *, xi: float = 0.9
) -> ScoredHeads:
    """Score every attention head by its information richness and its correlation with others (HiFi, equations 1 to 7).

    This runs without gradients and without dropout, on the model's device, and leaves the model as it was. The paper takes
    300 training samples of at most 128 tokens.

    Args:
        model: a Hugging Face encoder, bare or with a task's head.
        batches: tokenized batches, a DataLoader for example: `input_ids` and, where there is padding, `attention_mask`,
            tensors [samples, tokens]; `token_type_ids` are used, labels and other keys are not.
        xi: fraction of the sum of the singular values that the richness counts up to.

    Raises:
        UsageError: an unknown kind of encoder, a batch that is none, or no batch at all.
    """
    parse(ScoringConfig, {"xi": xi}, "score_heads")
    encoder = Encoder(model)
    was_training = {module for module in model.modules() if module.training}
    try:
        inputs = (_encoder_inputs(batch) for batch in batches)
        scored = list(score_batches(encoder, inputs, xi))
    finally:
        # model.train() would do too much: a part of it may be in evaluation mode on purpose.
        for module in was_training:
            module.training = True
    if not scored:
        raise UsageError("score_heads: no batches; an iterator that was used before is empty")
    # The shapes are [samples, layers, heads] and [samples, layers, heads, heads].
    richness = torch.cat([of_batch for of_batch, _ in scored])
    correlation = torch.cat([of_batch for _, of_batch in scored])
    return ScoredHeads(
        richness=richness.double().mean(0).numpy(),
        correlation=correlation.mean(0).numpy(),
        samples=len(richness),
    )


def select_heads(
    scores: ScoredHeads,
    *,
    k: int = 3,
    rank: str = "pagerank",
    strategy: str = "layerwise",
    damping: float = 0.85,
    epsilon: float = 1e-6,
    seed: int = 0,
) -> ChosenHeads:
    """Choose the heads to tune (HiFi, equations 8 to 10 and Algorithm 2).

    Args:
        scores: what `score_heads` found.
        k: heads per layer; on average for `global`.
        rank: `pagerank`, `pagerank-personalized`, `richness`, `correlation`, `random`, ...: see `hifi_cli.heads.ranking`.
        strategy: `layerwise` (every layer), `midtop` (the upper half) or `global` (k heads per layer on average).
        damping: PageRank's damping factor d, from 0 to less than 1.
        epsilon: PageRank stops when an iteration changes the values by less.
        seed: draws the heads of `random`.

    Returns:
        The choice (`.heads`, a list of head numbers per layer) and what drove it.

    Raises:
        UsageError: an unknown name, k above the heads of a layer, or nothing to choose by.
    """
    # The configuration of a run has the same keys: it checks names and ranges.
    values = {
        "k": k,
        "rank": rank,
        "strategy": strategy,
        "damping": damping,
        "epsilon": epsilon,
        "seed": seed,
    }
    parse(HeadsConfig, values, "select_heads")
    ranked = rank_heads(
        scores.richness, scores.correlation, rank=rank, damping=damping, epsilon=epsilon, seed=seed
    )
    return select_top_heads(ranked, k, strategy)


def tune_heads(
    model: nn.Module, heads: ChosenHeads | list[list[int]], *, biases: bool = True
) -> nn.Module:
    """Freeze everything but the chosen heads' rows of W_Q, W_K and W_V, and the task head (HiFi, Algorithm 3).

    The rows become parameters of their own, so gradients, optimizer moments and weight decay exist for them alone: make
    the optimizer afterwards, over the parameters that require gradients. Saving goes through `merge_heads`.

    Args:
        model: a Hugging Face encoder, bare or with a task's head.
        heads: what `select_heads` returned, or a list of head numbers per layer; an empty list freezes its layer.
        biases: whether the rows' biases train too.

    Returns:
        The same model, changed in place.

    Raises:
        UsageError: the heads are not of this encoder, or heads are tuned in it already.
    """
    encoder = Encoder(model)
    if any(name.endswith(".rows") for name, _ in model.named_parameters()):
        raise UsageError(
            "tune_heads: heads of this model are tuned already; merge_heads(model) comes first"
        )
    chosen = heads.heads if isinstance(heads, ChosenHeads) else heads
    # Heads that are refused change nothing: the refusal must come before the first change.
    rows_of_heads(encoder, chosen)
    encoder.unfuse_qkv()
    HiFi(HiFi.Settings(biases=biases), MethodContext(heads=chosen)).prepare(encoder)
    return model


def merge_heads(model: nn.Module) -> nn.Module:
    """Undo `tune_heads`: give a plain Hugging Face model, all of it trainable, that computes the same.

    Returns:
        The same model, changed in place; `save_pretrained` and everything else work on it as before.
    """
    encoder = Encoder(model)
    HiFi(HiFi.Settings(), MethodContext()).unfreeze_all(encoder)
    encoder.fuse_qkv()
    return model


def _encoder_inputs(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the part of a batch that the bare encoder takes.

    Raises:
        UsageError: not tensors [samples, tokens].
    """
    inputs = {name: batch[name] for name in _INPUT_NAMES if name in batch}
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise UsageError(
            "score_heads: a batch needs input_ids, a tensor [samples, tokens] (return_tensors='pt')"
        )
    return {"attention_mask": torch.ones_like(ids), **inputs}
