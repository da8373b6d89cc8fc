"""Which runs belong in one mean, and which may be compared; what does not is left out by name, in one short note each."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.reports.changed_settings import changed_settings, config_of
from hifi_cli.wording import counted_noun, number_ranges

# What runs must share for a comparison of their scores to make sense, by column of `Study.runs`, in words
CONDITIONS = {
    "epochs": "epochs",
    "shots": "shots",
    "report": "reported epoch",
    "selection": "selection",
    "precision": "precision",
    "limit": "limit",
    "weights": "encoder weights",
    "data": "data",
    "split": "split",
    "metric": "primary metric",
}
# What runs of one method must also share, apart from the seed, for a mean over them to make sense
SETTINGS = {"method_code": "method code", "heads": "heads", "setting": "settings"}
_DIGESTS = ("weights", "data")  # whose values tell a reader nothing
COUNTED = frozenset({"collapsed"})  # predicting one class is a result of the method: leaving it out favors unstable methods


def averaged(
    runs: pd.DataFrame, seeds: Sequence[int], counted: Collection[str], directory: Path
) -> tuple[pd.DataFrame, list[str]]:
    """The runs of one method on one task that belong in one mean, and notes on runs left out or unlike others.

    Args:
        seeds: only these; empty: all.
        counted: what is included although it is unlike others: `collapsed`, `limited`, `unequal`.
        directory: the results directory.
    """
    notes: list[str] = []
    chosen = runs[runs["seed"].isin(seeds)] if seeds else runs
    if others := len(runs) - len(chosen):
        every = number_ranges({*seeds, *runs["seed"]})
        notes.append(f"{counted_noun(others, 'run')} with other seeds left out (--seeds {every} includes them)")
    for flag, where, remedy in (
        ("diverged", chosen["status"] != "done", "no score"),
        ("collapsed", chosen["collapsed"], "--exclude collapsed"),
        ("limited", chosen["limit"].notna(), "--include limited includes them"),
    ):
        left_out = where.loc[chosen.index] & (flag not in counted)
        if left_out.any():
            notes.append(f"{counted_noun(int(left_out.sum()), f'{flag} run')} left out ({remedy})")
            chosen = chosen[~left_out]
    unequal, differing = _unequal(chosen[chosen["limit"].isna()])  # a limited run's settings differ by the limit at least
    if len(unequal):
        verb = "included" if "unequal" in counted else "left out (--include unequal includes them)"
        notes.append(f"{counted_noun(len(unequal), 'run')} with different {differing} {verb}")
        chosen = chosen if "unequal" in counted else chosen.drop(unequal)
    changes = Counter(filter(None, (_changes(run, directory) for _, run in chosen.drop_duplicates("setting").iterrows())))
    notes += [f"not the protocol's: {text}" for text in changes]
    for flag, where in (("collapsed", chosen["collapsed"]), ("limited", chosen["limit"].notna())):
        if where.any():
            notes.append(f"{where.sum()} of {counted_noun(len(chosen), 'run')} {flag}, included")
    if seeds and 0 < len(chosen) < len(seeds):
        notes.append(f"{len(chosen)} of {len(seeds)} seeds")
    return chosen, notes


def _unequal(runs: pd.DataFrame) -> tuple[pd.Index, str]:
    """The runs outside of the largest group of runs that differ only in their seed, and in words what differs."""
    columns = [*CONDITIONS, *SETTINGS]
    groups = [group for _, group in runs.groupby(columns, dropna=False, sort=False)]
    if len(groups) < 2:
        return runs.index[:0], ""
    largest = max(groups, key=len)
    others = runs.drop(largest.index)
    usual = largest.iloc[0]
    words = CONDITIONS | SETTINGS
    names = [words[key] for key in columns if any(not _same(value, usual[key]) for value in others[key])]
    return others.index, " and ".join([name for name in names if name != "settings"] or names)


def _changes(run: pd.Series, directory: Path) -> str:
    return changed_settings(run, directory / run["path"] / "own")


def disagreement(first: pd.Series, second: pd.Series, score: str | None, directory: Path) -> str:
    """The conditions in which two runs of different methods disagree, with both values; empty where they agree.

    Epochs may differ as their protocol has them for the two methods: HiFi trains BitFit as long as BitFit's own paper.

    Args:
        score: the score that is compared; if given, the epoch that each run reports does not matter.
    """
    keys = [key for key in CONDITIONS if not _same(first[key], second[key]) and not (score and key == "report")]
    if "epochs" in keys and not any(_has_own_epochs(run, directory) for run in (first, second)):
        keys.remove("epochs")
    return ", ".join(
        CONDITIONS[key] if key in _DIGESTS else f"{CONDITIONS[key]} ({_word(first[key])} and {_word(second[key])})"
        for key in keys
    )


def _has_own_epochs(run: pd.Series, directory: Path) -> bool:
    """Whether a run was trained for other epochs than its protocol has for its method and task; true where that is unknown."""
    config = config_of(run, directory / run["path"] / "own")
    return config is None or run["epochs"] != config.epochs


def _same(first: Any, second: Any) -> bool:
    return bool(first == second) or bool(pd.isna(first) and pd.isna(second))


def _word(value: Any) -> str:
    return "none" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
