"""Child-Tuning F and D against their authors' rules, written out by hand."""

import numpy as np
import pytest
import torch
from preparing import prepare, trained_state

from hifi_cli.methods import child_tuning_d
from hifi_cli.runs import run as runs
from hifi_cli.tasks.batches import collate


def test_child_tuning_d_keeps_exactly_the_highest_fisher_information(make, workspace):
    prepared, config = prepare(make, workspace, "child-tuning-d", "settings.p=0.2", "dropout=0.0", "max_grad_norm=null")
    model, examples = prepared.encoder.model, runs.split_examples(config, workspace).train
    batches = [examples[at : at + 8] for at in range(0, len(examples), 8)]
    fisher = {}
    for batch in batches:  # independently: the mean of the squared gradient of each batch's mean cross-entropy
        model.zero_grad()
        labels = torch.tensor([example.row.label for example in batch])
        out = model(**collate(batch, {"input_ids": 0, "token_type_ids": 0})).logits
        torch.nn.functional.cross_entropy(out, labels).backward()
        for name in prepared.encoder.layer_parameters:
            fisher[name] = fisher.get(name, 0) + model.get_parameter(name).grad.numpy() ** 2 / len(batches)
    model.zero_grad()

    def gradients():
        for batch in batches:
            model.zero_grad()
            prepared.engine.accumulate_gradient(batch)
            yield

    prepared.method.survey(model, gradients())
    values = np.sort(np.concatenate([value.ravel() for value in fisher.values()]))[::-1]
    kept = prepared.method.delta(model)
    masks = {name: np.unpackbits(kept[f"{name}/mask"].numpy(), count=fisher[name].size).astype(bool) for name in fisher}
    count = sum(mask.sum() for mask in masks.values())
    assert count == round(0.2 * len(values))
    lowest_kept = min(fisher[name].ravel()[mask].min() for name, mask in masks.items() if mask.any())
    assert lowest_kept >= 0.999 * values[count - 1]


def test_highest_is_exact_where_values_tie():
    masks = child_tuning_d.highest({"a": torch.ones(3, 4), "b": torch.zeros(5)}, 0.5)
    assert sum(int(mask.sum()) for mask in masks.values()) == round(0.5 * 17)
    assert masks["a"].shape == (3, 4)
    assert not masks["b"].any()


def test_masked_entries_never_move_weight_decay_or_not(make, workspace):
    before, prepared, _ = trained_state(make, workspace, "child-tuning-d", "weight_decay=0.5", "learning_rate=0.01")
    after, kept = prepared.encoder.model.state_dict(), prepared.method.delta(prepared.encoder.model)
    moved = frozen = 0
    for name in prepared.encoder.layer_parameters:
        mask = torch.from_numpy(np.unpackbits(kept[f"{name}/mask"].numpy(), count=before[name].numel()).astype(bool))
        same = (before[name] == after[name]).flatten()
        assert same[~mask].all()
        moved, frozen = moved + int((~same[mask]).sum()), frozen + int((~mask).sum())
    assert moved > 0.9 * 0.3 * (moved + frozen)


def test_child_tuning_f_keeps_the_gradient_in_expectation(make, workspace):
    prepared, _ = prepare(make, workspace, "child-tuning-f", "settings.p=0.3")
    model, method = prepared.encoder.model, prepared.method
    parameter = next(p for p in model.parameters() if p.dim() > 1)
    total = torch.zeros_like(parameter)
    for step in range(400):
        parameter.grad = torch.ones_like(parameter)
        method.before_step(model, step)
        method.after_backward(model)
        assert parameter.grad.unique().tolist() == [0.0, pytest.approx(1 / 0.3)]
        total += parameter.grad
    deviation = (0.7 / 0.3 / 400) ** 0.5  # of one entry's mean
    assert abs(float(total.mean()) / 400 - 1) < 5 * deviation / parameter.numel() ** 0.5
    assert float((total / 400 - 1).abs().max()) < 6 * deviation
