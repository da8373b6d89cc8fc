"""CPU kernels (`kernels: auto`) against stock PyTorch (`kernels: torch`)."""

import copy
import json
import os

import pytest
import torch
from prepared_models import prepare
from tiny_inputs import FAMILIES, HIDDEN, LAYERS
from torch import nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hifi_cli.models import cpu_kernels
from hifi_cli.models.cpu_kernels import NOISE, FastDropout, FastLinear, FastRowLinear, linear
from hifi_cli.models.encoder import additive_mask
from hifi_cli.models.row_linear import RowLinear
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.reload import evaluate
from hifi_cli.tasks.batches import collate
from hifi_cli.training import run as runs
from hifi_cli.training.data import load_splits


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
    mask = additive_mask(torch.arange(6) < torch.tensor([[6], [4]]), torch.float64) if masked else None
    expected = functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
    module = nn.Module()
    module.is_causal = False
    how = {"scaling": 8**-0.5}
    computed, _ = cpu_kernels.attention(module, query, key, value, mask, dropout=0.0, **how)
    torch.testing.assert_close(computed, expected)
    tiny, _ = cpu_kernels.attention(module, query, key, value, mask, dropout=1e-9, **how)  # our own arithmetic, nothing dropped
    torch.testing.assert_close(tiny, expected)
    direction = torch.randn(expected.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((output * direction).sum(), given, retain_graph=True)[0] for output in (tiny, expected)]
    torch.testing.assert_close(*gradients)
    draws = torch.stack(
        [cpu_kernels.attention(module, query, key, value, mask, dropout=0.3, **how)[0].detach() for _ in range(3000)]
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

    assert torch.autograd.gradcheck(attended, [tensor.requires_grad_() for tensor in (query, key, value)])


def test_bfloat16_products_are_near_and_evaluation_is_exact():
    torch.manual_seed(0)
    plain = nn.Linear(64, 48)
    quick = FastLinear(copy.deepcopy(plain), training_dtype=torch.float32)
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
    for gradient, other in ((x.grad, y.grad), (plain.weight.grad, quick.weight.grad), (plain.bias.grad, quick.bias.grad)):
        assert float((gradient - other).norm() / gradient.norm()) < 0.01
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
    computed = linear(*ours, plain.weight.detach(), plain.bias.detach(), None if index is None else torch.tensor(index))
    expected = plain(x.requires_grad_())
    torch.testing.assert_close(computed, expected)
    assert computed.dtype == torch.float32
    direction = torch.randn(expected.shape)
    (computed * direction).sum().backward()
    (expected * direction).sum().backward()
    for tensor, other in zip(ours, (x.grad, plain.weight.grad[rows], plain.bias.grad[rows]), strict=True):
        torch.testing.assert_close(tensor.grad, other)
    ours[0].grad = None  # and from a gradient that is one number, not laid out in memory
    linear(*ours, plain.weight.detach(), plain.bias.detach(), None if index is None else torch.tensor(index)).sum().backward()
    torch.testing.assert_close(ours[0].grad, plain.weight.detach().sum(0).expand(shape))


def test_a_frozen_weight_is_cast_once_and_a_changed_one_again():
    quick = FastLinear(nn.Linear(8, 8).requires_grad_(False), training_dtype=torch.float32).train()
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


def test_a_fused_optimizers_steps_are_seen():
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)
    quick, tuned = (
        FastLinear(copy.deepcopy(linear), training_dtype=torch.float32).train(),
        FastRowLinear(FastLinear(linear, training_dtype=torch.float32), [0, 1], biases=True).train(),
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
        FastRowLinear(FastLinear(copy.deepcopy(linear), training_dtype=torch.float32), [2, 3, 7], biases=True).train(),
        RowLinear(linear, [2, 3, 7], biases=True),
    )
    x = torch.randn(6, 16)
    with torch.inference_mode():  # evaluated before it trains
        tuned.eval()(x)
    tuned.train()
    for _ in range(3):
        torch.testing.assert_close(tuned(x), slow(x), rtol=0.03, atol=0.03)
        assert torch.equal(tuned.base_layer.weight[tuned.index], tuned.rows)
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
    torch.testing.assert_close(tuned.eval()(x), slow.eval()(x))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_with_fast_layers_evaluates_as_the_plain_one(make, resources, family, precision):
    config = make("full-ft", f"precision={precision}", family=family)
    quick = resources.encoder(config)[0].model.eval()
    plain = copy.deepcopy(resources.pretrained(config).model).eval()
    plain.load_state_dict(quick.state_dict())
    batch = collate(load_splits(config, resources).train[:6], {"input_ids": 0, "token_type_ids": 0})
    with torch.no_grad():
        torch.testing.assert_close(quick(**batch).logits, plain(**batch).logits, rtol=1e-4, atol=1e-5)
    assert [type(module) for module in quick.modules() if type(module) is nn.Dropout] == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full-ft", "lora", "eh-ft-hifi", "child-tuning-d"])
def test_methods_train_in_bf16_and_comes_back_the_same(make, resources, method):
    how = ["epochs=14", "learning_rate=0.01"] if method == "lora" else ["epochs=7", "learning_rate=0.007"]
    config = make(method, "precision=bf16", *how, "warmup=0", "dropout=0.0")
    results = runs.run(config, resources)
    assert results.scores.best > 0.7
    assert evaluate(RunDirectory.of(config, resources.results_dir).path, resources).largest_difference == 0


def test_evaluation_of_tuned_rows_is_float32_even_where_training_gives_bfloat16():
    module = FastRowLinear(FastLinear(nn.Linear(8, 6), training_dtype=torch.bfloat16), [1, 4], biases=True)
    x = torch.randn(3, 8)
    assert module.train()(x).dtype == torch.bfloat16
    output = module.eval()(x)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, nn.functional.linear(x, module.base_layer.weight, module.base_layer.bias))


def test_the_passes_of_an_evaluation_write_the_tuned_rows_once(monkeypatch):
    merges, merge = [], FastRowLinear.merge
    monkeypatch.setattr(FastRowLinear, "merge", lambda module: merges.append(module) or merge(module))
    tuned, x = FastRowLinear(FastLinear(nn.Linear(6, 8)), [2, 3], biases=True), torch.randn(4, 6)
    adam = torch.optim.AdamW([tuned.rows, tuned.row_bias], lr=0.1, fused=True)

    def evaluated():
        with torch.no_grad():
            return tuned(x)[:, 2:4]

    def expected():
        return nn.functional.linear(x, tuned.rows, tuned.row_bias)

    first = evaluated()
    torch.testing.assert_close((first, evaluated()), (expected(), expected()))
    assert len(merges) == 1
    tuned(x).sum().backward()
    adam.step()  # which no version number tells
    torch.testing.assert_close(evaluated(), expected())
    assert len(merges) == 3 and not torch.allclose(expected(), first)
    with torch.no_grad():
        tuned.row_bias.add_(1)
    torch.testing.assert_close((evaluated(), evaluated()), (expected(), expected()))
    assert len(merges) == 4


def test_tuned_rows_are_fast_where_the_whole_bias_trains(make, resources):
    prepared, _ = prepare(make, resources, "rocoft-row", "precision=bf16")
    tuned = [module for module in prepared.encoder.model.modules() if isinstance(module, RowLinear)]
    assert {type(module) for module in tuned} == {FastRowLinear} and all(module.training_dtype for module in tuned)
    assert all(module.base_layer.bias.requires_grad and not module.base_layer.weight.requires_grad for module in tuned)


# --- whole runs with either setting


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "prefix-tuning"])
def test_torch_runs_stock_modules_only(make, resources, method, monkeypatch):
    capacity = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(capacity, raising=False)
    prepared, _ = prepare(make, resources, method, "kernels=torch")
    ours = {type(module).__name__ for module in prepared.encoder.model.modules() if type(module).__module__.startswith("hifi")}
    assert ours <= {"RowLinear", "PrefixEncoder"}
    assert not prepared.encoder.model._forward_pre_hooks
    assert capacity not in os.environ
    config = prepared.encoder.base.config
    assert config._attn_implementation == ("hifi_prefix" if method == "prefix-tuning" else "sdpa")
    fast, _ = prepare(make, resources, method)
    types = {type(module) for module in fast.encoder.model.modules()}
    assert {FastLinear, FastDropout} <= types and not {RowLinear, nn.Dropout} & types
    assert os.environ[capacity] == "64"


def losses(config, resources):
    """The training losses of every step."""
    runs.run(config, resources)
    lines = map(json.loads, RunDirectory.of(config, resources.results_dir).metrics.read_text().splitlines())
    return torch.tensor([line["loss"] for line in lines if "loss" in line])


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.02)])
@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "prefix-tuning"])
def test_without_dropout_both_settings_give_the_same_losses(make, resources, method, precision, tolerance):
    words = ["dropout=0.0", "log_every=1", "learning_rate=0.003", f"precision={precision}"]
    fast = losses(make(method, *words), resources)
    stock = losses(make(method, *words, "kernels=torch", "variant=torch"), resources)
    assert len(fast) == 12 and fast.std() > 1e-3  # it learns, so a wrong gradient would show
    torch.testing.assert_close(fast, stock, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_dropout_of_both_settings_has_its_rate_its_scale_and_no_memory(make, resources, kernels):
    """The masks of every dropout module of a model in training, over several steps."""
    p, steps = 0.25, 12
    prepared, config = prepare(make, resources, "full-ft", f"dropout={p}", f"kernels={kernels}")
    masks = {}

    def record(name):
        def hook(_, inputs, output):
            kept = output != 0
            torch.testing.assert_close(output[kept], (inputs[0] / (1 - p))[kept])
            masks.setdefault(name, []).append(kept[..., : 6 * HIDDEN].flatten()[: 6 * HIDDEN].float())

        return hook

    for name, module in prepared.encoder.model.named_modules():
        if isinstance(module, nn.Dropout) and "attention.self" not in name and name != "dropout":
            module.register_forward_hook(record(name))
    examples = load_splits(config, resources).train[:8]
    torch.manual_seed(0)
    prepared.encoder.model.train()
    for _ in range(steps):
        prepared.runner.accumulate_gradient(examples)
    drawn = torch.stack([mask for each in masks.values() for mask in each])  # [modules x steps, entries]
    assert len(masks) == 1 + 2 * LAYERS and len(drawn) == steps * len(masks)
    assert float(drawn.mean()) == pytest.approx(1 - p, abs=4 * (p * (1 - p) / drawn.numel()) ** 0.5)
    correlation = torch.corrcoef(drawn).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 6 * drawn.shape[1] ** -0.5  # of any two modules or steps
    assert float(correlation.square().mean()) == pytest.approx(1 / drawn.shape[1], rel=0.2)


def test_attention_dropout_of_both_settings_spreads_alike():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8)
    module = nn.Module()
    module.is_causal = False

    def spread(attend):
        draws = [attend(module, query, key, value, None, dropout=0.3, scaling=8**-0.5)[0] for _ in range(2000)]
        return torch.stack(draws).std(0)

    fast, stock = spread(cpu_kernels.attention), spread(sdpa_attention_forward)
    assert float(fast.mean() / stock.mean()) == pytest.approx(1, abs=0.02)
    torch.testing.assert_close(fast, stock, rtol=0.2, atol=0.02)


def test_every_forward_pass_of_training_draws_noise_that_torchs_seed_decides(make, resources):
    prepared, config = prepare(make, resources, "full-ft")
    model, examples = prepared.encoder.model.train(), load_splits(config, resources).train[:8]

    def passes(count):
        torch.manual_seed(3)
        return [prepared.runner.logits(examples) for _ in range(count)]

    first, second = passes(2)
    assert not torch.equal(first, second)
    NOISE.reseed()
    assert torch.equal(passes(1)[0], first)
    state = torch.random.get_rng_state()
    model.eval()
    prepared.runner.logits(examples)
    assert torch.equal(torch.random.get_rng_state(), state)  # evaluation draws nothing


def test_kernels_count_in_the_hash(make):
    assert make().hash == make("full-ft", "kernels=auto").hash != make("full-ft", "kernels=torch").hash


def test_a_row_linear_may_be_called_twice_in_a_pass():
    """As DeBERTa's projections are, for tokens and for distances."""
    module = FastRowLinear(FastLinear(nn.Linear(8, 6), training_dtype=torch.bfloat16), [1, 4], biases=True).train()
    first, second = torch.randn(3, 8), torch.randn(5, 8)
    (module(first).sum() + module(second).sum()).backward()
    expected = torch.cat([first, second]).to(torch.bfloat16).float().sum(0)
    torch.testing.assert_close(module.rows.grad, expected.expand(2, 8), rtol=0.02, atol=0.05)
