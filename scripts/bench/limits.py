"""What the machine can do, and what the work needs at least."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from work import BATCH_SIZE, Work

from hifi_cli.models.cpu_kernels import linear
from hifi_cli.training.device import select_device

_SIZE, _ROUNDS = (1024, 768, 3072), 30
_ADAM_BYTES = 28  # per number in a step: weight, gradient and both moments read, all but the gradient written
_PARTS = {  # of forward products: the forward pass, gradients of activations, gradients of weights
    "full-ft": (1.0, 1.0, 1.0),
    "hifi-layerwise": (1.0, 1.0, 0.25 * 0.25),  # a quarter of the heads, of the quarter of a layer that is W_Q, W_K, W_V
    "hifi-midtop": (1.0, 0.5, 0.5 * 0.25 * 0.25),
}


def rates() -> dict[str, float]:
    """Measured matrix products in operations per second, float32 and bfloat16, and copied bytes per second."""
    rows, inside, out = _SIZE
    rates, device = {}, select_device("auto")
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        x, weight = (torch.randn(number, inside, device=device).to(kind) for number in (rows, out))
        product = partial(linear, x, weight, None, weight, None) if device.type == "cpu" else partial(torch.mm, x, weight.T)
        with torch.no_grad():
            rates[name] = 2 * rows * inside * out / _fastest(product)
    source, target = torch.ones(2, 32 * 2**20, device=device)
    rates["bytes"] = 2 * 4 * len(source) / _fastest(lambda: target.copy_(source))
    return rates


def _fastest(call: Callable[[], object]) -> float:
    spent = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return min(spent)


def needed(work: Work, model: nn.Module, contestant: str, trained: int) -> dict[str, float] | None:
    """Operations of the layers' products and attention in an epoch, without padding, and the optimizer's bytes."""
    if contestant not in _PARTS:
        return None
    config = model.config
    weights = sum(value.numel() for name, value in model.named_parameters() if ".layer." in name and value.dim() == 2)
    products = 2 * weights * work.tokens
    attention = 4 * sum(len(example) ** 2 for example in work.examples) * config.hidden_size * config.num_hidden_layers
    forward, activations, gradients = _PARTS[contestant]
    operations = products * (forward + activations + gradients) + attention * (forward + 2 * activations)
    steps = -(-len(work.examples) // BATCH_SIZE)
    return {"operations": operations, "bytes": _ADAM_BYTES * trained * steps}
