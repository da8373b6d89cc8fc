"""Choose the learning rates of the study's three searches (docs/study-design.md).

python scripts/study_rates.py study-rates --results-dir results/study-runs [--write]

A method's rate is the one with the best mean rank over the tasks, and the lower one of two equal ranks. A task counts if one of
the tried rates is a point above the majority-class baseline. `--write` puts the chosen rates into the YAML of the grid's
protocol, in the lines that a * marks.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.grids import cells, grid_spec

SEARCHES = ("study-rates", "study-ehft-rates", "study-mpnet-rates")
# Scores on the holdout of one class for every example: F1 on MRPC, accuracy on RTE, and a
# correlation, which is 0, on the other tasks.
ONE_CLASS = {"mrpc": 0.803, "rte": 0.510}
MARGIN = 0.01
# Of HiFi's table 5: mid-top's rate as a multiple of layer-wise's.
MIDTOP = {"cola": 3.0, "mrpc": 2.0, "stsb": 1.5}
Scores = dict[str, dict[float, float]]


def scores_of(name: str, results_dir: Path) -> dict[str, Scores]:
    """By method and task the score of each rate on the holdout; a method is left out until all its runs are finished."""
    found: dict[str, Scores] = {}
    unfinished = set()
    for cell in cells.cells(grid_spec.load(name, {}), name):
        file = results_dir / cell.config.run_path / "results.json"
        if not file.is_file():
            unfinished.add(cell.method)
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        of_task = found.setdefault(cell.method, {}).setdefault(cell.task, {})
        of_task[cell.config.learning_rate] = _score(record)
    return {method: scores for method, scores in found.items() if method not in unfinished}


def _score(record: dict[str, Any]) -> float:
    """The score of the kept epoch on the holdout; a run that diverged has the lowest of all."""
    if record["status"] != "done":
        return float("-inf")
    kept = record["epochs"][record["report"]]
    lines = {line["epoch"]: line for line in record["epoch_metrics"]}
    return float(lines[kept]["selection"])


def choose(scores: Scores) -> tuple[float, dict[float, float]]:
    """The rate with the best mean rank, and every rate's mean rank over the tasks that count."""
    counted = [task for task in scores if _is_above_one_class(task, scores[task])]
    rates = sorted({rate for of_task in scores.values() for rate in of_task})
    ranks = {}
    for rate in rates:
        places = [_rank(scores[task], rate) for task in counted or scores]
        ranks[rate] = sum(places) / len(places)
    # `min` takes the first of equal ones, which is the lowest rate
    return min(rates, key=ranks.__getitem__), ranks


def _is_above_one_class(task: str, of_task: dict[float, float]) -> bool:
    return max(of_task.values()) >= ONE_CLASS.get(task, 0.0) + MARGIN


def _rank(of_task: dict[float, float], rate: float) -> float:
    """1 for the best score; equal scores share their mean rank."""
    better = sum(score > of_task[rate] for score in of_task.values())
    equal = sum(score == of_task[rate] for score in of_task.values())
    return better + (equal + 1) / 2


def write(protocol: Path, method: str, rate: float) -> None:
    """Put a rate into the marked lines of a protocol's YAML: the method's own, and mid-top's for HiFi."""
    text = protocol.read_text(encoding="utf-8")
    text = _replaced(text, rf"^(  {method}: {{learning_rate: )[^,}}]+(.*# \*)$", rate)
    # MPNet's part of the study has no mid-top.
    if method == "hifi-layerwise" and "[hifi-midtop]" in text:
        for task, multiple in MIDTOP.items():
            pattern = (
                rf"^(  - {{tasks: \[{task}\], methods: \[hifi-midtop\], .*learning_rate: )"
                r"[^,}]+(.*# \*)$"
            )
            text = _replaced(text, pattern, multiple * rate)
    # another process that reads the file sees the old text or the new one
    new = protocol.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(protocol)


def _replaced(text: str, pattern: str, rate: float) -> str:
    mantissa, exponent = f"{rate:.1e}".split("e")
    replaced, count = re.subn(
        pattern, rf"\g<1>{mantissa}e{int(exponent)}\g<2>", text, flags=re.MULTILINE
    )
    if count != 1:
        sys.exit(f"no single marked line fits {pattern}")
    return replaced


def main(words: Sequence[str] | None = None) -> None:
    """Print every rate with its scores and mean rank, and the chosen one."""
    parser = argparse.ArgumentParser(description="Choose the learning rates of the study.")
    parser.add_argument("grid", choices=SEARCHES)
    parser.add_argument("--results-dir", type=Path, default=Path("results/study-runs"))
    parser.add_argument("--write", action="store_true", help="put them into the protocol's YAML")
    given = parser.parse_args(words)
    protocol = registry.find("protocols", str(grid_spec.load(given.grid, {}).protocol))
    for method, scores in scores_of(given.grid, given.results_dir).items():
        rate, ranks = choose(scores)
        print(f"{method}: {rate:g}")
        for tried, rank in ranks.items():
            shown = ", ".join(f"{task} {of_task[tried]:.2%}" for task, of_task in scores.items())
            print(f"  {tried:g}: {shown}, mean rank {rank:.3g}")
        if given.write:
            write(protocol, method, rate)


if __name__ == "__main__":
    main()
