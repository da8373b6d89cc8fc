"""The files of finished runs: reading them, damaging them, and what must be equal between two runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from run_folders import run_folder

from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.runner import ModelRunner

# of the machine, not of the run
MEASURED = {"time_s", "wall_s", "peak_memory_bytes", "memory_is_own", "processes", "provenance"}


def run_path(root, method="hifi-layerwise"):
    """Where a run on the tiny BERT and RTE leaves its files."""
    return run_folder(Path(root) / "results", method=method)


def read_json(path):
    """What a JSON file holds; None where there is no file. A file that was written in part raises."""
    return json.loads(path.read_text()) if path.is_file() else None


def run_paths(root):
    """The directories of all finished runs."""
    return sorted(path.parent for path in (root / "results/runs").rglob("results.json"))


def load_arrays(path):
    """The tensors of a safetensors file as numpy arrays."""
    from safetensors.numpy import load_file

    return {name: np.array(value) for name, value in load_file(path).items()}


def without_measurements(results):
    """Results without what the machine decides."""
    return {key: value for key, value in results.items() if key not in MEASURED}


def fingerprint(directory):
    """Everything of a run that must not depend on how often it was interrupted."""
    results = without_measurements(read_json(directory / "results.json"))
    files = {
        name: (directory / name).read_bytes()
        for name in ("delta.safetensors", "metrics.jsonl", "predictions.jsonl")
    }
    return results, files


class Stop(Exception):
    """Stands for whatever ends a process."""


def assert_resuming_changes_nothing(config, workspace, other_resources, monkeypatch):
    """Train once without a stop, and elsewhere with a stop after the first epoch: both leave the same files and results.

    Returns the results of the run without a stop, whose files are in `workspace`.
    """
    uninterrupted = runs.run(config, workspace)
    measure, calls = ModelRunner.measure, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Stop
        return measure(*arguments)

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(ModelRunner, "measure", stop)
        patched.setattr(Checkpoint, "is_due", lambda self: True)
        runs.run(config, other_resources)
    directory = RunDirectory.of(config, other_resources.results_dir)
    assert directory.checkpoint.is_file()
    assert not directory.results.is_file()
    resumed = runs.run(config, other_resources)
    assert fingerprint(directory.path) == fingerprint(
        RunDirectory.of(config, workspace.results_dir).path
    )
    assert without_measurements(resumed.model_dump()) == without_measurements(
        uninterrupted.model_dump()
    )
    assert not directory.checkpoint.exists()
    check_processes(resumed)
    return uninterrupted


def check_processes(resumed):
    """A run that was stopped once names both processes, which share its steps and its time."""
    first, second = resumed.processes
    last_step = resumed.processes[-1].last_step
    assert [first.first_step, first.last_step + 1] == [1, second.first_step] and last_step > 1
    assert first.precision == second.precision == resumed.precision
    assert resumed.time_s == pytest.approx(first.seconds + second.seconds, rel=0.2, abs=0.2)
    assert resumed.wall_s >= first.seconds + second.seconds - 0.01


def flip_bit(path, at=0.5):
    """Change one bit, somewhere in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 4
    path.write_bytes(bytes(content))


def truncate(path):
    """Cut off the second half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
