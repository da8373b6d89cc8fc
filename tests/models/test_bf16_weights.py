"""Copies of weights in bfloat16 compute what autocast computes, to the bit; the model stays."""

import copy
from contextlib import nullcontext

import pytest
import torch
from recorded_operations import RecordedOperations
from torch import nn
from torch.nn.utils import prune

from hifi_cli.models.bf16_weights import Bf16Weights
from hifi_cli.models.modules import ColumnLinear, RowLinear


class Model(nn.Module):
    """Linears of every kind that a method leaves in a model.

    One is frozen, one is called twice, one has no bias, one has a bias alone that trains. Of two
    some rows train, of one columns; one has tuned rows and a bias that trains whole.
    """

    def __init__(self):
        super().__init__()
        frozen = nn.Linear(8, 8).requires_grad_(False)
        with_bias = nn.Linear(8, 8)
        with_bias.weight.requires_grad_(False)
        self.modules_in_order = nn.ModuleList(
            [
                nn.Linear(8, 8, bias=False),
                frozen,
                with_bias,
                RowLinear(nn.Linear(8, 8), [1, 5], biases=True),
                RowLinear(nn.Linear(8, 8, bias=False), [0, 2, 3], biases=True),
                ColumnLinear(nn.Linear(8, 8), [4]),
                RowLinear(nn.Linear(8, 8), [7], biases=False),
                nn.LayerNorm(8),
                nn.Linear(8, 2),
            ]
        )
        self.modules_in_order[6].base_layer.bias.requires_grad_(True)

    def forward(self, x):
        for module in self.modules_in_order:
            x = module(x).tanh() if module is not self.modules_in_order[-1] else module(x)
        # The first once more, and its weight as a number of its own.
        return (
            x @ self.modules_in_order[0](x.new_ones(2, 8)) * self.modules_in_order[0].weight.sum()
        )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def train(model, weights, steps=3):
    """Losses and trained parameters of some steps under autocast, with copies or without."""
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(5, 8, generator=generator)
        optimizer.zero_grad()
        if weights:
            weights.refresh()
        with weights.in_use() if weights else nullcontext(), torch.autocast("cpu"):
            loss = model(x).float().square().mean()
        loss.backward()
        if weights:
            for parameter, gradient in weights.take_gradients().items():
                own = 0 if parameter.grad is None else parameter.grad
                parameter.grad = own + gradient.float()
        optimizer.step()
        losses.append(loss.detach())
    # Outside of a step a RowLinear writes its rows into the frozen weight by itself.
    for module in model.modules():
        if isinstance(module, RowLinear):
            module.merge()
    return losses, dict(model.state_dict())


def test_steps_with_copies_are_those_of_autocast(model):
    plain = copy.deepcopy(model)
    torch.testing.assert_close(train(model, Bf16Weights(model)), train(plain, None), rtol=0, atol=0)
    # The steps have changed something.
    torch.manual_seed(0)
    assert not torch.equal(Model().modules_in_order[0].weight, model.modules_in_order[0].weight)


def test_the_model_is_as_before_outside_of_use(model):
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    weights = Bf16Weights(model)
    weights.refresh()
    with pytest.raises(RuntimeError, match="stopped"), weights.in_use():
        raise RuntimeError("stopped")
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


def test_without_autocast_the_weights_themselves_compute(model):
    x = torch.randn(5, 8)
    expected = model(x)
    with Bf16Weights(model).in_use():
        assert torch.equal(model(x), expected)


def test_each_weight_is_copied_once_and_a_refresh_is_a_few_operations(model):
    weights = Bf16Weights(model)
    with RecordedOperations() as recording:
        weights.refresh()
    names = [call.operation.overloadpacket.__name__ for call in recording.calls]
    # What trains, and the rows of all matrices and of all biases.
    assert names.count("_foreach_copy_") == 1 and names.count("index_copy_") == 2
    assert "_to_copy" not in names and len(names) < 10
    # All weights but those of the LayerNorm, and the columns.
    others = {"modules_in_order.7.weight", "modules_in_order.7.bias", "modules_in_order.5.columns"}
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    copied = [*weights.trained.values(), *weights.frozen.values()]
    assert all(values.dtype == torch.bfloat16 for values in copied)
    assert sum(values.numel() for values in copied) == sum(
        size for name, size in sizes.items() if name not in others
    )


def test_a_frozen_weight_that_a_method_changes_is_copied_again(model):
    weights = Bf16Weights(model)
    frozen = model.modules_in_order[1].weight
    x = torch.randn(5, 8)
    with torch.no_grad():
        frozen.mul_(2)
    weights.renew_frozen()
    with RecordedOperations() as recording:
        weights.renew_frozen()
    # What has not changed is not copied.
    assert recording.calls == []
    with torch.autocast("cpu"):
        expected = model(x)
        with weights.in_use():
            assert torch.equal(model(x), expected)


def test_rows_that_are_not_written_together_train_as_well(model, monkeypatch):
    """`scripts/gpu_check` times steps without: RowLinears are then left to autocast."""
    plain = copy.deepcopy(model)
    monkeypatch.setattr(Bf16Weights, "copy_tuned", lambda *_: None)
    weights = Bf16Weights(model)
    assert weights.tuned_rows == []
    torch.testing.assert_close(train(model, weights), train(plain, None), rtol=0, atol=0)


class Doubled(nn.Linear):
    """A Linear that computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_linear_that_computes_something_else_is_left_to_autocast():
    """A subclass, one with a forward of its own, and one whose weight is no parameter."""
    torch.manual_seed(0)
    with_forward = nn.Linear(8, 8)
    with_forward.forward = lambda x: 3 * nn.Linear.forward(with_forward, x)
    pruned = prune.random_unstructured(nn.Linear(8, 8), "weight", amount=0.5)
    for module in (Doubled(8, 8), with_forward, pruned):
        weights = Bf16Weights(module)
        assert weights.trained == weights.frozen == {}
        x = torch.randn(5, 8)
        with torch.autocast("cpu"):
            expected = module(x)
            with weights.in_use():
                assert torch.equal(module(x), expected)
