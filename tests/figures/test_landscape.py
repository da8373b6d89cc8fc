"""Planes, surfaces and trajectories of the loss, against independent computations."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from prepared_models import examples_of

from hifi_cli.errors import UsageError
from hifi_cli.figures import figure, models

pytestmark = pytest.mark.slow


def compute(request):
    return list(request.kind.rows(request))


def test_principal_plane_against_numpy():
    flat = torch.randn(6, 17, generator=torch.Generator().manual_seed(0))
    directions, places, shares = models.principal_plane([*flat])
    flat, directions = flat.double().numpy(), directions.numpy()
    sigma, vectors = np.linalg.svd(flat - flat.mean(0), full_matrices=False)[1:]
    np.testing.assert_allclose(shares, (sigma**2 / (sigma**2).sum())[:2], rtol=1e-4)
    np.testing.assert_allclose(np.abs(directions @ vectors[:2].T), np.eye(2), atol=1e-3)
    np.testing.assert_allclose(places[-1], 0, atol=1e-6)
    np.testing.assert_allclose(places, (flat - flat[-1]) @ directions.T, atol=1e-4)


def test_the_surface_is_the_loss_of_the_moved_model_and_leaves_it_as_it_was(make, workspace, ask):
    # Six examples are two batches.
    config = make("full-ft", "epochs=1", "eval_batch_size=4")
    runner = figure.train(config, ask("landscape", methods=("full-ft",))).runner
    weights = list(runner.encoder.model.parameters())
    examples = examples_of(config, workspace, "train", 128)[:6]
    before = [weight.detach().clone() for weight in weights]
    directions = 0.02 * torch.randn(2, sum(weight.numel() for weight in weights))
    axes = np.array([[0.0, 0.5], [0.0, -1.0]])
    values = {(x, y): z for x, y, z in models.surface(runner, weights, directions, axes, examples)}
    assert all(torch.equal(weight, kept) for weight, kept in zip(weights, before, strict=True))
    with torch.no_grad():
        assert values[0.0, 0.0] == pytest.approx(float(runner.loss(examples)) / 6, rel=1e-5)
        moved = torch.nn.utils.parameters_to_vector(weights) + 0.5 * directions[0] - directions[1]
        for weight, part in zip(weights, moved.split([w.numel() for w in weights]), strict=True):
            weight.copy_(part.view_as(weight))
        assert values[0.5, -1.0] == pytest.approx(float(runner.loss(examples)) / 6, rel=1e-4)


def test_trajectories_of_both_methods_and_regimes_end_at_the_origin(
    ask, make, workspace, monkeypatch
):
    measured = []

    def surface(runner, weights, directions, axes, examples):
        assert sum(weight.numel() for weight in weights) == directions.shape[1]
        measured.append(examples)
        return compute_surface(runner, weights, directions, axes, examples)

    compute_surface = models.surface
    monkeypatch.setattr(models, "surface", surface)
    settings = {"points": 3, "examples": 4, "snapshots": 3, "shots": [None, 4]}
    data = pd.DataFrame(compute(ask("landscape", settings, ("full-ft", "hifi-layerwise"))))
    panels = data.groupby(["regime", "method"], sort=False)
    steps = {"full-shot": [0, 4, 8, 12], "4-shot": [0, 1, 2]}
    assert [*panels.groups] == [*product(steps, ("full-ft", "hifi-layerwise"))]
    for (regime, _), rows in panels:
        way = rows[rows["part"] == "trajectory"]
        assert way["step"].tolist() == steps[regime]
        np.testing.assert_allclose(way[["x", "y"]].iloc[-1].tolist(), 0, atol=1e-6)
        # The first direction explains most.
        first, second = rows[["share_x", "share_y"]].iloc[0]
        assert 1 + 1e-6 >= first + second > 2 * second >= 0
        # The surface goes beyond the trajectory by a quarter of its extent, on each side.
        contour = rows[rows["part"] == "contour"]
        assert len(contour) == 9
        for axis in ("x", "y"):
            low, high = way[axis].min(), way[axis].max()
            margin = max(high - low, 1e-6) / 4
            places = [low - margin, (low + high) / 2, high + margin]
            np.testing.assert_allclose(sorted(set(contour[axis])), places, atol=1e-9)
    assert [len(examples) for examples in measured] == [4] * 4
    train = [example.row for example in examples_of(make("full-ft"), workspace, "train")]
    assert all(example.row in train for examples in measured for example in examples)


def test_a_few_shot_run_has_its_epochs_of_one_step(ask):
    settings = {"points": 2, "examples": 4, "snapshots": 3, "shots": [4]}
    request = ask("landscape", settings, ("full-ft",))
    request.overrides = tuple(word for word in request.overrides if not word.startswith("epochs"))
    steps = [row["step"] for row in compute(request) if row["part"] == "trajectory"]
    assert steps == [0, 17, 33, 50]


def test_the_full_training_set_is_full_under_a_few_shot_protocol_too(ask):
    settings = {"points": 3, "examples": 4, "snapshots": 3, "shots": [None]}
    request = ask("landscape", settings, ("full-ft",), (1,), "epochs=1")
    request.spec = request.spec.model_copy(update={"protocol": "hifi-fewshot"})
    assert max(row["step"] or 0 for row in request.kind.rows(request)) > 1


def test_a_trajectory_follows_one_stage(ask):
    with pytest.raises(UsageError, match="diff-pruning trains in several stages"):
        compute(ask("landscape", {"shots": [None], "snapshots": 3}, ("diff-pruning",)))
