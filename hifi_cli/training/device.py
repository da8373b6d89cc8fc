"""The device that a run computes on, and the precision of its matrix products."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hifi_cli import environment, launcher
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError
from hifi_cli.training.processes import process_state

# --- the device


def set_up_device(config: RunConfig) -> torch.device:
    """Set PyTorch's switches for the device of a run, before any CUDA work; return the device.

    Raises:
        MissingError: the requested GPU is not there.
    """
    device = select_device(config.device)
    if device.type == "cuda":
        if config.deterministic:
            # cuBLAS reads it when it starts.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
        # cuDNN builds a plan for each new shape of a batch, about a second each.
        torch.backends.cuda.enable_cudnn_sdp(False)
    # The call imports PyTorch's compiler, which takes time.
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.deterministic = config.deterministic
    return device


def select_device(requested: str) -> torch.device:
    """Return the device that a configuration asks for; every process of torchrun gets a GPU.

    Args:
        requested: the key `device`: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        MissingError: fewer GPUs are there than requested, or than processes.
    """
    launcher.ignore_leftovers()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    # Whoever names a GPU there requests one.
    names_a_gpu = visible not in ("", "-1", "NoDevFiles")
    if requested == "cpu" or (requested == "auto" and not gpus and not names_a_gpu):
        process_state(cpu=True)
        return torch.device("cpu")
    if not gpus:
        reason = f"device={requested}"
        if requested == "auto":
            reason = f"CUDA_VISIBLE_DEVICES={visible}"
        raise MissingError(
            f"{reason} requires a GPU, and PyTorch {torch.__version__} finds none: check the driver"
            " and that PyTorch is built with CUDA, or set device=cpu"
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    index = requested.partition(":")[2]
    if (index and processes > 1) or max(processes, int(index or 0) + 1) > gpus:
        raise MissingError(
            f"device={requested} for {processes} processes: the visible GPUs are cuda:0 to"
            f" cuda:{gpus - 1}; start one process per GPU with device=cuda, or set device=cpu"
        )
    return torch.device("cuda", int(index or os.environ.get("LOCAL_RANK", "0")))


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether training on a device computes in bfloat16.

    Args:
        precision: `bf16`, `fp32`, or `auto`: bfloat16 if the hardware multiplies it.
        device: of the run.
    """
    if precision != "auto":
        return precision == "bf16"
    return multiplies_bf16(device)


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the hardware of a device has instructions for products of bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def precision_note(precision: str, device: torch.device) -> str:
    """Return what `precision` means on hardware without bfloat16, where it may surprise.

    Args:
        precision: as `uses_bf16` takes it.
        device: of the run.

    Returns:
        One line; empty: there is nothing to say. A CPU that computes in float32 is usual.
    """
    if precision == "fp32" or multiplies_bf16(device):
        return ""
    hardware = "GPU" if device.type == "cuda" else "CPU"
    if precision == "bf16":
        return (
            f"precision=bf16 is slow on this {hardware}, which has no instructions for bfloat16;"
            " precision=auto trains in float32 here"
        )
    if device.type == "cuda":
        return "precision=auto trains in float32: this GPU has no instructions for bfloat16"
    return ""


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return environment.cpu_name()


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside this block, a GPU's float32 matrix products may round their factors to TF32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
