"""What decides a run's head scores and its heads."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import HEADS, LAYERS

from hifi_cli.files import read_json
from hifi_cli.runs import run as runs
from hifi_cli.runs.directory import RunDirectory


def heads_of(config, workspace):
    return read_json(RunDirectory.of(config, workspace.results_dir).manifest, what="manifest")["heads"]


def heads_files(workspace):
    return [json.loads(path.read_text()) for path in sorted((workspace.results_dir / "heads").rglob("*.json"))]


def drawn_by_hand(seed, k):
    """The k highest of as many uniform numbers as a layer has heads, layer after layer from one generator."""
    values = np.random.default_rng(seed).random((LAYERS, HEADS))
    return [sorted(np.argsort(-layer)[:k].tolist()) for layer in values]


def test_random_heads_are_drawn_by_the_runs_seed_and_their_file_names_it(make, workspace):
    configs = [make("hifi-random", "epochs=1", seed=seed) for seed in (1, 2, 3)]
    results = [runs.run(config, workspace) for config in configs]
    drawn = [heads_of(config, workspace) for config in configs]
    assert drawn == [drawn_by_hand(seed, 2) for seed in (1, 2, 3)]
    assert drawn[0] != drawn[1]
    assert {file["seed"]: file["heads"] for file in heads_files(workspace)} == dict(zip((1, 2, 3), drawn, strict=True))
    assert len({result["setting_hash"] for result in results}) == 1
    assert len({str(result["heads_sha256"]) for result in results}) == 1  # the runs may stand in one mean


def test_the_runs_of_a_table_may_have_drawn_different_random_heads(tiny, hifi):
    assert tiny("train", "--method", "hifi-random", "--seeds", "1,2", "epochs=1").code == 0
    answer = hifi("table", "--methods", "hifi-random", "--tasks", "rte", "--format", "json", "--include", "collapsed")
    (row,) = (row for row in json.loads(answer.out)["rows"] if row["name"] == "hifi-random" and row["source"] == "runs")
    assert row["cells"]["RTE (Acc.)"]["std"] is not None, answer.out


def test_one_seed_for_all_runs_draws_the_same_heads(make, workspace):
    configs = [make("hifi-random", "epochs=1", "heads.seed=5", seed=seed) for seed in (1, 2)]
    results = [runs.run(config, workspace) for config in configs]
    assert [heads_of(config, workspace) for config in configs] == [drawn_by_hand(5, 2)] * 2
    assert results[0]["heads_sha256"] == results[1]["heads_sha256"] is not None


def test_other_rankings_have_one_heads_file_for_all_seeds(make, workspace):
    configs = [make("hifi-layerwise", "epochs=1", seed=seed) for seed in (1, 2)]
    results = [runs.run(config, workspace) for config in configs]
    (file,) = heads_files(workspace)
    assert "seed" not in file
    assert results[0]["heads_sha256"] == results[1]["heads_sha256"] is not None
    assert make("hifi-layerwise").hash == make("hifi-layerwise", "heads.seed=5").hash
    assert make("hifi-random").hash != make("hifi-random", "heads.seed=1").hash


@pytest.mark.parametrize(("words", "seed"), [(("--seed", "7"), 7), ((), 1)])
def test_select_draws_as_many_random_heads_as_asked_for_with_the_given_seed(tiny, workspace, words, seed):
    answer = tiny("select", "--rank", "random", "-k", "3", *words, "--out", "heads.json", "scoring.samples=12")
    assert answer.code == 0, answer.err
    content = json.loads(Path("heads.json").read_text())
    assert (content["seed"], content["heads"]) == (seed, drawn_by_hand(seed, 3))
