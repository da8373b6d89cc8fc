"""The learning rates of the study: which rate wins, and where it is written."""

import json
import shutil

import pandas as pd
import pytest
from project_files import ROOT, load_script

from hifi_cli.config import registry
from hifi_cli.config.sources import resolve
from hifi_cli.grids import cells, grid_spec

study_rates = load_script("study_rates")
SEARCHES = ["study-rates", "study-ehft-rates", "study-mpnet-rates"]


def test_the_best_mean_rank_wins():
    scores = {
        "cola": {3e-4: 0.20, 1e-3: 0.25},
        "mrpc": {3e-4: 0.85, 1e-3: 0.84},
        "stsb": {3e-4: 0.80, 1e-3: 0.82},
    }
    rate, ranks = study_rates.choose(scores)
    assert rate == 1e-3 and ranks[1e-3] == pytest.approx(4 / 3)


def test_a_task_at_one_class_does_not_count():
    scores = {
        "cola": {3e-3: 0.05, 1e-2: 0.09},
        "mrpc": {3e-3: 0.812, 1e-2: 0.803},
        "stsb": {3e-3: 0.30, 1e-2: 0.29},
    }
    # MRPC would count with a score of 0.813; without it the two tasks tie, and the lower rate is taken
    rate, ranks = study_rates.choose(scores)
    assert (rate, ranks) == (3e-3, {3e-3: 1.5, 1e-2: 1.5})


def test_a_run_that_diverged_has_the_last_rank():
    assert study_rates._score({"status": "diverged"}) == float("-inf")


def finish(cell, results_dir, score):
    """A record with a score on the holdout in its kept epoch, and a higher one in another."""
    directory = results_dir / cell.config.run_path
    directory.mkdir(parents=True)
    lines = [{"epoch": 1, "selection": 0.99}, {"epoch": 2, "selection": score}]
    record = {"status": "done", "report": "best", "epochs": {"best": 2}, "epoch_metrics": lines}
    (directory / "results.json").write_text(json.dumps(record))


def test_a_method_is_left_out_until_all_its_runs_are_finished(tmp_path):
    searched = cells.cells(grid_spec.load("study-rates", {}), "study-rates")
    of_hifi = [cell for cell in searched if cell.method == "hifi-layerwise"]
    for cell in of_hifi[:-1]:
        finish(cell, tmp_path, cell.config.learning_rate)
    assert study_rates.scores_of("study-rates", tmp_path) == {}
    finish(of_hifi[-1], tmp_path, of_hifi[-1].config.learning_rate)
    found = study_rates.scores_of("study-rates", tmp_path)
    expected = {3e-4: 3e-4, 1e-3: 1e-3}
    assert found == {"hifi-layerwise": dict.fromkeys(("cola", "mrpc", "stsb"), expected)}


@pytest.mark.parametrize(
    ("protocol", "method", "rate"),
    [
        ("study", "hifi-layerwise", 1e-3),
        ("study", "full-ft", 1e-4),
        ("study", "rocoft-row", 3e-3),
        ("study", "linear-probing", 3e-2),
        ("study-ehft", "linear-probing", 1e-2),
        ("study-ehft", "prefix-tuning", 1e-2),
        ("study-mpnet", "hifi-layerwise", 3e-4),
        ("study-mpnet", "bitfit", 1e-2),
    ],
)
def test_a_chosen_rate_is_written_into_the_protocol(protocol, method, rate, tmp_path):
    """Of that method alone, and of mid-top and the stages that take it."""
    file = tmp_path / f"{protocol}.yaml"
    shutil.copy(ROOT / f"configs/protocols/{protocol}.yaml", file)
    study_rates.write(file, method, rate)
    for task, multiple in {"cola": 3, "mrpc": 2, "stsb": 1.5}.items():
        for name in (*registry.load("tables", "study")["rows"], "prefix-tuning"):
            before = resolve(task=task, method=name, protocol=protocol).learning_rate
            after = resolve(task=task, method=name, protocol=str(file)).learning_rate
            has_rate_of_layerwise = name.startswith("hifi-") and method == "hifi-layerwise"
            if name == "hifi-midtop" and has_rate_of_layerwise and protocol == "study":
                assert after == pytest.approx(multiple * rate)
            elif name == method or (has_rate_of_layerwise and name != "hifi-midtop"):
                assert after == rate
            else:
                assert after == before
    stages = {"linear-probing": "lp-ft", "prefix-tuning": "eh-ft-prefix"}
    if protocol == "study-ehft":
        config = resolve(task="cb", method=stages[method], protocol=str(file))
        assert config.stage1.learning_rate == rate


@pytest.fixture(scope="module")
def packed():
    """The study's packed records, by their path."""
    lines = (ROOT / "results/study/runs.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    return {run["path"]: run["record"] for run in runs}


def unpack_searches(packed, results_dir):
    """Write the records of the searches as files, one in the directory of its run."""
    for path, record in packed.items():
        if record["selection"] == "holdout":
            directory = results_dir / path
            directory.mkdir(parents=True)
            (directory / "results.json").write_text(json.dumps(record))


@pytest.mark.parametrize("grid", SEARCHES)
def test_the_protocols_have_the_rates_that_the_packed_searches_give(grid, packed, tmp_path):
    unpack_searches(packed, tmp_path)
    spec = grid_spec.load(grid, {})
    found = study_rates.scores_of(grid, tmp_path)
    assert {*found} == {*spec.methods}
    for method, scores in found.items():
        rate, _ = study_rates.choose(scores)
        for task in scores:
            assert resolve(task=task, method=method, protocol=spec.protocol).learning_rate == rate


@pytest.mark.parametrize("grid", SEARCHES)
def test_the_packed_searches_give_their_rates_by_the_rule_written_out_with_pandas(
    grid, packed, tmp_path
):
    """The best mean rank over the tasks on which a rate is a point above one class."""
    one_class = {"cola": 0, "stsb": 0, "mrpc": 0.803, "rte": 0.51}
    rows = []
    protocol = grid_spec.load(grid, {}).protocol
    for record in packed.values():
        if record["protocol"] == protocol and record["selection"] == "holdout":
            # The kept epoch of a search is the best one on the held-out rows.
            score = max(line["selection"] for line in record["epoch_metrics"])
            rate = record["config"]["learning_rate"]
            rows.append((record["method"], record["task"], rate, score))
            assert record["seed"] == 2 and record["config"]["holdout"] == 0.3
    data = pd.DataFrame(rows, columns=["method", "task", "rate", "score"])
    for method, of_method in data.groupby("method"):
        scores = of_method.pivot(index="rate", columns="task", values="score")
        counted = [task for task in scores if scores[task].max() >= one_class[task] + 0.01]
        ranks = scores[counted].rank(ascending=False).mean(axis="columns")
        # `idxmin` takes the first of equal ones, which is the lowest rate.
        assert (
            resolve(task="cola", method=method, protocol=protocol).learning_rate == ranks.idxmin()
        )


def test_the_study_was_trained_with_the_rates_of_its_protocols(packed):
    """Those of mid-top and of stage 1 included."""
    trained = [run for run in packed.values() if run["selection"] == "validation"]
    assert len(trained) == 264 + 192 + 23
    for record in trained:
        names = {key: record[key] for key in ("task", "method", "protocol")}
        config = resolve(**names)
        assert record["config"]["learning_rate"] == config.learning_rate
        if config.stage1:
            assert record["config"]["stage1"]["learning_rate"] == config.stage1.learning_rate


def test_the_design_page_has_the_rates_that_were_chosen(packed, tmp_path):
    unpack_searches(packed, tmp_path)
    page = " ".join((ROOT / "docs/study-design.md").read_text().split())
    _, _, minilm = page.partition("The open rates became: ")
    _, _, mpnet = page.partition("Its rates became: ")
    sentences = {
        "study-rates": (
            minilm,
            {
                "HiFi": "hifi-layerwise",
                "Full-FT": "full-ft",
                "RoCoFT rows": "rocoft-row",
                "linear probing": "linear-probing",
            },
        ),
        "study-ehft-rates": (
            minilm,
            {
                "Prefix-Tuning with EH-FT's task head": "prefix-tuning",
                "linear probing with EH-FT's task head": "linear-probing",
            },
        ),
        "study-mpnet-rates": (
            mpnet,
            {"Full-FT": "full-ft", "HiFi": "hifi-layerwise", "LoRA": "lora", "BitFit": "bitfit"},
        ),
    }
    for grid, (sentence, names) in sentences.items():
        found = study_rates.scores_of(grid, tmp_path)
        assert {*found} == {*names.values()}
        for name, method in names.items():
            rate, _ = study_rates.choose(found[method])
            printed = sentence.partition(f"{name} ")[2].split()[0].strip(",.;")
            assert float(printed) == rate, name
    # HiFi, Full-FT and RoCoFT's rows: better on all three tasks.
    for method, scores in study_rates.scores_of("study-rates", tmp_path).items():
        if method != "linear-probing":
            rate, ranks = study_rates.choose(scores)
            assert ranks[rate] == 1


@pytest.mark.parametrize("grid", ["laptop-rates", "laptop-ehft-rates"])
def test_the_pilots_protocols_have_the_rates_that_its_packed_searches_give(
    grid, monkeypatch, capsys
):
    choose_rates = load_script("choose_rates")
    monkeypatch.setattr(choose_rates, "RESULTS", ROOT / "results/laptop-pilot")
    choose_rates.main(grid)
    spec = grid_spec.load(grid, {})
    chosen = {}
    for line in capsys.readouterr().out.splitlines():
        method, _, rate = line.partition(": ")
        if method in spec.methods:
            chosen[method] = float(rate)
    assert {*chosen} == {*spec.methods}
    for method, rate in chosen.items():
        assert resolve(task="cola", method=method, protocol=spec.protocol).learning_rate == rate
