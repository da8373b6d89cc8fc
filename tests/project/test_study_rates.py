"""The learning rates of the study: which rate wins, and where it is written."""

import json
import shutil

import pytest
from project_files import ROOT, load_script

from hifi_cli.config import registry
from hifi_cli.config.sources import resolve
from hifi_cli.grids import cells, grid_spec

study_rates = load_script("study_rates")


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
