"""Frozen layers that are computed once give what they give in every epoch."""

import json

import pytest
import torch
from finished_runs import assert_resuming_changes_nothing
from tiny_inputs import FAMILIES as TINY_FAMILIES
from tiny_inputs import random_encoder

from hifi_cli.errors import RunFailed
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import FAMILIES
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs import frozen_layer_cache
from hifi_cli.runs import run as runs
from hifi_cli.runs.evaluate import evaluate
from hifi_cli.runs.resources import ResourceCache

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_pass_can_be_cut_between_two_layers(family):
    model = random_encoder(family, num_hidden_layers=3).base_model
    encoder = Encoder(model)
    batch = {"input_ids": torch.randint(3, 28, (2, 7)), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        with encoder.forward_through(0, 2):
            lower = model(**batch).last_hidden_state
        assert not torch.allclose(lower, expected)
        lower[1, 4:] = 0  # what padding holds must not matter
        with encoder.forward_through(2, 3, lower):
            upper = model(**batch).last_hidden_state
        for number, length in enumerate((7, 4)):
            torch.testing.assert_close(upper[number, :length], expected[number, :length])
        assert torch.equal(model(**batch).last_hidden_state, expected)


def losses(config, resources):
    """The losses a run logs, and its result."""
    results = runs.run(config, resources)
    lines = (RunDirectory.of(config, resources.results_dir).path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in line], results


METHODS = {"linear-probing": 2, "top-k": 1, "hifi-midtop": 1, "lp-ft": 0, "hifi-layerwise": 0, "full-ft": 0}


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_without_dropout_nothing_else_changes(make, resources, monkeypatch, method, family):
    settings = ["dropout=0.0", "learning_rate=0.003", "log_every=1", "limit=24", "variant=plain"]
    plain, _ = losses(make(method, *settings, family=family), resources)
    prepared_runs = []
    prepare = runs.prepare
    monkeypatch.setattr(
        runs, "prepare", lambda *words, **keys: prepared_runs.append(prepare(*words, **keys)) or prepared_runs[0]
    )
    config = make(method, *settings[:-1], "reuse_frozen=true", family=family)
    reused, _ = losses(config, resources)
    assert reused == pytest.approx(plain, rel=1e-3)
    runner = prepared_runs[0].runner
    assert (
        (runner.frozen_layers.layer if runner.frozen_layers else 0)
        == METHODS[method]
        == frozen_layer_cache.lowest_trained_layer(runner.encoder)
    )
    assert evaluate(RunDirectory.of(config, resources.results_dir).path, resources).largest_difference == 0
    if runner.frozen_layers:  # where only the task head trains, nothing reads another token than the first
        kept = [len(state) for states in runner.frozen_layers._states.values() for state in states]
        assert (max(kept) == 1) is (method == "linear-probing") and len(kept) == 24


@pytest.mark.parametrize("method", ["top-k", "linear-probing"])
@pytest.mark.parametrize("task", ["copa", "squad", "conll2003"])
def test_several_sequences_spans_and_tags(make, task_kinds_data, tmp_path, task, method):
    resources = ResourceCache(tmp_path / "results", task_kinds_data)
    settings = ["dropout=0.0", "learning_rate=0.003", "log_every=1", "max_length=24", "stride=4", "variant=plain"]
    plain, _ = losses(make(method, *settings, task=task), resources)
    reused, _ = losses(make(method, *settings[:-1], "reuse_frozen=true", task=task), resources)
    assert reused == pytest.approx(plain, rel=1e-3)


def test_the_frozen_layers_run_once(make, resources, monkeypatch):
    config = make("top-k", "epochs=3", "reuse_frozen=true", "padding_free=false")  # so that a row is an example
    prepare, passes = runs.prepare, []

    def counted(*words, **keys):
        prepared = prepare(*words, **keys)
        prepared.encoder.layers[0].register_forward_hook(lambda layer, given, _: passes.append((layer.training, len(given[0]))))
        return prepared

    monkeypatch.setattr(runs, "prepare", counted)
    results = runs.run(config, resources)
    assert not any(training for training, _ in passes)
    evaluations = config.epochs + 1  # after each epoch, and of the model that is kept
    assert sum(rows for _, rows in passes) == results.n_examples.train + evaluations * results.n_examples.reported


def test_what_does_not_fit_is_one_clear_error(make, resources, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(frozen_layer_cache, "collate", full)
    with pytest.raises(RunFailed, match="set reuse_frozen=false"):
        runs.run(make("top-k", "reuse_frozen=true"), resources)


def test_a_resumed_run_reuses_the_very_same_states(make, resources, tmp_path, data, monkeypatch):
    config = make("top-k", "epochs=3", "learning_rate=0.003", "reuse_frozen=true")
    assert_resuming_changes_nothing(config, resources, ResourceCache(tmp_path / "cut", data), monkeypatch)
