"""The rankings against networkx, and what the readings of equation 10 do."""

import networkx
import numpy as np
import pytest

from hifi_cli.errors import UsageError
from hifi_cli.heads.ranking import (
    Ranked,
    pagerank,
    pagerank_literal,
    pagerank_personalized,
    rank_heads,
    select_top_heads,
    transition_matrix,
)


def random_scores(heads=12, seed=0):
    rng = np.random.default_rng(seed)
    correlation = np.abs(rng.normal(size=(heads, heads)))
    correlation = correlation + correlation.T
    np.fill_diagonal(correlation, 0)
    return rng.uniform(2, 9, heads), correlation


def networkx_pagerank(correlation, damping, personalization=None):
    graph = networkx.from_numpy_array(correlation)
    result = networkx.pagerank(
        graph, alpha=damping, tol=1e-12, max_iter=1000, personalization=personalization
    )
    return np.array([result[head] for head in range(len(correlation))])


@pytest.mark.parametrize("damping", [0.2, 0.5, 0.85, 0.95])
@pytest.mark.parametrize("seed", range(5))
def test_pagerank_is_networkxs(seed, damping):
    richness, correlation = random_scores(seed=seed)
    result = pagerank(richness, correlation, damping, 1e-12)
    np.testing.assert_allclose(result.values, networkx_pagerank(correlation, damping), atol=1e-8)
    shares = dict(enumerate(richness))
    result = pagerank_personalized(richness, correlation, damping, 1e-12)
    np.testing.assert_allclose(
        result.values, networkx_pagerank(correlation, damping, shares), atol=1e-8
    )


@pytest.mark.parametrize("seed", range(5))
def test_equation_10_read_literally_gives_every_head_the_same(seed):
    richness, correlation = random_scores(seed=seed)
    result = pagerank_literal(richness, correlation, 0.85, 1e-10)
    np.testing.assert_allclose(result.values, 1 / 12, atol=1e-8)


def test_the_iterations_end_with_the_first_change_of_at_most_epsilon():
    """Equation 10 step by step, from the fractions of the richness on (equation 8)."""
    richness, correlation = random_scores()
    values = richness / richness.sum()
    iterations, change = 0, np.inf
    while change > 1e-3:
        following = 0.7 * (correlation / correlation.sum(0)) @ values + 0.3 / 12
        iterations, change = iterations + 1, np.sqrt(((following - values) ** 2).sum())
        values = following
    (result,) = rank_heads(richness[None], correlation[None], damping=0.7, epsilon=1e-3)
    assert result.iterations == iterations > 2
    np.testing.assert_allclose(result.values, values, rtol=1e-12)


def test_a_pagerank_that_has_not_converged_ranks_no_heads():
    # Two heads pass everything to each other: P swings between both, less only by the damping, and
    # converges to 1/2. On the way there, the number of iterations decides which head is higher.
    richness = np.array([9.0, 1.0])
    correlation = np.array([[0.0, 1.0], [1.0, 0.0]])
    converged = pagerank(richness, correlation, 0.99, 1e-6)
    np.testing.assert_allclose(converged.values, 0.5, atol=1e-5)
    for rank in (pagerank, pagerank_personalized):
        with pytest.raises(UsageError, match="not converged after 10,000 iterations; set a lower"):
            rank(richness, correlation, 0.9999, 1e-6)


def test_transition_matrix_is_row_stochastic_even_for_a_head_without_correlations():
    _, correlation = random_scores(4)
    correlation[2] = correlation[:, 2] = 0
    matrix = transition_matrix(correlation)
    np.testing.assert_allclose(matrix.sum(1), 1)
    np.testing.assert_allclose(matrix[0], correlation[0] / correlation[0].sum())
    np.testing.assert_allclose(matrix[2], 1 / 4)
    np.testing.assert_allclose(transition_matrix(correlation * 1e-9), matrix)


def layered(layers=4, heads=6):
    scores = [random_scores(heads, seed) for seed in range(layers)]
    return np.array([layer[0] for layer in scores]), np.array([layer[1] for layer in scores])


def test_each_ranking_chooses_what_its_name_says():
    richness, correlation = layered()

    def top(rank):
        return select_top_heads(rank_heads(richness, correlation, rank=rank), 2).heads

    def best(values, *, lowest=False):
        return [sorted(np.argsort(layer if lowest else -layer)[:2].tolist()) for layer in values]

    assert top("richness") == best(richness)
    assert top("richness-inverse") == best(richness, lowest=True)
    assert top("correlation") == best(correlation.sum(2))
    importance = np.array([networkx_pagerank(layer, 0.85) for layer in correlation])
    assert top("pagerank") == best(importance)
    assert top("pagerank-inverse") == best(importance, lowest=True)


def test_global_divides_the_heads_by_their_share_of_their_layer():
    def chosen(*layers, k=1, **how):
        return select_top_heads([Ranked(np.array(v), **how) for v in layers], k, "global")

    assert chosen([10.0, 9, 8, 7], [0.0, 0, 3, 1]).heads == [[0], [2]]
    assert chosen([1.0, -4, 3, 2], [0.0, 1, 0, 1]).heads == [[], [1, 3]]
    lowest = chosen([10.0, 9, 8, 7], [0.0, 0, 3, 1], lowest_first=True)
    assert lowest.heads == [[], [0, 1]]
    # If two layers tie, it is the one that gave the last head.
    layers = [2.0, 1, 1], [1.0, 2, 1]
    assert [chosen(*layers, k=k).ties for k in (1, 2, 3)] == [[], [0], []]
    assert chosen(*layers, k=2).heads == [[0, 1, 2], [1]]


def test_midtop_is_the_upper_half_of_layerwise():
    ranked = rank_heads(*layered(5))
    all_layers, upper = select_top_heads(ranked, 2), select_top_heads(ranked, 2, "midtop")
    assert upper.heads == [[], [], *all_layers.heads[2:]]


def test_ties_go_to_the_lowest_head_and_are_told():
    richness, correlation = layered(2)
    richness[0] = [4, 9, 3 + 1e-7, 5, 3, 3]  # more than rounding, and equal values not at the end
    richness[1] = [5, 7, 5 + 1e-14, 4, 2, 1]  # as another processor rounds it
    ranked = rank_heads(richness, correlation, rank="richness")
    result = select_top_heads(ranked, 2)
    assert result.heads == [[1, 3], [0, 1]]
    assert result.ties == [1]
    assert select_top_heads(ranked, 4).heads[0] == [0, 1, 2, 3]
    assert [select_top_heads(ranked, k).ties for k in (1, 3, 4, 5, 6)] == [[], [], [], [0], []]


def test_k_beyond_the_heads_and_a_flat_ranking_are_refused():
    with pytest.raises(UsageError, match="only 6 heads"):
        select_top_heads(rank_heads(*layered()), 7)
    with pytest.raises(UsageError, match="nothing to choose"):
        rank_heads(*layered(), rank="pagerank-literal")
    # Two pairs that pass nothing to each other: far more than the last change is left to go.
    pairs = np.kron(np.eye(2), [[0, 1], [1, 0]])[None]
    with pytest.raises(UsageError, match="nothing to choose"):
        rank_heads(np.array([[9.0, 9, 1, 1]]), pairs, rank="pagerank-literal", damping=0.95)
