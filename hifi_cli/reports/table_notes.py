"""Notes below a table of scores: runs that were left out, and what the numbers are of."""

from collections.abc import Mapping, Sequence

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.registry import label_of
from hifi_cli.records.signs import signs_of
from hifi_cli.records.study import Study
from hifi_cli.text import counted_noun


def on_other_shots(counts: Mapping[str, int]) -> list[str]:
    """Return notes on how many runs have other shots than the table.

    Args:
        counts: runs by shots.
    """
    notes = []
    for shots, count in counts.items():
        runs = counted_noun(count, f"{shots}-shot run")
        notes.append(f"{runs} not in this table (--shots {shots} shows them)")
    return notes


def on_other_seeds(seeds: Sequence[int], runs: pd.DataFrame) -> list[str]:
    """Return a note on how many runs have other seeds than the table.

    Args:
        seeds: those of the table; empty: all.
        runs: rows of `Study.runs` that the table is about but for their seeds.
    """
    if not seeds:
        return []
    count = int((~runs["seed"].isin(seeds)).sum())
    if not count:
        return []
    return [f"{counted_noun(count, 'run')} with other seeds left out (--seeds includes them)"]


def on_protocol(protocol: str, scores: pd.DataFrame) -> list[str]:
    """Return a note that runs are not compared with their protocol, which is a user's own and not given.

    Args:
        protocol: of the table.
        scores: a run per line.
    """
    is_known = registry.own_file(protocol) or protocol in registry.names("protocols")
    if is_known or scores.empty:
        return []
    return [
        f"whether these runs have the settings of protocol {protocol} is not known: give its YAML with"
        " --protocol"
    ]


def on_truncation(scores: pd.DataFrame) -> list[str]:
    """Return a note on the tasks whose rows were longer than `max_length`.

    Args:
        scores: a run per line, with `truncated_train` and `truncated_reported`.
    """
    truncated = scores[["truncated_train", "truncated_reported"]].astype(float)
    is_cut = (truncated > 0).any(axis=1)
    parts = []
    for run in scores[is_cut].drop_duplicates("task").itertuples():
        train = f"{run.truncated_train:,.0f} of {run.train_rows:,} train"
        reported = f"{run.truncated_reported:,.0f} of {run.reported_rows:,} reported rows"
        parts.append(f"{label_of('tasks', run.task)} {train} and {reported}")
    if not parts:
        return []
    return [f"longer than max_length and cut: {'; '.join(parts)}"]


def on_seeds(scores: pd.DataFrame, *, show_intervals: bool) -> list[str]:
    """Return a note on the seeds that the means are over.

    Args:
        scores: a line for each `row`, `column` and `seed`.
        show_intervals: whether the means have intervals in place of deviations.
    """
    groups = scores.groupby(["row", "column"])["seed"]
    seeds_of_cells = [tuple(sorted(seeds)) for _, seeds in groups]
    numbers = [len(seeds) for seeds in seeds_of_cells]
    if not numbers or max(numbers) < 2:
        return []
    fewest = min(numbers)
    most = max(numbers)
    if len(set(seeds_of_cells)) == 1:
        over = f"seeds {', '.join(map(str, seeds_of_cells[0]))}"
    elif fewest == most:
        over = f"{most} seeds"
    else:
        over = f"{fewest} to {most} seeds"
    if show_intervals:
        return [f"mean [95 % t-interval for new seeds] over {over}"]
    return [f"mean ± standard deviation over {over}"]


def on_signs(study: Study, scores: pd.DataFrame) -> list[str]:
    """Return notes on what speaks against the scores.

    Args:
        study: where the runs come from.
        scores: a run per line, with its `path`.
    """
    paths = scores["path"].unique()
    results = [study.results[path] for path in paths]
    methods = []
    tasks = []
    for path in paths:
        task, method = study.own_names(path)
        methods.append(method)
        tasks.append(task)
    return signs_of(results, methods=methods, tasks=tasks, with_selection=False)
