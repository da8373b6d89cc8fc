"""The learning rate of each method for all tasks of a search: the best mean rank (docs/laptop-study.md).

python scripts/choose_rates.py laptop-rates
"""

import sys
from pathlib import Path

from hifi_cli.grids import cells
from hifi_cli.records.study import Study, tried_settings

RESULTS = Path("results/laptop-runs")


def main(name: str) -> None:
    """Print the chosen rate of each method, and what to add where it is at an end of the tried ones."""
    tried, grid = tried_settings(Study(RESULTS)), cells.load(name, {})
    tried = tried[(tried["protocol"] == grid.protocol) & tried["task"].isin(grid.tasks)]
    tried = tried[tried["method"].isin(grid.varied)]
    tried["rate"] = tried["settings"].str.removeprefix("learning_rate=").astype(float)
    tried["rank"] = tried.groupby(["task", "method"])["score"].rank(
        ascending=False, na_option="bottom"
    )  # diverged: no score
    for method, of_method in tried.groupby("method", sort=False):
        ranks = of_method.groupby("rate")["rank"].mean()
        rate = float(ranks.idxmin())  # the lowest of equal ones
        scores = of_method.pivot(index="rate", columns="task", values="score").map("{:.2%}".format)
        if rate in (ranks.index.min(), ranks.index.max()):
            print(
                f"{method}: {rate:g} is at an end: add a rate beyond it to configs/grids/{name}.yaml and repeat the grid"
            )
        else:
            print(f"{method}: {rate:g}")
        print(scores.assign(mean_rank=ranks).to_string(), end="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
