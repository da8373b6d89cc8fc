"""Where a run computes: the device that was requested or an error, never another one in silence."""

import gc
import os
import warnings
import weakref

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from prepared_models import prepare

from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.reload import evaluate
from hifi_cli.tasks.task_spec import Example, Row
from hifi_cli.training import checkpoint, model_runner
from hifi_cli.training import device as devices
from hifi_cli.training import run as runs
from hifi_cli.training.device import select_device
from hifi_cli.training.model_runner import ModelRunner
from hifi_cli.training.prepared_run import RunInputs
from hifi_cli.training.prepared_run import prepare as prepare_inputs
from hifi_cli.training.splits import load_splits
from hifi_cli.training.trainer import Callback, Trainer


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


# --- precision


def gradients_and_logits(make, resources, method, *overrides):
    """The gradients of a training batch by parameter, the logits of an evaluation after it, and the runner."""
    prepared, config = prepare(make, resources, method, "dropout=0.1", "kernels=torch", *overrides)
    runner, examples = prepared.runner, load_splits(config, resources).train[:8]
    runner.encoder.model.train()
    runner.wrap()
    torch.manual_seed(0)
    runner.accumulate_gradient(examples)
    gradients = {name: value.grad for name, value in runner.model.named_parameters() if value.grad is not None}
    return gradients, runner.predict(examples), runner


@pytest.mark.parametrize("method", ["full-ft", "bitfit", "lora", "adapter", "linear-probing"])
def test_frozen_weights_are_cast_once_and_train_as_autocast_does(make, resources, method, monkeypatch):
    cast, logits, runner = gradients_and_logits(make, resources, method, "precision=bf16")
    monkeypatch.setattr(model_runner, "FrozenCasts", lambda _: None)
    plain, plain_logits, _ = gradients_and_logits(make, resources, method, "precision=bf16")
    assert cast.keys() == plain.keys()
    assert all(torch.equal(cast[name], plain[name]) for name in cast)
    assert (logits == plain_logits).all()
    assert {parameter.dtype for parameter in runner.model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in cast.values()} == {torch.float32}


@pytest.mark.parametrize("method", ["hifi-layerwise", "full-ft"])
def test_weights_that_train_stay_float32_in_bf16(make, resources, method):
    heads = ["heads.given=[[0,1],[2,3]]"] if method == "hifi-layerwise" else []
    bf16, logits, _ = gradients_and_logits(make, resources, method, "precision=bf16", *heads)
    fp32, exact_logits, _ = gradients_and_logits(make, resources, method, "precision=fp32", *heads)
    assert (logits == exact_logits).all()
    for name, gradient in fp32.items():
        assert gradient.dtype == bf16[name].dtype == torch.float32
        assert 0 < (bf16[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-4, name


def test_frozen_weights_are_cast_in_the_first_step_only(make, resources):
    runner = gradients_and_logits(make, resources, "bitfit", "precision=bf16")[2]
    first = [cast.data_ptr() for cast in runner.frozen_casts._casts]
    assert len(first) == 6 * 2 + 1  # the Linears of two layers and the pooler; the classifier and every bias train
    examples = [Example(Row(id="1", sequences=(), label=0), ({"input_ids": [1, 4, 5, 2], "token_type_ids": [0] * 4},))]
    runner.encoder.model.train()
    runner.accumulate_gradient(examples)
    assert [cast.data_ptr() for cast in runner.frozen_casts._casts] == first
    with torch.no_grad():
        runner.frozen_casts._parameters[0].add_(1)
    runner.accumulate_gradient(examples)
    assert torch.equal(runner.frozen_casts._casts[0], runner.frozen_casts._parameters[0].bfloat16())


@pytest.mark.parametrize("launcher", ["environment", "Trainer"])
def test_neither_a_launcher_nor_a_trainer_decides_the_precision(make, resources, monkeypatch, launcher):
    """Accelerate wraps the model's forward for its own mixed precision, which evaluation would keep."""
    AcceleratorState._reset_state()
    if launcher == "environment":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    else:
        Accelerator(mixed_precision="bf16")
    prepared, config = prepare(make, resources, "full-ft", "precision=fp32", "kernels=torch")
    runner, dtypes = prepared.runner, set()
    runner.encoder.base.register_forward_hook(lambda _, __, output: dtypes.add(output.last_hidden_state.dtype))
    for module in runner.encoder.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
    examples = load_splits(config, resources).train[:4]
    runner.encoder.model.train()
    runner.wrap()
    runner.accumulate_gradient(examples)
    runner.predict(examples)
    assert dtypes == {torch.float32}
    assert runner.accelerator.gradient_accumulation_steps == 1
    AcceleratorState._reset_state()


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_every_score_is_of_a_float32_model(make, resources, device):
    """Autocast is for training alone, on a GPU too."""
    prepared, _ = prepare(make, resources, "full-ft", "precision=bf16", "kernels=torch")
    runner = prepared.runner
    runner.device = torch.device(device)
    runner.encoder.model.eval()
    with runner.autocast():
        assert not torch.is_autocast_enabled(runner.device.type)
    runner.encoder.model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, where there is no GPU
        with runner.autocast() as context:
            is_cuda_less = device != "cpu" and not torch.cuda.is_available()
            assert is_cuda_less or torch.is_autocast_enabled(runner.device.type), context


def test_the_record_says_the_precision_and_a_key_allows_tf32(make, resources, monkeypatch):
    seen = []
    loss = ModelRunner.loss

    def watched(self, examples):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return loss(self, examples)

    evaluating, logits = [], ModelRunner.logits

    def watched_logits(self, examples):
        evaluating.extend([] if self.encoder.model.training else [torch.backends.cuda.matmul.fp32_precision])
        return logits(self, examples)

    monkeypatch.setattr(ModelRunner, "loss", watched)
    monkeypatch.setattr(ModelRunner, "logits", watched_logits)
    with devices.tf32(True):  # as a user may have set it
        for overrides, expected in (((), ("fp32", False)), (("precision=bf16", "tf32=true"), ("bf16", True))):
            config = make("bitfit", "epochs=1", *overrides)
            runs.run(config, resources, force=True)
            result = RunDirectory.of(config, resources.results_dir).read_result()
            assert (result.precision, result.config["tf32"]) == expected
            assert set(seen) == {"tf32" if expected[1] else "ieee"}
            assert set(evaluating) == {"ieee"} and torch.backends.cuda.matmul.fp32_precision == "tf32"
            seen.clear()
    assert make("full-ft", "tf32=true").hash != make("full-ft").hash


# --- determinism and random numbers


@pytest.fixture
def pretend_gpu(with_gpus, monkeypatch):
    """A machine with a GPU whose switches may be set, but on which nothing runs."""
    with_gpus(1)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.enable_cudnn_sdp(True)


def test_deterministic_sets_what_pytorch_requires_before_cuda_starts(make, pretend_gpu, monkeypatch):
    devices.configure(make("full-ft", "deterministic=true"))
    assert torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    devices.configure(make("full-ft"))
    assert not torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.deterministic
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="set CUBLAS_WORKSPACE_CONFIG=:4096:8 before"):
        devices.configure(make("full-ft", "deterministic=true"))


def test_cudnns_attention_is_off_on_a_gpu(make, pretend_gpu, monkeypatch):
    """A plan for each new shape of a batch would be built, about a second each."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    devices.configure(make("full-ft", "device=cpu"))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    devices.configure(make("full-ft"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_emulated_bf16_is_warned_about(make, pretend_gpu, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    devices.configure(make("full-ft", "precision=auto"))
    assert not caplog.records
    devices.configure(make("full-ft", "precision=bf16"))
    assert "Tesla T4 only emulates bf16" in caplog.text


def test_a_checkpoint_keeps_the_random_numbers_of_its_own_gpu(make, pretend_gpu, monkeypatch):
    states = {0: torch.tensor([7], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device.index])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device.index: state}))
    state = devices.rng_state(torch.device("cuda:0"))
    devices.set_rng_state(torch.device("cuda:1"), state)  # any GPU of any number of them
    assert states[1] is states[0]
    devices.set_rng_state(torch.device("cpu"), state)
    assert devices.rng_state(torch.device("cpu"))[1] is None


def test_a_checkpoint_of_another_kind_of_machine_is_used_and_says_so(make, resources, monkeypatch, caplog):
    config = make("bitfit", "epochs=2", "batch_size=16")
    monkeypatch.setattr(checkpoint, "kind_of_machine", lambda _: "2 GPU processes")
    predict, predictions = ModelRunner.predict, []

    def stop_in_the_second_epoch(self, examples):
        predictions.append(1)
        if len(predictions) == 2:
            raise KeyboardInterrupt
        return predict(self, examples)

    monkeypatch.setattr(ModelRunner, "predict", stop_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, resources)
    monkeypatch.undo()
    runs.run(config, resources)
    assert "saved on 2 GPU processes and continues on 1 CPU process" in caplog.text


def test_the_optimizer_of_a_finished_phase_is_freed(make, resources):
    inputs = RunInputs.resolve(make("diff-pruning", "epochs=2"), resources)
    prepared = prepare_inputs(inputs.model)
    trainer = Trainer(prepared.runner, prepared.method, inputs.splits.train, max_steps=8)
    optimizers = []

    class Watch(Callback):
        def on_step_end(self, trainer):
            if not optimizers:
                optimizers.append(weakref.ref(trainer.phase_state.optimizer))

    trainer.callbacks = [Watch()]
    gc.disable()
    try:
        trainer.train()
        assert trainer.progress.phase == 1
        assert optimizers[0]() is None
    finally:
        gc.enable()
