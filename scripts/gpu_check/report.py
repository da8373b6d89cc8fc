"""The tables of a check, in Markdown."""

from collections.abc import Iterable
from typing import Any


def tables(results: dict[str, Any]) -> str:
    """Every part that was measured."""
    writers = {
        "rates": _rates,
        "correctness": _correctness,
        "steps": _steps,
    }
    return "\n\n".join(writer(results[part]) for part, writer in writers.items() if part in results)


def _rates(rates: dict[str, Any]) -> str:
    shapes = list(next(iter(rates["tflop_per_s"].values())))
    rows = [
        [kind, *(f"{by_shape[shape]:.3g}" for shape in shapes)]
        for kind, by_shape in rates["tflop_per_s"].items()
    ]
    copies = [[name, f"{rate:.3g}"] for name, rate in rates["gb_per_s"].items()]
    return (
        _table(["products, TFLOP/s", *shapes], rows) + "\n\n" + _table(["copies", "GB/s"], copies)
    )


def _correctness(rows: list[dict[str, Any]]) -> str:
    keys = ("loss_error", "logit_error", "resumed_error")
    cells = []
    for row in rows:
        errors = [f"{row[key]:.1e}" if key in row else row["error"][:60] for key in keys]
        cells.append([row["method"], *errors, "ok" if row["ok"] else "WRONG"])
    return _table(
        ["largest relative error", "losses, against the CPU", "logits", "resumed run", ""], cells
    )


def _steps(rows: list[dict[str, Any]]) -> str:
    keys = (
        "ms",
        "padded_ms",
        "share_of_peak",
        "busy",
        "memory_gb",
        "ratio_to_trainer",
        "ratio_to_peft_lora",
    )
    cells = [
        [
            row["program"],
            row["precision"],
            row["tokens"],
            *("" if row.get(key) is None else row[key] for key in keys),
        ]
        for row in rows
    ]
    header = [
        "step of",
        "precision",
        "tokens",
        "ms",
        "ms, padded",
        "of the measured peak",
        "busy",
        "GB",
        "/ Trainer",
    ]
    return _table([*header, "/ peft LoRA"], cells)


def _table(header: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
