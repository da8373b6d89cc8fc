"""The benchmarks run: whole runs on generated data, and the check of a GPU on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project_files import ROOT, load_script

BENCH = Path(__file__).parents[2] / "scripts" / "bench.py"


@pytest.mark.exhaustive
def test_whole_runs_on_generated_data(tmp_path):
    line = f"--tasks demo-acceptability --rows 40 --rounds 1 --threads 1 --out {tmp_path}/b.json"
    environment = {key: value for key, value in os.environ.items() if key != "HIFI_DATA_DIR"}
    done = subprocess.run(
        [sys.executable, str(BENCH), *line.split()],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "b.json").read_text())
    programs = measured["tasks"]["demo-acceptability"]["programs"]
    ours, rival = programs["hifi Full-FT, fp32"], programs["Trainer, grouped by length, fp32"]
    fastest = min(rival["seconds"], programs["Trainer, fp32"]["seconds"])
    assert ours["of the best rival"] == pytest.approx(ours["seconds"] / fastest, abs=0.02)
    assert f"| hifi Full-FT, fp32 | Accept. | {ours['seconds']:.0f} | " in done.stdout
    assert 0 < ours["floor"] < ours["seconds"] and ours["peak GB"] > 0.1


@pytest.mark.exhaustive
def test_the_gpu_check_runs_on_a_cpu(tmp_path):
    script = BENCH.parent / "gpu_check"
    parts = "rates,kernels,steps,correctness,deterministic,graphs,levers"
    done = subprocess.run(
        [sys.executable, str(script), "--small", "--parts", parts, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "gpu-cpu-small.json").read_text())
    for row in measured["kernels"][1:] + measured["correctness"] + measured["graphs"][1:]:
        assert row["losses"] == row["logits"] == row["resumed"] == 0 < row["bf16 losses"] < 0.05
    assert all(row["again"] and row["resumed"] for row in measured["deterministic"])
    # A CPU records nothing: what is switched off there changes nothing.
    assert all(row["losses"] == 0 < row["ms"] for row in measured["levers"])
    steps = {
        (row["step of"], row["layout"], row["precision"], row["tokens"]): row
        for row in measured["steps"]
    }
    row = steps["full-ft", "varlen", "bf16", 53]
    layouts = ("padded", "grouped")
    rival = min(steps["Trainer, full-ft", name, "bf16", 53]["ms"] for name in layouts)
    assert row["/ Trainer"] == pytest.approx(row["ms"] / rival, rel=0.01)
    assert 0 < row["of the measured peak"] < 1 and "| full-ft | True | 0.0 |" in done.stdout


@pytest.mark.exhaustive
def test_slices_of_the_gpu_check_measure_each_row_once(tmp_path):
    """Several processes share the rows of a part, each with a file of its own."""
    checked = []
    for index in range(2):
        words = ["--small", "--device", "cpu", "--parts", "graphs", "--slice", f"{index}/2"]
        subprocess.run(
            [sys.executable, str(BENCH.parent / "gpu_check"), *words, "--out", str(tmp_path)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=900,
            check=True,
        )
        rows = json.loads((tmp_path / f"gpu-cpu-small-{index}.json").read_text())["graphs"]
        checked.append([row["checked"] for row in rows])
    methods = ["full-ft", "hifi-layerwise", "lora"]
    names = ["graphs with dropout", *(f"{name}, recorded" for name in methods)]
    assert checked == [names[::2], names[1::2]]


@pytest.mark.exhaustive
def test_steps_are_measured_where_no_rates_were(tmp_path):
    """A part may be asked for alone; what it would be compared with stays empty then."""
    words = ["--small", "--device", "cpu", "--parts", "graph-steps", "--slice", "0/7"]
    subprocess.run(
        [sys.executable, str(BENCH.parent / "gpu_check"), *words, "--out", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=900,
        check=True,
    )
    (row,) = json.loads((tmp_path / "gpu-cpu-small-0.json").read_text())["graph-steps"]
    assert row["ms"] > 0 and row["of the measured peak"] is row["/ Trainer"] is None


def test_the_page_has_the_stored_differences_from_the_trainer():
    parity = load_script("trainer_parity")
    printed = parity.table(parity.read(ROOT / "results/parity/scores.jsonl"))
    measured = {}
    for line in printed.splitlines()[2:]:
        name, task, epochs, pairs, ours, theirs, mean, interval, *_ = line.strip("| ").split(" | ")
        measured[name, task, epochs] = (pairs, mean, interval, ours, theirs)
    page = (ROOT / "docs/performance.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| hifi - Trainer")]
    assert len(rows) == 4
    for row in rows:
        name, task, epochs, *cells = row.strip("| ").split(" | ")
        assert tuple(cells) == measured[name, task, epochs][:3], row
    *_, ours, theirs = measured["hifi - Trainer, Full-FT", "cola", "3"]
    scores = f"({ours} here, {theirs} with the Trainer;".replace("± ", "±")
    assert scores in page
