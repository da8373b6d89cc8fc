"""Where a run computes: the device that was requested or an error, never another one in silence."""

import importlib.metadata
import os

import pytest
import torch
from prepared_models import prepare, splits_of

from hifi_cli.errors import MissingError
from hifi_cli.runs import provenance
from hifi_cli.runs import run as runs
from hifi_cli.runs.provenance import describe_provenance
from hifi_cli.training.device import (
    precision_note,
    select_device,
    set_up_device,
    uses_bf16,
)


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
def test_a_gpu_that_is_not_there_is_an_error_before_anything_is_written(
    make, workspace, with_gpus, requested
):
    with_gpus(0)
    with pytest.raises(
        MissingError, match=f"device={requested} requires a GPU, and PyTorch .* finds none"
    ):
        runs.run(make("full-ft", f"device={requested}"), workspace)
    assert not workspace.results_dir.exists()


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
    assert [str(select_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(
        MissingError, match=r"device=cuda:2 .* the visible GPUs are cuda:0 to cuda:1"
    ):
        select_device("cuda:2")


def test_every_process_has_a_gpu_of_its_own(with_gpus):
    together = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with_gpus(2, **together, MASTER_ADDR="localhost", MASTER_PORT="29500")
    assert str(select_device("auto")) == "cuda:1"
    for requested, processes in (("cuda:0", "2"), ("cuda", "4")):
        with_gpus(2, LOCAL_WORLD_SIZE=processes)
        with pytest.raises(MissingError, match=f"for {processes} processes: the visible GPUs are"):
            select_device(requested)


def test_the_device_does_not_make_it_another_run(make):
    assert (
        make("full-ft", "device=cuda:1").config_hash
        == make("full-ft").config_hash
        == make("full-ft", "device=cpu").config_hash
    )


# --- precision


def gradients_and_logits(make, workspace, method, *overrides):
    """The gradients of a training batch by parameter, and the logits of an evaluation after it."""
    runner, config = prepare(make, workspace, method, "dropout=0.1", "kernels=torch", *overrides)
    examples = splits_of(config, workspace).train[:8]
    runner.model.train()
    torch.manual_seed(0)
    runner.accumulate_gradient(examples)
    gradients = {
        name: value.grad
        for name, value in runner.model.named_parameters()
        if value.grad is not None
    }
    return gradients, runner.predict(examples)


@pytest.mark.parametrize("method", ["hifi-layerwise", "full-ft"])
def test_weights_that_train_stay_float32_in_bf16(make, workspace, method):
    heads = ["heads.given=[[0,1],[2,3]]"] if method == "hifi-layerwise" else []
    bf16, logits = gradients_and_logits(make, workspace, method, "precision=bf16", *heads)
    fp32, exact_logits = gradients_and_logits(make, workspace, method, "precision=fp32", *heads)
    assert (logits == exact_logits).all()
    for name, gradient in fp32.items():
        assert gradient.dtype == bf16[name].dtype == torch.float32
        assert 0 < (bf16[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-4, name


# --- determinism and random numbers


@pytest.fixture
def pretend_gpu(with_gpus, monkeypatch):
    """A machine with a GPU whose switches may be set, but on which nothing runs."""
    with_gpus(1)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.enable_cudnn_sdp(True)


def test_deterministic_sets_what_pytorch_requires(make, pretend_gpu):
    set_up_device(make("full-ft", "deterministic=true"))
    assert torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    set_up_device(make("full-ft"))
    assert (
        not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic
    )


def test_a_library_that_is_not_installed_is_left_out_of_the_provenance(monkeypatch):
    """`datasets` for example: data files are read without it, and a run must not fail at its end."""
    version = importlib.metadata.version

    def without_datasets(name):
        if name == "datasets":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_datasets)
    # A process reads the versions once, and a run before may have done so.
    read_again = provenance._installed_versions.__wrapped__
    monkeypatch.setattr(provenance, "_installed_versions", read_again)
    libraries = describe_provenance(torch.device("cpu"))["libraries"]
    assert "datasets" not in libraries and libraries["torch"] == version("torch")


@pytest.mark.parametrize(
    ("precision", "kind", "has_bf16", "words"),
    [
        ("auto", "cuda", False, "precision=auto trains in float32: this GPU"),
        ("bf16", "cuda", False, "precision=bf16 is slow on this GPU"),
        ("bf16", "cpu", False, "precision=bf16 is slow on this CPU"),
        # A CPU that computes in float32 is usual, and a wish for it is fulfilled.
        ("auto", "cpu", False, ""),
        ("fp32", "cuda", False, ""),
        ("auto", "cuda", True, ""),
        ("bf16", "cpu", True, ""),
    ],
)
def test_hardware_without_bf16_is_named(monkeypatch, precision, kind, has_bf16, words):
    monkeypatch.setattr("hifi_cli.training.device.multiplies_bf16", lambda _: has_bf16)
    note = precision_note(precision, torch.device(kind))
    assert note.startswith(words) and bool(note) == bool(words)
    assert "\n" not in note
    # V100 and T4: what `auto` means is what the steps compute in.
    computes_in_bf16 = uses_bf16(precision, torch.device(kind))
    assert computes_in_bf16 == (precision == "bf16" or (precision == "auto" and has_bf16))


@pytest.mark.parametrize("has_bf16", [False, True])
def test_a_run_says_that_bf16_will_be_slow(make, workspace, monkeypatch, caplog, has_bf16):
    monkeypatch.setattr("hifi_cli.training.device.multiplies_bf16", lambda _: has_bf16)
    runs.run(make("bitfit", "precision=bf16", "epochs=1", "limit=8"), workspace)
    said = [line for line in caplog.messages if "precision=bf16 is slow" in line]
    assert len(said) == (not has_bf16), said
