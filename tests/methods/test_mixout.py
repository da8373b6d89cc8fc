"""Mixout: what is mixed, its expectation and gradient, and the dropout in whose place it stands."""

import pytest
import torch
from prepared_models import encoder_of, first_batch, logits_of, prepare
from tiny_inputs import LAYERS, random_encoder

from hifi_cli.methods import mixout
from hifi_cli.methods.base import MethodContext
from hifi_cli.models.encoder import Encoder


@pytest.mark.parametrize("released", [False, True])
def test_mixout_has_the_weight_as_expectation_and_its_gradient(released):
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, 5)
    mix = mixout.MixoutLinear(linear, 0.7, released_backward=released)
    with torch.no_grad():
        mix.weight += torch.randn_like(mix.weight)  # away from the pretrained weight
    weights_id, draws = torch.eye(6), []
    for _ in range(4000):
        draws.append((mix(weights_id) - mix.bias).T.detach())
    drawn = torch.stack(draws)
    torch.testing.assert_close(drawn.mean(0), mix.weight.detach(), rtol=0, atol=0.15)
    values = drawn[:, :, 0].unique(dim=0)
    assert len(values) == 2  # a column is mixed as one
    kept = (mix.weight.detach() - 0.7 * mix.pretrained) / 0.3
    assert any(torch.allclose(value, kept[:, 0], atol=1e-5) for value in values)
    assert any(torch.allclose(value, mix.pretrained[:, 0], atol=1e-5) for value in values)
    torch.manual_seed(1)
    mix(torch.ones(1, 6)).sum().backward()
    torch.manual_seed(1)
    mask = torch.empty(6).bernoulli_(0.3)
    torch.testing.assert_close(mix.weight.grad, mask.expand(5, 6) * (1.0 if released else 1 / 0.3))
    mix.eval()
    assert torch.equal(
        mix(weights_id), torch.nn.functional.linear(weights_id, mix.weight, mix.bias)
    )


def dropout_rates(model):
    return {
        name: module.p
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout)
    }


# What a tiny BERT of two layers has; the second layer's output goes to the pooler, which is not mixed after dropout only.
BERT_DROPOUTS = {
    "bert.embeddings.dropout": 0.0,
    "bert.encoder.layer.0.attention.self.dropout": 0.1,
    "bert.encoder.layer.0.attention.output.dropout": 0.0,
    "bert.encoder.layer.0.output.dropout": 0.0,
    "bert.encoder.layer.1.attention.self.dropout": 0.1,
    "bert.encoder.layer.1.attention.output.dropout": 0.0,
    "bert.encoder.layer.1.output.dropout": 0.1,
    "dropout": 0.1,
}


@pytest.mark.parametrize("place", ["after-dropout", "all"])
def test_mixout_stands_in_the_place_of_dropout_and_release_brings_it_back(make, workspace, place):
    prepared, config = prepare(make, workspace, "mixout", f"settings.place={place}")
    model = prepared.encoder.model
    plain = dict(encoder_of(config, workspace).model.named_modules())
    mixed = {
        name for name, module in model.named_modules() if isinstance(module, mixout.MixoutLinear)
    }
    parts = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "intermediate.dense",
    ]
    if place == "all":
        parts += ["attention.output.dense", "output.dense"]
    of_layers = {f"bert.encoder.layer.{layer}.{part}" for layer in range(LAYERS) for part in parts}
    assert mixed == of_layers | ({"bert.pooler.dense", "classifier"} if place == "all" else set())
    assert dropout_rates(model) == (
        BERT_DROPOUTS if place == "after-dropout" else dict.fromkeys(BERT_DROPOUTS, 0.0)
    )
    prepared.method.unfreeze_all(prepared.encoder)
    assert {
        name: type(module) for name, module in model.named_modules() if name in mixed
    } == dict.fromkeys(mixed, torch.nn.Linear)
    assert dropout_rates(model) == {
        name: module.p for name, module in plain.items() if isinstance(module, torch.nn.Dropout)
    }
    assert set(dropout_rates(model).values()) == {0.1}


@pytest.mark.parametrize("backward", ["exact", "released"])
def test_the_gradient_is_divided_by_1_minus_p_or_as_released(make, workspace, backward):
    prepared, _ = prepare(make, workspace, "mixout", f"settings.backward={backward}")
    mixed = prepared.encoder.layers[0].attention.self.query
    mixed(torch.ones(1, mixed.weight.shape[1])).sum().backward()
    factor = 1.0 if backward == "released" else 1 / (1 - mixed.p)
    assert mixed.weight.grad.unique().tolist() == pytest.approx([0.0, factor])


@pytest.mark.parametrize("head", ["pooler", "mlp"])
def test_mixout_everywhere_leaves_no_noise_but_its_own(make, workspace, head):
    """With p = 0, training's forward pass is evaluation's: nothing drops out, not even in attention or in the head."""
    prepared, config = prepare(
        make, workspace, "mixout", "settings.place=all", "settings.p=0", f"task_head.kind={head}"
    )
    model, batch = prepared.encoder.model, first_batch(config, workspace)
    evaluated = logits_of(model, batch)
    model.train()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, evaluated)
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())


def inputs_of_mixed_linears(model):
    seen = {}

    def record(name):
        return lambda _, inputs: seen.update({name: inputs[0].detach().clone()})

    mixed = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, mixout.MixoutLinear)
    }
    hooks = [module.register_forward_pre_hook(record(name)) for name, module in mixed.items()]
    with torch.no_grad():
        model(
            input_ids=torch.arange(4, 20).view(2, 8),
            attention_mask=torch.ones(2, 8, dtype=torch.long),
        )
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    "family", ["bert", "electra", "mpnet", "roberta", "deberta-v2", "distilbert"]
)
def test_mixed_linears_read_nothing_that_dropout_wrote(family):
    """What mixed Linears read in training is what they read in evaluation, in any family."""
    dropout = {"dropout": 0.1, "attention_dropout": 0.1} if family == "distilbert" else {}
    encoder = Encoder(random_encoder(family, **dropout))
    plain = dropout_rates(encoder.model)
    method = mixout.Mixout(mixout.Mixout.Settings(p=0), MethodContext())
    method.prepare(encoder)
    model = encoder.model.train()
    kept = {name: rate for name, rate in dropout_rates(model).items() if rate}
    assert kept and kept.items() <= plain.items()
    attention = {
        path for layer in range(LAYERS) for path in encoder.module_paths(layer, "inner_dropouts")
    }
    for (
        name
    ) in attention:  # attention's output reaches the others through a projection that is not mixed
        model.get_submodule(name).p = 0.0
    inputs = inputs_of_mixed_linears(model)
    for name, value in inputs_of_mixed_linears(model.eval()).items():
        torch.testing.assert_close(inputs[name], value, msg=name)
    for name in attention:
        model.get_submodule(name).p = plain[name]
    method.merge(encoder)
    assert dropout_rates(model) == plain


@pytest.mark.parametrize("family", ["modernbert", "eurobert", "nomic_bert"])
def test_mixout_everywhere_also_replaces_dropout_that_is_a_number(family):
    encoder = Encoder(random_encoder(family))
    places = [module for module in encoder.model.modules() if hasattr(module, "attention_dropout")]
    assert places
    for module in places:
        module.attention_dropout = 0.25
    method = mixout.Mixout(mixout.Mixout.Settings(place="all"), MethodContext())
    method.prepare(encoder)
    assert {module.attention_dropout for module in places} == {0.0}
    method.merge(encoder)
    assert {module.attention_dropout for module in places} == {0.25}
