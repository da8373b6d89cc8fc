"""The device that a run computes on, and the precision of its matrix products."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.training import distributed

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it when it starts
_DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")


def choose_device(config: RunConfig) -> torch.device:
    """Choose the device of a run, and set PyTorch's switches for it; before any CUDA work.

    Raises:
        MissingError: the requested GPU is not there.
        UsageError: CUDA was started without what `deterministic` requires.
    """
    device = select_device(config.device)
    if device.type == "cuda":
        if config.deterministic and os.environ.get(_WORKSPACE) not in _DETERMINISTIC_WORKSPACES:
            if torch.cuda.is_initialized():
                raise UsageError(f"deterministic=true: set {_WORKSPACE}=:4096:8 before this process uses the GPU")
            os.environ[_WORKSPACE] = _DETERMINISTIC_WORKSPACES[0]
        torch.cuda.set_device(device)
        # cuDNN builds a plan for each new shape of a batch, about a second each
        torch.backends.cuda.enable_cudnn_sdp(False)
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:
        torch.use_deterministic_algorithms(config.deterministic)  # imports PyTorch's compiler
    torch.backends.cudnn.deterministic = config.deterministic
    return device


def select_device(requested: str) -> torch.device:
    """The device for a configuration's `device`; every process of torchrun gets a GPU of its own.

    Args:
        requested: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        MissingError: fewer GPUs are there than requested.
        UsageError: one GPU is requested for several processes.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # with a name in it, a GPU was requested
    named = "" if named.strip() in ("", "-1", "NoDevFiles") else named
    if requested == "cpu" or (requested == "auto" and not gpus and not named):
        state = distributed.state(cpu=True)
        return torch.device("cpu") if requested == "cpu" else state.device
    if not gpus:
        reason = f"CUDA_VISIBLE_DEVICES={named}" if requested == "auto" else f"device={requested}"
        raise MissingError(
            f"{reason} requires a GPU, and PyTorch {torch.__version__} finds none: check the driver"
            " and that PyTorch is built with CUDA, or set device=cpu"
        )
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    index = requested.partition(":")[2]
    if index and processes > 1:
        raise UsageError(f"device={requested} is one GPU for {processes} processes: set device=cuda")
    if processes > gpus:
        raise MissingError(f"{processes} processes on a machine with {gpus} visible GPUs: start one per GPU, or set device=cpu")
    if int(index or 0) >= gpus:
        raise MissingError(f"device={requested}: the visible GPUs are cuda:0 to cuda:{gpus - 1}")
    return torch.device("cuda", int(index or os.environ.get("LOCAL_RANK", "0")))


def uses_cpu_kernels(config: RunConfig, device: torch.device) -> bool:
    """Whether a run computes with `hifi_cli.models.cpu_kernels` instead of stock PyTorch."""
    return config.kernels == "auto" and device.type == "cpu"


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether `precision` means bfloat16; `auto`: if the hardware multiplies it."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def device_name(device: torch.device) -> str:
    """The name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine() if device.type == "cpu" else device.type


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
