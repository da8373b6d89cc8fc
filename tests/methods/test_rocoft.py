"""RoCoFT's rows and columns: which ones train, and that they move as under a masked full gradient."""

import copy

import pytest
import torch
from prepared_models import prepare
from safetensors.torch import load_file

from hifi_cli.errors import UsageError
from hifi_cli.models.modules import ColumnLinear, RowLinear
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate

every_axis = pytest.mark.parametrize("method", ["rocoft-row", "rocoft-column"])


TUNED = {  # modules of rows or columns, the frozen dimension, and whether the whole bias trains
    "rows": (lambda linear, index: RowLinear(linear, index, biases=False), 0, True),
    "columns": (ColumnLinear, 1, True),
    "HiFi's rows": (lambda linear, index: RowLinear(linear, index, biases=True), 0, False),
}


@pytest.mark.parametrize(("build", "axis", "whole_bias"), TUNED.values(), ids=TUNED)
def test_the_trajectory_is_that_of_masked_full_gradients(build, axis, whole_bias):
    """In float64, with weight decay: rows, columns and biases move exactly as under a masked full gradient."""
    torch.manual_seed(0)
    linear, index = torch.nn.Linear(6, 8).double(), [1, 4]
    masked, start = copy.deepcopy(linear), copy.deepcopy(linear)
    tuned = build(linear, index)
    if whole_bias:
        tuned.base_layer.bias.requires_grad_(True)
    frozen = {
        "weight": torch.ones(8, 6, dtype=torch.bool),
        "bias": torch.full((8,), not whole_bias),
    }
    frozen["weight"][(slice(None), index) if axis else index] = False
    frozen["bias"][index] = False
    settings = {"lr": 0.05, "weight_decay": 0.3, "fused": True}
    adam = torch.optim.AdamW(
        [parameter for parameter in tuned.parameters() if parameter.requires_grad], **settings
    )
    other = torch.optim.AdamW(masked.parameters(), **settings)
    target = torch.randn(5, 3, 8).double()
    for step in range(20):
        x = (
            torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(step))
            .double()
            .requires_grad_()
        )
        y = x.detach().clone().requires_grad_()
        (tuned(x) - target).pow(2).sum().backward()
        (masked(y) - target).pow(2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-12, atol=1e-12)
        for name, mask in frozen.items():
            masked.get_parameter(name).grad[mask] = 0
        adam.step(), other.step()
        adam.zero_grad(), other.zero_grad()
        for name, mask in frozen.items():
            masked.get_parameter(name).data[mask] = start.get_parameter(name).data[mask]
    plain = tuned.merge()
    for name, mask in frozen.items():
        merged = plain.get_parameter(name)
        torch.testing.assert_close(merged, masked.get_parameter(name), rtol=1e-12, atol=1e-12)
        assert torch.equal(merged[mask], start.get_parameter(name)[mask])


@every_axis
def test_the_first_train_and_the_delta_holds_them(make, workspace, method):
    config = make(method, "settings.targets=[value]", "settings.biases=false", "settings.r=2")
    runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    delta = load_file(directory.delta)
    (path, *_) = matrices = {name.rpartition(".")[0] for name in delta if name.endswith(".index")}
    assert len(matrices) == 2 and all(".value" in name for name in matrices)
    assert {name for name in delta if path in name} == {
        f"{path}.index",
        f"{path}.{method.partition('-')[2]}s",
    }
    assert delta[f"{path}.index"].tolist() == [0, 1]
    assert evaluate(directory.path, workspace).largest_difference == 0


@every_axis
def test_more_rows_than_there_are_is_refused(make, workspace, method):
    with pytest.raises(UsageError, match=r"settings\.r=33: a matrix of the encoder has only 32"):
        prepare(make, workspace, method, "settings.r=33")
