"""The fast paths against PyTorch's own."""

import copy

import pytest
import torch
from tiny_inputs import FAMILIES
from torch import nn
from torch.nn import functional

from hifi_cli.methods.hifi import RowLinear
from hifi_cli.models import cpu_kernels
from hifi_cli.models.cpu_kernels import NOISE, FastDropout
from hifi_cli.models.cpu_linear import FastLinear, product
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.evaluate import evaluate
from hifi_cli.tasks.batches import collate


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
    assert cpu_kernels.dropout(x, 0.0) is x


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_pytorchs_and_with_dropout_its_expectation(masked):
    torch.manual_seed(0)
    given = torch.randn(3, 2, 4, 6, 8).double().requires_grad_()
    query, key, value = given
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    mask = mask if masked else None
    expected = functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
    module = nn.Module()
    module.is_causal = False
    how = {"scaling": 8**-0.5}
    found, _ = cpu_kernels.attend(module, query, key, value, mask, dropout=0.0, **how)
    torch.testing.assert_close(found, expected)
    tiny, _ = cpu_kernels.attend(module, query, key, value, mask, dropout=1e-9, **how)  # our own arithmetic, nothing dropped
    torch.testing.assert_close(tiny, expected)
    direction = torch.randn(expected.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((one * direction).sum(), given, retain_graph=True)[0] for one in (tiny, expected)]
    torch.testing.assert_close(*gradients)
    draws = torch.stack(
        [cpu_kernels.attend(module, query, key, value, mask, dropout=0.3, **how)[0].detach() for _ in range(3000)]
    )
    torch.testing.assert_close(draws.mean(0), expected.detach(), rtol=0, atol=0.12)
    assert float(draws.std(0).mean()) > 0.05


def test_the_gradient_of_attention_with_dropout_is_that_of_what_it_computed():
    """Against differences, the same entries dropped each time."""
    query, key, value = torch.randn(3, 1, 2, 4, 3, dtype=torch.float64)
    mask = torch.tensor([True, True, True, False]).expand(1, 1, 4, 4)

    def attended(*given):
        torch.manual_seed(1)
        NOISE.reseed()
        return cpu_kernels.attend(nn.Module(), *given, mask, dropout=0.4, scaling=0.5)[0]

    assert torch.autograd.gradcheck(attended, [one.requires_grad_() for one in (query, key, value)])


def test_bfloat16_products_are_near_and_evaluation_is_exact():
    torch.manual_seed(0)
    plain = nn.Linear(64, 48)
    quick = FastLinear(copy.deepcopy(plain), bf16=torch.float32)
    x, y = (torch.randn(5, 7, 64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        y.copy_(x)
    quick.train()
    outs = plain(x), quick(y)
    assert outs[1].dtype == torch.float32
    torch.testing.assert_close(outs[1], outs[0], rtol=0.02, atol=0.02)
    assert not torch.equal(*outs)
    for out in outs:
        out.square().sum().backward()
    for one, other in ((x.grad, y.grad), (plain.weight.grad, quick.weight.grad), (plain.bias.grad, quick.bias.grad)):
        assert float((one - other).norm() / one.norm()) < 0.01
    quick.eval()
    torch.testing.assert_close(quick(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3), (4, 1, 3), (2, 5, 3)])
@pytest.mark.parametrize("index", [None, [4, 0]])
def test_float32_products_are_pytorchs_forwards_and_backwards(shape, index):
    torch.manual_seed(0)
    plain, x = nn.Linear(3, 6), torch.randn(shape)
    rows = slice(None) if index is None else index
    ours = [
        value.detach()[at].clone().requires_grad_()
        for value, at in ((x, slice(None)), (plain.weight, rows), (plain.bias, rows))
    ]
    found = product(*ours, plain.weight.detach(), plain.bias.detach(), None if index is None else torch.tensor(index))
    expected = plain(x.requires_grad_())
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32
    direction = torch.randn(expected.shape)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for one, other in zip(ours, (x.grad, plain.weight.grad[rows], plain.bias.grad[rows]), strict=True):
        torch.testing.assert_close(one.grad, other)
    ours[0].grad = None  # and from a gradient that is one number, not laid out in memory
    product(*ours, plain.weight.detach(), plain.bias.detach(), None if index is None else torch.tensor(index)).sum().backward()
    torch.testing.assert_close(ours[0].grad, plain.weight.detach().sum(0).expand(shape))


def test_a_frozen_weight_is_cast_once_and_a_changed_one_again():
    quick = FastLinear(nn.Linear(8, 8).requires_grad_(False), bf16=torch.float32).train()
    x = torch.randn(2, 8)
    quick(x)
    cast = quick._cast
    quick(x)
    assert quick._cast is cast
    with torch.no_grad():
        quick.weight.mul_(2)
    quick(x)
    assert quick._cast is not cast
    torch.testing.assert_close(quick._cast.float(), quick.weight, rtol=0.01, atol=0)


def test_a_fused_optimisers_steps_are_seen():
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)
    quick, tuned = (
        FastLinear(copy.deepcopy(linear), bf16=torch.float32).train(),
        RowLinear(FastLinear(linear, bf16=torch.float32), [0, 1], biases=True).train(),
    )
    x = torch.randn(4, 8)
    for module in (quick, tuned):
        before = module(x).detach()
        adam = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1, fused=True)
        module(x).sum().backward()
        adam.step()
        after = module(x).detach()
        assert float((after - before).abs().max()) > 0.1
        torch.testing.assert_close(module.eval()(x), after, rtol=0.03, atol=0.03)


def test_tuned_rows_follow_their_parameter_in_bfloat16():
    torch.manual_seed(0)
    linear = nn.Linear(16, 12)
    tuned, slow = (
        RowLinear(FastLinear(copy.deepcopy(linear), bf16=torch.float32), [2, 3, 7], biases=True).train(),
        RowLinear(linear, [2, 3, 7], biases=True),
    )
    x = torch.randn(6, 16)
    with torch.inference_mode():  # evaluated before it trains
        tuned.eval()(x)
    tuned.train()
    for _ in range(3):
        torch.testing.assert_close(tuned(x), slow(x), rtol=0.03, atol=0.03)
        assert torch.equal(tuned.weight, slow.weight)
        with torch.no_grad():
            for module in (tuned, slow):
                module.rows.add_(0.5)
                module.row_bias.sub_(0.25)
    with torch.inference_mode():
        tuned.eval()(x)
    tuned.train()
    for module in (tuned, slow):
        module(x).square().sum().backward()
    assert float((tuned.rows.grad - slow.rows.grad).norm() / slow.rows.grad.norm()) < 0.02
    assert float((tuned.row_bias.grad - slow.row_bias.grad).norm() / slow.row_bias.grad.norm()) < 0.02
    assert torch.equal(tuned.eval()(x), slow.eval()(x))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_with_fast_layers_evaluates_as_the_plain_one(make, resources, family, precision):
    config = make("full-ft", f"precision={precision}", family=family)
    quick = resources.encoder(config)[0].model.eval()
    plain = copy.deepcopy(resources.pretrained(config).model).eval()
    plain.load_state_dict(quick.state_dict())
    batch = collate(runs.split_examples(config, resources).train[:6], {"input_ids": 0, "token_type_ids": 0})
    with torch.no_grad():
        torch.testing.assert_close(quick(**batch).logits, plain(**batch).logits, rtol=1e-4, atol=1e-5)
    assert [type(module) for module in quick.modules() if type(module) is nn.Dropout] == []


@pytest.mark.parametrize("method", ["full-ft", "lora", "eh-ft-hifi", "child-tuning-d"])
def test_methods_train_in_bf16_and_comes_back_the_same(make, resources, method):
    how = ["epochs=14", "learning_rate=0.01"] if method == "lora" else ["epochs=10", "learning_rate=0.005"]
    config = make(method, "precision=bf16", *how, "warmup=0", "dropout=0.0")
    results = runs.run(config, resources)
    assert results["scores"]["best"] > 0.7
    assert evaluate(RunDirectory.of(config, resources.results_dir).path, resources).largest_difference == 0


def test_auto_means_what_the_hardware_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    for there in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda there=there: there)
        assert cpu_kernels.wants_bf16("auto") is there
    assert cpu_kernels.wants_bf16("bf16") and not cpu_kernels.wants_bf16("fp32")
