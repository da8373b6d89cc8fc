"""Which runs of a study a table is about: one protocol, one backbone, one number of shots."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from hifi_cli.config.registry import argument_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.stored import command_for_new_runs
from hifi_cli.records.study import Study
from hifi_cli.text import counted_noun

# How a reader finds the runs that tables leave out.
_SHOWS_VARIANTS = "hifi table search, or --by variant"


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
    study: Study,
    runs: pd.DataFrame,
    names: Sequence[str],
    *,
    by: str = "method",
    tasks: Sequence[str] = (),
    **keys: str | None,
) -> pd.DataFrame:
    """Return the runs of some methods; they share one protocol, backbone and number of shots.

    Args:
        study: where the runs come from.
        runs: rows of `Study.runs`.
        names: methods, or backbones.
        by: what the names are, `method` or `backbone`.
        tasks: empty: all.
        keys: `protocol`, `backbone` and `shots`, as `select_runs` takes them.

    Returns:
        Rows of `runs` with its columns.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several protocols, backbones or shots; they are named.
    """
    runs = select_runs(runs_with(runs[runs[by].isin(names)], task=tasks), **keys)
    present = set(runs[by])
    for name in names:
        if name not in present:
            asked = {"tasks": ",".join(tasks), **keys}
            options = "".join(f" --{key} {value}" for key, value in asked.items() if value)
            advice = _how_to_make_runs(study, runs, name, by, tasks, keys)
            raise MissingError(f"no finished run of {name}{options}; {advice}")
    # Several backbones are wanted where the names are backbones; `method` is no key of a table.
    for key, values in table_keys(runs).drop(columns=by, errors="ignore").items():
        if values.nunique() > 1:
            choices = ", ".join(sorted(set(values)))
            plural = f"{key.removesuffix('s')}s"
            raise UsageError(
                f"there are runs of several {plural}: choose one with --{key} ({choices})"
            )
    return runs


def _how_to_make_runs(
    study: Study,
    runs: pd.DataFrame,
    name: str,
    by: str,
    tasks: Sequence[str],
    keys: Mapping[str, str | None],
) -> str:
    """Return the command that trains a method or backbone beside some runs, or shows its variants.

    Args:
        study: where the runs come from.
        runs: those of the others.
        name: of the method or backbone.
        by: what the name is.
        tasks: that were asked for; empty: those of the others.
        keys: protocol, backbone and shots that were asked for.
    """
    # METHOD/NAME is a variant, whose settings its name may not say.
    if by == "method" and "/" in name:
        return "hifi table --by variant shows those that there are"
    given = {}
    # The others may be of several protocols, of which the user has to choose one.
    settings = table_keys(runs).assign(method=runs["method"])
    for key, values in settings.items():
        if values.nunique() == 1:
            given[key] = values.iloc[0]
    for key, value in keys.items():
        if value:
            given[key] = value
    given[by] = name
    on_tasks = ",".join(map(argument_of, tasks or sorted(set(runs["task"]))))
    words = ["hifi", "train", "--task", on_tasks or "TASK"]
    for option in ("method", "protocol", "backbone"):
        if option in given:
            words += [f"--{option}", argument_of(given[option])]
    seeds = sorted(set(runs["seed"]))
    if seeds:
        words += ["--seeds", ",".join(map(str, seeds))]
    if given.get("shots", "full") != "full":
        words.append(f"shots={given['shots']}")
    return f"make one with {command_for_new_runs(words, study.directory)}"


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
    return [f"{which} of searches and other variants left out ({_SHOWS_VARIANTS})"]


def notes_on_variants_alone(study: Study, tasks: Sequence[str], **keys: str | None) -> list[str]:
    """Return notes on protocols, backbones and shots that have variants alone, and thus no table.

    Args:
        study: all runs.
        tasks: only those on one of these; empty: on any.
        keys: only those of this `protocol`, `backbone` or `shots`.
    """
    runs = runs_with(study.runs, task=tasks)
    with_table = {tuple(row) for row in table_keys(select_runs(runs)).to_numpy()}
    of_variants = table_keys(runs[runs["variant"].notna()])
    for key, value in keys.items():
        if value is not None:
            of_variants = of_variants[of_variants[key] == value]
    counts = Counter(tuple(row) for row in of_variants.to_numpy())
    notes = []
    for setting, count in sorted(counts.items()):
        if setting not in with_table:
            words = setting_in_words(dict(zip(of_variants.columns, setting, strict=True)))
            which = f"{counted_noun(count, 'run')} of searches and other variants"
            notes.append(f"no table of {words}: {which} ({_SHOWS_VARIANTS})")
    return notes
