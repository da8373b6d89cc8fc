"""What decides a run's head scores and its heads."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared_models import encoder_of, heads_of, prepared_run, splits_of
from safetensors.torch import load_file, save_file
from tiny_inputs import HEADS, LAYERS

from hifi_cli.heads.ranking import rank_heads
from hifi_cli.heads.scores import score_examples
from hifi_cli.runs import run as runs
from hifi_cli.runs.heads import HeadSelector, placeholder_heads
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.encode import single_sequences
from hifi_cli.training.loop import Trainer


def heads_files(workspace):
    return [
        json.loads(path.read_text())
        for path in sorted((workspace.results_dir / "heads").rglob("*.json"))
    ]


def drawn_by_hand(seed, k, task="rte"):
    """The k highest of as many uniform numbers as a layer has heads, layer after layer from one generator.

    Seed and task decide: the first 32 bits of the SHA-256 of both, as JSON.
    """
    both = hashlib.sha256(f'[{seed},"{task}"]'.encode()).hexdigest()
    values = np.random.default_rng(int(both[:8], 16)).random((LAYERS, HEADS))
    return [sorted(np.argsort(-layer)[:k].tolist()) for layer in values]


def test_random_heads_are_drawn_by_the_runs_seed_and_their_file_names_it(make, workspace):
    results = [runs.run(make("hifi-random", "epochs=1", seed=seed), workspace) for seed in (1, 2)]
    assert {result.seed: result.heads for result in results} == {
        seed: drawn_by_hand(seed, 2) for seed in (1, 2)
    }
    assert {file["seed"]: file["heads"] for file in heads_files(workspace)} == {
        result.seed: result.heads for result in results
    }
    other_task = heads_of(make("hifi-random", task="cola"), workspace)
    assert other_task == drawn_by_hand(1, 2, "cola") != results[0].heads
    assert results[0].draws["choice of heads"] == 2
    assert results[0].setting_hash == results[1].setting_hash
    assert results[0].heads_sha256 is results[1].heads_sha256 is None  # the runs may be averaged


def test_one_seed_for_all_runs_draws_the_same_heads(make, workspace):
    configs = [make("hifi-random", "heads.seed=5", seed=seed) for seed in (1, 2)]
    assert [heads_of(config, workspace) for config in configs] == [drawn_by_hand(5, 2)] * 2
    assert not configs[0].heads_vary_with_seed
    assert make("hifi-random").config_hash != configs[0].config_hash


def test_other_rankings_have_one_heads_file_for_all_seeds(make, workspace):
    result = runs.run(make("hifi-layerwise", "epochs=1"), workspace)
    assert result.heads == heads_of(make("hifi-layerwise", seed=2), workspace)
    (file,) = heads_files(workspace)
    assert "seed" not in file and result.heads_sha256
    assert make("hifi-layerwise").config_hash == make("hifi-layerwise", "heads.seed=5").config_hash


@pytest.mark.parametrize(("words", "seed"), [(("heads.seed=7",), 7), ((), 1)])
def test_select_draws_as_many_random_heads_as_asked_for_with_the_given_seed(
    tiny, workspace, words, seed
):
    answer = tiny("select --out heads.json heads.rank=random heads.k=3 scoring.samples=12", *words)
    assert answer.code == 0, answer.err
    content = json.loads(Path("heads.json").read_text())
    assert (content["seed"], content["heads"]) == (seed, drawn_by_hand(seed, 3))


@pytest.mark.parametrize("task", ["rte", "swag"])
def test_stored_scores_are_the_means_over_the_samples_and_their_spread(
    make, data, task_kinds_data, tmp_path, task
):
    workspace = Workspace(tmp_path / "results", task_kinds_data if task == "swag" else data)
    config = make("hifi-layerwise", "scoring.samples=7", "scoring.xi=0.95", task=task)
    selector = HeadSelector.of(config, workspace)
    runner, examples = selector.model_and_examples()
    sequences = single_sequences(examples)
    richness, correlation = score_examples(runner.encoder, sequences, runner.pad, 0.95)
    stored, _ = selector.score()
    assert stored.samples == len(examples) == 7
    np.testing.assert_allclose(stored.richness, np.mean(richness.numpy(), 0))
    spread = np.std(richness.numpy(), 0)
    assert spread.max() > 0
    np.testing.assert_allclose(stored.richness_std, spread)
    np.testing.assert_allclose(stored.correlation, np.mean(correlation.numpy(), 0))


def test_another_encoder_of_the_same_name_and_other_settings_are_scored_anew(
    make, workspace, encoders, tmp_path
):
    changed = shutil.copytree(encoders["bert"], tmp_path / encoders["bert"].name)
    weights = load_file(changed / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    words = ("samples=5", "seed=9", "xi=0.6", "max_length=8")
    configs = [
        make("hifi-layerwise"),
        make("hifi-layerwise", backbone=changed),
        *(make("hifi-layerwise", f"scoring.{word}") for word in words),
        make("hifi-layerwise", "truncation=only_first"),
    ]
    names = {HeadSelector.of(config, workspace).scores_name() for config in configs}
    assert len(names) == len(configs)
    ranked_by_loss = [make("hifi-gradient"), make("hifi-gradient", "task_head.kind=mlp")]
    for config in ranked_by_loss:
        HeadSelector.of(config, workspace).select()
    assert len([*workspace.results_dir.rglob("gradient-*.json")]) == 2


def test_all_seeds_score_the_same_samples_and_another_seed_of_scoring_others(make, data, tmp_path):
    drawn = []
    for words, seed in (([], 1), ([], 2), (["scoring.seed=5"], 1)):
        config = make("hifi-layerwise", "scoring.samples=5", *words, seed=seed)
        workspace = Workspace(tmp_path / f"results{len(drawn)}", data)
        _, examples = HeadSelector.of(config, workspace).model_and_examples()
        drawn.append([example.row.id for example in examples])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("steps", [1, 2])
def test_warm_steps_are_the_first_ones_of_the_runs_full_fine_tuning(make, workspace, steps):
    """Also all of them, on texts of the run's length."""
    changed = ["batch_size=24", "epochs=1", "learning_rate=0.01", "warmup=0"]
    changed += ["max_length=12", "dropout=0.0"]
    config = make("hifi-layerwise", f"scoring.warm_steps={steps}", *changed, seed=2)
    selector = HeadSelector.of(config, workspace)
    warmed, _ = selector.model_and_examples()
    full = make("full-ft", *changed, seed=2)
    prepared = prepared_run(full, workspace)
    Trainer(prepared, prepared.method, splits_of(full, workspace)).train(steps)
    ours, theirs = warmed.encoder.model.state_dict(), prepared.encoder.model.state_dict()
    torch.testing.assert_close(dict(ours), dict(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["hifi-layerwise", "hifi-midtop"])
def test_a_plan_has_as_many_heads_in_each_layer_as_are_selected(make, workspace, method):
    config = make(method, "heads.k=3")
    planned = placeholder_heads(config, encoder_of(config, workspace))
    assert [*map(len, planned)] == [*map(len, heads_of(config, workspace))]


def test_a_selection_follows_the_configured_damping_and_epsilon(make, workspace):
    config = make("hifi-layerwise", "heads.damping=0.4", "heads.epsilon=1e-3")
    selector = HeadSelector.of(config, workspace)
    expected = rank_heads(*selector.score()[0].arrays, damping=0.4, epsilon=1e-3)
    for ours, theirs in zip(selector.rank(), expected, strict=True):
        assert ours.values.tolist() == theirs.values.tolist()


def test_a_measure_in_a_changed_file_is_measured_anew(tiny, tmp_path):
    code = "import torch\n\ndef measure(runner, examples):\n    return {}torch.arange(8.0).view(2, 4)\n"
    for sign, heads in (("", [[3], [3]]), ("-", [[0], [0]])):
        (tmp_path / "measure.py").write_text(code.format(sign))
        answer = tiny("select --out heads.json heads.rank=./measure.py heads.k=1")
        assert answer.code == 0, answer.err
        assert json.loads(Path("heads.json").read_text())["heads"] == heads


def test_selections_of_other_heads_or_from_other_scores_have_files_of_their_own(make, workspace):
    words = ("heads.k=1", "heads.k=2", "heads.strategy=midtop", "scoring.samples=5")
    paths = {HeadSelector.of(make("hifi-layerwise", w), workspace).select()[1] for w in words}
    assert len(paths) == len(words)


# --- selection=holdout


def held_by_hand(rows, share, seed):
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return set(order[: round(share * rows)])


def write_changed(data, directory, changed):
    """A copy of the data in which some training rows of RTE have other texts and the other label."""
    shutil.copytree(data, directory)
    path = directory / "RTE" / "train.tsv"
    header, *lines = path.read_text().splitlines()
    other = {"entailment": "not_entailment", "not_entailment": "entailment"}
    for at in changed:
        index, _, _, label = lines[at].split("\t")
        lines[at] = f"{index}\tnever big fish\told bird hears a man here\t{other[label]}"
    path.write_text("\n".join([header, *lines]) + "\n")
    return directory


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("limit", [None, 20])
def test_held_out_rows_have_no_influence_on_scores(make, data, tmp_path, warm, limit):
    rows = limit or 48
    changed = [
        "selection=holdout",
        "holdout=0.25",
        "scoring.samples=100",
        f"scoring.warm_steps={warm}",
        "learning_rate=0.01",
    ]
    config = make("hifi-layerwise", *changed, *([f"limit={limit}"] if limit else []), seed=3)
    held = held_by_hand(rows, 0.25, 3)
    kept = set(range(rows)) - held
    scores = {}
    for name, which in {"as it is": set(), "held": held, "kept": {min(kept)}}.items():
        directory = write_changed(data, tmp_path / name, which)
        content, _ = HeadSelector.of(config, Workspace(tmp_path / "results", directory)).score()
        scores[name] = content.richness, content.correlation
    assert scores["held"] == scores["as it is"]
    assert scores["kept"] != scores["as it is"]


def test_scores_after_warm_steps_are_stored_by_everything_that_decides_the_steps(make, workspace):
    warm = ("scoring.warm_steps=2", "scoring.samples=4", "learning_rate=0.01", "max_length=32")
    changes = [
        "learning_rate=0.01",
        "max_grad_norm=0.001",
        "adam_betas=[0.5,0.5]",
        "hold_steps=2",
        "dropout=0.5",
        "heads.k=1",
    ]
    stored = [
        HeadSelector.of(make("hifi-layerwise", *warm, change), workspace).score()
        for change in changes
    ]
    paths, correlations = [path for _, path in stored], [scores.correlation for scores, _ in stored]
    assert (
        paths[0] == paths[-1] and len(set(paths)) == len(changes) - 1
    )  # how many heads are selected changes no score
    assert all(values != correlations[0] for values in correlations[1:-1])


def test_words_that_scoring_truncates_name_the_key_of_the_scoring(make, workspace, caplog):
    config = make("hifi-layerwise", "scoring.max_length=8", task="demo-roles")
    HeadSelector.of(config, workspace).score()
    assert "note: scoring.max_length=8 leaves " in caplog.text


def test_scores_of_a_holdout_are_stored_apart_and_without_one_they_are_those_of_before(
    make, workspace, tmp_path, data
):
    first_seed = make("hifi-layerwise")
    paths = [
        HeadSelector.of(config, workspace).score()[1]
        for config in (first_seed, make("hifi-layerwise", seed=2))
    ]
    assert paths[0] == paths[1]
    cuts = [
        make("hifi-layerwise", "selection=holdout", f"holdout={share}", seed=seed)
        for share, seed in ((0.1, 1), (0.2, 1), (0.1, 2))
    ]
    paths += [HeadSelector.of(config, workspace).score()[1] for config in cuts]
    assert len(set(paths)) == 4
    again = Workspace(tmp_path / "again", data)
    assert (
        HeadSelector.of(make("hifi-layerwise", "shots=4", "selection=holdout"), again)
        .score()[1]
        .name
        == paths[0].name
    )


def test_nothing_of_a_run_sees_its_held_out_rows(make, workspace):
    config = make("hifi-layerwise", "selection=holdout", "holdout=0.25", seed=3)
    splits = splits_of(config, workspace)
    held = {str(index) for index in held_by_hand(48, 0.25, 3)}
    assert {example.row.id for example in splits.selection} == held
    assert not held & {example.row.id for example in splits.train}
    assert not held & {
        example.row.id for batch in splits.gradient_batches for example in batch
    }  # Child-Tuning-D's Fisher batches
    assert len(splits.train) + len(held) == 48


@pytest.mark.parametrize("word", ["selection=holdout", "scoring.warm_steps=2"])
def test_heads_vary_with_the_seed_where_it_decides_what_is_scored(make, word):
    assert (
        make("hifi-layerwise", word).heads_vary_with_seed
        and not make("hifi-layerwise").heads_vary_with_seed
    )
