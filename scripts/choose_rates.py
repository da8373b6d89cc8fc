"""Print the learning rate of each method in a search: the one with the best mean rank over the tasks (docs/laptop-study.md).

python scripts/choose_rates.py laptop-rates
"""

import sys
from pathlib import Path

from hifi_cli.grids import grid_spec
from hifi_cli.records.searches import tried_settings
from hifi_cli.records.study import Study

RESULTS = Path("results/laptop-runs")


def main(name: str) -> None:
    """Print the chosen rate of each method, and what to add where it is at an end of the tried ones."""
    tried = tried_settings(Study(RESULTS))
    grid = grid_spec.load(name, {})
    tried = tried[(tried["protocol"] == grid.protocol) & tried["task"].isin(grid.tasks)]
    tried = tried[tried["method"].isin(grid.varied)]
    tried["rate"] = tried["learning_rate"]
    # A run that diverged has no score, and the last rank.
    scores_of_rates = tried.groupby(["task", "method"])["score"]
    tried["rank"] = scores_of_rates.rank(ascending=False, na_option="bottom")
    for method, of_method in tried.groupby("method", sort=False):
        ranks = of_method.groupby("rate")["rank"].mean()
        # `idxmin` takes the first of equal ranks, which is that of the lowest rate.
        rate = float(ranks.idxmin())
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
