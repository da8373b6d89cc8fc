"""Runs of a grid that are forked from a process with their libraries: as good as new ones, and as safe."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from finished_runs import fingerprint, read_json, run_paths
from hifi_processes import (
    DEMO_GRID,
    ROOT,
    children_of,
    finish,
    forked_runs_of,
    is_alive,
    printed_by_runs,
    run_hifi,
    start,
    training_runs,
    wait_for,
    write_grid_file,
)
from tiny_inputs import QUICK

import hifi_cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks runs"),
]
SHORT = ["epochs=1", "limit=16"]
# So long that it trains when it is killed.
LONG = ["epochs=60", "limit=64"]
TWO_THREADS = {"OMP_NUM_THREADS": "2"}
ANEW = "every run imports its libraries anew: "
OWN_METHOD = """
from pathlib import Path
import numpy as np
import torch
from hifi_cli.methods.base import Method

class Own(Method):
    def prepare(self, encoder):
        {statement}
        for parameter in encoder.model.parameters():
            parameter.requires_grad = True
"""


def provenance_of(run):
    """Where a run comes from, but for the time."""
    content = read_json(run / "results.json")["provenance"]
    return {key: value for key, value in content.items() if key != "finished"}


def run_own_method(tmp_path, encoders, statement, *, forks=True, variables=None):
    """Train two runs of a method whose `prepare` executes a statement; returns the lines that it prints."""
    (tmp_path / "own.py").write_text(OWN_METHOD.format(statement=statement))
    (tmp_path / "own.yaml").write_text(
        "description: d\nlabel: D\nsource: s\nimplementation: ./own.py\n"
    )
    name = write_grid_file(tmp_path, encoders, **DEMO_GRID, methods=["own.yaml"], seeds=[1, 2])
    words = ["--fork"] if forks else []
    code, said = run_hifi("grid", name, *words, *SHORT, cwd=tmp_path, variables=variables)
    assert code == 0, said
    lines = printed_by_runs(tmp_path).splitlines()
    return [line for line in lines if line.startswith("own: ")]


def test_a_forked_run_has_the_record_of_a_run_in_a_new_process(encoders, data, tmp_path):
    """To the bit, the first run of the process as well as the last; its memory alone is not comparable."""
    content = {"tasks": ["rte"], "methods": ["lora", "hifi-layerwise"], "seeds": [1, 2]}
    found = []
    for option in (["--fork"], []):
        root = tmp_path / f"grid{len(option)}"
        root.mkdir()
        name = write_grid_file(root, encoders, **content)
        words = ("grid", name, "--data-dir", data, *option, *QUICK)
        code, said = run_hifi(*words, cwd=root, variables=TWO_THREADS)
        assert (code, "4 of 4 done" in said, ANEW in said) == (0, True, False), said
        found.append(run_paths(root))
    forked, new = found
    assert len(forked) == len(new) == 4
    for first, second in zip(forked, new, strict=True):
        assert fingerprint(first) == fingerprint(second)
        assert provenance_of(first) == provenance_of(second)
        records = [read_json(run / "results.json") for run in (first, second)]
        assert [record["memory_is_own"] for record in records] == [False, True]


def test_where_nobody_sets_a_seed_forked_runs_draw_other_numbers(encoders, tmp_path):
    statement = "print('own:', np.random.rand(), torch.empty(()).uniform_().item())"
    first, second = run_own_method(tmp_path, encoders, statement)
    assert set(first.split()[1:]).isdisjoint(second.split()[1:])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one thread")
def test_numpy_computes_as_in_a_new_process(encoders, tmp_path):
    """Its sum of many products depends on the number of its threads."""
    compute = "x = np.random.default_rng(0).random(160_000); print('own:', float(x @ x).hex())"
    sums = []
    for forks in (True, False):
        root = tmp_path / f"forks-{forks}"
        root.mkdir()
        lines = run_own_method(root, encoders, compute, forks=forks, variables=TWO_THREADS)
        (line,) = set(lines)
        sums.append(line)
    of_one_thread = subprocess.check_output(
        [sys.executable, "-c", f"import numpy as np; {compute}"],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        text=True,
    )
    assert sums[0] == sums[1] != of_one_thread.strip()


def test_a_run_has_the_code_of_now(encoders, tmp_path):
    """The first run changes the program, as a checkout would; the second one is of the changed program."""
    shutil.copytree(ROOT / "hifi_cli", tmp_path / "hifi_cli")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    version = tmp_path / "hifi_cli" / "_version.py"
    # The grid itself prepares a model without values, by which it counts parameters.
    has_no_values = "next(encoder.model.parameters()).is_meta"
    statement = f"{has_no_values} or Path({str(version)!r}).write_text('__version__ = \"9.9\"')"
    run_own_method(tmp_path, encoders, statement, variables={"PYTHONPATH": str(tmp_path)})
    versions = [provenance_of(run)["hifi"] for run in run_paths(tmp_path)]
    assert versions == [hifi_cli.__version__, "9.9"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one thread")
def test_runs_start_anew_where_an_import_starts_threads(encoders, tmp_path):
    """The user's own number of threads holds; a line says once why runs take longer to start."""
    name = write_grid_file(tmp_path, encoders, **DEMO_GRID, methods=["bitfit"], seeds=[1, 2])
    variables = {"OPENBLAS_NUM_THREADS": "2"}
    code, said = run_hifi(
        "grid", name, "--fork", "--jobs", "2", *SHORT, cwd=tmp_path, variables=variables
    )
    assert (code, "2 of 2 done" in said) == (0, True), said
    assert said.count(f"{ANEW}importing them starts") == 1, said


def test_nothing_is_forked_from_a_process_that_has_opened_a_gpu(tmp_path):
    """CUDA works in no fork of it. A file stands for that of the driver."""
    (tmp_path / "nvidiactl").touch()
    program = f"""
from hifi_cli.cli import fork_server
fork_server._GPU_DRIVERS = [{str(tmp_path / "nvidiactl")!r}]
assert fork_server._why_not_to_fork() is None
with open({str(tmp_path / "nvidiactl")!r}):
    print(fork_server._why_not_to_fork())
"""
    # numpy starts no threads then.
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.check_output([sys.executable, "-c", program], env=variables, text=True)
    assert "nvidiactl, and a fork has no GPU then" in said


def test_a_mac_forks_no_run(monkeypatch, hifi):
    monkeypatch.setattr(sys, "platform", "darwin")
    answer = hifi("grid demo --fork")
    assert (answer.code, "--fork needs Linux" in answer.err) == (2, True)


def test_runs_on_a_cluster_are_not_forked(hifi):
    answer = hifi("grid demo --fork --site two-blocks")
    assert (answer.code, "--fork is for this machine" in answer.err) == (2, True)


def start_grid(tmp_path, encoders, *words):
    """A grid of two runs that train at a time; returns its process and those of the runs."""
    name = write_grid_file(tmp_path, encoders, **DEMO_GRID, methods=["bitfit", "full-ft"])
    grid = start("grid", name, "--fork", "--jobs", "2", *LONG, *words, cwd=tmp_path)
    wait_for(lambda: training_runs(tmp_path) == 2)
    return grid, forked_runs_of(grid.pid)


@pytest.mark.exhaustive
@pytest.mark.parametrize("retries", [0, 1])
def test_a_killed_run_fails_alone_or_is_repeated(tmp_path, encoders, retries):
    grid, runs = start_grid(tmp_path, encoders, "--retries", retries)
    assert len(runs) == 2
    os.kill(runs[0], signal.SIGKILL)
    code, said = finish(grid)
    assert code == 1 - retries, said
    assert f"{1 + retries} of 2 done, {1 - retries} failed" in said
    assert ("killed by SIGKILL (too little memory?)" in said) == (retries == 0)


@pytest.mark.exhaustive
def test_where_the_process_to_fork_from_is_killed_its_run_is_stopped_and_goes_on(
    tmp_path, encoders
):
    grid, _ = start_grid(tmp_path, encoders, "--retries", 1)
    os.kill(children_of(grid.pid)[0], signal.SIGKILL)
    code, said = finish(grid)
    assert (code, "2 of 2 done" in said, ANEW in said) == (0, True, False), said
    logs = printed_by_runs(tmp_path)
    assert logs.count("hifi: stopped by SIGTERM") == logs.count("resuming at epoch") == 1


@pytest.mark.exhaustive
def test_a_warning_to_all_processes_of_a_job_lets_runs_save_before_the_grid_ends(
    tmp_path, encoders
):
    """As Slurm sends it, also to the processes that runs are forked from; then the job is over."""
    grid, runs = start_grid(tmp_path, encoders)
    for process in [*children_of(grid.pid), *runs, grid.pid]:
        os.kill(process, signal.SIGUSR1)
    code, said = finish(grid)
    assert code == 128 + signal.SIGUSR1, said
    assert not any(is_alive(run) for run in runs)
    assert len(list(tmp_path.rglob("checkpoints/last.pt"))) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_grid_that_is_stopped_during_the_imports_leaves_nothing_behind(
    tmp_path, encoders, number
):
    name = write_grid_file(tmp_path, encoders, **DEMO_GRID, methods=["bitfit"])
    grid = start("grid", name, "--fork", *SHORT, cwd=tmp_path)
    wait_for(lambda: children_of(grid.pid))
    below = children_of(grid.pid)
    grid.send_signal(number)
    code, said = finish(grid)
    assert code == (130 if number == signal.SIGINT else -number), said
    assert ANEW not in said
    wait_for(lambda: not any(is_alive(process) for process in below))
    assert training_runs(tmp_path) == 0
