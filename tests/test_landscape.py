"""Planes, surfaces and trajectories of the loss, against independent computations."""

import numpy as np
import pytest
import torch

from hifi_cli.errors import UsageError
from hifi_cli.figures import figure, models
from hifi_cli.heads import select as head_selection
from hifi_cli.training.data import load_splits

pytestmark = pytest.mark.slow


def compute(request):
    return request.kind.compute(request).to_dict("records")


def test_principal_plane_against_numpy():
    draws = torch.Generator().manual_seed(0)
    snapshots = [
        [torch.randn(4, 3, generator=draws), torch.randn(5, generator=draws)] for _ in range(6)
    ]
    directions, places, shares = models.principal_plane(snapshots)
    flat = np.stack(
        [np.concatenate([part.numpy().ravel() for part in snapshot]) for snapshot in snapshots]
    ).astype(np.float64)
    centred = flat - flat.mean(0)
    sigma, vectors = np.linalg.svd(centred, full_matrices=False)[1:]
    np.testing.assert_allclose(shares, (sigma**2 / (sigma**2).sum())[:2], rtol=1e-4)
    values = np.stack(
        [np.concatenate([part.numpy().ravel() for part in direction]) for direction in directions]
    )
    np.testing.assert_allclose(np.abs(values @ vectors[:2].T), np.eye(2), atol=1e-3)
    np.testing.assert_allclose(places[-1], 0, atol=1e-6)
    np.testing.assert_allclose(places, (flat - flat[-1]) @ values.T, atol=1e-4)


def test_filter_normalization_by_hand():
    weights = [torch.arange(12.0).view(4, 3) + 1, torch.ones(4)]
    matrix, vector = models.filter_normalized(weights, torch.Generator().manual_seed(3))
    drawn = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(matrix.norm(dim=1), weights[0].norm(dim=1))
    torch.testing.assert_close(torch.cosine_similarity(matrix, drawn), torch.ones(4))
    assert not vector.any()


def test_the_surface_is_the_loss_of_the_moved_model_and_leaves_it_as_it_was(make, resources):
    config = make("full-ft", "epochs=1")
    runner = figure.train(config, resources).runner
    weights = list(runner.encoder.model.parameters())
    examples = resources.examples(config, "train", 128)[:6]
    before = [weight.detach().clone() for weight in weights]
    directions = [
        models.filter_normalized(weights, torch.Generator().manual_seed(seed)) for seed in (0, 1)
    ]
    values = {
        (x, y): loss
        for x, y, loss in models.surface(
            runner, weights, directions, [np.array([0.0, 0.5]), np.array([0.0, -1.0])], examples
        )
    }
    assert all(torch.equal(weight, kept) for weight, kept in zip(weights, before, strict=True))
    with torch.no_grad():
        assert values[0.0, 0.0] == pytest.approx(float(runner.loss(examples)) / 6, rel=1e-5)
        for weight, along, across in zip(weights, *directions, strict=True):
            weight += 0.5 * along - 1.0 * across
        assert values[0.5, -1.0] == pytest.approx(float(runner.loss(examples)) / 6, rel=1e-4)


def test_trajectories_of_both_methods_and_regimes_end_at_the_origin(ask):
    settings = {"points": 3, "examples": 4, "snapshots": 3, "shots": [None, 4]}
    rows = compute(ask("landscape", settings, ("full-ft", "hifi-layerwise")))
    contours = [row for row in rows if row["part"] == "contour"]
    assert len({(row["regime"], row["method"]) for row in contours}) == 4 and len(contours) == 9 * 4
    ways = [row for row in rows if row["part"] == "trajectory" and row["regime"] == "full-shot"]
    assert {row["step"] for row in ways} == {0, 4, 8, 12}
    assert all(abs(row["x"]) < 1e-6 for row in ways if row["step"] == 12)


def test_every_seed_has_its_own_landscape_in_the_same_directions(ask, resources):
    settings = {"shots": [None], "plane": "random", "points": 3, "examples": 4}
    request = ask("landscape", settings, ("hifi-layerwise",), (1, 2))
    data = request.kind.compute(request).set_index("seed")
    assert (
        len(data) == 2 * 9
        and data.loc[1, ["x", "y"]].to_numpy().tolist()
        == data.loc[2, ["x", "y"]].to_numpy().tolist()
    )
    assert data.loc[1, "loss"].tolist() != data.loc[2, "loss"].tolist()
    prepared = figure.train(
        request.config("rte"), resources
    ).runner  # the merged model is the same model
    examples = head_selection.sample(load_splits(request.config("rte"), resources).train, 4, 0)
    prepared.model.eval()
    centre = data.loc[1].query("x == 0 and y == 0")["loss"].item()
    with torch.no_grad():
        assert centre == pytest.approx(float(prepared.loss(examples)) / 4, rel=1e-5)


def test_a_trajectory_follows_one_phase(ask):
    with pytest.raises(UsageError, match="diff-pruning trains in several phases"):
        compute(ask("landscape", {"shots": [None], "snapshots": 3}, ("diff-pruning",)))
