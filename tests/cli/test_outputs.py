"""`--format json` of every command: what it holds; all runs as a list and as a DataFrame."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from json_output import printed
from run_folders import run_folder
from synthetic_runs import write_run

import hifi_cli
from hifi_cli.errors import MissingError
from hifi_cli.locks import locked
from hifi_cli.records.layout import RunDirectory


def write_runs():
    for seed in (1, 2):
        write_run("results", "full-ft", "rte", seed, 0.6 + seed / 100)
        write_run("results", "bitfit", "rte", seed, 0.7, collapsed=seed == 2)
    write_run("results", "lora", "cola", 1, 0.5, protocol="laptop", limited=True)


@pytest.mark.slow
def test_a_whole_pipeline_prints_json(hifi, tiny, data):
    (scored,) = printed(tiny("score --format json scoring.samples=12"))
    assert scored["path"].endswith(".json") and len(scored["scores"]["richness"]) == 2
    (selected,) = printed(tiny("select --format json heads.k=2 scoring.samples=12"))
    assert [len(heads) for heads in selected["selection"]["heads"]] == [2, 2]
    (trained,) = printed(tiny("train --method bitfit --format json"))
    result = json.loads(Path(trained["path"], "results.json").read_text())
    assert trained["result"]["scores"] == result["scores"]
    (evaluated,) = printed(hifi("eval", trained["path"], "--data-dir", data, "--format", "json"))
    assert (
        not evaluated["differing"]
        and evaluated["compared"]["accuracy"][0] == result["metrics"]["accuracy"]
    )


def test_an_unfinished_run_is_listed_with_epoch_loss_and_age(hifi):
    unfinished = run_folder(backbone="bert-large", method="lora")
    unfinished.mkdir(parents=True)
    (unfinished / "config.yaml").touch()
    lines = [
        '{"step": 2, "loss": 0.75, "learning_rate": 1e-4}',
        '{"epoch": 1, "accuracy": 0.5}',
        '{"step": 4, "loss": 0.5, "learning_rate": 1e-4}',
        '{"step": 6, "lo',
    ]
    (unfinished / "metrics.jsonl").write_text("\n".join(lines))
    (run,) = printed(hifi("ls runs --format json"))
    assert (run["state"], run["epoch"]) == ("unfinished", 1)
    assert re.fullmatch(r"epochs done: 1, loss 0\.5000, last line 0:0\d:\d\d ago", run["detail"])


def test_a_run_that_trains_is_listed_from_its_begin_with_its_epochs(hifi):
    directory = RunDirectory(run_folder(method="lora"))
    with locked(directory.lock, wait=False):
        # The process reads data and encoder, and has written nothing yet.
        answer = hifi("ls runs --format json")
        (run,) = printed(answer)
        assert answer.code == 0 and (run["state"], run["path"]) == ("running", str(directory.path))
        assert "no run has finished yet; 1 is running" in answer.err
        directory.path.mkdir()
        directory.config_file.write_text("epochs: 3\n")
        directory.metrics.write_text('{"epoch": 1, "accuracy": 0.5}\n')
        (run,) = printed(hifi("ls runs --format json"))
        assert run["detail"].startswith("epochs done: 1 of 3, ")
    answer = hifi("ls runs")
    assert answer.code == 0 and "unfinished" in answer.out
    assert "no run has finished yet; 0 are running" in answer.err
    answer = hifi("table")
    assert answer.code == 3
    assert "no finished run in results but 1 unfinished one: hifi ls runs;" in answer.err
    Path("results").rename("other")
    answer = hifi("table --results-dir other")
    assert "but 1 unfinished one: hifi ls runs --results-dir other;" in answer.err


def test_a_grid_that_has_just_begun_is_no_missing_run(hifi):
    Path("results").mkdir()
    assert hifi("ls runs").code == 3
    logs = Path("results/grids/demo/logs")
    logs.mkdir(parents=True)
    answer = hifi("ls runs")
    assert answer.code == 0 and answer.out == ""
    assert f"but a grid has; its commands' output: {logs}" in answer.err
    assert printed(hifi("ls runs --format json")) == []
    assert hifi("ls runs --format csv").out.startswith("state,protocol,")
    write_runs()
    assert "but a grid has" not in hifi("ls runs").err


def test_runs_are_listed_with_a_header(hifi):
    write_runs()
    unfinished = run_folder(backbone="bert-large", method="lora")
    unfinished.mkdir(parents=True)
    (unfinished / "config.yaml").touch()
    lines = hifi("ls runs").out.splitlines()
    assert (
        lines[0].split() == ["state", "score", "metric", "flags", "time", "run"] and len(lines) == 7
    )
    assert ["unfinished", str(unfinished)] in map(str.split, lines)
    assert any(line.split()[:4] == ["done", "70.00", "accuracy", "collapsed"] for line in lines)
    listed = printed(hifi("ls runs --format json"))
    bitfit = [
        (run["seed"], run["flags"])
        for run in listed
        if (run["task"], run["method"]) == ("rte", "bitfit")
    ]
    assert bitfit == [(1, ""), (2, "collapsed")]
    rows = list(csv.DictReader(io.StringIO(hifi("ls runs --format csv").out)))
    laptop = [row for row in rows if row["protocol"] == "laptop"]
    assert [
        (row["task"], float(row["score"]), row["flags"], float(row["metrics.matthews"]))
        for row in laptop
    ] == [("cola", 50.0, "limited", 50.0)]


def test_results_are_a_data_frame_with_a_row_per_run(hifi, tmp_path):
    write_runs()
    runs = hifi_cli.read_results("results")
    assert len(runs) == 5 and runs.score.dtype == float
    assert runs[runs.method == "full-ft"].score.mean() == pytest.approx(61.5)
    assert runs.groupby("method")["seed"].count().to_dict() == {
        "bitfit": 2,
        "full-ft": 2,
        "lora": 1,
    }
    (tmp_path / "empty").mkdir()
    empty = hifi_cli.read_results(tmp_path / "empty")
    assert len(empty) == 0 and "score" in empty.columns
    with pytest.raises(MissingError, match="no directory nowhere"):
        hifi_cli.read_results("nowhere")
