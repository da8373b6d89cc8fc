"""Which runs belong in one mean, and which may be compared; footnotes on the others."""

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.config.sources import train_arguments
from hifi_cli.files import command_line
from hifi_cli.reports.changed_settings import config_of, own_settings
from hifi_cli.reports.run_records import Results, RunRecord
from hifi_cli.reports.table import MissingRuns, SeedScore, TableCell
from hifi_cli.wording import number_ranges

_REMEDIES = {
    "limited": "--include limited includes them",
    "unequal": "--include unequal includes them",
    "collapsed": "by --exclude collapsed",
}
_DIGESTS = frozenset({"data", "encoder weights"})  # conditions whose values tell a reader nothing
_NO_SCORE = "they have no score"
COUNTED = frozenset({"collapsed"})  # predicting one class is a result of the method: leaving it out favors unstable methods


def comparable_runs(
    records: Sequence[RunRecord], seeds: Sequence[int], counted: Collection[str]
) -> tuple[list[RunRecord], list[str]]:
    """Return the runs of one method on one task that belong in one mean, and footnotes on runs left out or flagged.

    Args:
        records: finished runs of the cell.
        seeds: only these; empty: all.
        counted: flags (`collapsed`, `limited`, `unequal`) of runs that are included.
    """
    notes: list[str] = []
    selected = [record for record in records if not seeds or record.result.seed in seeds]
    if others := {record.result.seed for record in records} - {record.result.seed for record in selected}:
        remedy = f"--seeds {number_ranges({*seeds, *others})} includes them"
        notes.append(f"{_runs(len(records) - len(selected))} with other seeds left out ({remedy})")
    excluded = Counter(flag for record in selected if (flag := _excluding_flag(record, counted)))
    notes += [f"{_runs(count, flag)} left out ({_REMEDIES.get(flag, _NO_SCORE)})" for flag, count in excluded.items()]
    selected = [record for record in selected if not _excluding_flag(record, counted)]
    limited = [record for record in selected if "limited" in record.flags]  # their settings differ by the limit at least
    unlimited = [record for record in selected if record not in limited] or selected
    equal, differing = _equal(unlimited)
    if len(equal) < len(unlimited):
        verb = "included" if "unequal" in counted else f"left out ({_REMEDIES['unequal']})"
        notes.append(f"{_runs(len(unlimited) - len(equal))} with different {differing} {verb}")
        if "unequal" not in counted:
            selected = [record for record in selected if record in equal or (record in limited and unlimited is not selected)]
    changed = Counter(text for record in selected if (text := record.changed_settings))
    notes += [
        f"{'' if count == len(selected) else f'{_runs(count)} of {len(selected)} '}not the protocol's: {text}"
        for text, count in changed.items()
    ]
    flags = Counter(" and ".join(record.flags) for record in selected if record.flags)
    notes += [f"{count} of {_runs(len(selected))} {flag}, included" for flag, count in flags.items()]
    if seeds and selected and len(selected) < len(seeds):
        notes.append(f"{len(selected)} of {len(seeds)} seeds")
    return selected, notes


def disagreement(first: RunRecord, second: RunRecord, score: Score | None) -> str:
    """Return the conditions in which two runs of different methods disagree, with both values; empty where they agree.

    Epochs may differ as their protocol has them for the two methods: HiFi trains BitFit as long as BitFit's own paper.

    Args:
        score: the score that is compared; if given, the epoch that each run reports does not matter.
    """
    values, others = first.conditions, second.conditions
    keys = [key for key in values if values[key] != others[key] and not (score and key == "reported epoch")]
    if "epochs" in keys and not _has_own_epochs(first) and not _has_own_epochs(second):
        keys.remove("epochs")
    return ", ".join(
        key if key in _DIGESTS else f"{key} ({_condition(values[key])} and {_condition(others[key])})" for key in keys
    )


def _has_own_epochs(record: RunRecord) -> bool:
    """Whether a run was trained for other epochs than its protocol has for its method and task; true where that is unknown."""
    config = config_of(record.directory, record.result)
    return config is None or record.conditions["epochs"] != config.epochs


def score_cell(records: Sequence[RunRecord], notes: Sequence[str], *, metric: str | None, score: Score | None) -> TableCell:
    """Return mean and standard deviation over seeds, in percent; a footnote counts the runs without the required number."""
    values = [(record, record.score(score, metric)) for record in records]
    seed_scores = tuple(SeedScore(record.result.seed, 100 * value, record) for record, value in values if value is not None)
    if incomplete := len(values) - len(seed_scores):
        name = metric or records[0].result.primary_metric
        notes = [*notes, f"{_runs(incomplete)} left out: no {name} stored for this score"]
    scores = [seed_score.score for seed_score in seed_scores]
    return TableCell(
        mean=statistics.fmean(scores) if scores else None,
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        notes=tuple(notes),
        seed_scores=seed_scores,
    )


def missing_runs(
    method: str,
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    finished: dict[str, list[RunRecord]],
    included: dict[str, list[RunRecord]],
    setting: tuple[str, str, str | None],
    results: Results,
) -> list[MissingRuns]:
    """Return the missing runs of a method; one command holds all tasks with the same seeds.

    A run directory with a limited run needs `--force`; one with a full run of other settings is not replaced without the
    user's word, and one that collapsed or diverged would do so again. Where the runs in the means were made with keys of their
    own (`epochs=1`), the command repeats one of them.

    Args:
        finished: finished runs per task.
        included: those of them that are in the means.
        setting: backbone, protocol and shots (None: the protocol's).
    """
    tasks_by_seeds: dict[tuple[tuple[int, ...], bool, Path | None], list[str]] = {}
    for task in dict.fromkeys(tasks):
        limited = {record.result.seed for record in finished.get(task, []) if "limited" in record.flags}
        final = {record.result.seed for record in finished.get(task, [])} - limited
        final |= {record.result.seed for record in included.get(task, [])}
        example = next((record for record in included.get(task, []) if "limited" not in record.flags), None)
        for force in (False, True):
            absent = tuple(seed for seed in seeds if seed not in final and (seed in limited) is force)
            if absent:
                source = example.directory.path if example and own_settings(example.directory, example.result) else None
                tasks_by_seeds.setdefault((absent, force, source), []).append(task)
    return [
        MissingRuns(method, tuple(names), absent, _command(method, names, absent, setting, results, force, source))
        for (absent, force, source), names in tasks_by_seeds.items()
    ]


def _command(
    method: str,
    tasks: list[str],
    seeds: tuple[int, ...],
    setting: tuple[str, str, str | None],
    results: Results,
    force: bool,
    source: Path | None,
) -> str:
    if source:
        seed_words = ["--seeds", number_ranges(seeds), *(["--force"] if force else [])]
        return command_line(["hifi", "train", "--from", str(source), *seed_words, *results.arguments])
    backbone, protocol, shots = setting
    task_arguments = [registry.task_argument(task) for task in tasks]
    methods, protocol = [registry.argument_of("methods", method)], registry.argument_of("protocols", protocol)
    arguments = train_arguments(task_arguments, methods, results.backbone_argument(backbone), protocol, seeds, force=force)
    arguments += results.arguments
    arguments += [] if shots is None else ["shots=null"] if shots == "full" else ["--shots", shots]
    named = {"methods": methods, "tasks": task_arguments, "protocols": [protocol]}
    pairs = [(kind, name) for kind, names in named.items() for name in names if not registry.is_file(name)]
    unknown = [f"{kind[:-1]} {name}" for kind, name in pairs if name not in registry.names(kind)]
    remark = f"  # give the path of the YAML: {', '.join(unknown)}" if unknown else ""
    return command_line(["hifi", *arguments]) + remark


def _excluding_flag(record: RunRecord, counted: Collection[str]) -> str | None:
    """Return the first of a run's flags for which it is left out."""
    return next((flag for flag in record.flags if flag not in counted), None)


def _equal(records: list[RunRecord]) -> tuple[list[RunRecord], str]:
    """Return the largest group of runs that differ only in their seed, and the names of what differs in the others."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(str(record.identity), []).append(record)
    if len(groups) < 2:
        return records, ""
    largest = max(groups.values(), key=len)
    others = [group[0].identity for group in groups.values() if group is not largest]
    identity = largest[0].identity
    keys = [key for key in identity if any(other[key] != identity[key] for other in others)]
    names = [key for key in keys if key != "settings"] or keys
    return largest, " and ".join(names)


def _runs(count: int, flag: str = "") -> str:
    return f"{count} {flag + ' ' if flag else ''}run{'s' * (count > 1)}"


def _condition(value: object) -> str:
    return "none" if value in (None, False) else str(value)
