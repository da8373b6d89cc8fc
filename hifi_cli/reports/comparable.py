"""Which finished runs may be averaged or compared, and why others are left out."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.decides import decides, keys_that_decide
from hifi_cli.config.run_config import EpochChoice, RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError, MissingError, UsageError
from hifi_cli.records.signs import CHOSEN_ON_REPORTED
from hifi_cli.records.study import AVERAGED, COLUMN_OF_KEY, COMPARED, Study
from hifi_cli.reports.calibration import MEASURES, measure
from hifi_cli.text import counted_noun

# Flags of runs that are counted: leaving out runs that predict one class favors unstable methods,
# and changed settings are named
INCLUDED_BY_DEFAULT = frozenset({"changed"})


def _conditions_of_keys() -> dict[str, str]:
    """Columns with the keys in which compared runs must agree, and the words of messages for them."""
    words = {"report": "reported epoch"}
    conditions = {}
    for key in keys_that_decide(RunConfig, "comparison"):
        conditions[COLUMN_OF_KEY.get(key, key)] = words.get(key, key.replace("_", " "))
    return conditions


# Columns of runs that runs of different methods must share, with what messages call them
CONDITIONS = _conditions_of_keys() | COMPARED
# and what runs of one method on one task must share, apart from the seed
_IDENTITY = _conditions_of_keys() | AVERAGED
# of which the values say nothing to a reader
_DIGESTS = {"weights", "task_digest", "data", "method_code", "heads", "setting_hash"}
_DRAWS = ("draws", "common_draws")
Notes = dict[tuple[str, str], list[str]]  # by method and task


def table_keys(runs: pd.DataFrame) -> pd.DataFrame:
    """Return protocol, backbone and shots (`full`: all rows) of each run, as words."""
    shots = runs["shots"].map(lambda number: "full" if pd.isna(number) else str(int(number)))
    return runs[["protocol", "backbone"]].assign(shots=shots.astype(str))


def select_runs(runs: pd.DataFrame, **keys: str | None) -> pd.DataFrame:
    """Return the runs with some protocol, backbone and shots (None: any), without those of searches."""
    columns, chosen = table_keys(runs), runs["variant"].isna()
    for key, value in keys.items():
        if value is not None:
            chosen &= columns[key] == value
    protocol = keys.get("protocol") or runs["protocol"]  # the given one may carry its file
    return runs.assign(protocol=pd.Series(protocol, runs.index, dtype=object))[chosen]


def require_single_table(
    runs: pd.DataFrame, names: Sequence[str], *, by: str = "method", **keys: str | None
) -> pd.DataFrame:
    """Return the runs of some methods under the only protocol, backbone and number of shots.

    Args:
        by: `method`, or `backbone`: the names are then backbones.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several; the message names them.
    """
    runs = select_runs(runs[runs[by].isin(names)], **keys)
    for name in names:
        if name not in runs[by].values:
            chosen = "".join(f" --{key} {value}" for key, value in keys.items() if value)
            raise MissingError(
                f"no finished run of {name}{chosen}; make one with hifi train --{by} {name}"
            )
    for key, values in table_keys(runs).drop(columns=by, errors="ignore").items():
        if values.nunique() > 1:
            raise UsageError(
                f"there are runs of several {key}: choose one with --{key} ({', '.join(sorted({*values}))})"
            )
    return runs


def protocol_config(
    *, task: str, method: str, backbone: str, protocol: str, **keys: Any
) -> RunConfig | None:
    """Return the configuration that a protocol has for a method, task and backbone; None where one of them is unknown here.

    Args:
        backbone: its name; where it is a directory or on the hub does not matter.
        keys: with other values than the protocol's.
    """
    try:
        config = resolve(
            task=task,
            method=method,
            backbone=backbone if backbone in registry.names("backbones") else f"local/{backbone}",
            protocol=protocol,
            overrides=[f"{key}={override_value(value)}" for key, value in keys.items()],
        )
    except HifiError:
        return None
    named = config.backbone.model_copy(update={"name": backbone})
    return config.model_copy(update={"backbone": named})


def note_on_variants(
    study: Study, protocol: str, backbone: str, tasks: Collection[str]
) -> list[str]:
    """What a table of some tasks says about their runs of searches and other variants."""
    runs = study.runs[(study.runs["protocol"] == protocol) & (study.runs["backbone"] == backbone)]
    count = int(runs["variant"][runs["task"].isin(tasks)].notna().sum())
    note = f"{counted_noun(count, 'run')} of searches and other variants left out (hifi table search, or --by variant)"
    return [note] if count else []


def note_on_epochs(runs: pd.DataFrame) -> list[str]:
    """That scores are too high, where an epoch was chosen on the split that they are of.

    Args:
        runs: from `scored`.
    """
    is_chosen = (runs["report"] == "best") & (runs["selection"] == "validation")
    return [CHOSEN_ON_REPORTED] if (is_chosen | (runs["report"] == "max")).any() else []


# Runs that belong together


def with_exclusions(
    runs: pd.DataFrame, included: Collection[str] = INCLUDED_BY_DEFAULT
) -> pd.DataFrame:
    """Runs with what decides whether they are averaged or compared, in three more columns.

    `excluded_because`: why a run is not; empty: it is. `changed`: its settings that are not its
    protocol's, in words. `own_epochs`:
    whether its epochs are not its protocol's, which may train one method longer than another, as HiFi trains BitFit as long
    as BitFit's own paper does.

    Args:
        runs: those of one protocol and number of shots.
        counted: flags (`limited`, `unequal`, `draws`, `changed`) of runs that are included.
    """
    changed, epochs = {}, {}
    for run in runs.drop_duplicates("setting_hash").itertuples():
        names = {"task": run.task, "method": run.method, "backbone": run.backbone}
        config = protocol_config(**names, protocol=run.protocol, shots=run.shots)
        changed[run.setting_hash] = _changed_settings(run, config) if config else ""
        epochs[run.setting_hash] = config.epochs if config else None
    runs = runs.assign(
        changed=runs["setting_hash"].map(changed).astype(object),
        own_epochs=runs["max_epochs"] != runs["setting_hash"].map(epochs),
    )
    reasons = {  # by flag; the first that holds counts
        "diverged": ("diverged, without a score", runs["status"] != "done"),
        "limited": ("limited (--include limited includes them)", runs["limit"].notna()),
        "changed": ("not the protocol's settings: " + runs["changed"], runs["changed"] != ""),
    }
    excluded_because = pd.Series("", runs.index, dtype=object)
    for flag, (reason, holds) in reasons.items():
        if flag not in included:
            excluded_because = excluded_because.mask(holds & (excluded_because == ""), reason)
    # Whatever is included, runs of two schemas say too little of each other to be averaged.
    newest = runs["schema_version"].max()
    older = (runs["schema_version"] != newest) & (excluded_because == "")
    of_schema = "of schema " + runs["schema_version"].astype(str)
    excluded_because = excluded_because.mask(older, of_schema + f", not {newest} as others")
    identity = required_conditions(_IDENTITY, included)
    if identity:
        # the settings of limited runs differ by the limit at least
        full = runs[(excluded_because == "") & runs["limit"].isna()]
        cells = [full[key] for key in ("method", "backbone", "task")]
        numbers = full[[*identity]].groupby(cells).transform("nunique", dropna=False)
        for _, cell in full[numbers.gt(1).any(axis=1)].groupby(["method", "backbone", "task"]):
            for index, conditions in mismatches_with_majority(cell, identity).items():
                causes = " and ".join(conditions).removesuffix(" and settings")
                flag = "draws" if all("draws" in name for name in conditions) else "unequal"
                excluded_because[index] = f"different {causes} (--include {flag} includes them)"
    return runs.assign(excluded_because=excluded_because)


def required_conditions(conditions: Mapping[str, str], included: Collection[str]) -> dict[str, str]:
    """The conditions in which runs must agree, where some flags of runs are included.

    Random draws are included by their own flag alone: who compares unequal runs on purpose need not
    know that they also draw other numbers.
    """
    draws = {column: name for column, name in conditions.items() if column in _DRAWS}
    others = {column: name for column, name in conditions.items() if column not in _DRAWS}
    required = {} if "unequal" in included else others
    return required if "draws" in included else required | draws


def _changed_settings(run: Any, config: RunConfig) -> str:
    """The keys of a run's configuration that are not its protocol's: `epochs 1 (protocol: 6)`."""
    if config.setting_hash == run.setting_hash:
        return ""
    expected = flatten(config.model_dump(mode="json"))
    return ", ".join(
        f"{key} {override_value(value)} (protocol: {override_value(expected.get(key))})"
        for key, value in flatten(run.config).items()
        if decides(RunConfig, key, "settings") and value != expected.get(key)
    )


def scored(
    study: Study, runs: pd.DataFrame, score: EpochChoice | None = None, metric: str | None = None
) -> pd.DataFrame:
    """Runs with the `score` that is compared, in percent, and in `report` the epoch that it is of.

    Args:
        score: None: the epoch that each run reports.
        metric: or a measure of the stored predictions; None: each run's primary metric.
    """
    scores = (
        measure(study, runs, score, metric)
        if metric and metric in MEASURES
        else 100 * study.scores(runs, score, metric)
    )
    return runs.assign(report=score or runs["report"], score=scores)


def differences(run: Any, other: Any, conditions: Mapping[str, str] = CONDITIONS) -> list[str]:
    """The conditions in which two runs disagree, with both values.

    Epochs may differ where the protocol has them so for the two methods.
    """
    differing = [column for column in conditions if str(run[column]) != str(other[column])]
    if not run["own_epochs"] and not other["own_epochs"]:
        differing = [column for column in differing if column != "max_epochs"]
    return [
        conditions[column] + ("" if column in _DIGESTS else f" ({run[column]} and {other[column]})")
        for column in differing
    ]


def mismatches_with_majority(
    runs: pd.DataFrame, conditions: Mapping[str, str] = CONDITIONS
) -> dict[Any, list[str]]:
    """By index, the conditions in which runs differ from most of some runs."""
    identities = runs[[*conditions]].map(str).apply("\t".join, axis=1)
    counts = identities.value_counts(sort=False)
    if len(counts) < 2:
        return {}
    usual = runs.loc[(identities == counts.idxmax()).idxmax()]
    found = {index: differences(run, usual, conditions) for index, run in runs.iterrows()}
    return {index: names for index, names in found.items() if names}


def notes_on(runs: pd.DataFrame) -> Notes:
    """What a reader must know of the runs of each method and task: which are left out, and what is unusual of the others.

    Args:
        runs: from `with_exclusions`.
    """
    facts = Counter[tuple[str, str, str]]()
    for run in runs.itertuples():
        unusual = {
            f"with other settings than the protocol's: {run.changed}": run.changed != "",
            "collapsed, included": run.collapsed,
            "limited, included": run.limit is not None,
        }
        included = [text for text, holds in unusual.items() if holds]
        for text in [f"left out: {run.excluded_because}"] if run.excluded_because else included:
            facts[run.method, run.task, text] += 1
    notes: Notes = {}
    for (method, task, text), count in facts.items():
        notes.setdefault((method, task), []).append(f"{counted_noun(count, 'run')} {text}")
    return notes
