"""Grids in processes of their own: what the processes share, whole grids, stops and kills."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from finished_runs import fingerprint, run_paths
from hifi_processes import (
    environment,
    finish,
    run_hifi,
    start,
    wait_for,
    write_grid_file,
)
from run_folders import run_folder
from tiny_inputs import QUICK, QUICK_WORDS

from hifi_cli.grids import machine
from hifi_cli.grids.slots import Slot, local_executor
from hifi_cli.records.signs import CHOSEN_ON_REPORTED

pytestmark = pytest.mark.slow


def test_processes_share_gpus_and_threads(monkeypatch):
    for name in machine.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    cores = len(os.sched_getaffinity(0))
    threads = dict.fromkeys(machine.THREADS, str(max(1, cores // 3)))
    expected = [{**threads, "CUDA_VISIBLE_DEVICES": gpu} for gpu in ("4", "6", "4")]
    assert machine.slot_environments(3) == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.setenv("MKL_NUM_THREADS", "3")  # the user's own
    assert machine.slot_environments(2) == [{}, {}]


def test_gpus_are_those_of_nvidia_smi(tmp_path, monkeypatch):
    # The second one shares the memory of the CPU, and a line says what is wrong with a third.
    lines = ["0, GPU-aa, Card, 81920", "1, GPU-bb, Card, [N/A]", "Unable to determine the device"]
    echoed = "".join(f"echo '{line}'\n" for line in lines)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{echoed}")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert machine.visible_gpus() == []
    monkeypatch.undo()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.visible_gpus() == ["0", "1"]


def test_a_command_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    """A module of the user's own there, called as one of Python's, must not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for name in ("statistics", "difflib"):  # the second is imported by every command
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').write('')\n")
    with local_executor(1, forks=False) as submit:
        assert submit(["hifi", "ls", "tables/demo"], tmp_path / "log").result() == 0
    assert "table demo" in (tmp_path / "log").read_text()
    assert not (tmp_path / "imported").exists()


def test_a_signal_that_came_before_a_process_stops_it(tmp_path):
    """Ctrl-C may come between the start of a process and the moment when the slot knows it."""
    slot = Slot({}, forks=False, reasons_told=set())
    slot.stop(signal.SIGTERM)
    code = slot.execute(["hifi", "ls", "tables/demo"], tmp_path / "log")
    # It may have learned to listen by then.
    assert code in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_a_grid_from_begin_to_end(encoders, data, tmp_path, hifi, tiny, monkeypatch):
    """Of three cells one is finished, one fails (CoLA's files are missing), and one is trained."""
    for variable in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, environment()[variable])
    name = write_grid_file(tmp_path, encoders, methods=["bitfit", "hifi-layerwise"])
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "RTE").symlink_to(data / "RTE")
    assert hifi("train --task rte --method bitfit", *_words(encoders)).code == 0
    (run,) = run_paths(tmp_path)
    before = fingerprint(run)
    command = ["grid", name, "--data-dir", "glue", "--jobs", "2", *QUICK]
    failed = hifi(*command, "--tasks", "rte,cola", "--methods", "bitfit")
    assert failed.code == 1, failed.err
    assert "1 of 2 done (1 before), 1 failed" in failed.err
    assert "failed: cola/bitfit/seed1: hifi: " in failed.err and "CoLA" in failed.err
    assert "repeat it: hifi train --task cola" in failed.err
    answer = hifi(*command, "--tasks", "rte")
    assert (answer.code, "2 of 2 done (1 before)" in answer.err) == (0, True), answer.err
    assert len(run_paths(tmp_path)) == 2 and fingerprint(run) == before
    (log,) = (tmp_path / "results").rglob("rte-hifi-layerwise-seed1.log")
    sign = f"note: {CHOSEN_ON_REPORTED}"
    assert f"warning: {sign}\n" in log.read_text()
    assert answer.err.count(sign) == 1 and "hifi-layerwise/seed1: note" not in answer.err


def test_rte_starts_from_the_mnli_run_of_the_same_grid(encoders, data, task_kinds_data, tmp_path):
    for folder in (data / "RTE", task_kinds_data / "MNLI"):
        (tmp_path / folder.name).symlink_to(folder)
    start = str(run_folder("", protocol="chain", task="mnli"))
    case = {"tasks": ["rte"], "config": {"start_from": start}}
    protocol = {"description": "d", "base": "hifi", "cases": [case]}
    (tmp_path / "chain.yaml").write_text(json.dumps(protocol))
    content = {"protocol": "chain.yaml", "tasks": ["rte", "mnli"], "methods": ["full-ft"]}
    name = write_grid_file(tmp_path, encoders, **content, seeds=[1, 2])
    words = ("--data-dir", ".", "--jobs", "2", *QUICK, "epochs=1")
    code, said = run_hifi("grid", name, *words, cwd=tmp_path)
    assert (code, "4 of 4 done" in said) == (0, True), said
    for seed in (1, 2):
        run = run_folder(tmp_path / "results", protocol="chain", seed=seed)
        record = json.loads((run / "results.json").read_text())
        assert [link["run"] for link in record["started_from"]] == [start]


def _words(encoders):
    return ["--backbone", encoders["bert"], "--data-dir", "glue", *QUICK_WORDS]


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_grid_goes_on(encoders, data, tmp_path, number):
    long = ["batch_size=8", "epochs=60"]
    name = write_grid_file(tmp_path, encoders, methods=["full-ft", "bitfit"], tasks=["rte"])
    process = start("grid", name, "--data-dir", data, "--jobs", "1", *long, cwd=tmp_path)
    wait_for(lambda: list((tmp_path / "results").rglob("metrics.jsonl")))
    time.sleep(0.3)
    process.send_signal(number)
    code, said = finish(process)
    assert code == 128 + number, said
    assert len(list((tmp_path / "results").rglob("last.pt"))) == 1
    listed = run_hifi("ls", "runs", cwd=tmp_path)[1]
    assert "unfinished" in listed
    assert not any(line.startswith("running") for line in listed.splitlines())
    code, said = run_hifi("grid", name, "--data-dir", data, "--jobs", "2", *long, cwd=tmp_path)
    assert code == 0, said
