"""Which heads are tuned: the preferred k of every layer, or of the model (HiFi, section 3.4 and Algorithm 2)."""

from dataclasses import dataclass

import numpy as np

from hifi_cli.errors import UsageError
from hifi_cli.scoring.ranking import RANKINGS, Array, Ranked, is_flat


@dataclass(frozen=True)
class Selection:
    """Chosen heads and what drove the choice; every list has one entry per layer of the encoder.

    Attributes:
        heads: chosen heads, ascending; empty for a frozen layer.
        values: the ranking's value of every head.
        iterations: PageRank steps (0 where the ranking needs none).
        ties: layers in which equal values were parted by head number.
        overlap: how many of the chosen heads the richness alone and the correlation alone would choose too.
    """

    heads: list[list[int]]
    values: list[list[float]]
    iterations: list[int]
    ties: list[int]
    overlap: dict[str, list[int]]


def choose_heads(
    richness: Array,
    correlation: Array,
    *,
    rank: str = "pagerank",
    strategy: str = "layerwise",
    k: int = 3,
    damping: float = 0.85,
    epsilon: float = 1e-6,
    seed: int = 0,
    measured: Array | None = None,
) -> Selection:
    """Choose k heads in every layer (`layerwise`), in layers L/2 to L-1 (`midtop`), or k L over the whole model (`global`).

    For `global`, which the paper leaves to future work, each layer's values are divided by their sum: a head is preferred
    for its fraction of its own layer's total, so that layers with larger values are not favored. A
    layer in which one head stands out gives fewer heads than one in which several do; it may give none.

    Args:
        richness: I_h, [layers, heads].
        correlation: R, [layers, heads, heads].
        rank: see `rank_heads`.
        strategy: `layerwise`, `midtop` or `global`.
        k: heads per layer, on average for `global`.
        damping: PageRank's d.
        epsilon: PageRank's bound.
        seed: draws the heads of `random`; the other rankings do not use it.
        measured: see `rank_heads`.

    Raises:
        UsageError: k exceeds the heads of a layer, the ranking gives every head of a layer the same value, or is not known
            without `measured`.
    """
    heads = richness.shape[1]
    if k > heads:
        raise UsageError(f"k={k}: the encoder has only {heads} heads in a layer")
    ranked = rank_heads(richness, correlation, rank=rank, damping=damping, epsilon=epsilon, seed=seed, measured=measured)
    if rank == "pagerank-literal" and all(is_flat(layer, damping, epsilon) for layer in ranked):
        spread = max(float(np.ptp(layer.values)) for layer in ranked)
        raise UsageError(
            f"equation 10 read literally gives every head 1/{heads} (largest difference {spread:.1e}): there is nothing to"
            " choose by; use --rank pagerank (its transposed reading) or pagerank-personalized"
        )
    layerwise = list(zip(richness, correlation, strict=True))
    alone = {
        name: _choice([RANKINGS[name](i, r, damping, epsilon) for i, r in layerwise], strategy, k)
        for name in ("richness", "correlation")
    }
    chosen, ties = _choice(ranked, strategy, k)
    return Selection(
        heads=chosen,
        values=[[float(value) for value in layer.values] for layer in ranked],
        iterations=[layer.iterations for layer in ranked],
        ties=ties,
        overlap={
            name: [len(set(layer_heads) & set(other_heads)) for layer_heads, other_heads in zip(chosen, other, strict=True)]
            for name, (other, _) in alone.items()
        },
    )


def rank_heads(
    richness: Array,
    correlation: Array,
    *,
    rank: str,
    damping: float = 0.85,
    epsilon: float = 1e-6,
    seed: int = 0,
    measured: Array | None = None,
) -> list[Ranked]:
    """Rank the heads of every layer.

    Args:
        richness: I_h, [layers, heads].
        correlation: R, [layers, heads, heads].
        rank: a key of `hifi_cli.scoring.ranking.RANKINGS`, `random`, or the name of what was measured.
        damping, epsilon, seed: as for `choose_heads`.
        measured: values of a ranking that is measured on the model, [layers, heads]; the highest are preferred.

    Raises:
        UsageError: the ranking requires `measured`.
    """
    if rank == "random":
        return [Ranked(draws) for draws in np.random.default_rng(seed).random(richness.shape)]
    if rank in RANKINGS:
        return [RANKINGS[rank](i, r, damping, epsilon) for i, r in zip(richness, correlation, strict=True)]
    if measured is None:
        raise UsageError(
            f"ranking {rank} is measured on the model, not computed from scores: hifi select --rank {rank} --task TASK"
        )
    return [Ranked(values) for values in measured]


def _choice(ranked: list[Ranked], strategy: str, k: int) -> tuple[list[list[int]], list[int]]:
    """The chosen heads of every layer, and the layers in which equal values were parted by head number."""
    layers = len(ranked)
    if strategy == "global":
        heads = len(ranked[0].values)
        fractions = np.concatenate([layer.values / np.abs(layer.values).sum() for layer in ranked])
        model_wide = Ranked(fractions, lowest_first=ranked[0].lowest_first)
        top = model_wide.top(k * layers)
        at_the_cut = {model_wide.order[k * layers - 1] // heads} if model_wide.tied_at(k * layers) else set()
        return [[index % heads for index in top if index // heads == layer] for layer in range(layers)], sorted(at_the_cut)
    in_play = range(layers // 2 if strategy == "midtop" else 0, layers)
    chosen = [ranked[layer].top(k) if layer in in_play else [] for layer in range(layers)]
    return chosen, [layer for layer in in_play if ranked[layer].tied_at(k)]
