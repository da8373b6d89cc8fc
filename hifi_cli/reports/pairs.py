"""Which finished runs may be compared, and the pairs of two methods' runs with the same task and seed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.reports import changed_settings
from hifi_cli.results.study import Study
from hifi_cli.statistics import Groups
from hifi_cli.wording import counted_noun, number_ranges

COUNTED = frozenset({"collapsed"})  # predicting one class is a result: leaving it out favors unstable methods
# Columns of `Study.runs` that runs of different methods must share, with what messages call them
CONDITIONS = {
    "epochs": "epochs",
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
IDENTITY = {**CONDITIONS, "method_code": "method code", "heads": "heads", "setting": "settings"}
_COLUMNS = ["path", "method", "task", "seed", "status", "collapsed", "last", "best", "max", *IDENTITY]
_REMEDIES = {"limited": "--include limited includes them", "collapsed": "by --exclude collapsed"}
_DIGESTS = ("data", "encoder weights")  # their values tell a reader nothing


@dataclass
class Pairs:
    """The runs of two methods with the same task and seed.

    Attributes:
        frame: a row a pair, sorted: `task`, `seed`; `score_first` and `score_second` in percent, `difference`, and the columns
            of `Study.runs` with these endings.
        diverged, finished: numbers of diverged and of all runs of the first and of the second method.
        notes: what was left out, and why.
    """

    first: str
    second: str
    frame: pd.DataFrame
    diverged: tuple[int, int]
    finished: tuple[int, int]
    notes: list[str] = field(default_factory=list)

    @property
    def labels(self) -> tuple[str, str]:
        return label_of("methods", self.first), label_of("methods", self.second)

    @property
    def by_task(self) -> dict[str, dict[int, float]]:
        """The differences by task and seed."""
        tasks = self.frame.groupby("task")
        return {str(task): dict(zip(pairs["seed"], pairs["difference"], strict=True)) for task, pairs in tasks}

    @property
    def groups(self) -> Groups:
        """The differences of each task."""
        return [list(seeds.values()) for seeds in self.by_task.values()]

    def diverges_more(self, side: int) -> bool:
        """Whether a larger fraction of this side's runs diverged: its other runs are its better ones."""
        other = 1 - side
        return self.diverged[side] * self.finished[other] > self.diverged[other] * self.finished[side]


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
    columns = settings(runs)
    for key in setting:
        if columns[key].nunique() > 1:
            values = {method: sorted({*columns[key][runs["method"] == method]}) for method in methods}
            names = "; ".join(f"{method}: {', '.join(words)}" for method, words in values.items())
            kind = "numbers of shots" if key == "shots" else f"{key}s"
            raise UsageError(f"there are runs of several {kind}: choose one with --{key} ({names})")
    return runs


def comparable(runs: pd.DataFrame, counted: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs of one method on one task that differ only in their seed, and notes on those that are left out.

    Args:
        counted: `collapsed`, `limited`, `unequal` where such runs are included.
    """
    notes = []
    for flag, is_flagged in (
        ("diverged", runs["status"] != "done"),
        ("limited", runs["limit"].notna()),
        ("collapsed", runs["collapsed"]),
    ):
        flagged = runs[is_flagged.reindex(runs.index)]
        if len(flagged) and flag not in counted:
            runs = runs.drop(flagged.index)
            notes.append(f"{counted_noun(len(flagged), f'{flag} run')} left out ({_REMEDIES.get(flag, 'they have no score')})")
    full = runs[runs["limit"].isna()]  # the settings of limited runs differ by the limit at least
    identities = pd.Series([str(row) for row in full[[*IDENTITY]].itertuples(index=False, name=None)], full.index, dtype=str)
    if identities.nunique() > 1 and "unequal" not in counted:
        differing = [name for column, name in IDENTITY.items() if full[column].nunique(dropna=False) > 1]
        causes = " and ".join([name for name in differing if name != "settings"] or differing)
        left_out = full[identities != identities.value_counts(sort=False).idxmax()]
        runs = runs.drop(left_out.index)
        number = counted_noun(len(left_out), "run")
        notes.append(f"{number} with different {causes} left out (--include unequal includes them)")
    return runs, notes


def pair(
    study: Study,
    runs: pd.DataFrame,
    first: str,
    second: str,
    *,
    tasks: Sequence[str] = (),
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
) -> Pairs:
    """Pair two methods' runs by task and seed, where they agree in everything that a comparison requires.

    Args:
        runs: rows of `Study.runs`, of one setting.
        tasks: only these; empty: all.
        score: None: that of the epoch which each run reports.
    """
    runs = runs[runs["method"].isin([first, second]) & (runs["task"].isin(tasks) if tasks else True)][_COLUMNS]
    labels = label_of("methods", first), label_of("methods", second)
    notes, paired = [], [_merged(runs[:0], runs[:0], score)]
    for task, of_task in runs.groupby("task"):
        cells = []
        for method, label in zip((first, second), labels, strict=True):
            cell, left_out = comparable(of_task[of_task["method"] == method], counted)
            left_out += _changes(study, cell)
            notes += [f"{label} on {label_of('tasks', task)}: {note}" for note in left_out]
            cells.append(cell)
        both = _merged(cells[0], cells[1], score)
        remarks = []
        if unpaired := len({*cells[0]["seed"]} ^ {*cells[1]["seed"]}):
            remarks.append(f"{counted_noun(unpaired, 'run')} left out: the other method has no run with the same seed")
        if differing := _disagreement(study, both.to_dict("records"), score):
            remark = f"{labels[0]} and {labels[1]} differ in {differing}"
            is_compared = "unequal" in counted and "primary metric" not in differing
            advice = "" if "primary metric" in differing else "; --include unequal compares them"
            remarks.append(f"compared although {remark}" if is_compared else f"left out: {remark}{advice}")
            both = both if is_compared else both[:0]
        elif len(both) and (both["epochs_first"] != both["epochs_second"]).any():
            epochs = f"{both['epochs_first'].iloc[0]:.0f} and {both['epochs_second'].iloc[0]:.0f}"
            remarks.append(f"epochs differ ({epochs}), as the protocol has them for the two methods")
        notes += [f"{label_of('tasks', task)}: {remark}" for remark in remarks]
        paired.append(both)
    unlimited = runs[runs["limit"].isna() | ("limited" in counted)]
    finished = [unlimited[unlimited["method"] == method] for method in (first, second)]
    return Pairs(
        first,
        second,
        pd.concat([both for both in paired if len(both)] or paired, ignore_index=True),
        diverged=(int((finished[0]["status"] != "done").sum()), int((finished[1]["status"] != "done").sum())),
        finished=(len(finished[0]), len(finished[1])),
        notes=notes,
    )


def _merged(first: pd.DataFrame, second: pd.DataFrame, score: Score | None) -> pd.DataFrame:
    """Return the pairs of runs with the same task and seed that have scores, with their difference in points."""
    sides = []
    for runs in (first, second):
        scores = [
            100 * value if (value := getattr(run, score or run.report)) is not None else None for run in runs.itertuples()
        ]
        sides.append(runs.assign(score=pd.Series(scores, runs.index, dtype=float)))
    both = sides[0].merge(sides[1], on=["task", "seed"], suffixes=("_first", "_second")).sort_values("seed")
    return both.assign(difference=both["score_first"] - both["score_second"]).dropna(subset="difference")


def _disagreement(study: Study, both: Sequence[Mapping[Any, Any]], score: Score | None) -> str:
    """Return the conditions in which pairs of one task disagree, with both values; empty where they agree.

    Epochs may differ as their protocol has them for the two methods: HiFi trains BitFit as long as BitFit's own paper.

    Args:
        score: the score that is compared; if given, the epoch that each run reports does not matter.
    """
    found: dict[str, str] = {}
    for pair in both:
        for column, name in CONDITIONS.items():
            values = [pair[f"{column}_{side}"] for side in ("first", "second")]
            if str(values[0]) != str(values[1]) and not (score and column == "report"):
                found.setdefault(name, " and ".join(map(_word, values)))
    if "epochs" in found and _has_protocols_epochs(study, both):
        del found["epochs"]
    return ", ".join(name if name in _DIGESTS else f"{name} ({values})" for name, values in found.items())


def _word(value: object) -> str:
    return "none" if value is None or value != value else f"{value:g}" if isinstance(value, float) else str(value)


def _has_protocols_epochs(study: Study, both: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether every run was trained for the epochs that its protocol has for its method and task."""
    for pair in both:
        for side in ("first", "second"):
            config = changed_settings.config_of(*_stored(study, pair[f"path_{side}"]))
            if config is None or config.epochs != pair[f"epochs_{side}"]:
                return False
    return True


def changed(study: Study, path: str) -> str:
    """Return the keys of a run's configuration that are not its protocol's, with both values; empty: there are none."""
    return changed_settings.changed_settings(*_stored(study, path))


def _changes(study: Study, runs: pd.DataFrame) -> list[str]:
    changes = dict.fromkeys(changed(study, path) for path in runs.drop_duplicates("setting")["path"])
    return [f"not the protocol's: {text}" for text in changes if text]


def _stored(study: Study, path: str) -> tuple[dict[str, Any], Path]:
    record = study.records[path]
    return {**record, "setting": record["setting_hash"]}, study.directory / path / "own"


def averaged(
    study: Study, runs: pd.DataFrame, seeds: Sequence[int], counted: Collection[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs of one method on one task that belong in one mean, and notes on runs left out or unlike others.

    Args:
        seeds: only these; empty: all.
    """
    notes = []
    chosen = runs[runs["seed"].isin(seeds)] if seeds else runs
    if others := len(runs) - len(chosen):
        every = number_ranges({*seeds, *runs["seed"]})
        notes.append(f"{counted_noun(others, 'run')} with other seeds left out (--seeds {every} includes them)")
    chosen, left_out = comparable(chosen, counted)
    notes += [*left_out, *_changes(study, chosen)]
    for flag, where in (("collapsed", chosen["collapsed"]), ("limited", chosen["limit"].notna())):
        if where.any():
            notes.append(f"{where.sum()} of {counted_noun(len(chosen), 'run')} {flag}, included")
    if seeds and 0 < len(chosen) < len(seeds):
        notes.append(f"{len(chosen)} of {len(seeds)} seeds")
    return chosen, notes


def disagreement(study: Study, first: pd.Series, second: pd.Series, score: Score | None) -> str:
    """Return the conditions in which runs of two methods on one task disagree; empty where they agree."""
    sides = ((first, "first"), (second, "second"))
    pair = {f"{key}_{side}": run[key] for run, side in sides for key in ("path", *CONDITIONS)}
    return _disagreement(study, [pair], score)
