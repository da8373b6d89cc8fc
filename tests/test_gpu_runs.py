"""Whole runs on a real GPU; skipped without one. Single steps are in test_gpu_steps.py."""

import pytest
import torch
from finished_runs import fingerprint, load_arrays, read_json

from hifi_cli.heads import select as head_selection
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.reload import evaluate
from hifi_cli.training import run as runs
from hifi_cli.training.checkpoint import Checkpoint
from hifi_cli.training.data import ResourceCache
from hifi_cli.training.device import device_name, select_device
from hifi_cli.training.step import ModelRunner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora", "diff-pruning", "child-tuning-d", "prefix-tuning-mlp"])
def test_a_gpu_trains_as_a_cpu_does(make, data, tmp_path, method):
    """Without dropout, in float32; Diff-Pruning's noise is the device's own."""
    deltas = []
    for device in ("cpu", "cuda"):
        config = make(method, f"device={device}", "dropout=0.0", "kernels=torch", "epochs=1")
        runs.run(config, ResourceCache(tmp_path / device, data))
        directory = RunDirectory.of(config, tmp_path / device)
        deltas.append(load_arrays(directory.delta))
        assert evaluate(directory.path, ResourceCache(tmp_path / device, data)).differing == []
    if method != "diff-pruning":
        for name, value in deltas[0].items():
            assert deltas[1][name] == pytest.approx(value, abs=1e-3), name


def test_heads_are_scored_on_the_gpu_as_on_the_cpu(make, resources, tmp_path, data):
    config = make("hifi-layerwise")
    there = head_selection.compute_scores(config, resources)
    here = head_selection.compute_scores(config.model_copy(update={"device": "cpu"}), ResourceCache(tmp_path / "cpu", data))
    assert there.richness_array == pytest.approx(here.richness_array, abs=0.2)
    assert there.correlation_array == pytest.approx(here.correlation_array, abs=1e-4)
    assert device_name(select_device("cuda")) in there.provenance.device
    assert device_name(select_device("cuda")) not in here.provenance.device


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_runs_repeat_bit_for_bit_also_when_resumed(make, data, tmp_path, monkeypatch, precision):
    config = make("full-ft", "deterministic=true", f"precision={precision}", "epochs=2")
    directories = []
    for name in ("first", "second", "resumed"):
        resources = ResourceCache(tmp_path / name, data)
        if name == "resumed":
            with monkeypatch.context() as patched:
                patched.setattr(Checkpoint, "is_due", lambda _: True)
                patched.setattr(ModelRunner, "predict", _interrupt_the_second(ModelRunner.predict))
                with pytest.raises(KeyboardInterrupt):
                    runs.run(config, resources)
        runs.run(config, resources)
        directories.append(RunDirectory.of(config, tmp_path / name))
    first, *others = (fingerprint(directory.path) for directory in directories)
    assert all(other == first for other in others)
    assert read_json(directories[0].results)["config"]["deterministic"]


def _interrupt_the_second(predict):
    calls = []

    def interrupted(runner, examples):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict(runner, examples)

    return interrupted
