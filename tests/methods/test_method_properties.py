"""What defines each method, against an independent computation."""

import numpy as np
import pytest
import torch
from prepared_models import encoder_of, first_batch, logits_of, prepare
from tiny_inputs import HEADS, HIDDEN, LAYERS, random_encoder

from hifi_cli.errors import UsageError
from hifi_cli.methods import find
from hifi_cli.methods.base import MethodContext
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import BottleneckAdapter

# --- HiFi


def test_rows_that_two_chosen_heads_share_train_once():
    encoder = Encoder(random_encoder("qwen3", num_key_value_heads=2))
    chosen = find.implementation_of("hifi-layerwise")
    method = chosen(chosen.Settings(), MethodContext(heads=[[0, 1], [1, 2]]))
    method.prepare(encoder)
    size = encoder.head_size
    shared = [range(size), range(2 * size)]
    expected = {"query": [range(2 * size), range(size, 3 * size)], "key": shared, "value": shared}
    for part, rows_by_layer in expected.items():
        for layer, rows in enumerate(rows_by_layer):
            tuned = encoder.model.get_submodule(encoder.module_path(layer, part))
            assert tuned.index.tolist() == [*rows]


# --- Compacter and Adapter


def test_compacters_weight_is_the_sum_of_kronecker_products_and_its_rule_is_shared(make, workspace):
    from hifi_cli.methods.compacter import KroneckerLinear

    prepared, _ = prepare(make, workspace, "compacter")
    layers = [
        module for module in prepared.encoder.model.modules() if isinstance(module, KroneckerLinear)
    ]
    assert len(layers) == LAYERS * 2 * 2
    assert len({id(layer.shared) for layer in layers}) == 1
    for layer in layers:
        a, s, t = (value.detach().numpy() for value in (layer.shared, layer.s, layer.t))
        products = sum(np.kron(a[i], s[i] @ t[i]) for i in range(4))
        np.testing.assert_allclose(layer.weight().detach().numpy(), products, rtol=1e-5, atol=1e-9)
    x = torch.randn(3, layers[0].s.shape[1] * 4)
    torch.testing.assert_close(layers[0](x), x @ layers[0].weight() + layers[0].bias)


def test_adapters_start_from_a_normal_distribution_cut_at_two_sigmas_that_the_seed_draws(
    make, workspace
):
    drawn = []
    for seed in (1, 1, 2):
        prepared, _ = prepare(make, workspace, "adapter", "settings.bottleneck=64", seed=seed)
        named = prepared.encoder.model.named_parameters()
        adapters = {name: value.detach() for name, value in named if ".adapter." in name}
        assert not any(value.any() for name, value in adapters.items() if name.endswith("bias"))
        weights = [value.flatten() for name, value in adapters.items() if name.endswith("weight")]
        drawn.append(torch.cat(weights))
    # A normal distribution that is cut at two sigmas has a spread of 0.88 sigmas.
    assert float(drawn[0].std()) == pytest.approx(0.88e-3, rel=0.02)
    assert 1.9e-3 < float(drawn[0].abs().max()) <= 2e-3
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_bottleneck_adds_up_of_gelu_of_down_to_what_it_reads():
    base, down, up = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3), torch.nn.Linear(3, 6)
    x = torch.randn(4, 6)
    hidden = base(x)
    inner = down(hidden)
    by_hand = hidden + up(inner * (1 + torch.erf(inner / 2**0.5)) / 2)
    torch.testing.assert_close(BottleneckAdapter(base, down, up)(x), by_hand)


def test_compacters_shared_factors_start_near_zero_and_follow_the_seed(make, workspace):
    from hifi_cli.methods.compacter import KroneckerLinear

    drawn = []
    for seed in (1, 1, 2):
        words = ("settings.n=8", "settings.reduction=4")
        prepared, _ = prepare(make, workspace, "compacter", *words, seed=seed)
        modules = prepared.encoder.model.modules()
        first = next(module for module in modules if isinstance(module, KroneckerLinear))
        assert not first.bias.any()
        drawn.append((first.shared.detach(), first.s.detach()))
    assert float(drawn[0][0].std()) == pytest.approx(1e-4, rel=0.15)
    for first, again, other in zip(*drawn, strict=True):
        assert torch.equal(first, again) and not torch.equal(first, other)


def test_compacters_rank_1_factors_start_from_glorot_with_gain_sqrt_2():
    from hifi_cli.methods.compacter import KroneckerLinear

    layer = KroneckerLinear(
        torch.nn.Parameter(torch.zeros(4, 4, 4)), 8192, 16384, torch.Generator().manual_seed(0)
    )
    for factor in (layer.s, layer.t):
        fan = factor.shape[1] + factor.shape[2]
        assert float(factor.detach().std()) == pytest.approx((2 * 2 / fan) ** 0.5, rel=0.05)
        assert float(factor.detach().abs().max()) <= (2 * 6 / fan) ** 0.5


def test_compacter_says_which_sizes_do_not_divide(make, workspace):
    with pytest.raises(
        UsageError, match=r"settings\.n=4 must divide the hidden size 32 and the bottleneck 1"
    ):
        prepare(make, workspace, "compacter", "settings.reduction=32")


# --- Prefix-Tuning


@pytest.mark.parametrize("mlp", [0, 8])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_gradients_reach_the_prefix_of_every_layer_and_positions_stay(make, workspace, family, mlp):
    prepared, config = prepare(
        make, workspace, "prefix-tuning", f"settings.mlp={mlp}", family=family
    )
    model, batch = prepared.encoder.model, first_batch(config, workspace)
    embedded = []
    for compared_model in (model, encoder_of(config, workspace).model):
        compared_model.base_model.embeddings.register_forward_hook(
            lambda _, __, output: embedded.append(output)
        )
        logits_of(compared_model, batch)
    assert torch.equal(*embedded)
    prefixes, made = prepared.encoder.base.hifi_prefixes, []
    make_prefixes = prefixes.key_values

    def made_with_gradient():
        made.append(make_prefixes())
        made[-1].retain_grad()
        return made[-1]

    prefixes.key_values = made_with_gradient
    model(**batch).logits.sum().backward()
    assert (made[0].grad.abs().sum((1, 2, 3)) > 0).all()
    assert len(made) == 1  # the MLP runs once a forward pass


def test_prefixes_start_from_a_normal_distribution_or_are_made_by_the_mlp(make, workspace):
    def prefixes(*words, seed=1):
        words = ("settings.length=50", *words)
        prepared, _ = prepare(make, workspace, "prefix-tuning", *words, seed=seed)
        return prepared.encoder.base.hifi_prefixes

    drawn = prefixes("settings.mlp=0", "settings.init_std=0.3")
    assert float(drawn.key_values().detach().std()) == pytest.approx(0.3, rel=0.05)
    made = prefixes("settings.mlp=8")
    assert float(made.embedding.detach().std()) == pytest.approx(1, rel=0.05)
    embedding, down, up = (
        value.detach().numpy() for value in (made.embedding, made.down.weight, made.up.weight)
    )
    hidden = np.tanh(embedding @ down.T + made.down.bias.detach().numpy())
    by_hand = (hidden @ up.T + made.up.bias.detach().numpy()).reshape(50, LAYERS, 2, HIDDEN)
    computed = made.key_values().detach().numpy()
    for layer, part in np.ndindex(LAYERS, 2):
        np.testing.assert_allclose(computed[layer, part], by_hand[:, layer, part], atol=1e-6)
    for words in (["settings.mlp=0"], ["settings.mlp=8"]):
        first, again, other = (prefixes(*words, seed=seed).key_values() for seed in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other)


def test_prefix_attention_is_attention_over_prefix_and_tokens(make, workspace):
    prepared, config = prepare(make, workspace, "prefix-tuning", "settings.init_std=1.0")
    batch = first_batch(config, workspace)
    attention = prepared.encoder.layers[0].attention.self
    seen = {}
    attention.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0]))
    attention.register_forward_hook(lambda _, __, output: seen.update(out=output[0]))
    logits_of(prepared.encoder.model, batch)
    x, size = seen["x"].double(), HIDDEN // HEADS
    own = prepared.encoder.base.hifi_prefixes.values.detach()[0].double()
    for head in range(HEADS):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (
            x @ linear.weight[rows].double().T + linear.bias[rows].double()
            for linear in (attention.query, attention.key, attention.value)
        )
        k = torch.cat([k, own[0][:, rows].expand(len(x), -1, -1)], 1)
        v = torch.cat([v, own[1][:, rows].expand(len(x), -1, -1)], 1)
        hidden = torch.cat(
            [batch["attention_mask"] == 0, torch.zeros(len(x), own.shape[1], dtype=torch.bool)], 1
        )
        weights = (q @ k.mT / size**0.5).masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        torch.testing.assert_close(
            seen["out"][..., rows].double(), weights @ v, rtol=1e-4, atol=1e-5
        )


# --- BitFit and top-k


@pytest.mark.parametrize(("family", "prefix"), [("bert", "bert"), ("roberta", "roberta")])
def test_bitfit_of_the_layers_counts_a_layer_norm_to_the_layer_that_reads_it(
    make, workspace, family, prefix
):
    prepared, _ = prepare(make, workspace, "bitfit", "settings.biases=layers", family=family)
    trained = set(prepared.method.trainable_parameters(prepared.encoder.model))
    assert trained >= set(prepared.encoder.task_head), "the whole task head, also a pooler's weight"
    names = trained - set(prepared.encoder.task_head)
    linears = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ]
    expected = {
        f"{prefix}.embeddings.LayerNorm.bias",
        f"{prefix}.encoder.layer.0.output.LayerNorm.bias",
    }
    for layer in (0, 1):
        expected |= {
            f"{prefix}.encoder.layer.{layer}.{part}.bias"
            for part in [*linears, "attention.output.LayerNorm"]
        }
    assert names == expected


def test_top_k_refuses_more_layers_than_there_are(make, workspace):
    with pytest.raises(UsageError, match="the encoder has only 2 layers"):
        prepare(make, workspace, "top-k", "settings.k=3")


@pytest.mark.parametrize("method", ["adapter", "compacter"])
def test_bottlenecks_start_near_the_pretrained_model_and_stand_before_the_residual(
    make, workspace, method
):
    prepared, config = prepare(make, workspace, method)
    model, batch = prepared.encoder.model, first_batch(config, workspace)
    torch.testing.assert_close(
        logits_of(model, batch),
        logits_of(encoder_of(config, workspace).model, batch),
        rtol=0,
        atol=1e-2,
    )
    seen = {}
    layer = prepared.encoder.layers[0]
    layer.attention.output.LayerNorm.register_forward_pre_hook(
        lambda _, inputs: seen.update(norm=inputs[0])
    )
    layer.attention.output.dropout.register_forward_hook(
        lambda _, __, output: seen.update(sublayer=output)
    )
    layer.attention.self.register_forward_pre_hook(
        lambda _, inputs: seen.update(residual=inputs[0])
    )
    logits_of(model, batch)
    torch.testing.assert_close(seen["norm"], seen["sublayer"] + seen["residual"])
