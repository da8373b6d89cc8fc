"""Which finished runs may be averaged or compared, and the pairs of two methods' runs with the same task and seed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig, Score
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError, MissingError, UsageError
from hifi_cli.results.study import Study
from hifi_cli.statistics import Groups
from hifi_cli.wording import counted_noun

COUNTED = frozenset({"collapsed"})  # predicting one class is a result: leaving it out favors unstable methods
# Columns of runs that runs of different methods must share, with what messages call them
CONDITIONS = {
    "own_epochs": "epochs",
    "report": "reported epoch",
    "selection": "selection",
    "precision": "precision",
    "limit": "limit",
    "weights": "encoder weights",
    "data": "data",
    "split": "split",
    "metric": "primary metric",
}
# and what runs of one method on one task must share besides, apart from the seed
IDENTITY = {**CONDITIONS, "epochs": "epochs", "method_code": "method code", "heads": "heads", "setting": "settings"}
_NAMED = {"task", "method", "backbone", "protocol", "seed", "shots", "variant", "limit"}  # a table shows them itself
_HOW = {"device", "log_every", "eval_batch_size", "gradient_accumulation_steps", "kernels", "padding_free"}
Notes = dict[tuple[str, str], list[str]]  # by method and task


def settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return protocol, backbone and shots (`full`: all rows) of each run, as words."""
    shots = runs["shots"].map(lambda number: "full" if pd.isna(number) else str(int(number)))
    return runs[["protocol", "backbone"]].assign(shots=shots.astype(str))


def of_setting(runs: pd.DataFrame, **setting: str | None) -> pd.DataFrame:
    """Return the runs with some protocol, backbone and shots (None: any), without those of searches."""
    columns, chosen = settings(runs), runs["variant"].isna()
    for key, value in setting.items():
        if value is not None:
            chosen &= columns[key] == value
    return runs[chosen]


def only_setting(runs: pd.DataFrame, methods: Sequence[str], **setting: str | None) -> pd.DataFrame:
    """Return the runs of some methods under the only protocol, backbone and number of shots.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several; the message names them.
    """
    runs = of_setting(runs[runs["method"].isin(methods)], **setting)
    for method in methods:
        if method not in runs["method"].values:
            chosen = "".join(f" --{key} {value}" for key, value in setting.items() if value)
            raise MissingError(f"no finished run of {method}{chosen}; make one with hifi train --method {method}")
    for key, values in settings(runs).items():
        if values.nunique() > 1:
            raise UsageError(f"there are runs of several {key}: choose one with --{key} ({', '.join(sorted({*values}))})")
    return runs


# What a run's protocol has for it


def protocol_config(
    *,
    task: str,
    method: str,
    backbone: str,
    protocol: str,
    overrides: Sequence[str] = (),
    own: Mapping[tuple[str, str], Path] | None = None,
) -> RunConfig | None:
    """Return the configuration that a protocol has for a method, task and backbone; None where one of them is unknown here.

    Args:
        backbone: its name; where it is a directory or on the hub does not matter.
        own: a user's own YAMLs, by kind and name; None: those that the user named in this process.
    """
    given = {key: path for key in (("backbones", backbone), ("protocols", protocol)) if (path := registry.user_file(*key))}
    shipped = backbone in registry.names("backbones")
    source = backbone if shipped else str(given.get(("backbones", backbone), f"local/{backbone}"))
    try:
        with nullcontext() if own is None else registry.only_user_files({**given, **own}):
            config = resolve(task=task, method=method, backbone=source, protocol=protocol, overrides=overrides)
    except HifiError:
        return None
    return config.model_copy(update={"backbone": config.backbone.model_copy(update={"name": backbone})})


def changed_settings(run: Any, config: RunConfig | None) -> str:
    """Return the keys of a run's configuration that are not its protocol's, with both values: `learning_rate 1e-5 (0.003)`.

    Args:
        config: what the protocol has for the run; None: the protocol, the method or the task is unknown here.
    """
    if config is None or config.setting_hash == run.setting:
        return ""
    expected, keys = flatten(config.model_dump(mode="json")), RunConfig.model_fields.keys() - _NAMED - _HOW
    return ", ".join(
        f"{key} {_word(value)} ({_word(expected.get(key))})"
        for key, value in flatten(run.config).items()
        if key.partition(".")[0] in keys and value != expected.get(key)
    )


def _word(value: object) -> str:
    number = f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else ""
    return "none" if value is None else number or override_value(value)


def with_changes(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the columns `changed`, what is not their protocol's, in words, and `own_epochs`.

    `own_epochs` are those of runs whose epochs are not their protocol's: a protocol may train one method longer than another,
    as HiFi trains BitFit as long as BitFit's own paper does.
    """
    configs, changes = {}, {}
    for run in runs.drop_duplicates("setting").itertuples():
        own = {(path.parent.name, path.stem): path for path in (study.directory / str(run.path) / "own").glob("*/*.yaml")}
        names = {key: str(getattr(run, key)) for key in ("task", "method", "backbone", "protocol")}
        configs[run.setting] = protocol_config(**names, overrides=[f"shots={override_value(run.shots)}"], own=own)
        changes[run.setting] = changed_settings(run, configs[run.setting])
    expected = {setting: config.epochs for setting, config in configs.items() if config}
    return runs.assign(
        changed=runs["setting"].map(changes).astype(object),
        own_epochs=runs["epochs"].where(runs["epochs"] != runs["setting"].map(expected), None),
    )


# Runs that belong together


def comparable(runs: pd.DataFrame, counted: Collection[str]) -> tuple[pd.DataFrame, Notes]:
    """Return the runs of each method and task that may be averaged or compared, and notes on those left out or unlike others.

    Args:
        runs: those of one protocol, backbone and shots, from `with_changes`.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included.
    """
    reasons = pd.Series("", runs.index, dtype=object)
    if "limited" not in counted:
        reasons[runs["limit"].notna()] = "limited run;left out (--include limited includes them)"
    if "collapsed" not in counted:
        reasons[runs["collapsed"] & (reasons == "")] = "collapsed run;left out (by --exclude collapsed)"
    reasons[runs["status"] != "done"] = "diverged run;left out (they have no score)"
    if "unequal" not in counted:
        full = runs[(reasons == "") & runs["limit"].isna()]  # the settings of limited runs differ by the limit at least
        rows = ["\t".join(row) for row in full[[*IDENTITY]].map(str).itertuples(index=False, name=None)]
        identities = pd.Series(rows, full.index, dtype=object)
        for _, cell in identities.groupby([full["method"], full["task"]]):
            if cell.nunique() > 1:
                columns = zip(IDENTITY.values(), *(row.split("\t") for row in cell.unique()), strict=True)
                differing = dict.fromkeys(name for name, *values in columns if len({*values}) > 1)
                causes = " and ".join([name for name in differing if name != "settings"] or differing)
                others = cell.index[cell != cell.value_counts(sort=False).idxmax()]
                reasons[others] = f"run;with different {causes} left out (--include unequal includes them)"
    kept = runs[reasons == ""]
    notes: Notes = {}
    left_out = Counter(zip(runs["method"], runs["task"], reasons, strict=True))
    for (method, task, reason), count in left_out.items():
        if reason:
            noun, words = reason.split(";")
            notes.setdefault((method, task), []).append(f"{counted_noun(count, noun)} {words}")
    for method, task, changed in dict.fromkeys(zip(kept["method"], kept["task"], kept["changed"], strict=True)):
        if changed:
            notes.setdefault((method, task), []).append(f"not the protocol's: {changed}")
    return kept, notes


def differences_between_methods(runs: pd.DataFrame, score: Score | None) -> dict[str, str]:
    """Return, of one task's runs, the methods whose conditions are not those of most methods, and what differs.

    Args:
        score: if given, the epoch that each run reports does not matter.
    """
    columns = [column for column in CONDITIONS if not (score and column == "report")]
    is_changed = runs["epochs"].isin(runs["own_epochs"].dropna())  # also where the same number is the protocol's
    runs = runs.assign(own_epochs=runs["epochs"].where(is_changed, None))
    conditions = runs.drop_duplicates("method").set_index("method")[columns].map(str)
    if len(conditions.drop_duplicates()) < 2:
        return {}
    usual = conditions.loc[conditions.apply("\t".join, axis=1).pipe(lambda rows: rows == rows.mode()[0])].iloc[0]
    different = {method: [name for name in columns if row[name] != usual[name]] for method, row in conditions.iterrows()}
    return {str(method): " and ".join(CONDITIONS[name] for name in names) for method, names in different.items() if names}


@dataclass(frozen=True)
class Pairs:
    """The runs of two methods with the same task and seed.

    Attributes:
        frame: a row a pair, sorted: `task`, `seed`, the `difference` in points, and the columns of the runs, `score` in percent
            among them, with the endings `_first` and `_second`.
        diverged: numbers of diverged runs of the first and of the second method.
        notes: what was left out, and why.
    """

    first: str
    second: str
    frame: pd.DataFrame
    diverged: tuple[int, int]
    notes: list[str]

    @property
    def labels(self) -> tuple[str, str]:
        return label_of("methods", self.first), label_of("methods", self.second)

    @property
    def by_task(self) -> dict[str, list[float]]:
        """The differences of each task, by seed."""
        return {str(task): [*pairs["difference"]] for task, pairs in self.frame.groupby("task")}

    @property
    def groups(self) -> Groups:
        return [*self.by_task.values()]


def pair(
    runs: pd.DataFrame,
    first: str,
    second: str,
    *,
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
) -> Pairs:
    """Pair two methods' runs by task and seed, where they agree in everything that a comparison requires.

    Args:
        runs: those of one protocol, backbone and shots, from `with_changes`.
        score: None: that of the epoch which each run reports.
    """
    runs = runs[runs["method"].isin([first, second])]
    usable, left_out = comparable(runs, counted)
    scores = usable[["last", "best", "max"]].astype(float)
    reported = [scores.at[index, score or report] for index, report in usable["report"].items()]
    usable = usable.assign(score=pd.Series(reported, usable.index, dtype=float) * 100)
    sides = [usable[usable["method"] == method] for method in (first, second)]
    both = sides[0].merge(sides[1], on=["task", "seed"], suffixes=("_first", "_second")).sort_values(["task", "seed"])
    both = both.assign(difference=both["score_first"] - both["score_second"]).dropna(subset="difference")
    labels = {method: label_of("methods", method) for method in (first, second)}
    notes = [
        f"{labels[method]} on {label_of('tasks', task)}: {note}" for (method, task), texts in left_out.items() for note in texts
    ]
    for task, of_task in both.groupby("task"):
        name, note = label_of("tasks", str(task)), ""
        if differing := _differing(of_task, score):
            is_included = "unequal" in counted and "primary metric" not in differing
            note = f"{labels[first]} and {labels[second]} differ in {differing}"
            note = f"compared although {note}" if is_included else f"left out: {note}; --include unequal compares them"
            both = both if is_included else both[both["task"] != task]
        elif not (of_task["epochs_first"] == of_task["epochs_second"]).all():
            epochs = f"{of_task['epochs_first'].iloc[0]} and {of_task['epochs_second'].iloc[0]}"
            note = f"epochs differ ({epochs}), as the protocol has them for the two methods"
        notes += [f"{name}: {note}"] if note else []
    if unpaired := len(usable) - 2 * len(sides[0].merge(sides[1], on=["task", "seed"])):
        notes.append(f"{counted_noun(unpaired, 'run')} left out: the other method has no run with the same task and seed")
    diverged = [int(((runs["method"] == method) & (runs["status"] != "done")).sum()) for method in (first, second)]
    return Pairs(first, second, both, (diverged[0], diverged[1]), notes)


def _differing(pairs: pd.DataFrame, score: Score | None) -> str:
    """Return the conditions in which pairs of one task disagree, with their values; empty where they agree."""
    found = {}
    for column, name in CONDITIONS.items():
        first, second = pairs[f"{column}_first"].map(str), pairs[f"{column}_second"].map(str)
        if column == "own_epochs":  # the same number may be one method's own and the other's change
            is_changed = pairs["own_epochs_first"].notna() | pairs["own_epochs_second"].notna()
            first, second = (pairs[f"epochs_{side}"].map(str).where(is_changed, "") for side in ("first", "second"))
        differ = first != second
        if differ.any() and not (score and column == "report"):
            values = f" ({first[differ].iloc[0]} and {second[differ].iloc[0]})"
            found[name] = name + ("" if column in ("data", "weights") else values)
    return ", ".join(found.values())
