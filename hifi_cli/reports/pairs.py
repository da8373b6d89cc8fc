"""Which finished runs may be averaged or compared; pairs of two methods' runs; `hifi compare`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig, Score
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import HifiError, MissingError, UsageError, counted_noun
from hifi_cli.reports.render import Table
from hifi_cli.results.record import RunDirectory
from hifi_cli.results.study import Study
from hifi_cli.statistics import (
    LEVEL,
    Groups,
    PairedStatistics,
    holm,
    paired_statistics,
    seeds_needed,
    smallest_p,
)

# Flags of runs that are counted: leaving out runs that predict one class favors unstable methods,
# and changed settings are named
COUNTED = frozenset({"collapsed", "changed"})
# Columns of runs that runs of different methods must share, with what messages call them
CONDITIONS = {
    "max_epochs": "epochs",
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
_IDENTITY = {**CONDITIONS, "method_code": "method code", "heads": "heads", "setting": "settings"}
# Keys of a configuration that tables show themselves, or that say how and not what is computed
_NOT_SETTINGS = {
    *("task", "method", "backbone", "protocol", "seed", "shots", "variant", "limit"),
    *(
        "device",
        "log_every",
        "eval_batch_size",
        "gradient_accumulation_steps",
        "kernels",
        "padding_free",
    ),
}
Notes = dict[tuple[str, str], list[str]]  # by method and task


def counted_flags(include: Iterable[str] | None, exclude: Iterable[str] | None) -> frozenset[str]:
    """The flags of runs that are counted, as `--include` and `--exclude` say."""
    return COUNTED.union(include or ()).difference(exclude or ())


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
    runs, protocol = runs[chosen], setting.get("protocol")
    if protocol and registry.own_file(protocol):  # the runs' own records name it without its file
        runs = runs.assign(protocol=pd.Series(protocol, runs.index, dtype=object))
    return runs


def only_setting(
    runs: pd.DataFrame, names: Sequence[str], *, by: str = "method", **setting: str | None
) -> pd.DataFrame:
    """Return the runs of some methods under the only protocol, backbone and number of shots.

    Args:
        by: `method`, or `backbone`: the names are then backbones.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several; the message names them.
    """
    runs = of_setting(runs[runs[by].isin(names)], **setting)
    for name in names:
        if name not in runs[by].values:
            chosen = "".join(f" --{key} {value}" for key, value in setting.items() if value)
            raise MissingError(
                f"no finished run of {name}{chosen}; make one with hifi train --{by} {name}"
            )
    for key, values in settings(runs).drop(columns=by, errors="ignore").items():
        if values.nunique() > 1:
            raise UsageError(
                f"there are runs of several {key}: choose one with --{key} ({', '.join(sorted({*values}))})"
            )
    return runs


def protocol_config(
    *,
    task: str,
    method: str,
    backbone: str,
    protocol: str,
    overrides: Sequence[str] = (),
) -> RunConfig | None:
    """Return the configuration that a protocol has for a method, task and backbone; None where one of them is unknown here.

    Args:
        backbone: its name; where it is a directory or on the hub does not matter.
    """
    source = backbone if backbone in registry.names("backbones") else f"local/{backbone}"
    try:
        config = resolve(
            task=task, method=method, backbone=source, protocol=protocol, overrides=overrides
        )
    except HifiError:
        return None
    return config.model_copy(
        update={"backbone": config.backbone.model_copy(update={"name": backbone})}
    )


def changed_settings(run: Any, config: RunConfig | None) -> str:
    """The keys of a run's configuration that are not its protocol's: `learning_rate 1e-05 (0.003)`.

    Args:
        config: what the protocol has for the run; None: that is unknown here.
    """
    if config is None or config.setting_hash == run.setting:
        return ""
    expected = flatten(config.model_dump(mode="json"))
    keys = RunConfig.model_fields.keys() - _NOT_SETTINGS
    return ", ".join(
        f"{key} {override_value(value)} ({override_value(expected.get(key))})"
        for key, value in flatten(run.config).items()
        if key.partition(".")[0] in keys and value != expected.get(key)
    )


def with_changes(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with the columns `changed`, what is not their protocol's, in words, and `own_epochs`.

    `own_epochs` says whether a run's epochs are not its protocol's: a protocol may train one
    method longer than another, as HiFi trains BitFit as long as BitFit's own paper does.
    """
    changes, expected = {}, {}
    for run in runs.drop_duplicates("setting").itertuples():
        directory = RunDirectory(study.directory / str(run.path))
        names = {
            "task": directory.own("tasks", str(run.task)),
            "method": directory.own("methods", str(run.method)),
        }
        names |= {"backbone": str(run.backbone), "protocol": str(run.protocol)}
        shots = [f"shots={override_value(run.shots)}"]
        config = protocol_config(**names, overrides=shots)
        changes[run.setting] = changed_settings(run, config)
        expected[run.setting] = config.epochs if config else None
    return runs.assign(
        changed=runs["setting"].map(changes).astype(object),
        own_epochs=runs["max_epochs"] != runs["setting"].map(expected),
    )


def note_on_variants(study: Study, protocol: str, backbone: str) -> list[str]:
    """What a table of a protocol and backbone says about runs of searches and other variants."""
    runs = study.runs[(study.runs["protocol"] == protocol) & (study.runs["backbone"] == backbone)]
    count = int(runs["variant"].notna().sum())
    noun = counted_noun(count, "run")
    return (
        [f"{noun} of searches and other variants left out (hifi table search, or --variants)"]
        if count
        else []
    )


# Runs that belong together


def differences(run: Any, other: Any, conditions: Mapping[str, str] = CONDITIONS) -> dict[str, str]:
    """The conditions in which two runs disagree, by name, with both values.

    Epochs may differ where the protocol has them so for the two methods.
    """
    found = {}
    for column, name in conditions.items():
        values = str(run[column]), str(other[column])
        is_own = column != "max_epochs" or run["own_epochs"] or other["own_epochs"]
        if values[0] != values[1] and is_own:
            shown = "" if column in ("data", "weights") else f" ({values[0]} and {values[1]})"
            found[name] = name + shown
    return found


def unlike(runs: pd.DataFrame, conditions: Mapping[str, str] = CONDITIONS) -> dict[Any, str]:
    """By index, the conditions in which runs differ from most of some runs."""
    identities = runs[[*conditions]].map(str).apply("\t".join, axis=1)
    counts = identities.value_counts(sort=False)
    if len(counts) < 2:
        return {}
    usual = runs.loc[(identities == counts.idxmax()).idxmax()]
    found = {index: [*differences(run, usual, conditions)] for index, run in runs.iterrows()}
    return {index: " and ".join(names) for index, names in found.items() if names}


def comparable(runs: pd.DataFrame, counted: Collection[str]) -> tuple[pd.DataFrame, Notes]:
    """The runs of each method and task that may be averaged or compared, and notes on those left out or unlike others.

    Args:
        runs: those of one protocol, backbone and shots, from `with_changes`.
        counted: flags (`collapsed`, `limited`, `unequal`, `changed`) of runs that are included.
    """
    reasons = pd.Series("", runs.index, dtype=object)
    if "changed" not in counted:
        is_changed = runs["changed"] != ""
        words = "run;left out, whose settings are not the protocol's: "
        reasons[is_changed] = words + runs["changed"][is_changed]
    if "limited" not in counted:
        reasons[runs["limit"].notna()] = "limited run;left out (--include limited includes them)"
    if "collapsed" not in counted:
        is_left = runs["collapsed"] & (reasons == "")
        reasons[is_left] = "collapsed run;left out (by --exclude collapsed)"
    reasons[runs["status"] != "done"] = "diverged run;left out (they have no score)"
    if "unequal" not in counted:
        # the settings of limited runs differ by the limit at least
        full = runs[(reasons == "") & runs["limit"].isna()]
        cells = (
            full.drop_duplicates(["method", "task", *_IDENTITY]).groupby(["method", "task"]).size()
        )
        for method, task in cells.index[cells > 1]:
            cell = full[(full["method"] == method) & (full["task"] == task)]
            for index, causes in unlike(cell, _IDENTITY).items():
                causes = causes.removesuffix(" and settings")
                words = f"run;with different {causes} left out (--include unequal includes them)"
                reasons[index] = words
    kept = runs[reasons == ""]
    notes: Notes = {}
    for (method, task, reason), count in Counter(
        zip(runs["method"], runs["task"], reasons, strict=True)
    ).items():
        noun, _, words = reason.partition(";")
        if reason:
            notes.setdefault((method, task), []).append(f"{counted_noun(count, noun)} {words}")
    for method, task, changed in dict.fromkeys(
        zip(kept["method"], kept["task"], kept["changed"], strict=True)
    ):
        if changed:
            notes.setdefault((method, task), []).append(f"not the protocol's: {changed}")
    return kept, notes


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
    runs = runs.assign(report=score or runs["report"])
    usable, left_out = comparable(runs, counted)
    scores = [100 * float(getattr(run, run.report)) for run in usable.itertuples()]
    usable = usable.assign(score=pd.Series(scores, usable.index, dtype=float), run=usable.index)
    sides = [usable[usable["method"] == method] for method in (first, second)]
    both = sides[0].merge(sides[1], on=["task", "seed"], suffixes=("_first", "_second"))
    unpaired = len(usable) - 2 * len(both)
    both = both.assign(difference=both["score_first"] - both["score_second"])
    both = both.dropna(subset="difference").sort_values(["task", "seed"])
    labels = {method: label_of("methods", method) for method in (first, second)}
    notes = [
        f"{labels[method]} on {label_of('tasks', task)}: {note}"
        for (method, task), texts in left_out.items()
        for note in texts
    ]
    conditions = usable[[*CONDITIONS, "own_epochs"]].to_dict("index")
    for task, of_task in both.groupby("task"):
        found: dict[str, str] = {}
        for one, other in zip(of_task["run_first"], of_task["run_second"], strict=True):
            found = differences(conditions[one], conditions[other]) | found
        if not found:
            continue
        note = f"{labels[first]} and {labels[second]} differ in {', '.join(found.values())}"
        if "unequal" in counted and "primary metric" not in found:
            note = f"compared although {note}"
        else:
            note = f"left out: {note}; --include unequal compares them"
            both = both[both["task"] != task]
        notes.append(f"{label_of('tasks', str(task))}: {note}")
    for side, label in zip(("first", "second"), labels.values(), strict=True):
        if collapsed := int(both[f"collapsed_{side}"].sum()):
            notes.append(f"{collapsed} of {len(both)} runs of {label} collapsed, included")
    if unpaired:
        noun = counted_noun(unpaired, "run")
        notes.append(f"{noun} left out: the other one has no run with the same task and seed")
    counts = runs["method"][runs["status"] != "done"].value_counts()
    return Pairs(
        first, second, both, (int(counts.get(first, 0)), int(counts.get(second, 0))), notes
    )


# What may be concluded from pairs

HEADINGS = {
    "verdict": "Verdict",
    "mean": "Difference",
    "interval": "95 % interval",
    "p_holm": "p (Holm)",
}
NUMBERS = (
    "difference: mean over tasks of each task's mean over seeds, in points; 95 % t-interval and exact sign-flip test, about"
    " these tasks and new seeds"
)
NOT_SHOWN = "no difference shown"


def compare(
    study: Study,
    runs: pd.DataFrame,
    methods: Sequence[str],
    *,
    by: str = "method",
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
) -> list[Table]:
    """Compare the first method with each of the others: a table of verdicts and one of differences per task.

    Args:
        runs: rows of `Study.runs`, of one setting.
        by: `backbone`: the names are those of backbones, and the runs those of one method.

    Raises:
        MissingError: no comparison has a pair.
    """
    first, others = methods[0], methods[1:]
    compared = with_changes(study, runs[runs[by].isin(methods)])
    if (
        by == "backbone"
    ):  # they are told apart as methods are; their weights differ, but not those of one
        weights = compared["weights"].astype(str).groupby(compared["backbone"])
        is_usual = weights.transform(lambda of_one: of_one == of_one.mode()[0])
        compared = compared.assign(method=compared["backbone"], weights=is_usual)
    found = [pair(compared, first, other, score=score, counted=counted) for other in others]
    all_pairs = [pairs for pairs in found if len(pairs.frame)]
    lacking = [
        f"{first} and {pairs.second} share no task and seed with a usable run: {'; '.join(pairs.notes)}"
        for pairs in found
        if pairs.frame.empty
    ]
    if not all_pairs:
        raise MissingError("; ".join(lacking) or f"{first} has no method to be compared with")
    statistics = [paired_statistics(pairs.groups) for pairs in all_pairs]
    ps = [each.p for each in statistics]
    rows, notes = [], []
    for at, (pairs, numbers, p) in enumerate(zip(all_pairs, statistics, holm(ps), strict=True)):
        smallest = holm([*ps[:at], smallest_p(numbers.differing), *ps[at + 1 :]])[at]
        word, note = verdict(pairs, numbers, p, smallest)
        rows.append(_row(pairs, numbers, p, word))
        notes += [note] if note else []
        needed = (
            seeds_needed(pairs.groups, level=LEVEL / len(all_pairs)) if word == NOT_SHOWN else None
        )
        if needed:
            notes.append(
                f"{pairs.labels[1]}: about {needed} seeds are needed to show a difference as large as now"
            )
    if any(row["verdict"] == NOT_SHOWN for row in rows):
        notes.insert(0, f"{NOT_SHOWN} is not equality")
    chosen = {
        (score or report, selection)
        for report, selection in zip(runs["report"], runs["selection"], strict=True)
    }
    if any(
        name == "max" or (name, selection) == ("best", "validation") for name, selection in chosen
    ):
        notes.append(
            "the epoch was chosen on the reported split: all scores are slightly too high; --score last avoids this"
        )
    notes += [
        NUMBERS,
        *lacking,
        *dict.fromkeys(note for pairs in all_pairs for note in pairs.notes),
    ]
    notes = _merged(notes)
    run = next(runs.itertuples())
    notes += note_on_variants(study, run.protocol, run.backbone)
    constant = f"method {run.method}" if by == "backbone" else f"backbone {run.backbone}"
    setting = f"protocol {run.protocol}, {constant}" + (
        "" if pd.isna(run.shots) else f", {run.shots:.0f}-shot"
    )
    title = f"{label_of('methods', first)} minus each other {by}"
    formats = {"mean": "+z.2f", "p_holm": ".3g"}
    table = Table(
        f"{title}, in points ({setting})",
        pd.DataFrame(rows),
        HEADINGS,
        "Minus",
        formats,
        notes=notes,
    )
    return [table, _per_task(title, all_pairs)]


def _merged(notes: Sequence[str]) -> list[str]:
    """Notes that say the same about several methods or tasks as one: `BitFit on RTE, LoRA on RTE: 1 run left out`."""
    subjects: dict[str, list[str]] = {}
    for note in notes:
        subject, _, text = note.partition(": ")
        subjects.setdefault(text or note, []).append(subject)
    return [
        text if text in of_text else f"{', '.join(of_text)}: {text}"
        for text, of_text in subjects.items()
    ]


def _row(pairs: Pairs, statistics: PairedStatistics, p: float, word: str) -> dict[str, object]:
    low, high = statistics.interval or (None, None)
    return {
        "method": pairs.second,
        "label": pairs.labels[1],
        "source": "runs",
        "verdict": word,
        "mean": statistics.mean,
        "low": low,
        "high": high,
        "interval": f"[{low:+.2f}, {high:+.2f}]" if statistics.interval else None,
        "p_holm": p,
        "pairs": statistics.pairs,
    }


def verdict(
    pairs: Pairs, statistics: PairedStatistics, p: float, smallest: float
) -> tuple[str, str]:
    """What can be concluded from one comparison: a word about the first method, and what else a reader must know.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and any distribution of
    symmetric differences, the interval says how large the difference may be.

    Args:
        p: after Holm's correction.
        smallest: the smallest p that so many pairs can give, likewise.
    """
    labels, diverged = pairs.labels, pairs.diverged
    if smallest >= LEVEL:
        found = f"{counted_noun(statistics.pairs, 'pair')}, {statistics.differing} of which differ,"
        too_few = f"cannot reach p < {LEVEL:g} (smallest: {smallest:.3g}): more seeds are needed"
        return "no conclusion", f"{labels[1]}: {found} {too_few}"
    if p >= LEVEL or not statistics.excludes_zero:
        return NOT_SHOWN, ""
    ahead = 0 if statistics.mean > 0 else 1
    if diverged[ahead] > diverged[1 - ahead]:
        more = (
            f"{labels[ahead]} is ahead, but {counted_noun(diverged[ahead], 'run')} of it diverged"
        )
        return (
            "no conclusion",
            f"{more}, {diverged[1 - ahead]} of {labels[1 - ahead]}: these have no score",
        )
    return ("worse" if ahead else "better"), ""


def _per_task(title: str, all_pairs: Sequence[Pairs]) -> Table:
    """The table of differences per task, a column per other method."""
    means = {pairs.second: pairs.frame.groupby("task")["difference"].mean() for pairs in all_pairs}
    frame = pd.DataFrame(means).sort_index()
    frame.insert(0, "label", [label_of("tasks", str(task)) for task in frame.index])
    frame.insert(1, "source", "runs")
    headings = {pairs.second: pairs.labels[1] for pairs in all_pairs}
    formats = dict.fromkeys(headings, "+z.2f")
    return Table(f"{title}, per task", frame.reset_index(names="method"), headings, "Task", formats)
