"""The learning rate of each method for all tasks of a search: the best mean rank (docs/laptop-study.md).

python scripts/choose_rates.py laptop-rates
"""

import json
import sys
from pathlib import Path

import pandas as pd

RESULTS = Path("results/laptop-runs")


def main(grid: str) -> None:
    """Print the chosen rate of each method, and what to add where it is at an end of the tried ones."""
    (path,) = (RESULTS / "grids").glob(f"chosen-{grid}-*.json")
    searches = json.loads(path.read_text())["searches"]
    rows = [(each["task"], each["method"], setting) for each in searches for setting in each["tried"]]
    tried = pd.DataFrame(
        {"task": task, "method": method, "rate": float(tried["setting"]["learning_rate"]), "score": tried["score"]}
        for task, method, tried in rows
    )
    tried["rank"] = tried.groupby(["task", "method"])["score"].rank(ascending=False, na_option="bottom")  # diverged: no score
    for method, of_method in tried.groupby("method", sort=False):
        ranks = of_method.groupby("rate")["rank"].mean()
        rate = float(ranks.idxmin())  # the lowest of equal ones
        scores = of_method.pivot(index="rate", columns="task", values="score").map("{:.2%}".format)
        if rate in (ranks.index.min(), ranks.index.max()):
            print(f"{method}: {rate:g} is at an end: add a rate beyond it to configs/grids/{grid}.yaml and repeat the grid")
        else:
            print(f"{method}: {rate:g}")
        print(scores.assign(mean_rank=ranks).to_string(), end="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
