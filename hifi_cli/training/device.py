"""The device that a run computes on, selected in one place, and the precision of its matrix products."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.training import distributed

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it when it starts
_DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")

logger = logging.getLogger("hifi")


def configure(config: RunConfig) -> torch.device:
    """Select the device of a run, and set PyTorch's switches for this process as the run requires; before any CUDA work.

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
        torch.backends.cuda.enable_cudnn_sdp(False)  # it builds a plan for each new shape of a batch, about a second each
        if uses_bf16(config.precision, device) and not uses_bf16("auto", device):
            logger.warning(f"{device_name(device)} only emulates bf16, which is slow: precision=auto or fp32 avoids it")
    if torch.are_deterministic_algorithms_enabled() != config.deterministic:  # the call alone imports PyTorch's compiler
        torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.deterministic = config.deterministic
    return device


def select_device(requested: str) -> torch.device:
    """The device for a configuration's `device`; every process that torchrun starts gets a GPU of its own.

    Args:
        requested: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        MissingError: fewer GPUs are there than `requested`, CUDA_VISIBLE_DEVICES or torchrun's processes require.
        UsageError: one GPU is requested for several processes.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and not gpus and not _visible_devices()):
        state = distributed.state(cpu=True)
        return torch.device("cpu") if requested == "cpu" else state.device
    if not gpus:
        reason = f"CUDA_VISIBLE_DEVICES={_visible_devices()}" if requested == "auto" else f"device={requested}"
        raise MissingError(
            f"{reason} requires a GPU, and PyTorch {torch.__version__} finds none: check the driver and that PyTorch is built"
            " with CUDA, or set device=cpu"
        )
    processes, local_rank = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    index = requested.partition(":")[2]
    if index and processes > 1:
        raise UsageError(f"device={requested} is one GPU for {processes} processes: set device=cuda")
    if processes > gpus:
        raise MissingError(f"{processes} processes on a machine with {gpus} visible GPUs: start one per GPU, or set device=cpu")
    if int(index or 0) >= gpus:
        raise MissingError(f"device={requested}: the visible GPUs are cuda:0 to cuda:{gpus - 1}")
    return torch.device("cuda", int(index or local_rank))


def _visible_devices() -> str:
    """CUDA_VISIBLE_DEVICES where it names a GPU: then a GPU was requested."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return "" if names.strip() in ("", "-1", "NoDevFiles") else names


def uses_cpu_kernels(config: RunConfig) -> bool:
    """Whether a run computes with the modules of `hifi_cli.models.cpu_kernels` instead of stock PyTorch."""
    return config.kernels == "auto" and select_device(config.device).type == "cpu"


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether `precision` (fp32, bf16, auto) means bfloat16; `auto`: if the hardware multiplies such matrices."""
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


def rng_state(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The state of PyTorch's random number generators: of the CPU's, and of the device's own on a GPU."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_rng_state(device: torch.device, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    """Set what `rng_state` returned; the part of a GPU is ignored on a CPU."""
    torch.set_rng_state(state[0])
    if state[1] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


class FrozenCasts:
    """bfloat16 copies of the frozen parameters of Linear layers.

    torch.autocast itself casts a frozen weight in every forward pass: it remembers only casts of weights that train. The
    results are the same, bit for bit, unless a method computes with a frozen weight itself (DoRA's norms, RoCoFT's columns),
    which is then rounded earlier. The float32 parameters stay in memory, because scores are those of the float32 model.
    """

    def __init__(self, model: nn.Module) -> None:
        # Only plain Linears: other modules may compute with their weights before a product, in float32.
        linears = (module for module in model.modules() if type(module) is nn.Linear)
        self._parameters = [value for module in linears for value in module.parameters() if not value.requires_grad]
        self._casts: list[Tensor] = []
        self._versions: list[int] = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside this block, which holds both the forward and the backward pass, the parameters are the bfloat16 copies."""
        versions = [parameter._version for parameter in self._parameters]
        if versions != self._versions:  # the first time, or something wrote to a parameter
            self._versions, self._casts = versions, [value.detach().to(torch.bfloat16) for value in self._parameters]
        values = [parameter.data for parameter in self._parameters]
        try:
            self._set(self._casts)
            yield
        finally:
            self._set(values)

    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data = value


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
