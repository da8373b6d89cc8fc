"""Mixout: what is mixed, its expectation and gradient, and the dropout in whose place it stands."""

import pytest
import torch
from prepared_models import first_batch, logits_of, prepare
from safetensors.torch import load_file
from tiny_inputs import LAYERS, random_encoder

from hifi_cli.methods import mixout
from hifi_cli.methods.base import MethodContext
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.directory import RunDirectory
from hifi_cli.training import run as runs


def test_mixout_without_mixing_is_full_ft_without_dropout(make, resources):
    plain, mixed = (
        make("full-ft", "learning_rate=1e-3", "dropout=0"),
        make("mixout", "learning_rate=1e-3", "settings.p=0", "settings.place=all"),
    )
    assert runs.run(mixed, resources).scores == runs.run(plain, resources).scores
    plain_delta, mixed_delta = (RunDirectory.of(config, resources.results_dir).delta for config in (plain, mixed))
    torch.testing.assert_close(
        load_file(plain_delta), load_file(mixed_delta), rtol=0, atol=1e-4
    )  # other products: Adam makes rounding larger


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
    assert torch.equal(mix(weights_id), torch.nn.functional.linear(weights_id, mix.weight, mix.bias))


def dropout_rates(model):
    return {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}


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
def test_mixout_stands_in_the_place_of_dropout_and_release_brings_it_back(make, resources, place):
    prepared, config = prepare(make, resources, "mixout", f"settings.place={place}")
    model = prepared.encoder.model
    plain = dict(resources.encoder(config)[0].model.named_modules())
    mixed = {name for name, module in model.named_modules() if isinstance(module, mixout.MixoutLinear)}
    parts = ["attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"]
    if place == "all":
        parts += ["attention.output.dense", "output.dense"]
    of_layers = {f"bert.encoder.layer.{layer}.{part}" for layer in range(LAYERS) for part in parts}
    assert mixed == of_layers | ({"bert.pooler.dense", "classifier"} if place == "all" else set())
    assert dropout_rates(model) == (BERT_DROPOUTS if place == "after-dropout" else dict.fromkeys(BERT_DROPOUTS, 0.0))
    prepared.method.unfreeze_all(prepared.encoder)
    assert {name: type(module) for name, module in model.named_modules() if name in mixed} == dict.fromkeys(
        mixed, torch.nn.Linear
    )
    assert dropout_rates(model) == {name: module.p for name, module in plain.items() if isinstance(module, torch.nn.Dropout)}
    assert set(dropout_rates(model).values()) == {0.1}


@pytest.mark.parametrize("head", ["pooler", "mlp"])
def test_mixout_everywhere_leaves_no_noise_but_its_own(make, resources, head):
    """With p = 0, training's forward pass is evaluation's: nothing drops out, not even in attention or in the head."""
    prepared, config = prepare(make, resources, "mixout", "settings.place=all", "settings.p=0", f"task_head.kind={head}")
    model, batch = prepared.encoder.model, first_batch(config, resources)
    evaluated = logits_of(model, batch)
    model.train()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, evaluated)
    assert not any(type(module).__name__ == "FastLinear" or isinstance(module, torch.nn.Linear) for module in model.modules())


FAMILY_SHAPES = {
    "bert": {}, "electra": {"embedding_size": 16}, "mpnet": {}, "roberta": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8, "position_buckets": 4, "share_att_key": True},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILY_SHAPES)
def test_mixed_linears_read_nothing_that_dropout_wrote(family):
    """What mixed Linears read in training is what they read in evaluation, in any family."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 30,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    encoder = Encoder(
        AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **(shape | FAMILY_SHAPES[family])))
    )
    plain = dropout_rates(encoder.model)
    method = mixout.Mixout(mixout.Mixout.Settings(), MethodContext())
    method.prepare(encoder)
    model = encoder.model.train()
    kept = {name for name, rate in dropout_rates(model).items() if rate}
    assert kept and all(plain[name] == rate for name, rate in dropout_rates(model).items() if rate)

    def inputs_of_mixed_linears():
        seen = {}
        hooks = [
            module.register_forward_pre_hook(lambda _, args, name=name: seen.__setitem__(name, args[0].detach().clone()))
            for name, module in model.named_modules()
            if isinstance(module, mixout.MixoutLinear)
        ]
        torch.manual_seed(5)
        with torch.no_grad():
            model(input_ids=torch.arange(4, 20).view(2, 8), attention_mask=torch.ones(2, 8, dtype=torch.long))
        for hook in hooks:
            hook.remove()
        return seen

    for name, module in model.named_modules():  # mixing itself draws from the same generator: leave it out
        if isinstance(module, mixout.MixoutLinear):
            module.p = 0.0
        elif isinstance(module, torch.nn.Dropout) and name in kept and "att" in name and not name.endswith("output.dropout"):
            module.p = (
                0.0  # attention probabilities reach the residual stream through the output projection, which is not mixed
            )
    inputs = inputs_of_mixed_linears()
    model.eval()
    for name, value in inputs_of_mixed_linears().items():
        torch.testing.assert_close(inputs[name], value, msg=name)
    method.merge(encoder)
    assert {name: rate for name, rate in dropout_rates(model).items() if name not in kept} == {
        name: rate for name, rate in plain.items() if name not in kept
    }


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
