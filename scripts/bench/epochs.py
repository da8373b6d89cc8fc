"""An epoch of each program with its evaluation, in turn, and the ratios between them: random batches against random batches,
batches grouped by length against batches grouped by length.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import ours
import rivals
from work import Work

GROUPED = {"train_sampling_strategy": "group_by_length"}
OURS: dict[str, tuple[str, dict[str, Any]]] = {  # method, settings
    "full-ft": ("full-ft", {}),
    "full-ft, bf16": ("full-ft", {"precision": "bf16"}),
    "full-ft, grouped": ("full-ft", GROUPED),
    "hifi-layerwise, fp32": ("hifi-layerwise", {}),
    "hifi-layerwise": ("hifi-layerwise", {"precision": "bf16"}),
    "hifi-layerwise, grouped": ("hifi-layerwise", {"precision": "bf16", **GROUPED}),
    "hifi-midtop": ("hifi-midtop", {"precision": "bf16"}),
    "eh-ft-bitfit": ("eh-ft-bitfit", {}),
}
WARM_UP = 64  # rows, before anything is timed
RIVALS: dict[str, Callable[[Work], float]] = {
    "a": rivals.padded,
    "b": rivals.dynamic,
    "c": rivals.lora,
    "d": rivals.masked,
    "e": rivals.grouped,
}
RATIOS = [  # what is divided, and by what: lower is better
    ("full-ft", "b"),
    ("full-ft", "a"),
    ("full-ft, bf16", "b"),
    ("full-ft, grouped", "e"),
    ("hifi-layerwise", "b"),
    ("hifi-layerwise", "c"),
    ("hifi-layerwise", "d"),
    ("hifi-layerwise, fp32", "b"),
    ("hifi-layerwise, grouped", "e"),
    ("hifi-midtop", "b"),
    ("eh-ft-bitfit", "full-ft"),
]


def contestants(work: Work) -> Iterator[tuple[str, Callable[[], float]]]:
    """Everyone who takes part, with what gives the seconds."""
    for name, (method, settings) in OURS.items():
        yield name, lambda method=method, settings=settings: ours.epoch(work, method, **settings)
    for name, rival in RIVALS.items():
        yield name, partial(rival, work)


def measure(work: Work, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians of the rounds, in each of which all take their turn; ratios round by round."""
    for _, run in contestants(replace(work, rows=WARM_UP)):
        run()
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, run in contestants(work):
            seconds.setdefault(name, []).append(run())
            say(f"{work.task} round {number + 1}: {name} {seconds[name][-1]:.2f} s")
    return {"tokens": work.tokens, "validation_rows": len(work.validation), **summary(seconds)}


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the ratios that have a place in the table, from all rounds' seconds."""
    ratios = []
    for work, rival in RATIOS:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(seconds[work], seconds[rival], strict=True))
        ratios.append({"work": work, "against": rival, "ratio": round(ratio, 4)})
    return {"seconds": {name: round(statistics.median(values), 3) for name, values in seconds.items()}, "ratios": ratios}
