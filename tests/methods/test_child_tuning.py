"""Child-Tuning F and D against their authors' rules, written out by hand."""

import copy

import numpy as np
import pytest
import torch
from prepared_models import prepare, splits_of
from safetensors.torch import load_file

from hifi_cli.models.modules import top_k_masks
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.tasks.encode import collate
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.stage import batch_gradients


def loss_of(model, batch):
    labels = torch.tensor([example.row.label for example in batch])
    logits = model(**collate(batch, {"input_ids": 0, "token_type_ids": 0})).logits
    return torch.nn.functional.cross_entropy(logits, labels)


def in_batches(config, workspace):
    examples = splits_of(config, workspace).train
    return [
        examples[at : at + config.batch_size] for at in range(0, len(examples), config.batch_size)
    ]


def masks_of(prepared):
    kept, model = prepared.method.delta(prepared.encoder.model), prepared.encoder.model
    shapes = {name: model.get_parameter(name).shape for name in prepared.encoder.layer_parameters}
    bits = {
        name: np.unpackbits(kept[f"{name}/mask"].numpy(), count=shape.numel())
        for name, shape in shapes.items()
    }
    return {
        name: torch.from_numpy(bits[name].astype(bool)).reshape(shape)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize(("most", "setting"), [(1.0, []), (0.002, ["0.002"]), (np.inf, ["null"])])
def test_child_tuning_d_keeps_exactly_the_highest_fisher_information(
    make, workspace, most, setting
):
    """Each tensor's gradient is clipped by its own norm; what the run's `max_grad_norm` is does not matter."""
    changed = ["settings.p=0.2", "dropout=0.0", "max_grad_norm=0.001"]
    changed += [f"settings.fisher_max_grad_norm={value}" for value in setting]
    prepared, config = prepare(make, workspace, "child-tuning-d", *changed)
    model, batches = prepared.encoder.model, in_batches(config, workspace)
    fisher = dict.fromkeys(prepared.encoder.layer_parameters, 0.0)
    for batch in batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for name in fisher:
            gradient = model.get_parameter(name).grad.double().numpy()
            clipped = gradient * min(1.0, most / (np.sqrt((gradient**2).sum()) + 1e-6))
            fisher[name] = fisher[name] + clipped**2 / len(batches)
    prepared.method.on_stage_start(model, batch_gradients(prepared, batches))
    masks = masks_of(prepared)
    values = np.sort(np.concatenate([value.ravel() for value in fisher.values()]))[::-1]
    count = sum(int(mask.sum()) for mask in masks.values())
    assert count == round(0.2 * len(values))
    lowest_kept = min(
        fisher[name][mask.numpy()].min() for name, mask in masks.items() if mask.any()
    )
    assert lowest_kept >= 0.999 * values[count - 1]


@pytest.mark.parametrize("method", ["child-tuning-f", "child-tuning-d"])
def test_the_full_gradient_is_clipped_and_then_masked(make, workspace, method):
    """A large epsilon makes AdamW's steps proportional to the gradient, which by itself they are not."""
    changed = [
        "dropout=0.0",
        "warmup=0",
        "schedule=constant",
        "adam_epsilon=0.1",
        "max_grad_norm=0.005",
        "weight_decay=0",
    ]
    prepared, config = prepare(
        make, workspace, method, "settings.p=0.05", "learning_rate=0.01", *changed
    )
    batches = in_batches(config, workspace)[:3]
    model, plain = prepared.encoder.model.train(), copy.deepcopy(prepared.encoder.model).train()
    train = [example for batch in batches for example in batch]
    trainer = Trainer(prepared, prepared.method, Splits(train, gradient_batches=batches))
    trainer.begin_stage(0)
    parameters = dict(plain.named_parameters())
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    fixed = masks_of(prepared) if method == "child-tuning-d" else {}
    adam = torch.optim.AdamW(plain.parameters(), lr=0.01, eps=0.1, weight_decay=0)
    for step, batch in enumerate(batches):
        trainer.train_step(batch)
        plain.zero_grad()
        loss_of(plain, batch).backward()
        norm = (
            sum(float(parameter.grad.double().pow(2).sum()) for parameter in parameters.values())
            ** 0.5
        )
        assert norm > 0.005
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        for name, parameter in parameters.items():
            parameter.grad *= 0.005 / (norm + 1e-6)
            if method == "child-tuning-f":
                parameter.grad *= (torch.rand(parameter.shape, generator=noise) < 0.05) / 0.05
            elif name in fixed:
                parameter.grad *= fixed[name]
        adam.step()
    for name, parameter in model.named_parameters():
        moved = (parameters[name] - start[name]).abs().max()
        torch.testing.assert_close(
            parameter, parameters[name], rtol=0, atol=1e-8 + 1e-3 * float(moved.detach())
        )


@pytest.mark.parametrize("method", ["child-tuning-d", "random-parameters"])
def test_chosen_entries_of_matrices_decay_and_those_of_vectors_do_not(make, workspace, method):
    """Although the optimizer gets the entries of either as a vector."""
    prepared, config = prepare(make, workspace, method)
    model = prepared.encoder.model
    prepared.method.on_stage_start(model, batch_gradients(prepared, in_batches(config, workspace)))
    names = {value: name for name, value in prepared.method.trainable_parameters(model).items()}
    groups = prepared.method.param_groups(model, 0.1)
    decays = {names[value]: group["weight_decay"] for group in groups for value in group["params"]}
    expected = {name: 0.1 if model.get_parameter(name).dim() > 1 else 0.0 for name in decays}
    assert decays == expected and len(decays) == len(names)


def test_a_few_shot_run_takes_its_mask_from_the_full_train_split(make, workspace):
    splits = splits_of(make("child-tuning-d", "shots=4"), workspace)
    read = {example.row.id for batch in splits.gradient_batches for example in batch}
    # Four examples of each of two classes train, and the split has 48.
    assert len(splits.train) == 4 * 2
    assert len(read) == 48


def test_highest_is_exact_where_values_tie():
    masks = top_k_masks({"a": torch.ones(3, 4), "b": torch.zeros(5)}, 0.5)
    assert sum(int(mask.sum()) for mask in masks.values()) == round(0.5 * 17)
    assert not masks["b"].any()


def test_without_its_mask_child_tuning_d_is_plain_fine_tuning(make, workspace):
    """What EH-FT's released program does: AdamW on every weight."""
    same = ["learning_rate=1e-3", "weight_decay=0.0", "batch_size=8"]
    unmasked, full = make("child-tuning-d", *same, "settings.mask=false"), make("full-ft", *same)
    params = runs.run(unmasked, workspace).params
    runs.run(full, workspace)
    assert params.trainable == params.total
    deltas = [
        load_file(RunDirectory.of(config, workspace.results_dir).delta)
        for config in (unmasked, full)
    ]
    assert deltas[0].keys() == deltas[1].keys()
    assert all(torch.equal(value, deltas[1][name]) for name, value in deltas[0].items())
