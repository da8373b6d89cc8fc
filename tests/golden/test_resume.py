"""A run that is stopped and continued ends as one that was not."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import hifi, run, run_numbers
from run_folders import demo_folder

SETTINGS = ["--protocol", "demo", "--task", "demo-entailment", "--seed", "1", "--quiet"]
SETTINGS += ["limit=32", "batch_size=4", "epochs=4", "scoring.samples=8", "log_every=1"]
SETTINGS += ["kernels=torch", "precision=fp32", "--allow-unused"]
STEPS = 32
slowly = pytest.mark.slow


def command(method, results_dir):
    return ["train", "--method", method, "--results-dir", results_dir, *SETTINGS]


def trained_steps(directory):
    """Steps of an unfinished run that are logged."""
    log = directory / "metrics.jsonl"
    return sum('"step"' in line for line in log.read_text().splitlines()) if log.is_file() else 0


@contextmanager
def stopped_after(steps, directory):
    """Send this process SIGTERM as soon as a run has trained so many steps."""
    ended = threading.Event()

    def watch():
        while not ended.is_set():
            if trained_steps(directory) >= steps:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.005)

    before = signal.signal(
        signal.SIGTERM, lambda *_: None
    )  # if it comes after the command has ended
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "method",
    [
        "eh-ft-bitfit",
        pytest.param("hifi-layerwise", marks=slowly),
        pytest.param("full-ft", marks=slowly),
        pytest.param("diff-pruning", marks=slowly),
    ],
)
def test_stopped_twice_it_ends_as_if_it_had_not(method, tmp_path):
    """Of two-stage methods the second stop falls into stage 2."""
    hifi(*command(method, "whole"), cwd=tmp_path)
    directory = demo_folder(tmp_path / "stopped", method=method)
    for steps in (2, STEPS // 2):
        with stopped_after(steps, directory):
            ended = run(*command(method, "stopped"), cwd=tmp_path)
        assert ended.code == 143, ended.err
        assert steps <= trained_steps(directory) < STEPS
        assert not (directory / "results.json").exists()
    hifi(*command(method, "stopped"), cwd=tmp_path)
    assert run_numbers(directory) == run_numbers(demo_folder(tmp_path / "whole", method=method))


@pytest.mark.slow
def test_killed_in_the_middle_it_ends_as_if_it_had_not(tmp_path):
    hifi(*command("hifi-layerwise", "whole"), cwd=tmp_path)
    directory = demo_folder(tmp_path / "killed", method="hifi-layerwise")
    paths = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "hifi_cli", *command("hifi-layerwise", "killed")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    while trained_steps(directory) < 9 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    hifi(*command("hifi-layerwise", "killed"), cwd=tmp_path)
    assert run_numbers(directory) == run_numbers(
        demo_folder(tmp_path / "whole", method="hifi-layerwise")
    )
