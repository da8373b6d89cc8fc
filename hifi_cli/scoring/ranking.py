"""From scores to chosen heads (HiFi, equations 8 to 10 and the ablations of its Table 3). No torch here."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_ITERATIONS = 10_000
_TIE = 1e-9


@dataclass(frozen=True)
class Ranked:
    """The values of one layer's heads under one ranking.

    Attributes:
        values: one per head.
        iterations: power-iteration steps taken; 0 where the ranking needs none.
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
        """The values, negated where low ones are preferred: higher is better."""
        return -self.values if self.lowest_first else self.values

    def tied_at(self, k: int) -> bool:
        """Whether the k-th and the next head have the same value, so that head numbers decided."""
        order = self.order
        if k >= len(order):
            return False
        inside, outside = self.values[order[k - 1]], self.values[order[k]]
        return bool(abs(inside - outside) <= _TIE * max(abs(inside), abs(outside)))


def transition_matrix(correlation: Array) -> Array:
    """m_hh', the probability to move from head h to head h' (equation 9); a head without correlations moves anywhere.

    Args:
        correlation: R, [heads, heads], non-negative, zero on the diagonal.

    Returns:
        Row-stochastic [heads, heads].
    """
    total = correlation.sum(1, keepdims=True)
    uniform = np.full_like(correlation, 1 / len(correlation))
    matrix: Array = np.divide(correlation, total, out=uniform, where=total > 0)
    return matrix


def power_iteration(step: Array, start: Array, teleport: Array, damping: float, epsilon: float) -> tuple[Array, int]:
    """Iterate P <- d step P + (1 - d) teleport until it changes by at most epsilon in the Euclidean norm (Algorithm 2).

    Returns:
        The values and the number of steps.
    """
    values = start
    for iteration in range(1, _MOST_ITERATIONS + 1):
        new_values = damping * (step @ values) + (1 - damping) * teleport
        change = float(np.linalg.norm(new_values - values))
        values = new_values
        if change <= epsilon:
            return values, iteration
    return values, _MOST_ITERATIONS


def pagerank(richness: Array, correlation: Array, damping: float = 0.85, epsilon: float = 1e-6) -> Ranked:
    """PageRank with the transposed matrix and uniform teleport: the only reading of equation 10 that can rank.

    It starts from the richness (equation 8), but its fixed point does not depend on the start: the richness has no
    influence on the converged values.
    """
    uniform = np.full(len(richness), 1 / len(richness))
    return Ranked(*power_iteration(transition_matrix(correlation).T, _fractions(richness), uniform, damping, epsilon))


def pagerank_personalized(richness: Array, correlation: Array, damping: float = 0.85, epsilon: float = 1e-6) -> Ranked:
    """PageRank that teleports to heads in proportion to their richness: an extension in which both signals count."""
    fractions = _fractions(richness)
    return Ranked(*power_iteration(transition_matrix(correlation).T, fractions, fractions, damping, epsilon))


def pagerank_literal(richness: Array, correlation: Array, damping: float = 0.85, epsilon: float = 1e-6) -> Ranked:
    """Equation 10 as printed, with the row-stochastic matrix: its only fixed point is 1/H for every head."""
    uniform = np.full(len(richness), 1 / len(richness))
    return Ranked(*power_iteration(transition_matrix(correlation), _fractions(richness), uniform, damping, epsilon))


def is_flat(ranked: Ranked, damping: float, epsilon: float) -> bool:
    """Whether the values differ by no more than the stopping rule leaves open, so that choosing would follow noise."""
    return bool(np.ptp(ranked.values) <= 2 * epsilon / (1 - damping))


def _fractions(richness: Array) -> Array:
    """p_h(0), each head's fraction of the layer's richness (equation 8)."""
    fractions: Array = richness / richness.sum()
    return fractions


def _pagerank_inverse(richness: Array, correlation: Array, damping: float, epsilon: float) -> Ranked:
    ranked = pagerank(richness, correlation, damping, epsilon)
    return Ranked(ranked.values, ranked.iterations, lowest_first=True)


# Rankings of one layer by its information richness and correlation; others are drawn (`random`) or measured on the model.
RANKINGS: dict[str, Callable[[Array, Array, float, float], Ranked]] = {
    "pagerank": pagerank,
    "pagerank-personalized": pagerank_personalized,
    "pagerank-literal": pagerank_literal,
    "pagerank-inverse": _pagerank_inverse,
    "richness": lambda richness, *_: Ranked(richness),
    "richness-inverse": lambda richness, *_: Ranked(richness, lowest_first=True),
    "correlation": lambda _, correlation, *__: Ranked(correlation.sum(1)),
    "first": lambda richness, *_: Ranked(np.arange(len(richness), dtype=np.float64), lowest_first=True),
}
