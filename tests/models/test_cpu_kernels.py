"""CPU kernels (`kernels: auto`) against stock PyTorch (`kernels: torch`)."""

import os

import pytest
import torch
from prepared_models import prepare, splits_of
from torch import nn
from torch.nn import functional

from hifi_cli.models import cpu_kernels
from hifi_cli.models.cpu_kernels import NOISE, FastDropout


def additive_mask(visible, dtype):
    """0 where a token is real, the lowest number where it is padding, [batch, 1, 1, tokens]."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[
        :, None, None
    ]


def test_noise_has_its_rate_and_follows_torchs_generator():
    torch.manual_seed(0)
    NOISE.reseed()
    first = NOISE.keep(torch.Size((400, 500)), 0.1)
    share = float((first == 0).float().mean())
    assert share == pytest.approx(0.1, abs=4 * (0.09 / 200_000) ** 0.5)
    assert not torch.equal(NOISE.keep(first.shape, 0.1), first)
    torch.manual_seed(0)
    NOISE.reseed()
    assert torch.equal(NOISE.keep(first.shape, 0.1), first)
    NOISE.reseed()
    assert not torch.equal(NOISE.keep(first.shape, 0.1), first)
    rows = first.float()  # no row or column is treated otherwise
    assert float(rows.mean(0).std()) == pytest.approx((0.09 / 400) ** 0.5, rel=0.15)
    assert float(rows.mean(1).std()) == pytest.approx((0.09 / 500) ** 0.5, rel=0.15)


def test_dropout_scales_what_it_keeps_and_its_gradient_likewise():
    x = torch.randn(30, 40, 3).requires_grad_()
    y = FastDropout(0.25)(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], (x / 0.75)[kept])
    (y * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * kept.float() / 0.75)
    assert FastDropout(0.25).eval()(x) is x
    assert FastDropout(0.0)(x) is x


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_pytorchs_and_with_dropout_its_expectation(masked):
    torch.manual_seed(0)
    given = torch.randn(3, 2, 4, 6, 8).double().requires_grad_()
    query, key, value = given
    mask = (
        additive_mask(torch.arange(6) < torch.tensor([[6], [4]]), torch.float64) if masked else None
    )
    expected = functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
    module = nn.Module()
    module.is_causal = False
    how = {"scaling": 8**-0.5}
    computed, _ = cpu_kernels.attention(module, query, key, value, mask, dropout=0.0, **how)
    torch.testing.assert_close(computed, expected)
    tiny, _ = cpu_kernels.attention(
        module, query, key, value, mask, dropout=1e-9, **how
    )  # our own arithmetic, nothing dropped
    torch.testing.assert_close(tiny, expected)
    shared = [states[:, :2] for states in (key, value)]  # two heads of Q to each of K and V
    repeated = (states.repeat_interleave(2, 1) for states in shared)
    grouped, _ = cpu_kernels.attention(module, query, *shared, mask, dropout=1e-9, **how)
    of_groups = functional.scaled_dot_product_attention(query, *repeated, mask).transpose(1, 2)
    torch.testing.assert_close(grouped, of_groups)
    draws = torch.stack(
        [
            cpu_kernels.attention(module, query, key, value, mask, dropout=0.3, **how)[0].detach()
            for _ in range(3000)
        ]
    )
    torch.testing.assert_close(draws.mean(0), expected.detach(), rtol=0, atol=0.12)
    assert float(draws.std(0).mean()) > 0.05


def test_the_gradient_of_attention_with_dropout_is_that_of_what_it_computed():
    """Against differences, the same entries dropped each time."""
    query, key, value = torch.randn(3, 1, 2, 4, 3, dtype=torch.float64)
    mask = additive_mask(torch.tensor([[True, True, True, False]]), torch.float64)

    def attended(*given):
        torch.manual_seed(1)
        NOISE.reseed()
        return cpu_kernels.attention(nn.Module(), *given, mask, dropout=0.4, scaling=0.5)[0]

    for trained in ({0, 1, 2}, {0}, {1}, {2}, {0, 2}):  # a method may tune W_Q alone
        states = [
            tensor.clone().requires_grad_(at in trained)
            for at, tensor in enumerate((query, key, value))
        ]
        assert torch.autograd.gradcheck(attended, states)


# --- whole runs with either setting


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "prefix-tuning"])
def test_torch_runs_stock_modules_only(make, workspace, method, monkeypatch):
    capacity = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(capacity, raising=False)
    prepared, _ = prepare(make, workspace, method, "kernels=torch")
    ours = {
        type(module).__name__
        for module in prepared.encoder.model.modules()
        if type(module).__module__.startswith("hifi")
    }
    assert ours <= {"RowLinear", "PrefixEncoder"}
    assert not prepared.encoder.model._forward_pre_hooks
    assert capacity not in os.environ
    config = prepared.encoder.base.config
    assert config._attn_implementation == ("hifi_prefix" if method == "prefix-tuning" else "sdpa")
    fast, _ = prepare(make, workspace, method)
    types = {type(module) for module in fast.encoder.model.modules()}
    assert FastDropout in types and nn.Dropout not in types
    assert os.environ[capacity] == "64"


def test_fast_dropout_has_the_rate_of_each_module(make, workspace):
    rates = []
    for kernels in ("torch", "auto"):
        prepared, _ = prepare(make, workspace, "full-ft", "dropout=0.3", f"kernels={kernels}")
        named = prepared.encoder.model.named_modules()
        rates.append({name: module.p for name, module in named if isinstance(module, nn.Dropout)})
    assert rates[0] == rates[1] and 0.3 in rates[0].values()


def test_every_forward_pass_of_training_draws_noise_that_torchs_seed_decides(make, workspace):
    prepared, config = prepare(make, workspace, "full-ft")
    model, examples = prepared.encoder.model.train(), splits_of(config, workspace).train[:8]

    def passes(count):
        torch.manual_seed(3)
        return [prepared.logits(examples) for _ in range(count)]

    first, second = passes(2)
    assert not torch.equal(first, second)
    NOISE.reseed()
    assert torch.equal(passes(1)[0], first)
    state = torch.random.get_rng_state()
    model.eval()
    prepared.logits(examples)
    assert torch.equal(torch.random.get_rng_state(), state)  # evaluation draws nothing


@pytest.mark.slow
def test_gradients_under_dropout_have_the_mean_and_the_spread_of_stock_modules(make, workspace):
    """Over many draws at the same weights, so that training sees the same noise, however it is drawn."""

    def mean_and_spread(*overrides):
        prepared, config = prepare(make, workspace, "full-ft", "precision=fp32", *overrides)
        prepared.encoder.model.train()
        examples = splits_of(config, workspace).train[:16]
        parameters = [p for p in prepared.encoder.model.parameters() if p.requires_grad]
        torch.manual_seed(11)
        gradients = []
        for _ in range(300):
            loss = prepared.loss(examples)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            gradients.append(torch.cat([g.flatten() for g in found if g is not None]))
        drawn = torch.stack(gradients)
        return drawn.mean(0), drawn.std(0).square().sum().sqrt()

    fast, fast_spread = mean_and_spread()
    stock, stock_spread = mean_and_spread("kernels=torch", "padding_free=false")
    assert float(fast_spread) == pytest.approx(float(stock_spread), rel=0.03)
    # Two means of as many draws differ by their own standard errors.
    by_chance = (fast_spread.square() + stock_spread.square()) / 300
    assert float((fast - stock).square().sum()) < 1.5 * float(by_chance)
