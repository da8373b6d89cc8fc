"""Which runs of a study a table is about: one protocol, one backbone, one number of shots."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.study import Study
from hifi_cli.text import counted_noun


def table_keys(runs: pd.DataFrame) -> pd.DataFrame:
    """Return protocol, backbone and shots of each run, as words.

    Returns:
        Columns `protocol`, `backbone`, `shots` (`full`: all rows), with the index of `runs`.
    """
    keys = runs[["protocol", "backbone"]]
    return keys.assign(shots=runs["shots"].map(_shots_as_word).astype(str))


def _shots_as_word(shots: float | None) -> str:
    if shots is None or pd.isna(shots):
        return "full"
    return str(int(shots))


def setting_in_words(keys: Mapping[Any, Any]) -> str:
    """Return protocol, backbone and shots, as `table_keys` has them, as titles say them."""
    text = f"protocol {keys['protocol']}, backbone {keys['backbone']}"
    if keys["shots"] != "full":
        text += f", {keys['shots']}-shot"
    return text


def runs_with(runs: pd.DataFrame, **values: Collection[Any] | None) -> pd.DataFrame:
    """Return the rows that have one of the given values in each column.

    Args:
        runs: rows of `Study.runs`, or others about runs.
        values: by column; None or empty: any.
    """
    for column, accepted in values.items():
        if accepted:
            runs = runs[runs[column].isin(accepted)]
    return runs


def select_runs(runs: pd.DataFrame, **keys: str | None) -> pd.DataFrame:
    """Return the runs of some protocol, backbone and shots, without searches and other variants.

    Args:
        runs: rows of `Study.runs`.
        keys: `protocol`, `backbone` and `shots`; None or left out: any.

    Returns:
        Rows of `runs` with its columns. `protocol` carries the file of the user's own YAML, if
        `keys` does.
    """
    words = table_keys(runs)
    is_chosen = runs["variant"].isna()
    for key, value in keys.items():
        if value is not None:
            is_chosen &= words[key] == value
    # The given protocol may carry the file of the user's own YAML, which stored names lack.
    protocol = keys.get("protocol") or runs["protocol"]
    runs = runs.assign(protocol=pd.Series(protocol, runs.index, dtype=object))
    return runs[is_chosen]


def require_single_table(
    runs: pd.DataFrame, names: Sequence[str], *, by: str = "method", **keys: str | None
) -> pd.DataFrame:
    """Return the runs of some methods; they share one protocol, backbone and number of shots.

    Args:
        runs: rows of `Study.runs`.
        names: methods, or backbones.
        by: what the names are, `method` or `backbone`.
        keys: `protocol`, `backbone` and `shots`, as `select_runs` takes them.

    Returns:
        Rows of `runs` with its columns.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several protocols, backbones or shots; they are named.
    """
    runs = select_runs(runs[runs[by].isin(names)], **keys)
    options = "".join(f" --{key} {value}" for key, value in keys.items() if value)
    present = set(runs[by])
    for name in names:
        if name not in present:
            raise MissingError(
                f"no finished run of {name}{options}; make one with hifi train --{by} {name}"
            )
    # Several backbones are wanted where the names are backbones; `method` is no key of a table.
    for key, values in table_keys(runs).drop(columns=by, errors="ignore").items():
        if values.nunique() > 1:
            choices = ", ".join(sorted(set(values)))
            plural = f"{key.removesuffix('s')}s"
            raise UsageError(
                f"there are runs of several {plural}: choose one with --{key} ({choices})"
            )
    return runs


def note_on_variants(study: Study, shots: str, **shown: Collection[Any] | None) -> list[str]:
    """Return what a table says about the variants that it leaves out; nothing where there are none.

    Args:
        study: all runs.
        shots: those of the table, as `table_keys` has them.
        shown: what the table shows, by column of `Study.runs`; None or empty: anything.
    """
    runs = runs_with(study.runs, **shown)
    has_shots = table_keys(runs)["shots"] == shots
    count = int(runs["variant"][has_shots].notna().sum())
    if not count:
        return []
    which = counted_noun(count, "run")
    return [f"{which} of searches and other variants left out (hifi table search, or --by variant)"]
