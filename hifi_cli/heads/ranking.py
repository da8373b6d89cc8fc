"""From scores to chosen heads: rank, then choose (HiFi, equations 8 to 10, Algorithm 2, Table 3).

No torch here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError

Array = NDArray[np.float64]

# The change shrinks by the damping in each iteration: a damping of 0.85 takes tens of them to 1e-6,
# one near 1 takes so many that a bound must end them.
_MOST_ITERATIONS = 10_000
# Values are compared to so many significant digits. Further digits are rounding, which differs
# between processors and would let them choose different heads.
_DIGITS = 9


@dataclass(frozen=True)
class Ranked:
    """The values of one layer's heads under one ranking.

    Attributes:
        values: one per head.
        iterations: of equation 10 until the values had converged; 0 where a ranking has none.
        lowest_first: whether the ranking prefers low values.
    """

    values: Array
    iterations: int = 0
    lowest_first: bool = False

    @property
    def order(self) -> list[int]:
        """Heads from the most to the least preferred; ties go to the lowest head."""
        return [int(head) for head in np.argsort(-self.preferences, kind="stable")]

    def top(self, k: int) -> list[int]:
        """The k preferred heads, ascending."""
        return sorted(self.order[:k])

    @property
    def preferences(self) -> Array:
        """The values to nine digits, negated where low ones are preferred: higher is better."""
        rounded = np.array([float(f"{value:.{_DIGITS}g}") for value in self.values])
        if self.lowest_first:
            return -rounded
        return rounded

    def tied_at(self, k: int) -> bool:
        """Return whether the k-th and the next head have the same value, so that head numbers decided."""
        # One head alone where all heads are chosen: then nothing is tied.
        values = self.preferences[self.order[k - 1 : k + 1]]
        return len(values) == 2 and bool(values[0] == values[1])


def transition_matrix(correlation: Array) -> Array:
    """Compute m_hh', the probability to move from head h to head h' (equation 9).

    From a head without correlations the walk moves to any head, each with the same probability:
    equation 9 would divide by zero there.

    Args:
        correlation: R, [heads, heads], non-negative, zero on the diagonal.

    Returns:
        Row-stochastic [heads, heads].
    """
    total = correlation.sum(1, keepdims=True)
    is_correlated = total > 0
    # `np.where` computes both of its values everywhere: 1 keeps the unused quotient finite.
    divisor = np.where(is_correlated, total, 1)
    return np.where(is_correlated, correlation / divisor, 1 / len(correlation))


def power_iteration(
    transition: Array, start: Array, teleport: Array | float, damping: float, epsilon: float
) -> Ranked:
    """Iterate equation 10 until P hardly changes any more (Algorithm 2, lines 4 to 8).

    An iteration is P <- d transition P + (1 - d) teleport.

    Args:
        transition: what equation 10 calls M, [heads, heads].
        start: P at first, [heads].
        teleport: [heads], or one value for all heads; 1/H in equation 10.
        damping: d, in [0, 1).
        epsilon: bound of the change in the last iteration, in the Euclidean norm; above 0.

    Raises:
        UsageError: P still changes by more after the most iterations that are taken.
    """
    values = start
    for iteration in range(1, _MOST_ITERATIONS + 1):
        following = damping * (transition @ values) + (1 - damping) * teleport
        change = np.linalg.norm(following - values)
        values = following
        if change <= epsilon:
            return Ranked(values, iteration)
    # Values on the way to the fixed point depend on the start, and rank the heads otherwise.
    raise UsageError(
        f"PageRank has not converged after {_MOST_ITERATIONS:,} iterations; set a lower"
        f" heads.damping than {damping} or a higher heads.epsilon than {epsilon:g}"
    )


def pagerank(richness: Array, correlation: Array, damping: float, epsilon: float) -> Ranked:
    """Rank by PageRank with the transposed matrix and uniform teleport.

    It is the only reading of equation 10 that can rank. It starts from p_h(0), each head's fraction
    of the layer's richness (equation 8), but its fixed point does not depend on the start: the
    richness has no influence on the converged values.

    Args:
        richness: I_h of the heads of a layer, [heads].
        correlation: R of the layer, [heads, heads].
        damping: d.
        epsilon: bound of the change in the last iteration, in the Euclidean norm.
    """
    start = richness / richness.sum()
    teleport = 1 / len(richness)
    # Transposed: a head collects what the heads that are correlated with it pass on.
    transition = transition_matrix(correlation).T
    return power_iteration(transition, start, teleport, damping, epsilon)


def pagerank_personalized(
    richness: Array, correlation: Array, damping: float, epsilon: float
) -> Ranked:
    """Rank by PageRank that teleports to heads in proportion to their richness.

    It is an extension in which both signals count.

    Args:
        richness: I_h of the heads of a layer, [heads].
        correlation: R of the layer, [heads, heads].
        damping: d, the weight of the correlation; 1 - d is that of the richness.
        epsilon: bound of the change in the last iteration, in the Euclidean norm.
    """
    fractions = richness / richness.sum()
    transition = transition_matrix(correlation).T
    return power_iteration(transition, fractions, fractions, damping, epsilon)


def pagerank_literal(richness: Array, correlation: Array, damping: float, epsilon: float) -> Ranked:
    """Rank by equation 10 as printed, with the row-stochastic matrix.

    Its only fixed point is 1/H for every head: each row sums to 1, so that equal values stay equal.

    The arguments are those of `pagerank`.
    """
    start = richness / richness.sum()
    teleport = 1 / len(richness)
    transition = transition_matrix(correlation)
    return power_iteration(transition, start, teleport, damping, epsilon)


def pagerank_inverse(richness: Array, correlation: Array, damping: float, epsilon: float) -> Ranked:
    """Rank by PageRank that prefers the lowest values (Table 3).

    The arguments are those of `pagerank`.
    """
    return replace(pagerank(richness, correlation, damping, epsilon), lowest_first=True)


def by_richness(richness: Array, *_: Any) -> Ranked:
    """Rank by the highest information richness (Table 3, w/o corr)."""
    return Ranked(richness)


def by_lowest_richness(richness: Array, *_: Any) -> Ranked:
    """Rank by the lowest information richness (Table 3, w/o corr + inv)."""
    return Ranked(richness, lowest_first=True)


def by_correlation(_: Array, correlation: Array, *__: Any) -> Ranked:
    """Rank by the highest sum of correlations with the other heads (Table 3, w/o info)."""
    return Ranked(correlation.sum(1))


def by_number(richness: Array, *_: Any) -> Ranked:
    """Rank by number, so that the first heads are chosen: a control that reads no scores."""
    return Ranked(np.arange(len(richness), dtype=np.float64), lowest_first=True)


# Rankings of one layer by its information richness and correlation; others are drawn (`random`) or
# measured on the model.
RankingFunction = Callable[[Array, Array, float, float], Ranked]
RANKINGS: dict[str, RankingFunction] = {
    "pagerank": pagerank,
    "pagerank-personalized": pagerank_personalized,
    "pagerank-literal": pagerank_literal,
    "pagerank-inverse": pagerank_inverse,
    "richness": by_richness,
    "richness-inverse": by_lowest_richness,
    "correlation": by_correlation,
    "first": by_number,
}


@dataclass(frozen=True)
class ChosenHeads:
    """Chosen heads and what drove the choice; every list has one entry per layer of the encoder.

    Attributes:
        heads: chosen heads, ascending; empty for a frozen layer.
        values: the ranking's value of every head.
        iterations: PageRank's; 0 where the ranking has none.
        ties: layers in which equal values were ordered by head number.
    """

    heads: list[list[int]]
    values: list[list[float]]
    iterations: list[int]
    ties: list[int]


def check_k(k: int, heads: int) -> None:
    """Raise UsageError if more heads are to be chosen than a layer has."""
    if k > heads:
        raise UsageError(f"k={k}: the encoder has only {heads} heads in a layer")


def rank_heads(
    richness: Array,
    correlation: Array,
    *,
    rank: str = "pagerank",
    damping: float = 0.85,
    epsilon: float = 1e-6,
    seed: int = 0,
    function: RankingFunction | None = None,
) -> list[Ranked]:
    """Rank the heads of every layer.

    Args:
        richness: I_h, [layers, heads].
        correlation: R, [layers, heads, heads].
        rank: a key of `RANKINGS`, or `random`.
        damping: PageRank's d.
        epsilon: PageRank's bound.
        seed: draws the values of `random`; the other rankings do not use it.
        function: ranks one layer; None: the one that `rank` names.

    Raises:
        UsageError: the ranking is measured on the model, or its values differ by no more than
            PageRank's bound leaves open.
    """
    if rank == "random":
        draws = np.random.default_rng(seed).random(richness.shape)
        return [Ranked(of_layer) for of_layer in draws]
    function = function or RANKINGS.get(rank)
    if function is None:
        raise UsageError(
            f"ranking {rank} is measured on the model, not computed from scores: hifi select --task"
            f" TASK heads.rank={rank}"
        )
    layers = zip(richness, correlation, strict=True)
    ranked = [function(i_h, r_hh, damping, epsilon) for i_h, r_hh in layers]
    # The last change is at most epsilon, and each further one smaller by the factor d: a value may
    # still move by epsilon / (1 - d). Two values that differ by less than twice that may be equal.
    open_range = 2 * epsilon / (1 - damping)
    is_level = all(np.ptp(layer.values) <= open_range for layer in ranked)
    if rank == "pagerank-literal" and is_level:
        raise UsageError(
            f"equation 10 read literally gives every head 1/{richness.shape[1]}: there is nothing to"
            " choose by; use heads.rank=pagerank (its transposed reading) or pagerank-personalized"
        )
    return ranked


def select_top_heads(ranked: list[Ranked], k: int, strategy: str = "layerwise") -> ChosenHeads:
    """Choose heads by their ranking.

    Args:
        ranked: every layer's ranking.
        k: heads per layer, on average for `global`.
        strategy: `layerwise`: k heads in every layer; `midtop`: k heads in each of the layers L/2 to
            L-1; `global`: k L heads over the whole model.

    Raises:
        UsageError: k exceeds the heads of a layer.
    """
    check_k(k, len(ranked[0].values))
    if strategy == "global":
        heads, ties = _over_the_model(ranked, k)
    elif strategy == "midtop":
        heads, ties = _layer_by_layer(ranked, k, lowest=len(ranked) // 2)
    else:
        heads, ties = _layer_by_layer(ranked, k, lowest=0)
    values = [layer.values.tolist() for layer in ranked]
    iterations = [layer.iterations for layer in ranked]
    return ChosenHeads(heads, values, iterations, ties)


def _layer_by_layer(
    ranked: list[Ranked], k: int, *, lowest: int
) -> tuple[list[list[int]], list[int]]:
    """Choose k heads in each layer from `lowest` on; returns them, and the layers with ties."""
    heads: list[list[int]] = [[] for _ in range(lowest)]
    ties = []
    for layer in range(lowest, len(ranked)):
        heads.append(ranked[layer].top(k))
        if ranked[layer].tied_at(k):
            ties.append(layer)
    return heads, ties


def _over_the_model(ranked: list[Ranked], k: int) -> tuple[list[list[int]], list[int]]:
    """Choose k heads per layer on average; returns them, and the layer of a tie.

    The paper leaves this to future work. Each layer's values are divided by their sum: a head is
    preferred for its fraction of its own layer's total, so that layers with larger values are not
    favored. A layer in which one head stands out gives fewer heads than one in which several do; it
    may give none.
    """
    number = k * len(ranked)
    fractions = [layer.values / np.abs(layer.values).sum() for layer in ranked]
    model_wide = Ranked(np.concatenate(fractions), lowest_first=ranked[0].lowest_first)
    heads_per_layer = len(ranked[0].values)
    heads: list[list[int]] = [[] for _ in ranked]
    for index in model_wide.top(number):
        layer, head = divmod(index, heads_per_layer)
        heads[layer].append(head)
    ties = []
    if model_wide.tied_at(number):
        last_chosen = model_wide.order[number - 1]
        ties.append(last_chosen // heads_per_layer)
    return heads, ties
