"""Where a run computes: the device that was requested or an error, never another one in silence."""

import pytest
import torch

from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.runs import device as devices
from hifi_cli.runs import run as runs
from hifi_cli.runs.device import select_device


@pytest.fixture
def with_gpus(monkeypatch):
    """A machine on which PyTorch sees so many GPUs."""

    def pretend(gpus, **environment):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return pretend


@pytest.mark.parametrize("requested", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_an_error_before_anything_is_written(make, resources, with_gpus, requested):
    with_gpus(0)
    with pytest.raises(MissingError, match=f"device={requested} requires a GPU, and PyTorch .* finds none"):
        runs.run(make("full-ft", f"device={requested}"), resources)
    assert not resources.results_dir.exists()


def test_the_command_ends_with_the_exit_code_of_something_missing(tiny, with_gpus):
    with_gpus(0)
    result = tiny("train", "--method", "full-ft", "device=cuda")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "device=cuda requires a GPU" in result.err


def test_visible_gpus_that_pytorch_does_not_see_are_an_error(with_gpus):
    """A grid gives each process its GPU in this way."""
    with_gpus(0, CUDA_VISIBLE_DEVICES="3")
    with pytest.raises(MissingError, match="CUDA_VISIBLE_DEVICES=3 requires a GPU"):
        select_device("auto")
    assert select_device("cpu").type == "cpu"
    for nothing in ("", "-1"):
        with_gpus(0, CUDA_VISIBLE_DEVICES=nothing)
        assert select_device("auto").type == "cpu"


def test_the_requested_gpu_is_the_selected_one(with_gpus):
    with_gpus(2)
    assert [str(select_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:0", "cuda:1", "cpu"]
    with pytest.raises(MissingError, match="device=cuda:2: the visible GPUs are cuda:0 to cuda:1"):
        select_device("cuda:2")


def test_every_process_has_a_gpu_of_its_own(with_gpus):
    with_gpus(2, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert str(select_device("auto")) == "cuda:1"
    with pytest.raises(UsageError, match="device=cuda:0 is one GPU for 2 processes: set device=cuda"):
        select_device("cuda:0")
    with_gpus(2, LOCAL_WORLD_SIZE="4")
    with pytest.raises(MissingError, match="4 processes on a machine with 2 visible GPUs"):
        select_device("cuda")


def test_an_unknown_device_is_refused():
    with pytest.raises(UsageError, match="device"):
        resolve(task="rte", method="full-ft", backbone="bert-base", protocol="hifi", overrides=["device=gpu"])


def test_the_device_does_not_make_it_another_run(make):
    assert make("full-ft", "device=cuda:1").hash == make("full-ft").hash == make("full-ft", "device=cpu").hash


def test_a_finished_run_is_evaluated_on_what_this_machine_has(make, resources):
    from hifi_cli.records.run_directory import RunDirectory
    from hifi_cli.runs.evaluate import evaluate

    config = make("bitfit", "epochs=1", "device=cpu")
    runs.run(config, resources)
    directory = RunDirectory.of(config, resources.results_dir)
    directory.write_config(config.model_copy(update={"device": "cuda"}))
    assert evaluate(directory.path, resources).largest_difference == 0


def test_auto_means_what_the_hardware_has(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    for supported in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda supported=supported: supported)
        assert devices.uses_bf16("auto", cpu) is supported
    assert not devices.uses_bf16("auto", gpu)  # emulated: slower than float32
    for device in (cpu, gpu):
        assert devices.uses_bf16("bf16", device) and not devices.uses_bf16("fp32", device)
