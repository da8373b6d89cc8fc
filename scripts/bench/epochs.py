"""An epoch of each contestant, in turn, and what stands beside what."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import breakdown
import limits
import ours
import rivals
from work import Work

OURS: dict[str, tuple[str, dict[str, Any]]] = {  # method, settings
    "full-ft": ("full-ft", {}),
    "full-ft, bf16": ("full-ft", {"precision": "bf16"}),
    "hifi-layerwise, fp32": ("hifi-layerwise", {}),
    "hifi-layerwise": ("hifi-layerwise", {"precision": "bf16"}),
    "hifi-midtop": ("hifi-midtop", {"precision": "bf16"}),
    "eh-ft-bitfit": ("eh-ft-bitfit", {}),
}
WARM_UP = 64  # rows, before anything is timed
REUSED = "hifi-midtop, lower half reused"
REUSE = {"precision": "bf16", "reuse_frozen": "true"}
PROBING = "linear-probing, 10 epochs"
RIVALS: dict[str, Callable[[Work], float]] = {
    "a": rivals.padded,
    "b": rivals.dynamic,
    "c": rivals.lora,
    "d": rivals.masked,
}
# Contestant, beside whom, and the bar that was set for a task: lower is better.
BARS: list[tuple[str, str, dict[str, float]]] = [
    ("full-ft", "b", {"mrpc": 0.65, "cola": 0.45}),
    ("full-ft", "a", {"cola": 0.08}),
    ("full-ft, bf16", "b", {}),
    ("hifi-layerwise", "b", {"mrpc": 0.33, "cola": 0.20}),
    ("hifi-layerwise", "c", {"mrpc": 0.55, "cola": 0.40}),
    ("hifi-layerwise", "d", {"mrpc": 0.35, "cola": 0.25}),
    ("hifi-layerwise, fp32", "b", {}),
    ("hifi-midtop", "b", {"mrpc": 0.25, "cola": 0.17}),
    (REUSED, "b", {"mrpc": 0.14, "cola": 0.09}),
    (PROBING, "10 b", {"mrpc": 0.06, "cola": 0.06}),
    ("eh-ft-bitfit", "full-ft", {"mrpc": 1.0, "cola": 1.0}),
]


def contestants(work: Work) -> Iterator[tuple[str, Callable[[], float]]]:
    """Everyone who takes part, with what gives the seconds."""
    for name, (method, settings) in OURS.items():
        yield name, lambda method=method, settings=settings: ours.epochs(work, method, **settings)[0]
    yield REUSED, lambda: ours.epochs(work, "hifi-midtop", count=2, **REUSE)[1]
    yield PROBING, lambda: sum(ours.epochs(work, "linear-probing", count=10, reuse_frozen="true"))
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
    return {"tokens": work.tokens, **summary(work.task, seconds)}


def summary(task: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the ratios that have a place in the table, from all rounds' seconds."""
    seconds = {**seconds, "10 b": [10 * one for one in seconds["b"]]}
    ratios = []
    for name, rival, bars in BARS:
        found = statistics.median(mine / its for mine, its in zip(seconds[name], seconds[rival], strict=True))
        ratios.append({"work": name, "against": rival, "ratio": round(found, 4), "bar": bars.get(task)})
    return {"seconds": {name: round(statistics.median(them), 3) for name, them in seconds.items()}, "ratios": ratios}


def nearness(work: Work, seconds: dict[str, float], rates: dict[str, float]) -> dict[str, Any]:
    """For our own: the time that products and the optimiser's traffic need at least, its share of the epoch, and the rest."""
    found = {}
    for name, (method, settings) in {**OURS, REUSED: ("hifi-midtop", REUSE)}.items():
        prepared = ours.build(work, method, **settings)
        trained = sum(value.numel() for value in prepared.method.trained(prepared.encoder.model).values())
        kind = name if name == REUSED else method
        needs = limits.needed(work, prepared.encoder.model, kind, trained)
        if needs:
            rate = rates[settings.get("precision", "fp32")]
            least = needs["operations"] / rate + needs["bytes"] / rates["bytes"]
            found[name] = {
                "gflop": round(needs["operations"] / 1e9),
                "optimiser_mb": round(needs["bytes"] / 1e6),
                "least_seconds": round(least, 3),
                "reached": round(least / seconds[name], 3),
                "step": breakdown.shares(work, method, **settings),
            }
    return found
