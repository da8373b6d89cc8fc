"""The summary of a grid: what the runs that are left will take."""

import os
import re
import sys
from pathlib import Path

import pytest
from synthetic_grids import cells, write_cell
from synthetic_runs import MEASURED

from hifi_cli import environment
from hifi_cli.grids import costs
from hifi_cli.grids.machine import machine_here
from hifi_cli.runs.cost import Machine


@pytest.fixture
def machine(monkeypatch):
    """The machine of synthetic runs."""
    monkeypatch.setattr(environment, "cpu_name", lambda: "CPU")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def summary(answer):
    """The lines of a summary by their names."""
    assert answer.code == 0, answer.err
    found = {}
    for line in answer.err.splitlines():
        name, _, text = line.partition(" ")
        found[name] = text.strip()
    return found


def test_a_grid_without_runs_says_what_is_not_known(hifi, machine):
    grid = "grid demo --tasks demo-entailment --methods full-ft --seeds 1,2"
    answer = hifi(f"{grid} --print")
    assert hifi(f"{grid} --dry-run").out == answer.out
    assert all(line.startswith("hifi train ") for line in answer.out.splitlines())
    said = summary(answer)
    assert said["runs"] == "2: 0 finished, 2 left"
    # Three epochs of 1,000 rows in batches of 32.
    assert said["steps"] == "192, by rows, batch size and epochs"
    assert said["time"] == (
        "unknown for 2 runs: no measured step on CPU with 1 thread: train one run first"
    )
    assert said["memory"] == "unknown for 2 runs: no finished run on CPU"
    # The encoder has 3.5 MB, and each run stores all of it.
    weights = re.match(
        r"about ([\d.]+) MB, by the numbers that the method stores; .* are free", said["disk"]
    )
    assert float(weights[1]) == pytest.approx(2 * 3.5, rel=0.05)
    assert "jobs" not in said


def test_finished_runs_are_counted_and_the_others_cost_what_those_did(hifi, machine):
    all_cells = cells(tasks=["demo-entailment"], seeds=[1, 2, 3])
    done = [
        cell for cell in all_cells if cell.method in ("full-ft", "bitfit") and cell.config.seed < 3
    ]
    for cell in done:
        write_cell(cell, Path("results"))
    words = "grid demo --tasks demo-entailment --methods full-ft,bitfit --seeds 1-3 --print"
    said = summary(hifi(words))
    assert said["runs"] == "6: 4 finished, 2 left"
    # The records have 8 rows: one step an epoch.
    assert said["steps"].startswith("6, ")
    # A run of two epochs took a second, one of three takes one and a half.
    assert said["time"].startswith(
        "about 0:00:03 at 0.5 s a step with evaluations, by finished runs of the same method and task;"
    )
    assert said["disk"].startswith("about 15 kB, by finished runs of the same method; ")
    several = summary(hifi(f"{words} --jobs 3"))
    assert "; 3 at a time about 0:00:01; " in several["time"]
    for cell in all_cells:
        write_cell(cell, Path("results"))
    finished = hifi(words)
    assert finished.out == "" and summary(finished) == {"runs": "6: 6 finished, 0 left"}


def test_a_grid_says_before_it_starts_what_it_will_take(hifi, machine, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it starts")

    monkeypatch.setattr("hifi_cli.grids.queue.run", refuse)
    answer = hifi("grid demo --tasks demo-entailment --methods full-ft --seeds 1")
    assert "runs      1: 0 finished, 1 left" in answer.err and "it starts" in answer.err
    assert answer.err.index("disk      about 3") < answer.err.index("it starts")
    assert "disk" not in hifi("grid demo --tasks demo-entailment --methods full-ft --quiet").err


def test_the_machines_of_a_cluster_are_not_known(hifi, machine):
    words = (
        "grid demo --tasks demo-entailment --methods full-ft --seeds 1 --site two-blocks --print"
    )
    assert summary(hifi(words))["time"] == "unknown: the machine of the runs is not known here"


# --- a GPU


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Two GPUs, as nvidia-smi lists them."""
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\necho "0, GPU-aa, NVIDIA Card, 81920"; echo "1, GPU-bb, NVIDIA Other, 16384"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
def test_a_gpu_is_named_as_records_name_it(cards, monkeypatch):
    first = machine_here("auto", 1)
    assert (first, first.memory) == (Machine("NVIDIA Card"), 81920 << 20)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    second = machine_here("cuda", 4)
    assert (second, second.memory) == (Machine("NVIDIA Other"), 16384 << 20)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cc")
    assert machine_here("auto", 1) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert machine_here("cpu", 1) == Machine(environment.cpu_name(), 3)


def test_a_number_of_processes_is_recommended_on_a_gpu(hifi, cards):
    (cell, *_) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    words = "grid demo --tasks demo-entailment --methods full-ft --seeds 1,2 --print"
    assert summary(hifi(words))["jobs"].startswith("unknown: train one run first, ")
    process = {"device": "NVIDIA Card", "device_type": "cuda", "precision": "fp32", "threads": 1}
    process |= {"processes": 1, "first_step": 1, "last_step": 2, "seconds": 1.0}
    provenance = {**MEASURED["provenance"], "device": "NVIDIA Card"}
    write_cell(
        cell,
        Path("results"),
        processes=[process],
        provenance=provenance,
        peak_memory_bytes=20_000_000_000,
    )
    said = summary(hifi(words))
    assert said["memory"].startswith("up to 20 GB, by finished runs of the same method and task")
    # Half of the peak besides, and a gigabyte: two processes in nine tenths of 86 GB, on each of two.
    assert re.match(
        r"--jobs [1-4], on 2 GPUs of 86 GB, about 31 GB for each process; ", said["jobs"]
    )
    assert "0.42 runs a second" in said["jobs"]


def test_processes_fit_in_the_memory_and_are_no_more_than_the_cores_or_than_was_measured():
    card = Machine("Card", memory=80_000_000_000)

    def recommended(peak, gpus=1, cores=64):
        return costs.recommended_jobs(card, peak, gpus=gpus, cores=cores)

    # 72 GB hold four processes of 1.5 * 10 + 1 GB.
    assert recommended(10e9) == 4
    assert recommended(10e9, gpus=2) == 8
    assert recommended(10e9, gpus=2, cores=6) == 6
    assert recommended(0.1e9) == 12
    assert recommended(100e9) == 1
