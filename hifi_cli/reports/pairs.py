"""Which finished runs may be compared, and the pairs of two methods' runs with the same task and seed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pandas as pd

from hifi_cli.config.choices import Score
from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult
from hifi_cli.reports import changed_settings
from hifi_cli.results.study import Study
from hifi_cli.statistics import Groups
from hifi_cli.wording import counted_noun

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
    identities = pd.Series([str(row) for row in runs[[*IDENTITY]].itertuples(index=False, name=None)], runs.index, dtype=str)
    if identities.nunique() > 1 and "unequal" not in counted:
        differing = [name for column, name in IDENTITY.items() if runs[column].nunique(dropna=False) > 1]
        causes = " and ".join([name for name in differing if name != "settings"] or differing)
        kept = runs[identities == identities.value_counts(sort=False).idxmax()]
        left_out = counted_noun(len(runs) - len(kept), "run")
        notes.append(f"{left_out} with different {causes} left out (--include unequal includes them)")
        runs = kept
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
            notes += [f"{label} on {label_of('tasks', task)}: {note}" for note in left_out]
            cells.append(cell)
        both = _merged(cells[0], cells[1], score)
        remarks = []
        if unpaired := len({*cells[0]["seed"]} ^ {*cells[1]["seed"]}):
            remarks.append(f"{counted_noun(unpaired, 'run')} left out: the other method has no run with the same seed")
        if differing := _disagreement(study, both, score):
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


def _disagreement(study: Study, both: pd.DataFrame, score: Score | None) -> str:
    """Return the conditions in which pairs of one task disagree, with both values; empty where they agree.

    Epochs may differ as their protocol has them for the two methods: HiFi trains BitFit as long as BitFit's own paper.

    Args:
        score: the score that is compared; if given, the epoch that each run reports does not matter.
    """
    found: dict[str, str] = {}
    for pair in both.to_dict("records"):
        for column, name in CONDITIONS.items():
            values = [pair[f"{column}_{side}"] for side in ("first", "second")]
            if str(values[0]) != str(values[1]) and not (score and column == "report"):
                found.setdefault(name, " and ".join(map(_word, values)))
    if "epochs" in found and _has_protocols_epochs(study, both):
        del found["epochs"]
    return ", ".join(name if name in _DIGESTS else f"{name} ({values})" for name, values in found.items())


def _word(value: object) -> str:
    return "none" if value is None or value != value else f"{value:g}" if isinstance(value, float) else str(value)


def _has_protocols_epochs(study: Study, both: pd.DataFrame) -> bool:
    """Whether every run was trained for the epochs that its protocol has for its method and task."""
    for side in ("first", "second"):
        for path, epochs in zip(both[f"path_{side}"], both[f"epochs_{side}"], strict=True):
            config = changed_settings.config_of(*_stored(study, path))
            if config is None or config.epochs != epochs:
                return False
    return True


def changed(study: Study, path: str) -> str:
    """Return the keys of a run's configuration that are not its protocol's, with both values; empty: there are none."""
    return changed_settings.changed_settings(*_stored(study, path))


def _stored(study: Study, path: str) -> tuple[RunDirectory, RunResult]:
    return RunDirectory(study.directory / path), study.result(path)
