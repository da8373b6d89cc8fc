"""Which heads are tuned: the preferred k of every layer in play (HiFi, section 3.4 and Algorithm 2)."""

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
) -> Selection:
    """Choose k heads in every layer (`layerwise`) or in layers L/2 to L-1 (`midtop`).

    Args:
        richness: I_h, [layers, heads].
        correlation: R, [layers, heads, heads].
        rank: a key of `hifi_cli.scoring.ranking.RANKINGS`, or `random`.
        strategy: `layerwise` or `midtop`.
        k: heads per layer.
        damping: PageRank's d.
        epsilon: PageRank's bound.
        seed: draws the order of `random`.

    Raises:
        UsageError: k exceeds the heads of a layer, or the ranking gives every head of a layer the same value.
    """
    layers, heads = richness.shape
    if k > heads:
        raise UsageError(f"k={k}: the encoder has only {heads} heads in a layer")
    draws = np.random.default_rng(seed).random((layers, heads))
    ranked = [
        Ranked(draws[layer]) if rank == "random" else RANKINGS[rank](richness[layer], correlation[layer], damping, epsilon)
        for layer in range(layers)
    ]
    if rank == "pagerank-literal" and all(is_flat(one, damping, epsilon) for one in ranked):
        spread = max(float(np.ptp(one.values)) for one in ranked)
        raise UsageError(
            f"equation 10 read literally gives every head 1/{heads} (largest difference {spread:.1e}): there is nothing to"
            " choose by; use --rank pagerank (its transposed reading) or pagerank-personalized"
        )
    in_play = range(layers // 2 if strategy == "midtop" else 0, layers)
    chosen = [ranked[layer].top(k) if layer in in_play else [] for layer in range(layers)]
    alone = {
        name: [RANKINGS[name](richness[layer], correlation[layer], damping, epsilon).top(k) for layer in range(layers)]
        for name in ("richness", "correlation")
    }
    return Selection(
        heads=chosen,
        values=[[float(value) for value in one.values] for one in ranked],
        iterations=[one.iterations for one in ranked],
        ties=[layer for layer in in_play if ranked[layer].tied_at(k)],
        overlap={
            name: [len(set(chosen[layer]) & set(tops[layer])) for layer in range(layers)] for name, tops in alone.items()
        },
    )
