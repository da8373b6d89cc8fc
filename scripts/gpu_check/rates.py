"""What the device can do: matrix products and copies."""

from typing import Any

import torch
from setting import Setting, fastest

from hifi_cli.training.machine import tf32

KINDS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
}


def machine_rates(setting: Setting, device: torch.device) -> dict[str, Any]:
    """Matrix products in TFLOP/s for each precision and shape, and copies in GB/s."""
    products: dict[str, dict[str, float]] = {}
    for kind, (dtype, allowed) in KINDS.items():
        for m, k, n in setting.products:
            x, weight = (
                torch.randn(m, k, device=device, dtype=dtype),
                torch.randn(n, k, device=device, dtype=dtype),
            )
            with tf32(allowed), torch.no_grad():
                seconds = fastest(
                    lambda x=x, weight=weight: torch.nn.functional.linear(x, weight), device
                )
            products.setdefault(kind, {})[f"{m} x {k} x {n}"] = round(
                2e-12 * m * k * n / seconds, 3
            )
    source = torch.ones(setting.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    host = torch.ones(setting.copy_bytes, dtype=torch.uint8)
    host = host.pin_memory() if device.type == "cuda" else host
    copies = {
        "on the device": 2e-9 * len(source) / fastest(lambda: target.copy_(source), device),
        "from the host": 1e-9
        * len(source)
        / fastest(lambda: target.copy_(host, non_blocking=True), device),
    }
    return {
        "tflop_per_s": products,
        "gb_per_s": {name: round(rate, 2) for name, rate in copies.items()},
    }


def peak(rates: dict[str, Any], kind: str) -> float:
    """The highest measured rate of a precision, in FLOP/s."""
    return 1e12 * max(rates["tflop_per_s"][kind].values())
