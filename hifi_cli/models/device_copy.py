"""Copies to a GPU that the host does not wait for."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def copy_to_device(values: Any, device: torch.device) -> Tensor:
    """Copy an array or numbers to a device, through pinned memory to a GPU, so that the host goes on at once."""
    tensor = torch.from_numpy(np.asarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
