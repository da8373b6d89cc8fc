"""`hifi versus`: a new method beside stored baselines: what may be compared, and what may be claimed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.decides import keys_that_decide
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value
from hifi_cli.errors import MissingError
from hifi_cli.paired_tests import (
    LEVEL,
    holm,
    repetition_limit,
    seeds_needed,
    seeds_that_reach,
    smallest_p,
)
from hifi_cli.records.searches import tried_settings
from hifi_cli.records.study import COLUMN_OF_KEY, Study
from hifi_cli.reports import compare as compare_runs
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.comparable import CONDITIONS, ComparableRuns, differences, required_conditions
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.pairs import pair
from hifi_cli.reports.table import Row, Table
from hifi_cli.reports.table_runs import require_single_table, runs_with, select_runs, table_keys
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, TableSpec, check_names
from hifi_cli.text import counted_noun, format_number

# The epochs that the protocol reports, and no run that tables leave out: `hifi versus` has no option
# that changes this.
OPTIONS = ReportOptions()
# The key of the configuration that sets a column of conditions, by the column. No key sets the others,
# such as the digest of the data.
_KEY_OF_COLUMN = {
    COLUMN_OF_KEY.get(key, key): key for key in keys_that_decide(RunConfig, "comparison")
}


@dataclass(frozen=True)
class Search:
    """How the baseline that tried most learning rates was searched.

    Attributes:
        method: the baseline; empty: none was searched.
        rates: how many learning rates it tried on one task.
        tasks: of the search.
        seeds: of the search.
        selection: the examples that chose, `holdout` or `validation`.
        holdout: fraction of the train split that was held out.
    """

    method: str
    rates: int
    tasks: list[str]
    seeds: list[int]
    selection: str
    holdout: float


# A method that was not searched has one learning rate.
NO_SEARCH = Search(method="", rates=1, tasks=[], seeds=[], selection="validation", holdout=0.0)


@dataclass(frozen=True)
class Baselines:
    """Stored runs with which a new method is compared.

    Attributes:
        study: where they come from.
        runs: those that count, rows of `ComparableRuns.frame`, of one protocol, backbone and number
            of shots.
    """

    study: Study
    runs: pd.DataFrame

    @classmethod
    def of(
        cls,
        study: Study,
        *,
        methods: Sequence[str],
        tasks: Sequence[str],
        keys: Mapping[str, str | None],
        new: str = "",
    ) -> "Baselines":
        """Choose the baselines of a study.

        Args:
            study: has the stored runs.
            methods: the baselines; empty: all methods of the table.
            tasks: empty: all of the baselines.
            keys: `protocol`, `backbone` and `shots`, as `select_runs` takes them.
            new: the new method, which is none of them.

        Raises:
            MissingError: a baseline or a task has no stored run that counts.
            UsageError: a name is unknown, or there are runs of several protocols, backbones or
                shots; they are named.
        """
        if study.table_runs.empty:
            raise study.no_run_error()
        check_names("methods", methods, study.names("method"))
        check_names("tasks", tasks, study.names("task"))
        runs = runs_with(study.runs, task=tasks)
        stored = select_runs(runs[runs["method"] != new], **keys)
        names = [*methods] or [*dict.fromkeys(stored["method"])]
        if not names:
            raise study.no_such_runs_error(**keys)
        runs = require_single_table(
            study,
            runs,
            names,
            tasks=tasks,
            protocol=keys["protocol"],
            backbone=keys["backbone"],
            shots=keys["shots"],
        )
        usable = ComparableRuns.of(study, runs, OPTIONS).usable
        lacking = [name for name in names if name not in set(usable["method"])]
        if lacking:
            table = f"hifi table --results-dir {study.directory}"
            raise MissingError(f"no stored run of {', '.join(lacking)} counts: {table} says why")
        return cls(study, usable)

    @property
    def methods(self) -> list[str]:
        """Names of the baselines."""
        return [*dict.fromkeys(self.runs["method"])]

    @property
    def tasks(self) -> list[str]:
        """Names of their tasks."""
        return sorted(set(self.runs["task"]))

    @property
    def seeds(self) -> list[int]:
        """Seeds that any of them has."""
        return sorted(set(map(int, self.runs["seed"])))

    @property
    def protocol(self) -> str:
        """Name of their protocol."""
        return str(self.runs["protocol"].iloc[0])

    @property
    def backbone(self) -> str:
        """Name of their backbone."""
        return str(self.runs["backbone"].iloc[0])

    @property
    def shots(self) -> int | None:
        """Training rows per class; None: all."""
        shots = self.runs["shots"].iloc[0]
        return None if shots is None or pd.isna(shots) else int(shots)

    def shared_values(self, keys: Collection[str]) -> dict[str, Any]:
        """Return the keys of the configuration that have one value in all runs, with that value.

        The precision is the one that was computed in, also where the configuration says auto.
        """
        shared = {}
        for key in keys:
            values = [config.get(key) for config in self.runs["config"]]
            if key == "precision":
                values = [*self.runs["precision"]]
            # A run that was stored before the key existed says nothing about it.
            is_known = all(key in config for config in self.runs["config"])
            if is_known and all(value == values[0] for value in values):
                shared[key] = values[0]
        return shared

    @cached_property
    def search(self) -> Search:
        """The search of the baseline that tried most learning rates on a task."""
        stored = self.study.runs
        # Runs of a search are variants, which no table counts. Only a search under the baselines'
        # own protocol, backbone and shots was for them.
        is_variant = stored["variant"].notna() & stored["method"].isin(self.methods)
        own_keys = table_keys(self.runs).iloc[0]
        has_own_keys = (table_keys(stored) == own_keys).all(axis=1)
        searched = stored[is_variant & has_own_keys]
        rates = [config.get("learning_rate") for config in searched["config"]]
        counts = searched.assign(rate=rates).groupby(["method", "task"])["rate"].nunique()
        # A single rate was tried, and nothing chosen.
        if counts.empty or counts.max() < 2:
            return NO_SEARCH
        method = str(counts.idxmax()[0])
        runs = searched[searched["method"] == method]
        # The first run stands for all of the search.
        config = runs["config"].iloc[0]
        return Search(
            method=method,
            rates=int(counts.max()),
            tasks=sorted(set(runs["task"])),
            seeds=sorted(set(map(int, runs["seed"]))),
            selection=config["selection"],
            holdout=config["holdout"],
        )


# --- before a run trains


def comparable_with(
    baselines: Baselines, planned: Mapping[str, Mapping[str, Any]]
) -> tuple[Baselines, list[str]]:
    """Leave the stored runs out that the planned ones cannot be compared with.

    Args:
        baselines: the stored runs.
        planned: of each task, what the planned runs have in the columns of `CONDITIONS`, and
            `schema_version` and `own_epochs`.

    Returns:
        The others, and a sentence on those that are left out.
    """
    # Runs of two schemas say too little of each other.
    required = {"schema_version": "schema of the record"}
    required |= required_conditions(CONDITIONS, OPTIONS.included)
    reasons = []
    for run in baselines.runs.to_dict("records"):
        reasons.append(_difference_in_words(run, planned[run["task"]], required))
    fits = np.array([reason == "" for reason in reasons])
    # One sentence for all runs of a method and task that are left out for the same reason.
    counts: Counter[tuple[str, str, str]] = Counter()
    for run, reason in zip(baselines.runs.itertuples(), reasons, strict=True):
        if reason:
            counts[run.method, run.task, reason] += 1
    notes = []
    for (method, task, reason), count in counts.items():
        where = f"{label_of('methods', method)} on {label_of('tasks', task)}"
        runs = counted_noun(count, "stored run")
        notes.append(f"{where}: {runs} cannot be compared: different {reason}")
    return Baselines(baselines.study, baselines.runs[fits]), notes


def _difference_in_words(
    run: Mapping[str, Any], planned: Mapping[str, Any], required: Mapping[str, str]
) -> str:
    """Return in words what a stored run and a planned one differ in, and which keys would make them agree.

    Args:
        run: the stored run, values by column.
        planned: likewise.
        required: names of the conditions by column.

    Returns:
        Empty where they agree.
    """
    found = differences(run, planned, required)
    if not found:
        return ""
    text = f"{', '.join(found)} (stored and here)"
    words = []
    for column, name in required.items():
        # One column at a time: all that differ must be keys, or no words would be enough.
        if not differences(run, planned, {column: name}):
            continue
        if column not in _KEY_OF_COLUMN:
            return text
        words.append(f"{_KEY_OF_COLUMN[column]}={override_value(_plain(run[column]))}")
    return f"{text}; add {' '.join(words)}"


def _plain(value: Any) -> Any:
    """Return a value of a column as the configuration has it: whole numbers and None."""
    if isinstance(value, list | dict | str | bool) or value is None:
        return value
    if pd.isna(value):
        return None
    if float(value).is_integer():
        return int(value)
    return float(value)


@dataclass(frozen=True)
class Outlook:
    """The best case of a planned comparison: every pair of runs differs in one direction.

    Attributes:
        method: the baseline.
        pairs: number of pairs of runs of each task.
        smallest_p: of the sign-flip test, after Holm's correction for all comparisons.
        comparisons: their number.
    """

    method: str
    pairs: dict[str, int]
    smallest_p: float
    comparisons: int

    @property
    def can_decide(self) -> bool:
        """Whether a verdict is possible."""
        return self.smallest_p < LEVEL

    @property
    def needed_seeds(self) -> int:
        """The smallest number of seeds on the same tasks with which a verdict is possible."""
        return seeds_that_reach(LEVEL / self.comparisons, len(self.pairs))

    def __str__(self) -> str:
        """Return in words whether a verdict is possible, and why it is not."""
        pairs = counted_noun(sum(self.pairs.values()), "pair")
        tasks = counted_noun(len(self.pairs), "task")
        begin = f"{label_of('methods', self.method)}: {pairs} on {tasks}"
        if self.can_decide:
            return f"{begin}, a verdict is possible"
        correction = ""
        if self.comparisons > 1:
            correction = f" after Holm's correction for {self.comparisons} comparisons"
        return (
            f"{begin}, no verdict is possible: even if all pairs agreed, p would be"
            f" {self.smallest_p:.2g}{correction}, and a verdict takes p < {LEVEL:g}"
        )


def outlooks(baselines: Baselines, seeds: Collection[int]) -> list[Outlook]:
    """Return what each comparison can say at best, if runs with some seeds are trained."""
    runs = baselines.runs[baselines.runs["seed"].isin(seeds)]
    pairs = {}
    for method, of_method in runs.groupby("method", sort=False):
        pairs[str(method)] = {str(task): len(rows) for task, rows in of_method.groupby("task")}
    corrected = holm([smallest_p(sum(of_tasks.values())) for of_tasks in pairs.values()])
    return [
        Outlook(method, of_tasks, p, len(pairs))
        for (method, of_tasks), p in zip(pairs.items(), corrected, strict=True)
    ]


# --- the canary


@dataclass(frozen=True)
class CanaryResult:
    """A stored baseline that was trained again here, beside its stored scores.

    Attributes:
        method: the baseline.
        seed: of the repeated runs.
        shifts: of each task, the score here minus the stored one in points.
        limit: the smallest shift of their mean that counts as one.
    """

    method: str
    seed: int
    shifts: dict[str, float]
    limit: float

    @property
    def mean(self) -> float:
        """The shift, a mean over tasks."""
        return float(np.mean([*self.shifts.values()]))

    @property
    def holds(self) -> bool:
        """Whether this machine computes as the stored runs did, as far as can be seen."""
        return abs(self.mean) <= self.limit

    def __str__(self) -> str:
        """Return in words what was repeated and how far it is off."""
        parts = [f"{label_of('tasks', task)} {shift:+.2f}" for task, shift in self.shifts.items()]
        return (
            f"canary: {label_of('methods', self.method)}, seed {self.seed}, trained again here,"
            f" minus its stored score: {', '.join(parts)}; mean {self.mean:+.2f} points; a shift"
            f" above {self.limit:.2f} would have been seen; these runs are in no mean"
        )

    def beside(self, verdicts: Table) -> str:
        """Return the same in words, and which differences are smaller than the shift that would have been seen.

        Args:
            verdicts: the table of verdicts.
        """
        smaller = []
        for row in verdicts.rows:
            difference = row.cell("mean").value
            if difference is not None and abs(float(difference)) < self.limit:
                smaller.append(row.label)
        if not smaller:
            return str(self)
        noun = "difference" if len(smaller) == 1 else "differences"
        verb = "is" if len(smaller) == 1 else "are"
        return (
            f"{self}; the {noun} from {' and '.join(smaller)} {verb} smaller than that: the canary"
            f" could not have seen a shift as large"
        )


def canary_limit(baselines: Baselines, method: str) -> float | None:
    """Return the largest shift, in points, that a repetition of a method may have by chance.

    None: a task has a single stored seed.
    """
    runs = baselines.runs[baselines.runs["method"] == method]
    return repetition_limit([[*rows["points"]] for _, rows in runs.groupby("task")])


# --- the learning rate


@dataclass(frozen=True)
class RateChoice:
    """The learning rate that a search chose.

    Attributes:
        rate: the best one.
        failed_on: the tasks on which a tried rate learnt nothing, by the rate: every run of it
            collapsed to one class, or one diverged.
    """

    rate: float
    failed_on: dict[float, list[str]]

    def __str__(self) -> str:
        """Return in words which rate was chosen, and which ones learnt nothing."""
        parts = []
        for rate, tasks in self.failed_on.items():
            parts.append(f"{rate:g} on {', '.join(label_of('tasks', task) for task in tasks)}")
        failed = ""
        if parts:
            failed = f"collapsed to one class or diverged: {'; '.join(parts)}; "
        return f"{failed}chosen: {self.rate:g}"


def best_rate(study: Study, paths: Collection[str]) -> RateChoice:
    """Choose the learning rate with the best mean rank over tasks; the lower one of equal ones.

    Runs that collapsed to one class have the score of the majority-class baseline, which may be
    above that of runs that learn. The rates that learnt nothing on the fewest tasks are therefore
    the candidates.

    Args:
        study: has the runs of the search.
        paths: of these runs, which differ in task, seed and learning rate.

    Raises:
        MissingError: every run diverged.
    """
    tried = tried_settings(study.with_runs(study.runs[study.runs["path"].isin(paths)]))
    if tried["score"].isna().all():
        raise MissingError("every learning rate diverged: give smaller ones with --rates")
    rates = tried["learning_rate"]
    # A run that diverged has no score, and the last rank.
    ranks = tried.groupby("task")["score"].rank(ascending=False, na_option="bottom")
    mean_ranks = ranks.groupby(rates).mean()
    has_failed = tried["all_collapsed"] | tried["score"].isna()
    failed_tasks = has_failed.groupby(rates).sum()
    candidates = mean_ranks[failed_tasks == failed_tasks.min()]
    failed_on: dict[float, list[str]] = {}
    for rate, of_rate in tried[has_failed].groupby(rates):
        failed_on[float(rate)] = sorted(of_rate["task"])
    return RateChoice(float(candidates.idxmin()), failed_on)


# --- after training


def joined(baselines: Baselines, own: Study, paths: Collection[str]) -> Study:
    """Return a study of the stored runs and the new ones.

    Args:
        baselines: the stored runs, those that can be compared.
        own: has the new runs.
        paths: of the new runs.
    """
    seeds = own.runs["seed"][own.runs["path"].isin(paths)]
    stored = baselines.study.runs
    stored = stored[stored["path"].isin(baselines.runs["path"])]
    # Stored runs with other seeds have no partner.
    stored = stored[stored["seed"].isin(seeds)]
    return baselines.study.with_runs(stored).with_runs_of(own, paths)


def result_tables(study: Study, method: str, baselines: Sequence[str]) -> list[Table]:
    """Return the verdicts, the differences per task, and the mean scores.

    Args:
        study: has the stored and the new runs, as `joined` gives them.
        method: the new one.
        baselines: the others.
    """
    tables = compare_runs.compare(study, study.runs, [method, *baselines], OPTIONS)
    return [*tables, _table_of_scores(study, [method, *baselines])]


def _table_of_scores(study: Study, methods: Sequence[str]) -> Table:
    """Return mean and deviation of every method on every task."""
    first = study.runs.iloc[0]
    spec = TableSpec(
        description="Mean scores",
        protocol=first["protocol"],
        backbone=first["backbone"],
        shots=table_keys(study.runs)["shots"].iloc[0],
        rows=[
            RowSpec(method=name, label=label_of("methods", name), published=None)
            for name in methods
        ],
        columns=[
            ColumnSpec(task=task, label=label_of("tasks", task), published=task)
            for task in sorted(set(study.runs["task"]))
        ],
    )
    return score_tables.build(spec, study, OPTIONS)


def claims_of(study: Study, method: str, verdicts: Table) -> list[str]:
    """Return a sentence for each comparison: what may be claimed.

    Args:
        study: has the stored and the new runs.
        method: the new one.
        verdicts: the table of verdicts.
    """
    label = label_of("methods", method)
    own = study.runs[study.runs["method"] == method]
    sentences = []
    for row in verdicts.rows:
        stored = study.runs[study.runs["method"] == row.name]
        tasks = sorted(set(own["task"]) & set(stored["task"]))
        evidence = _evidence_in_words(row, tasks, comparisons=len(verdicts.rows))
        sentences.append(f"may be claimed: {_claim_in_words(label, row, evidence)}")
    return sentences


def _evidence_in_words(row: Row, tasks: Sequence[str], *, comparisons: int) -> str:
    """Return interval, p and number of pairs of one comparison in words.

    Args:
        row: of the table of verdicts.
        tasks: on which both methods have runs.
        comparisons: number of all comparisons, for which p is corrected.
    """
    mean = row.cell("mean")
    interval = ""
    if mean.interval:
        low, high = mean.interval
        ends = f"{format_number(low, '+.2f')} to {format_number(high, '+.2f')}"
        interval = f"95 % interval {ends}, "
    pairs = int(float(row.cell("pairs").value or 0))
    where = " and ".join(label_of("tasks", task) for task in tasks)
    return (
        f"{interval}exact sign-flip test p = {row.cell('p_holm').value:.2g} after Holm's"
        f" correction for {counted_noun(comparisons, 'comparison')},"
        f" {counted_noun(pairs, 'pair')} of runs on {where}"
    )


def _claim_in_words(label: str, row: Row, evidence: str) -> str:
    """Return in words what one verdict allows to claim, with its evidence.

    Args:
        label: of the new method.
        row: of the table of verdicts, about a baseline.
        evidence: in words.
    """
    verdict = row.cell("verdict").value
    if verdict in ("better", "worse"):
        # The words follow the sign and not the verdict: of a loss, the better method is below.
        difference = float(row.cell("mean").value or 0)
        side = "above" if difference > 0 else "below"
        return (
            f"{label} is {format_number(abs(difference), '.2f')} points {side} {row.label} ({evidence}), for new seeds"
            " on these tasks with this encoder"
        )
    if verdict == "no difference shown":
        return (
            f"no difference between {label} and {row.label} was shown ({evidence}), which does not"
            " make them equal"
        )
    return f"nothing about {label} and {row.label} ({evidence})"


@dataclass(frozen=True)
class FurtherSeeds:
    """New seeds that would show a difference as large as the one measured.

    Attributes:
        method: the baseline.
        seeds: the number of new seeds.
        tasks: on which each of them is trained, with both methods.
    """

    method: str
    seeds: int
    tasks: list[str]


def further_seeds(study: Study, method: str, verdicts: Table) -> list[FurtherSeeds]:
    """Plan new seeds for every comparison without a verdict; none where 200 would not suffice.

    The number is of new seeds alone: the runs that suggested them are not counted a second time.

    Args:
        study: has the stored and the new runs.
        method: the new one.
        verdicts: the table of verdicts.
    """
    comparable = ComparableRuns.of(study, study.runs, OPTIONS)
    plans = []
    for row in verdicts.rows:
        if row.cell("verdict").value in ("better", "worse"):
            continue
        pairs = pair(comparable, method, str(row.name))
        # More runs of methods that learn nothing would decide nothing either.
        if pairs.all_collapsed:
            continue
        by_task = pairs.by_task
        # Each comparison gets its part of the level: all of them are to be decided together.
        needed = seeds_needed([*by_task.values()], level=LEVEL / len(verdicts.rows))
        if needed:
            plans.append(FurtherSeeds(str(row.name), needed, [*by_task]))
    return plans
