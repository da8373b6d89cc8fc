"""Simulate `hifi grid --until-decided`: how often it errs, and how often it shows a difference that is there.

    python scripts/sequential_claims.py            writes results/bench/sequential.csv and .png

A comparison has tasks with different spreads over seeds, heavy-tailed differences, and seeds that are added where they inform
most. It is decided at the declared looks by the functions that `hifi` uses; `uncorrected` looks as often at the 5 % level.
"""

import csv
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hifi_cli.grids.claim_runs import allocate
from hifi_cli.reports import sequential
from hifi_cli.reports.claims import Region, decide

SPREADS = (1.0, 2.0, 4.0)  # of the differences of each task, in points
FIRST, LAST = 3, 20  # seeds per task
FOLDER = Path(__file__).parent.parent / "results" / "bench"
TAILS = 5  # degrees of freedom of the t-distributed differences


@dataclass(frozen=True)
class Outcome:
    """The verdict of one simulated comparison and the seeds per task that it took."""

    verdict: str
    seeds: float


def simulate(truth: float, rng: np.random.Generator, levels: dict[int, float], margin: float) -> Outcome:
    """Run one comparison until it is decided or no look is left.

    Args:
        truth: the mean difference of every task, in points.
        levels: of each look, by seeds per task.
        margin: the smallest difference that counts; a small one means that either direction is decided.
    """
    region = Region((0.0, inf), (margin, inf))
    scale = (TAILS / (TAILS - 2)) ** 0.5  # a t-distributed number has this standard deviation
    drawn: list[NDArray[np.float64]] = [truth + spread * rng.standard_t(TAILS, 4 * LAST) / scale for spread in SPREADS]
    have = dict.fromkeys(map(str, range(len(SPREADS))), 0)
    verdict = "undecided"
    for look, level in levels.items():
        if not any(have.values()):
            have = dict.fromkeys(have, look)
        else:
            variances = {task: float(drawn[int(task)][:count].var(ddof=1)) for task, count in have.items()}
            have = allocate(have, variances, look * len(have), LAST)
        verdict = decide(
            [drawn[int(task)][:count].tolist() for task, count in have.items()], region, level=lambda _, level=level: level
        )
        if verdict != "undecided":
            break
    return Outcome(verdict, sum(have.values()) / len(have))


def rates(truth: float, levels: dict[int, float], *, margin: float = 1e-9, repeats: int, seed: int = 0) -> dict[str, float]:
    """Return the fractions of both verdicts and the mean number of seeds per task."""
    rng = np.random.default_rng(seed)
    outcomes = [simulate(truth, rng, levels, margin) for _ in range(repeats)]
    verdicts = [outcome.verdict for outcome in outcomes]
    return {
        "supported": verdicts.count("supported") / repeats,
        "contradicted": verdicts.count("contradicted") / repeats,
        "seeds": float(np.mean([outcome.seeds for outcome in outcomes])),
    }


def levels_of(*, corrected: bool) -> dict[int, float]:
    """Return the level of each declared look, or 5 % for all of them."""
    looks = sequential.declared_looks(FIRST, LAST)
    return dict(zip(looks, sequential.look_levels(looks) if corrected else [0.05] * len(looks), strict=True))


def final_error() -> float:
    """Return the standard error of the mean with all seeds, equal on every task."""
    return float(np.sqrt(np.sum(np.square(SPREADS)) / LAST) / len(SPREADS))


def main(repeats: int = 4000) -> None:
    """Write the simulated rates, and draw them beside the calculated power."""
    looks, error = list(levels_of(corrected=True)), final_error()
    truths = [round(fraction * 4 * error, 4) for fraction in (0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.25)]
    rows = []
    for truth in truths:
        corrected = rates(truth, levels_of(corrected=True), repeats=repeats)
        plain = rates(truth, levels_of(corrected=False), repeats=repeats if truth == 0 else repeats // 8)
        rows.append(
            {
                "truth": truth,
                "supported": corrected["supported"],
                "contradicted": corrected["contradicted"],
                "seeds": round(corrected["seeds"], 2),
                "calculated": round(sequential.power(truth, error, looks), 4),
                "uncorrected supported": plain["supported"],
                "uncorrected contradicted": plain["contradicted"],
            }
        )
        print(rows[-1], flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "sequential.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, repeats)


def draw(rows: list[dict[str, float]], repeats: int) -> None:
    """Draw the error without a difference, and power and seeds against the true difference."""
    from matplotlib.figure import Figure

    from hifi_cli.files import atomic_path
    from hifi_cli.reports.figures import style

    looks, error, truths = list(levels_of(corrected=True)), final_error(), [row["truth"] for row in rows]
    with style.house_style():
        figure = Figure(figsize=(style.WIDE, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
        null = rows[0]
        wrong = [null["supported"] + null["contradicted"], null["uncorrected supported"] + null["uncorrected contradicted"]]
        left.bar(["declared\nlooks", "5 % at\neach look"], [100 * value for value in wrong], color=["#0072B2", "#999999"])
        left.axhline(5, color="#000000", linewidth=0.8, linestyle="--")
        left.set_ylabel("wrong verdicts without a difference [%]")
        fine = np.linspace(0, truths[-1], 40)
        power = [100 * sequential.power(float(x), error, looks) for x in fine]
        right.plot(fine, power, label="calculated", **style.line(1, marker=False))
        right.plot(truths, [100 * row["supported"] for row in rows], "o", color=style.line(1)["color"], label="simulated")
        right.set(xlabel="true difference [points]", ylabel="supported [%]", ylim=(0, 102))
        seeds = right.twinx()
        seeds.plot(truths, [row["seeds"] for row in rows], label="seeds per task", **style.line(2))
        seeds.set(ylabel="mean seeds per task", ylim=(0, LAST + 1))
        seeds.spines["right"].set_visible(True)
        handles = [*right.get_legend_handles_labels()[0], *seeds.get_legend_handles_labels()[0]]
        right.legend(handles, [handle.get_label() for handle in handles], loc="lower right")
        spreads = ", ".join(f"{spread:g}" for spread in SPREADS)
        figure.supxlabel(
            f"{repeats:,} simulated comparisons per point; {len(SPREADS)} tasks with spreads of {spreads} points,"
            f" t({TAILS})-distributed differences, looks at {', '.join(map(str, looks))} seeds per task",
            fontsize=6, x=0.01, ha="left", color="#404040",
        )  # fmt: skip
        with atomic_path(FOLDER / "sequential.png") as temporary:
            figure.savefig(temporary, format="png")


if __name__ == "__main__":
    main()
