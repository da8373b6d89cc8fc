"""Diff-Pruning against its authors' rules, written out by hand."""

import copy
import math

import numpy as np
import pytest
import torch
from prepared_models import encoder_of, prepare, splits_of

from hifi_cli.methods.diff_pruning import hard_concrete
from hifi_cli.tasks.encode import collate
from hifi_cli.training.loop import Splits, Trainer

SHARED = ["dropout=0.0", "warmup=0", "settings.search_fraction=0.999"]


def start(prepared, config, workspace, steps):
    """A trainer in the search stage, which has `steps` steps, and one batch for each of them."""
    examples = splits_of(config, workspace).train
    size = config.batch_size
    batches = [
        [examples[(step * size + at) % len(examples)] for at in range(size)]
        for step in range(steps)
    ]
    prepared.config = config.model_copy(
        update={"epochs": steps + 1}
    )  # one batch an epoch, one step for stage 2
    trainer = Trainer(prepared, prepared.method, Splits(batches[0]))
    trainer.begin_stage(0)
    return trainer, batches


def clip_by_hand(parameters, most):
    norm = math.sqrt(sum(float(parameter.grad.double().pow(2).sum()) for parameter in parameters))
    for parameter in parameters:
        parameter.grad.mul_(min(1.0, most / (norm + 1e-6)))


def search_by_hand(model, exempt, batches, config):
    """Two AdamW optimisers, gradients of the gates by their formulas, and each optimiser's gradient clipped by itself."""
    penalty, most, steps = 1e-4, config.max_grad_norm, len(batches)
    is_product = config.settings.get("l0") == "product"
    weights = dict(model.named_parameters())
    names = [name for name in weights if name not in exempt]
    pretrained = {name: weights[name].detach().clone() for name in names}
    difference = {name: torch.zeros_like(weights[name], requires_grad=True) for name in names}
    gate = {name: torch.full_like(weights[name], 5.0, requires_grad=True) for name in names}
    tensor_gate = {name: torch.full((1,), 5.0, requires_grad=True) for name in names}
    gates = [value for name in names for value in (gate[name], tensor_gate[name])]
    heads = [weights[name] for name in exempt]
    rate = config.learning_rate
    weight_optimiser = torch.optim.AdamW(
        [
            {"params": heads[:1], "weight_decay": config.weight_decay},
            {"params": heads[1:], "weight_decay": 0},  # the bias
            {"params": list(difference.values()), "weight_decay": 0},
        ],
        lr=rate,
        eps=config.adam_epsilon,
    )
    gate_optimiser = torch.optim.AdamW(gates, lr=0.1, weight_decay=0, eps=1e-8)

    def concrete(alpha, noise):
        uniform = torch.rand(alpha.shape, generator=noise).clamp(1e-6, 1 - 1e-6)
        s = torch.sigmoid(uniform.log() - (1 - uniform).log() + alpha.detach())
        stretched = 3 * s - 1.5
        return stretched.clamp(0, 1), 3 * s * (1 - s) * ((stretched > 0) & (stretched < 1))

    for step, batch in enumerate(batches):
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        drawn = {}
        with torch.no_grad():
            for name in names:
                drawn[name] = concrete(gate[name], noise), concrete(tensor_gate[name], noise)
                weights[name].copy_(
                    pretrained[name] + drawn[name][0][0] * drawn[name][1][0] * difference[name]
                )
        labels = torch.tensor([example.row.label for example in batch])
        out = model(**collate(batch, {"input_ids": 0, "token_type_ids": 0})).logits
        model.zero_grad()
        torch.nn.functional.cross_entropy(out, labels).backward()
        with torch.no_grad():
            for name in names:
                (z, slope), (z_tensor, slope_tensor) = drawn[name]
                gradient, delta = weights[name].grad, difference[name]
                on, on_tensor = (
                    torch.sigmoid(gate[name]),
                    torch.sigmoid(tensor_gate[name]),
                )  # log(1.5 / 1.5) is 0
                difference[name].grad = gradient * z * z_tensor
                open_tensor, open_entries = (on_tensor, on.sum()) if is_product else (1.0, 1.0)
                gate[name].grad = (
                    gradient * delta * z_tensor * slope + penalty * on * (1 - on) * open_tensor
                )
                own = penalty * open_entries * on_tensor * (1 - on_tensor)
                tensor_gate[name].grad = (gradient * delta * z).sum() * slope_tensor + own
        clip_by_hand([*heads, *difference.values()], most)
        clip_by_hand(gates, most)
        for group in weight_optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)  # linear; the gates' rate stays
        weight_optimiser.step()
        gate_optimiser.step()
    return difference, gate, tensor_gate, heads


@pytest.mark.parametrize("l0", ["sum", "product"])
def test_gates_and_differences_follow_two_optimisers_with_clips_of_their_own(make, workspace, l0):
    changed = [
        *SHARED,
        "learning_rate=1e-3",
        "max_grad_norm=0.005",
        "weight_decay=0.1",
        "adam_epsilon=1e-6",
    ]
    changed += ["settings.penalty=1e-4", f"settings.l0={l0}"]
    prepared, config = prepare(make, workspace, "diff-pruning", *changed)
    plain = copy.deepcopy(encoder_of(config, workspace).model).train()
    for model in (plain, prepared.encoder.model):
        model.classifier.bias.data += 10  # so that its decay would show
    trainer, batches = start(prepared, config, workspace, 8)
    for batch in batches:
        trainer.train_step(batch)
    exempt = ["classifier.weight", "classifier.bias"]
    difference, gate, tensor_gate, heads = search_by_hand(plain, exempt, batches, config)
    gated = prepared.method.search
    our_gates, our_differences = (
        gated.split(gated.gate.detach()),
        gated.split(gated.difference.detach()),
    )
    assert set(our_gates) == set(difference)
    for index, name in enumerate(our_gates):
        torch.testing.assert_close(our_gates[name], gate[name].detach(), rtol=0, atol=1e-4)
        torch.testing.assert_close(
            gated.tensor_gate[index : index + 1].detach(),
            tensor_gate[name].detach(),
            rtol=0,
            atol=1e-4,
        )
        apart = (our_differences[name] - difference[name]).abs() > 1e-4
        assert float(apart.float().mean()) < 0.01, (
            name
        )  # an entry without gradient has the sign of a rounding error
    assert float((gated.gate.detach() - 5).abs().max()) > 0.02
    trainer.stage.before_evaluation()
    for name, evaluated in gated.split(gated.theta().detach()).items():
        assert torch.equal(prepared.encoder.model.get_parameter(name), evaluated)  # without noise
    for name, value in zip(exempt, heads, strict=True):
        torch.testing.assert_close(
            prepared.encoder.model.get_parameter(name), value, rtol=0, atol=1e-4
        )


def test_diff_pruning_keeps_the_largest_differences(make, workspace):
    prepared, _ = prepare(make, workspace, "diff-pruning", "settings.kept_fraction=0.1")
    method, model = prepared.method, prepared.encoder.model
    torch.manual_seed(0)
    with torch.no_grad():
        method.search.difference.normal_()
        method.search.gate.normal_(0, 2)
        method.search.tensor_gate.normal_(1, 2)
    expected = method.search.split(method.search.theta().detach())
    start = method.search.split(method.search.pretrained)
    method.stages()[1].prepare_model(prepared.encoder)
    sizes = np.concatenate([(expected[name] - start[name]).abs().numpy().ravel() for name in start])
    bound = np.sort(sizes)[::-1][round(0.1 * len(sizes)) - 1]
    for name, first in start.items():
        large = (expected[name] - first).abs() >= bound
        assert torch.equal(
            model.get_parameter(name), torch.where(large, first + (expected[name] - first), first)
        )


def test_only_matrices_without_pretrained_values_decay(make, workspace):
    prepared, _ = prepare(make, workspace, "diff-pruning")
    model = prepared.encoder.model
    for stage in prepared.method.stages():
        stage.prepare_model(prepared.encoder)
        names = {value: name for name, value in stage.method.trainable_parameters(model).items()}
        groups = stage.method.param_groups(model, 0.1)
        decays = {names[p]: group["weight_decay"] for group in groups for p in group["params"]}
        assert len(decays) == len(names) > 3
        assert decays.pop("classifier.weight") == 0.1 and {*decays.values()} == {0.0}


def test_the_second_stage_clips_the_gradient_of_what_it_trains(make, workspace):
    """A large epsilon makes the first step of AdamW proportional to the clipped gradient."""
    changed = [
        "dropout=0.0",
        "warmup=0",
        "schedule=constant",
        "weight_decay=0",
        "max_grad_norm=0.001",
    ]
    changed += ["adam_epsilon=100", "learning_rate=100"]
    prepared, config = prepare(make, workspace, "diff-pruning", *changed)
    examples = splits_of(config, workspace).train
    trainer = Trainer(prepared, prepared.method, Splits(examples))
    trainer.begin_stage(0)
    with torch.no_grad():
        prepared.method.search.difference.normal_(0, 0.01)
    trainer.begin_stage(1)
    trained = prepared.method.trainable_parameters(prepared.encoder.model)
    before = torch.cat([value.detach().flatten() for value in trained.values()])
    trainer.train_step(examples[: config.batch_size])
    after = torch.cat([value.detach().flatten() for value in trained.values()])
    assert float((after - before).norm()) == pytest.approx(0.001, rel=0.01)


def test_a_hard_concrete_gate_opens_and_closes(make, workspace):
    assert float(hard_concrete(torch.tensor(5.0))) == 1
    assert float(hard_concrete(torch.tensor(-5.0))) == 0
    prepared, _ = prepare(make, workspace, "diff-pruning", "settings.gate_start=0")
    search = prepared.method.search
    with torch.no_grad():
        search.pretrained.fill_(0)
        search.difference.fill_(1)
        search.tensor_gate.fill_(50)  # open, whatever the noise is
        draws = search.theta(torch.Generator().manual_seed(0))
    assert float((draws == 0).float().mean()) == pytest.approx(
        1 / 2, abs=0.02
    )  # where the stretched sigmoid is below 0
    assert float((draws == 1).float().mean()) == pytest.approx(1 / 6, abs=0.02)


def test_the_memory_of_the_search_is_said_once(hifi):
    words = ["train", "--protocol", "demo", "--dry-run", "--method", "diff-pruning"]
    said = "".join(hifi(*words).err for _ in range(3))
    assert said.count("search takes") <= 1
