"""Which finished runs may be averaged or compared, and why others are left out."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from hifi_cli.config.decides import keys_that_decide
from hifi_cli.config.epoch_rule import EpochChoice, EpochRule
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.records.signs import CHOSEN_ON_REPORTED
from hifi_cli.records.study import AVERAGED, COLUMN_OF_KEY, COMPARED, Study
from hifi_cli.reports.calibration import MEASURES, measure
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.protocols import changed_settings, protocol_config
from hifi_cli.text import counted_noun


def _conditions_of_keys() -> dict[str, str]:
    """Return the columns of the keys in which compared runs must agree, with the words of messages."""
    words = {"report": "epoch of the score"}
    conditions = {}
    for key in keys_that_decide(RunConfig, "comparison"):
        conditions[COLUMN_OF_KEY.get(key, key)] = words.get(key, key.replace("_", " "))
    return conditions


def _of_shown_epochs(conditions: Mapping[str, str]) -> dict[str, str]:
    """Return conditions in which the epoch that a table shows stands for the one that a run reports.

    With `--score last` all runs show their last epochs, whatever their protocols report.
    """
    by_column = {}
    for column, name in conditions.items():
        if column == "report":
            column = "shown_epoch"
        by_column[column] = name
    return by_column


# Runs of two methods may be compared only if they agree in these columns of `Study.runs`. The
# values are the names in messages.
CONDITIONS = _conditions_of_keys() | COMPARED
# The same conditions, by the columns of `ComparableRuns.frame`.
_CONDITIONS_OF_ROWS = _of_shown_epochs(CONDITIONS)
# Runs of one method on one task may be averaged over seeds only if they agree in these columns
# of that frame.
_CONDITIONS_OF_A_MEAN = _of_shown_epochs(_conditions_of_keys() | AVERAGED)
# Digests: messages print the name of the condition alone.
_DIGESTS = {"weights", "task_digest", "data", "method_code", "heads", "setting_hash"}
# Conditions about random draws, which have a flag of their own (`--include draws`).
_DRAWS = ("draws", "common_draws")
# The ending of a metric's name that is of the rows which a user's own data hold out.
HELD_OUT = "_held_out"
# The epoch whose score each choice takes, in titles and sentences.
EPOCHS = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
# The columns that make the cell of a table: its runs differ by seed alone.
_CELL = ["method", "backbone", "task"]

# A row of a table stands for a method or for a backbone.
RowKey = Literal["method", "backbone"]
# Sentences about runs, by row (method or backbone) and task.
Notes = dict[tuple[str, str], list[str]]


@dataclass(frozen=True)
class ComparableRuns:
    """Runs of one protocol and number of shots: each has its score, and counts or is excluded.

    Attributes:
        study: where the runs come from.
        options: which epoch's score is meant, and which flags do not exclude a run.
        row_key: what is compared, methods or backbones.
        metric: what the scores are; None: each run's primary metric.
        frame: the rows of `Study.runs` with further columns:
            `row`: the run's method or backbone, as `row_key` says.
            `shown_epoch`: the epoch of its score: that of the options, or else the one it reports.
            `changed`: settings that are not the protocol's, in words; empty: none.
            `own_epochs`: whether the epochs are not the protocol's. A protocol may train one method
            longer than another, as HiFi trains BitFit as long as BitFit's own paper does.
            `excluded_because`: why the run does not count; empty: it counts.
            `points`: the score in percent, or a measure of the predictions in its own unit; NaN
            where the run is excluded or lacks it.
    """

    study: Study
    options: ReportOptions
    row_key: RowKey
    metric: str | None
    frame: pd.DataFrame

    @classmethod
    def of(
        cls,
        study: Study,
        runs: pd.DataFrame,
        options: ReportOptions,
        *,
        row_key: RowKey = "method",
        metric: str | None = None,
    ) -> "ComparableRuns":
        """Judge and score some runs.

        Args:
            study: where the runs come from.
            runs: rows of `Study.runs`, of one protocol and number of shots.
            options: which epoch's score is meant, and which flags do not exclude a run.
            row_key: what is compared, methods or backbones.
            metric: a metric, or a measure of the stored predictions; None: each run's primary one.
        """
        shown_epoch = options.epoch_choice or runs["report"]
        frame = runs.assign(row=runs[row_key], shown_epoch=shown_epoch)
        frame = _with_settings(frame)
        reasons = _reasons_to_exclude(frame, options.included)
        frame = frame.assign(excluded_because=reasons, points=float("nan"))
        return cls(study, options, row_key, metric, frame).scored_by(metric)

    def scored_by(self, metric: str | None) -> "ComparableRuns":
        """Return the same runs with the scores of another metric."""
        points = _points(self.study, self.usable, self.options.epoch_choice, metric)
        return replace(self, metric=metric, frame=self.frame.assign(points=points))

    def of_tasks(self, tasks: Collection[str]) -> "ComparableRuns":
        """Return the runs on some tasks."""
        return replace(self, frame=self.frame[self.frame["task"].isin(tasks)])

    def of_rows(self, names: Collection[str]) -> "ComparableRuns":
        """Return the runs of some methods or backbones."""
        return replace(self, frame=self.frame[self.frame["row"].isin(names)])

    def label_of_row(self, name: str) -> str:
        """Return what readers call a method or backbone, by its name."""
        return self.study.label_of(f"{self.row_key}s", name)

    @property
    def usable(self) -> pd.DataFrame:
        """The rows of `frame` that count, with or without a score."""
        return self.frame[self.frame["excluded_because"] == ""]

    @property
    def shown_epochs(self) -> str:
        """The epochs of the scores that count, in words: `best epoch`."""
        choices = sorted(self.usable["shown_epoch"].unique())
        return " and ".join(EPOCHS[choice] for choice in choices)

    @property
    def conditions(self) -> dict[str, str]:
        """The columns that rows must share to be compared, with their names."""
        conditions = dict(_CONDITIONS_OF_ROWS)
        if self.row_key == "backbone":
            # Backbones are what is compared: each has weights of its own.
            del conditions["weights"]
        return conditions

    @property
    def required_conditions(self) -> dict[str, str]:
        """The `conditions` that the options do not waive."""
        return required_conditions(self.conditions, self.options.included)

    def mismatches_with_majority(self) -> dict[str, list[str]]:
        """Return the conditions in which rows differ from most of the others, by row.

        The first usable run stands for its row. That is enough, because the usable runs of a row
        agree: those that differ from most of the row's runs are excluded. A row without a score is
        beside no other.
        """
        first_runs = self.usable.dropna(subset="points").drop_duplicates("row")
        found = mismatches_with_majority(first_runs, self.conditions)
        return {first_runs["row"][index]: names for index, names in found.items()}

    def notes(self) -> Notes:
        """Return what a reader must know of the runs of each row and task.

        Returns:
            Which runs are left out and why, and what is unusual of the others.
        """
        counts: Counter[tuple[str, str, str]] = Counter()
        for run in self.frame.itertuples():
            for fact in _facts(run):
                counts[run.row, run.task, fact] += 1
        notes: Notes = {}
        for (row, task, fact), count in counts.items():
            note = f"{counted_noun(count, 'run')} {fact}"
            notes.setdefault((row, task), []).append(note)
        return notes

    def notes_in_words(self) -> list[str]:
        """Return the notes as lines that begin with the row and the task: `BitFit on RTE: 1 run left out`."""
        lines = []
        for (row, task), texts in self.notes().items():
            subject = f"{self.label_of_row(row)} on {label_of('tasks', task)}"
            lines += [f"{subject}: {text}" for text in texts]
        return lines


def _facts(run: Any) -> list[str]:
    """Return the notes on a run, a row of `ComparableRuns.frame`."""
    if run.excluded_because:
        return [f"left out: {run.excluded_because}"]
    facts = []
    if run.changed:
        facts.append(f"with other settings than the protocol's: {run.changed}")
    if run.collapsed:
        facts.append("collapsed, included")
    if run.limit is not None:
        facts.append("limited, included")
    return facts


def is_of_held_out_rows(metric: str | None) -> bool:
    """Return whether a metric is of the rows that a user's own data hold out, which choose no epoch.

    Args:
        metric: its name; None: the primary one.
    """
    return metric is not None and metric.endswith(HELD_OUT)


def note_on_epochs(runs: pd.DataFrame) -> list[str]:
    """Return a note that scores are too high, where an epoch was chosen on the split that they are of.

    Args:
        runs: rows of `ComparableRuns.frame`.
    """
    # Nothing is chosen from a single epoch.
    several = runs[runs["epoch_last"] > 1]
    rules = map(EpochRule, several["shown_epoch"], several["selection"])
    if any(rule.is_chosen_on_reported_rows for rule in rules):
        return [CHOSEN_ON_REPORTED]
    return []


def _points(
    study: Study, runs: pd.DataFrame, epoch_choice: EpochChoice | None, metric: str | None
) -> pd.Series:
    """Return the scores of runs in percent; a measure of the predictions in its own unit.

    Args:
        study: where the runs come from.
        runs: rows of `ComparableRuns.frame`.
        epoch_choice: the epoch of the score; None: the one that each run reports.
        metric: a metric or measure; None: each run's primary metric.
    """
    if metric in MEASURES:
        return measure(study, runs, epoch_choice, metric)
    return 100 * study.scores(runs, epoch_choice, metric)


# --- reasons to exclude a run


def _with_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the columns `changed` and `own_epochs`; see `ComparableRuns`."""
    changed: dict[str, str] = {}
    epochs: dict[str, int | None] = {}
    # Runs with one hash have the same settings; to resolve a protocol for each would take long.
    for run in runs.drop_duplicates("setting_hash").itertuples():
        key = run.setting_hash
        config = protocol_config(
            task=run.task,
            method=run.method,
            backbone=run.backbone,
            protocol=run.protocol,
            shots=run.shots,
        )
        if config is None:
            changed[key] = ""
            epochs[key] = None
        else:
            changed[key] = changed_settings(run, config)
            epochs[key] = config.epochs
    return runs.assign(
        changed=runs["setting_hash"].map(changed).astype(object),
        own_epochs=runs["max_epochs"] != runs["setting_hash"].map(epochs),
    )


def _reasons_to_exclude(runs: pd.DataFrame, included: Collection[str]) -> pd.Series:
    """Return the first reason why each run does not count; empty: it does."""
    flags = {
        "diverged": ("diverged, without a score", runs["status"] != "done"),
        "limited": ("limited (--include limited includes them)", runs["limit"].notna()),
        "changed": ("not the protocol's settings: " + runs["changed"], runs["changed"] != ""),
    }
    # A run gets one reason: a later flag does not overwrite an earlier one.
    reasons = pd.Series("", runs.index, dtype=object)
    for flag, (reason, holds) in flags.items():
        if flag not in included:
            reasons = reasons.mask(holds & (reasons == ""), reason)
    # No flag includes these: the records of two schemas hold different facts, so nobody can tell
    # whether their runs agree. An excluded run must not decide which schema counts.
    newest = runs["schema_version"][reasons == ""].max()
    is_older = (runs["schema_version"] != newest) & (reasons == "")
    of_schema = "of schema " + runs["schema_version"].astype(str) + f", not {newest} as others"
    reasons = reasons.mask(is_older, of_schema)
    # Last, among the runs that are left: an excluded run must not decide what most runs have.
    for index, conditions in _misfits(runs[reasons == ""], included).items():
        # `settings` is the hash of all of them. It adds nothing where another condition is named.
        causes = " and ".join(conditions).removesuffix(" and settings")
        waived_by = flags_that_waive(conditions)
        reasons[index] = f"different {causes} (--include {waived_by} includes them)"
    return reasons


def _misfits(runs: pd.DataFrame, included: Collection[str]) -> dict[Hashable, list[str]]:
    """Return by index in what a run differs from most runs of its method, backbone and task."""
    required = required_conditions(_CONDITIONS_OF_A_MEAN, included)
    if not required:
        return {}
    # Limited runs are not judged: they always differ from full ones, by their limit. They count at
    # all only where the user includes them.
    full = runs[runs["limit"].isna()]
    keys = [full[key] for key in _CELL]
    # Looking at runs one by one takes long, so only cells in which two runs differ are.
    distinct = _in_words(full, required).groupby(keys).transform("nunique")
    misfits: dict[Hashable, list[str]] = {}
    for _, cell in full[distinct > 1].groupby(_CELL):
        misfits.update(mismatches_with_majority(cell, required))
    return misfits


def required_conditions(conditions: Mapping[str, str], included: Collection[str]) -> dict[str, str]:
    """Return the conditions in which runs must agree, where some flags are included.

    `unequal` does not waive the random draws: a user who compares unequal runs on purpose may not
    know that the runs also draw other numbers.

    Args:
        conditions: names by column.
        included: flags of runs that count.
    """
    required: dict[str, str] = {}
    # Messages name the random draws last.
    for column, name in conditions.items():
        if column not in _DRAWS and "unequal" not in included:
            required[column] = name
    for column, name in conditions.items():
        if column in _DRAWS and "draws" not in included:
            required[column] = name
    return required


def flags_that_waive(conditions: Sequence[str]) -> str:
    """Return what `--include` takes to use runs that differ in some conditions: `unequal,draws`.

    Args:
        conditions: in words, as `differences` returns them; at least one.
    """
    about_draws = ["random draws" in name for name in conditions]
    flags = []
    # Each flag waives its own conditions alone; see `required_conditions`.
    if not all(about_draws):
        flags.append("unequal")
    if any(about_draws):
        flags.append("draws")
    return ",".join(flags)


def differences(run: Any, other: Any, conditions: Mapping[str, str]) -> list[str]:
    """Return the conditions in which two runs disagree, with both values.

    Different numbers of epochs are no disagreement where each is the protocol's own for its method.

    Args:
        run: values by column, `own_epochs` among them.
        other: likewise.
        conditions: names by column.
    """
    have_protocols_epochs = not run["own_epochs"] and not other["own_epochs"]
    found = []
    for column, name in conditions.items():
        if str(run[column]) == str(other[column]):
            continue
        if column == "max_epochs" and have_protocols_epochs:
            continue
        if column in _DIGESTS:
            found.append(name)
        else:
            found.append(f"{name} ({run[column]} and {other[column]})")
    return found


def mismatches_with_majority(
    runs: pd.DataFrame, conditions: Mapping[str, str]
) -> dict[Hashable, list[str]]:
    """Return by index the conditions in which runs differ from most of some runs.

    Args:
        runs: rows of `ComparableRuns.frame`.
        conditions: names by column.
    """
    in_words = _in_words(runs, conditions)
    counts = in_words.value_counts(sort=False)
    if len(counts) < 2:
        return {}
    is_usual = in_words == counts.idxmax()
    # `idxmax` of booleans is the index of the first True.
    usual = runs.loc[is_usual.idxmax()]
    found: dict[Hashable, list[str]] = {}
    for index, run in runs.iterrows():
        # Empty for runs whose epochs alone differ, as the protocol has them.
        names = differences(run, usual, conditions)
        if names:
            found[index] = names
    return found


def _in_words(runs: pd.DataFrame, columns: Iterable[str]) -> pd.Series:
    """Return some values of each run as one text.

    Texts can be counted: two missing values would not be equal, and lists have no hash.
    """
    rows = runs[[*columns]].itertuples(index=False, name=None)
    return pd.Series(["\t".join(map(str, row)) for row in rows], runs.index, dtype=object)
