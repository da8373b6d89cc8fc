"""Several runs on one GPU: admission by memory, runs that did not fit beside others, and MPS. nvidia-smi is a stand-in."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hifi_processes import wait_for

from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError, RunFailed
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec, local_engine
from hifi_cli.grids.jobs import Job, JobOptions
from hifi_cli.grids.local_engine import LocalEngine
from hifi_cli.grids.scheduler import JobOutcome
from hifi_cli.runs.plan import plan
from hifi_cli.runs.resources import ResourceCache

GIB = 1 << 30
# Runs until the file `release-NAME` is there; prints its environment first.
PROCESS = """
import json, os, sys, time
from pathlib import Path
Path(f"started-{sys.argv[1]}").write_text(json.dumps(dict(os.environ)))
while not Path(f"release-{sys.argv[1]}").exists():
    time.sleep(0.02)
"""


def cells(number):
    return grid_cells.cells(grid_spec.resolve(grid_spec.load("demo"), "demo"), ())[:number]


@pytest.fixture
def in_path(tmp_path, monkeypatch):
    """Puts a program into PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)

    return install


@pytest.fixture
def gpus(in_path, tmp_path, monkeypatch):
    """Sets the GPUs that nvidia-smi lists, by total and used memory in GiB."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    in_path("nvidia-smi", f'if [ "$1" = -L ]; then cat {tmp_path}/list; else cat {tmp_path}/memory; fi\n')

    def install(*memory):
        lines = [f"{index}, GPU-{index}, {total << 10}, {used << 10}\n" for index, (total, used) in enumerate(memory)]
        (tmp_path / "list").write_text("".join(f"GPU {index}: Card (UUID: GPU-{index})\n" for index in range(len(memory))))
        (tmp_path / "memory").write_text("".join(lines))

    return install


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Makes an engine whose runs are predicted to take so many GiB each, and whose processes run until they are released."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_engine, "core_count", lambda: 64)
    monkeypatch.setattr(local_engine, "QUERY_SECONDS", 0.0)
    monkeypatch.setattr(
        Job, "process_arguments", lambda job, _: [sys.executable, "-c", PROCESS, str(job.cells[0].name.replace("/", "-"))]
    )
    engines = []

    def make(sizes, **options):
        def memory_of_run(cell):
            size = sizes[all_cells.index(cell)]
            return None if size is None else size * GIB

        all_cells = cells(len(sizes))
        engines.append(LocalEngine(JobOptions(tmp_path / "results"), memory_of_run=memory_of_run, **options))
        jobs = [Job("train", (cell,)) for cell in all_cells]
        submitted = {}

        def submit(number, **changes):
            """The future of a job; None if it does not fit."""
            job = jobs[number]
            for name, value in changes.items():
                object.__setattr__(job, name, value)
            future = engines[-1].submit(job, tmp_path / "logs" / str(number))
            submitted.update({number: future} if future else {})
            return future

        def variables(number):
            """The environment of a job's process."""
            path = tmp_path / f"started-{all_cells[number].name.replace('/', '-')}"
            wait_for(lambda: path.exists() and path.read_text().endswith("}"))
            return json.loads(path.read_text())

        def finish(number):
            (tmp_path / f"release-{all_cells[number].name.replace('/', '-')}").touch()
            return submitted[number].result(60)

        return SimpleNamespace(submit=submit, finish=finish, variables=variables, engine=engines[-1])

    yield make
    for made in engines:
        made.stop()
        made.close()


def test_jobs_share_a_gpu_as_far_as_their_predicted_memory_fits(gpus, engine):
    gpus((80, 0))
    runs = engine([30, 45, 30, 10])
    assert runs.submit(0)
    assert runs.submit(1)  # 31 + 46 GiB
    assert runs.submit(2) is None
    assert runs.submit(3) is None
    assert runs.finish(1) == JobOutcome(0, shared_gpu=True)
    assert runs.submit(2)
    assert runs.submit(3)  # 31 + 31 + 11
    assert {runs.variables(number)["CUDA_VISIBLE_DEVICES"] for number in range(4)} == {"GPU-0"}


def test_a_job_goes_to_the_gpu_with_the_fewest_jobs(gpus, engine):
    gpus((80, 0), (24, 0))
    runs = engine([10, 10, 20, 10])
    assert all(runs.submit(number) for number in range(4))
    assert [runs.variables(number)["CUDA_VISIBLE_DEVICES"] for number in range(4)] == ["GPU-0", "GPU-1", "GPU-0", "GPU-1"]


def test_memory_that_others_use_is_left_to_them(gpus, engine):
    gpus((80, 50))
    runs = engine([10, 20, 10, 5])
    assert runs.submit(0)
    assert runs.submit(1) is None  # 11 + 21 of 30 GiB
    gpus((80, 75))
    assert runs.submit(2) is None  # it would have fitted before
    gpus((80, 61))
    assert runs.submit(2)


def test_a_job_that_fits_nowhere_or_is_unknown_has_a_gpu_for_itself(gpus, engine):
    gpus((24, 0))
    runs = engine([100, 1, None])
    assert runs.submit(0)
    assert runs.submit(1) is None
    assert runs.finish(0) == JobOutcome(0, shared_gpu=False)
    assert runs.submit(2)
    assert runs.submit(1) is None


def test_a_job_that_must_be_alone_is(gpus, engine):
    gpus((80, 0))
    runs = engine([1, 1, 1])
    assert runs.submit(0)
    assert runs.submit(1, alone=True) is None
    assert runs.finish(0) == JobOutcome(0, shared_gpu=False)
    assert runs.submit(1)
    assert runs.submit(2) is None


def test_a_gpu_has_at_most_six_runs_and_each_its_part_of_the_cores(gpus, engine, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("hifi_cli.grids.devices.core_count", lambda: 48)
    gpus((80, 0))
    runs = engine([1] * 7)
    assert [bool(runs.submit(number)) for number in range(7)] == [True] * 6 + [False]
    assert runs.variables(0)["OMP_NUM_THREADS"] == "8"


def test_a_card_without_known_memory_is_an_error(gpus, engine, tmp_path):
    gpus((80, 0))
    (tmp_path / "memory").write_text("0, GPU-0, [N/A], [N/A]\n")
    with pytest.raises(MissingError, match="does not list the memory of GPU 0"):
        engine([1])


def test_the_predictions_are_those_of_the_plan(hifi, monkeypatch, tmp_path):
    given = {}

    def engine(_, **arguments):
        given.update(arguments)
        raise RunFailed("stopped")

    monkeypatch.setattr(local_engine, "LocalEngine", engine)
    assert hifi("grid", "demo", "--jobs", "auto").code == 1
    (cell,) = cells(1)
    assert given["memory_of_run"](cell) == sum(plan(cell.config, ResourceCache(tmp_path)).memory)
    config = resolve(task="demo-entailment", method="top-k-12", backbone="demo", protocol="demo", seed=1)
    refused = replace(cell, config=config)
    assert given["memory_of_run"](refused) is None, "its own process refuses it, and the grid goes on"


def test_without_a_gpu_auto_is_the_default(engine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert engine([1]).engine.processes == len(local_engine.slots(None, []))


CONTROL = """
read command
echo "$1 $command $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES" >> {folder}/calls
if [ "$1" = -d ]; then exit {code}; fi
if [ "$command" = get_server_list ]; then [ -e {folder}/running ]; fi
"""


def test_mps_is_started_for_these_gpus_and_stopped(gpus, engine, in_path, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    in_path("nvidia-cuda-mps-control", CONTROL.format(folder=tmp_path, code=0))
    gpus((80, 0), (80, 0))
    runs = engine([1], use_mps=True)
    assert runs.submit(0)
    variables = runs.variables(0)
    pipes = variables["CUDA_MPS_PIPE_DIRECTORY"]
    assert Path(pipes).is_dir()
    runs.finish(0)
    runs.engine.close()
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls == [["get_server_list"], ["-d", pipes, "GPU-0,GPU-1"], ["quit", pipes]]
    assert not Path(pipes).exists()


def test_an_mps_that_is_running_is_left_as_it_is(gpus, engine, in_path, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    in_path("nvidia-cuda-mps-control", CONTROL.format(folder=tmp_path, code=0))
    (tmp_path / "running").touch()
    gpus((80, 0))
    runs = engine([1], use_mps=True)
    assert runs.submit(0)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in runs.variables(0)
    runs.finish(0)
    runs.engine.close()
    assert (tmp_path / "calls").read_text().split() == ["get_server_list"]


def test_mps_that_is_not_there_or_does_not_start_is_an_error(gpus, engine, in_path, tmp_path, monkeypatch):
    gpus((80, 0))
    with pytest.raises(MissingError, match="--mps needs nvidia-cuda-mps-control"):
        engine([1], use_mps=True)
    in_path("nvidia-cuda-mps-control", CONTROL.format(folder=tmp_path, code=1))
    with pytest.raises(RunFailed, match="exit code 1"):
        engine([1], use_mps=True)
    assert (tmp_path / "calls").read_text().count("quit") == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(MissingError, match="--mps needs a GPU"):
        engine([1], use_mps=True)
