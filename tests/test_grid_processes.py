"""Grids in processes of their own: the slots they share, whole grids, stops and kills."""

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
import yaml
from finished_runs import fingerprint, flip_bit, read_json, run_paths
from hifi_processes import environment, finish, kill_group, run_hifi, start, wait_for, write_grid_file
from synthetic_grids import write_cell
from tiny_inputs import QUICK

from hifi_cli.config import registry
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import devices, grid_spec, local_engine
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.scheduler import JobOutcome

pytestmark = pytest.mark.slow


def cells(**changes):
    return grid_cells.cells(grid_spec.resolve(grid_spec.with_changes(grid_spec.load("demo"), changes), "demo"), ())


def test_slots_share_gpus_or_threads(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    cores = len(os.sched_getaffinity(0))
    assert local_engine.environments(2, ["4", "6"]) == [
        {
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "OMP_NUM_THREADS": str(max(1, cores // 2)),
            "MKL_NUM_THREADS": str(max(1, cores // 2)),
        }
        for gpu in ("4", "6")
    ]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in local_engine.environments(3, ["4", "6"])] == ["4", "6", "4"]
    assert [each["OMP_NUM_THREADS"] for each in local_engine.environments(cores, [])] == ["1"] * cores
    assert local_engine.environments(1, [])[0]["OMP_NUM_THREADS"] == str(cores)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert local_engine.environments(1, ["0"])[0]["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST", "the user's own"


def test_gpus_are_found_without_nvidia_smi_and_hidden_ones_are_none(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices.shutil, "which", lambda _: None)
    monkeypatch.setattr(devices.Path, "glob", lambda path, _: [path / "nvidia0", path / "nvidia1"])
    assert devices.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    assert devices.visible_gpus() == []


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_threads_that_the_user_set_are_left_as_they_are(name, monkeypatch):
    for other in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "3")
    assert local_engine.environments(2, []) == [{}, {}]


def test_a_cell_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    """A module of the user's own there, called as one of Python's, must not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    for name in ("statistics", "difflib"):  # the second is imported by every command
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').write('')\n")
    options = JobOptions(tmp_path / "results")
    (cell, *_) = cells(tasks=["demo-entailment"], methods=["full-ft"])
    engine = local_engine.LocalEngine(options, 1)
    monkeypatch.setattr(Job, "arguments", lambda *_: ["ls", "tables/demo"])
    assert engine.submit(Job("train", (cell,)), tmp_path / "log").result() == JobOutcome(0)
    engine.close()
    assert "table demo" in (tmp_path / "log").read_text()
    assert not (tmp_path / "imported").exists()


def test_a_grid_from_begin_to_end(encoders, data, tmp_path, hifi, tiny, monkeypatch):
    """Of two cells one fails (CoLA's files are missing), and one is trained again: its delta is damaged."""
    for variable in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, environment()[variable])
    assert tiny("train", "--method", "bitfit").code == 0
    (run,) = run_paths(tmp_path)
    before = fingerprint(run)
    flip_bit(run / "delta.safetensors")
    name = write_grid_file(tmp_path, encoders, methods=["bitfit"])
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "RTE").symlink_to(data / "RTE")
    command = ["grid", name, "--data-dir", "glue", "--jobs", "2", *QUICK]
    failed = hifi(*command)
    assert failed.code == 1, failed.err
    assert "1 of 2 done, 1 failed" in failed.err
    assert "failed: cola/bitfit/seed1: hifi: " in failed.err
    assert "repeat it: hifi train --task cola" in failed.err
    assert run_paths(tmp_path) == [run]
    repaired = fingerprint(run)
    origin = repaired[0]["data_origin"]  # the same files, reached by another --data-dir
    assert repaired == (before[0] | {"data_origin": origin}, before[1])
    failure = read_json(tmp_path / "results/runs/hifi/tiny-bert/cola/bitfit/seed1/failure.json")
    assert "CoLA" in failure["lines"][-1]
    repeated = hifi(*command, "--tasks", "rte")
    assert (repeated.code, "1 of 1 done" in repeated.err) == (0, True), repeated.err
    listed = json.loads(hifi("ls", "runs", "--format", "json").out)
    assert [run["state"] for run in listed] == ["failed", "done"]
    assert listed[1]["score"] > 0 and listed[1]["time_s"] > 0


@pytest.mark.exhaustive
def test_a_stopped_grid_goes_on(encoders, data, tmp_path):
    long = ["batch_size=8", "epochs=60"]
    name = write_grid_file(tmp_path, encoders, methods=["full-ft", "bitfit"], tasks=["rte"])
    process = start("grid", name, "--data-dir", data, "--jobs", "1", *long, cwd=tmp_path)
    wait_for(lambda: list((tmp_path / "results").rglob("metrics.jsonl")))
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    assert code == 143, said
    assert len(list((tmp_path / "results").rglob("last.pt"))) == 1
    listed = run_hifi("ls", "runs", cwd=tmp_path)[1]
    assert "unfinished" in listed
    assert "running" not in listed
    code, said = run_hifi("grid", name, "--data-dir", data, "--jobs", "2", *long, cwd=tmp_path)
    assert code == 0, said


def test_a_task_of_a_users_own_trains(encoders, data, tmp_path, hifi):
    (tmp_path / "mine.yaml").write_text((registry.configs_directory() / "tasks" / "rte.yaml").read_text())
    answer = hifi(
        "train", "--task", "mine.yaml", "--method", "bitfit", "--backbone", encoders["bert"], "--data-dir", data, *QUICK
    )
    assert answer.code == 0, answer.err
    assert (tmp_path / "results/runs/hifi/tiny-bert/mine/bitfit/seed1/results.json").is_file()


@pytest.mark.exhaustive
def test_30_kills_of_a_grid(encoders, data, tmp_path):
    """The whole of it, as a node that dies, or the grid alone, whose processes then go on under another one."""
    import random

    long = ["batch_size=8", "epochs=60", "heads.k=2", "scoring.samples=12"]
    reference, rng, killed = tmp_path / "reference", random.Random(0), 0
    reference.mkdir()
    content = {"methods": ["hifi-layerwise", "full-ft"], "seeds": [1, 2]}
    code, said = run_hifi(
        "grid", write_grid_file(reference, encoders, **content), "--data-dir", data, "--jobs", "2", *long, cwd=reference
    )
    assert code == 0, said
    expected = [fingerprint(path) for path in run_paths(reference)]
    assert len(expected) == 8
    root = tmp_path
    while killed < 30:
        root = tmp_path / f"after-{killed}"
        root.mkdir()
        name = write_grid_file(root, encoders, **content)
        command = ["grid", name, "--data-dir", data, "--jobs", "2", *long]
        while killed < 30:
            process = start(*command, cwd=root)
            time.sleep(rng.uniform(2, 9))
            if process.poll() is not None:
                process.stdout.close()
                break
            if killed % 3:
                kill_tree(process.pid)
            kill_group(process)
            killed += 1
            for path in (root / "results").rglob("*.json"):
                assert read_json(path) is not None, path
        code, said = finish(start(*command, cwd=root), timeout=300)
        assert code == 0, said
        assert [fingerprint(path) for path in run_paths(root)] == expected
    print(f"\n{killed} kills of a grid survived")


def kill_tree(pid):
    """Every process below one, as when a node dies."""
    import psutil

    for child in psutil.Process(pid).children(recursive=True):
        child.kill()


def test_keys_of_stage_1_are_no_keys_of_its_scoring(hifi):
    grid = {"protocol": "demo", "backbone": "demo", "tasks": ["demo-entailment"], "methods": ["eh-ft-hifi"]}
    Path("rates.yaml").write_text(yaml.safe_dump({**grid, "vary": {"stage1.learning_rate": [0.001, 0.002]}}))
    score, *trainings = hifi("grid", "rates.yaml", "scoring.samples=12", "--print").out.splitlines()
    assert len(trainings) == 2 and all("stage1.learning_rate=0.00" in line for line in trainings)
    answer = hifi(*shlex.split(score)[1:], "--dry-run")
    assert answer.code == 0 and "samples: 12 " in answer.out, answer.err


def test_a_run_that_diverged_is_repeated_with_force_as_it_is_finished(hifi):
    (cell,) = cells(tasks=["demo-entailment"], methods=["full-ft"], seeds=[1])
    write_cell(cell, Path("results"), state="diverged")
    answer = hifi("grid", "demo", "--tasks", "demo-entailment", "--methods", "full-ft", "--seeds", "1")
    assert answer.code == 1 and "failed: demo-entailment/full-ft/seed1: the training loss is nan" in answer.err
    assert "to repeat it: hifi train --task demo-entailment --method full-ft" in answer.err and "--force" in answer.err


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("demo-entailment", ["--engine", "parsl", "--site", "nowhere"], "unknown site 'nowhere'"),
        ("cb", ["--data-dir", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_force_deletes_no_runs_if_the_engine_or_the_data_are_missing(hifi, task, words, message):
    for cell in cells(tasks=[task], methods=["full-ft"]):
        write_cell(cell, Path("results"))
    before = sorted(Path("results/runs").rglob("results.json"))
    answer = hifi("grid", "demo", "--tasks", task, "--methods", "full-ft", "--force", *words)
    assert answer.code in (2, 3) and message in answer.err
    assert sorted(Path("results/runs").rglob("results.json")) == before != []
