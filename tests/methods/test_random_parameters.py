"""Random parameters, the control of EH-FT's section 4.4: which weights train, and how they move."""

import numpy as np
import pytest
import torch
from prepared_models import prepare, splits_of
from tiny_inputs import HIDDEN, INNER, LAYERS

from hifi_cli.errors import UsageError
from hifi_cli.methods.random_parameters import random_masks
from hifi_cli.training.loop import Splits, Trainer

BIASES = LAYERS * (
    4 * HIDDEN + INNER + HIDDEN + 2 * HIDDEN
)  # of the projections, the feed-forward network, two LayerNorms


def chosen(prepared):
    """The trained entries of every tensor, read from the delta."""
    delta = prepared.method.delta(prepared.encoder.model)
    names = [name.removesuffix("/mask") for name in delta if name.endswith("/mask")]
    return {name: np.flatnonzero(np.unpackbits(delta[f"{name}/mask"].numpy())) for name in names}


def test_as_many_weights_as_bitfit_trains_in_the_layers_other_ones_for_every_seed(make, workspace):
    by_seed = {}
    for seed in (1, 2):
        prepared, _ = prepare(make, workspace, "random-parameters", seed=seed)
        entries = chosen(prepared)
        assert sum(map(len, entries.values())) == BIASES
        assert entries.keys() <= set(prepared.encoder.layer_parameters)
        by_seed[seed] = {(name, index) for name, indices in entries.items() for index in indices}
        again, _ = prepare(make, workspace, "random-parameters", seed=seed)
        assert by_seed[seed] == {
            (name, index) for name, indices in chosen(again).items() for index in indices
        }
    assert (
        len(by_seed[1] & by_seed[2]) < 0.1 * BIASES
    )  # two independent draws of 3 % of the weights


def test_each_weight_is_drawn_equally_often():
    sizes, count, draws = {"a": 10, "b": 1, "c": 29}, 8, 4000
    drawn = np.zeros(40)
    for seed in range(draws):
        masks = random_masks(sizes, count, seed)
        flat = np.concatenate(
            [
                masks[name].numpy() if name in masks else np.zeros(size)
                for name, size in sizes.items()
            ]
        )
        assert flat.sum() == count and all(mask.any() for mask in masks.values())
        drawn += flat
    expected = draws * count / 40
    assert np.abs(drawn - expected).max() < 5 * np.sqrt(
        expected * (1 - count / 40)
    )  # 5 standard deviations


def test_the_gradient_of_the_chosen_weights_is_clipped(make, workspace):
    """A large epsilon makes the first step of AdamW proportional to the clipped gradient."""
    changed = ["dropout=0.0", "warmup=0", "schedule=constant", "weight_decay=0"]
    changed += ["max_grad_norm=0.001", "adam_epsilon=100", "learning_rate=100"]
    prepared, config = prepare(make, workspace, "random-parameters", *changed)
    examples = splits_of(config, workspace).train
    trainer = Trainer(prepared, prepared.method, Splits(examples))
    trainer.begin_stage(0)
    trained = prepared.method.trainable_parameters(prepared.encoder.model)
    before = torch.cat([value.detach().flatten() for value in trained.values()])
    trainer.train_step(examples[: config.batch_size])
    after = torch.cat([value.detach().flatten() for value in trained.values()])
    assert float((after - before).norm()) == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize("words", [["settings.count=1000000"]])
def test_more_weights_than_there_are_are_refused(make, workspace, words):
    with pytest.raises(
        UsageError,
        match=r"settings.count=1000000: set settings.count to a number from 1 to \d+, the layers' weights",
    ):
        prepare(make, workspace, "random-parameters", *words)
