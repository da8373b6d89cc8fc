"""Compare the runs that two studies both have: those of a GPU with those of a CPU, or two versions.

python scripts/compare_studies.py results/study results/study-cpu

The same run has one configuration, encoder, task and data, and so one order of batches and one task
head before training. Another device draws other dropout masks. A row of the output is a task and a
method: mean scores in percent, their difference (second study minus first) with its 95 % interval
for new seeds, paired by seed, and the p of the exact sign-flip test; by the best and the last epoch.
"""

import argparse
from pathlib import Path

import pandas as pd

from hifi_cli.paired_tests import paired_statistics
from hifi_cli.records.study import COMPARED, Study

# The same run has the same values in these columns of `Study.runs`.
SAME_RUN = ["config_hash", *COMPARED]
CELL = ["protocol", "task", "method"]


def compare(first: Path, second: Path) -> pd.DataFrame:
    """Return a row for each cell and epoch of which both studies have two runs or more.

    Columns: protocol, task, method, epoch (best or last), seeds (number of pairs), first and second
    (mean scores in percent), difference, low and high (95 % interval), p.
    """
    # A variant may have the configuration of the usual run; each run is in one pair.
    pairs = pd.merge(
        Study(first).table_runs,
        Study(second).table_runs,
        on=[*SAME_RUN, *CELL],
        suffixes=("_first", "_second"),
        validate="one_to_one",
    )
    rows = []
    for cell, of_cell in pairs.groupby(CELL, sort=False):
        if len(of_cell) < 2:
            # One pair has no interval.
            continue
        for epoch in ("best", "last"):
            rows.append([*cell, epoch, len(of_cell), *_difference(of_cell, epoch)])
    columns = [*CELL, "epoch", "seeds", "first", "second", "difference", "low", "high", "p"]
    return pd.DataFrame(rows, columns=columns)


def _difference(pairs: pd.DataFrame, epoch: str) -> list[float]:
    """Return mean of the first and of the second study, difference, its interval, and p."""
    first = 100 * pairs[f"{epoch}_first"]
    second = 100 * pairs[f"{epoch}_second"]
    statistics = paired_statistics([(second - first).to_numpy()])
    assert statistics.interval is not None
    return [first.mean(), second.mean(), statistics.mean, *statistics.interval, statistics.p]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    arguments = parser.parse_args()
    rows = compare(arguments.first, arguments.second)
    if rows.empty:
        raise SystemExit("the studies share no cell with two seeds")
    print(rows.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
