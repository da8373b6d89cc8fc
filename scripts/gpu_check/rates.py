"""What the device can do: matrix products, eigenvalues and copies."""

from typing import Any

import torch
from setting import Job, Setting, fastest

from hifi_cli.heads import scores
from hifi_cli.training.device import tf32

KINDS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
}


def jobs(setting: Setting, device: torch.device) -> list[Job]:
    """A row for each precision, and one for what else there is."""
    rows: list[Job] = [
        ({"measured": f"{kind}, TFLOP/s"}, lambda kind=kind: products(kind, setting, device))
        for kind in KINDS
    ]
    return [*rows, ({"measured": "others"}, lambda: other_rates(setting, device))]


def products(kind: str, setting: Setting, device: torch.device) -> dict[str, Any]:
    """The rate of matrix products, in TFLOP/s, by their shapes."""
    dtype, allowed = KINDS[kind]
    rates = {}
    for m, k, n in setting.products:
        x, weight = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((m, k), (n, k)))
        with tf32(allowed), torch.no_grad():
            seconds = fastest(
                lambda x=x, weight=weight: torch.nn.functional.linear(x, weight), device
            )
        rates[f"{m} x {k} x {n}"] = round(2e-12 * m * k * n / seconds, 3)
    return rates


def other_rates(setting: Setting, device: torch.device) -> dict[str, Any]:
    """Copies in GB/s; milliseconds for eigenvalues, which heads are scored by, here and there."""
    source = torch.ones(setting.copy_bytes, dtype=torch.uint8, device=device)
    target, host = torch.empty_like(source), torch.ones(setting.copy_bytes, dtype=torch.uint8)
    host = host.pin_memory() if device.type == "cuda" else host
    size, gram = 1e-9 * len(source), torch.randn(4, 128, 64, 64, device=device).double()
    on_device = fastest(lambda: torch.linalg.eigvalsh(gram), device, rounds=1, calls=1)
    on_cpu = fastest(lambda: scores._eigenvalues(gram), device, rounds=1, calls=1)
    return {
        "GB/s on the device": round(2 * size / fastest(lambda: target.copy_(source), device), 2),
        "GB/s from the host": round(
            size / fastest(lambda: target.copy_(host, non_blocking=True), device), 2
        ),
        "ms, eigenvalues on the device": round(1e3 * on_device, 2),
        "ms, eigenvalues on the CPU": round(1e3 * on_cpu, 2),
    }


def peak(rows: list[dict[str, Any]], kind: str) -> float | None:
    """The highest measured rate of a precision, in FLOP/s; None where none was measured."""
    rates = []
    for row in rows:
        if row["measured"] == f"{kind}, TFLOP/s":
            # The row's seconds are no rate.
            rates += [rate for shape, rate in row.items() if " x " in shape]
    return 1e12 * max(rates) if rates else None
