"""The benchmarks run: whole runs on generated data, and the check of a GPU on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "scripts" / "bench.py"


@pytest.mark.exhaustive
def test_whole_runs_on_generated_data(tmp_path):
    words = [
        "--tasks",
        "demo-acceptability",
        "--rows",
        "40",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--out",
        str(tmp_path / "b.json"),
    ]
    environment = {key: value for key, value in os.environ.items() if key != "HIFI_DATA_DIR"}
    done = subprocess.run(
        [sys.executable, str(BENCH), *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    seconds = json.loads((tmp_path / "b.json").read_text())["seconds"]["demo-acceptability"]
    assert f"| Full-FT, fp32 | {seconds['Full-FT, fp32'] / seconds['Trainer']:.2f} |" in done.stdout
    assert 0 < seconds["floor of Full-FT, fp32"] < seconds["Full-FT, fp32"]


GPU_CHECK = Path(__file__).parent.parent / "scripts" / "gpu_check"


def gpu_check(tmp_path, *words):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(GPU_CHECK), "--out", str(tmp_path), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


@pytest.mark.exhaustive
def test_the_gpu_check_runs_on_a_cpu(tmp_path):
    done = gpu_check(tmp_path, "--small")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "gpu-cpu-small.json").read_text())
    assert all(
        row["ok"] and row["loss_error"] == row["resumed_error"] == 0
        for row in measured["correctness"]
    )
    steps = {(row["program"], row["precision"], row["tokens"]): row for row in measured["steps"]}
    ours, rival = steps["full-ft", "fp32", 128], steps["Trainer, full-ft", "fp32", 128]
    assert ours["ratio_to_trainer"] == pytest.approx(ours["ms"] / rival["ms"], rel=0.01)
    assert 0 < ours["share_of_peak"] < 1
    assert "| full-ft | 0.0e+00 |" in done.stdout
