"""Which runs of a cell belong in one mean, and why the others do not."""

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from hifi_cli import registry
from hifi_cli.reports.records import Record
from hifi_cli.reports.table import Cell, Missing, Sample


def comparable(found: Sequence[Record], seeds: Sequence[int], include: Iterable[str]) -> tuple[list[Record], list[str]]:
    """The runs of one method on one task that may stand in one mean, and a footnote for each kind left out or let in.

    Args:
        found: finished runs of the cell.
        seeds: the wanted ones; empty: all.
        include: marks (`limited`, `collapsed`, `unequal`) whose runs are counted all the same.
    """
    include = set(include)
    notes: list[str] = []
    kept = [one for one in found if not seeds or one.content["seed"] in seeds]
    if others := sorted({one.content["seed"] for one in found} - {one.content["seed"] for one in kept}):
        listed = ",".join(map(str, others))
        notes.append(f"{_runs(len(found) - len(kept))} of other seeds left out (--seeds {listed} takes them)")
    for mark, count in Counter(refused for one in kept if (refused := _refused(one, include))).items():
        notes.append(f"{_runs(count, mark)} left out")
    kept = [one for one in kept if not _refused(one, include)]
    for marks, count in Counter(" and ".join(one.marks) for one in kept if one.marks).items():
        notes.append(f"{_runs(count, marks)} counted")
    asked = [one for one in kept if "limited" in one.marks]  # their settings differ by the limit at least
    whole = [one for one in kept if one not in asked] or kept
    equal, differing = _equal(whole)
    if len(equal) < len(whole):
        counted = "unequal" in include
        notes.append(f"{_runs(len(whole) - len(equal))} of other {differing} {'counted' if counted else 'left out'}")
        kept = kept if counted else [one for one in kept if one in equal or (one in asked and whole is not kept)]
    if seeds and kept and len(kept) < len(seeds):
        notes.append(f"{len(kept)} of {len(seeds)} seeds")
    return kept, notes


def cell(records: Sequence[Record], notes: Sequence[str], *, metric: str | None, score: str | None) -> Cell:
    """Mean and deviation over seeds, in percent; runs that did not keep the wanted number are left out with a footnote."""
    values = [(one, one.score(score, metric)) for one in records]
    samples = tuple(Sample(one.content["seed"], 100 * value, one) for one, value in values if value is not None)
    if lost := len(values) - len(samples):
        notes = [*notes, f"{_runs(lost)} did not keep {metric} at the wanted epoch and {'is' if lost == 1 else 'are'} left out"]
    scores = [sample.score for sample in samples]
    return Cell(
        mean=statistics.fmean(scores) if scores else None,
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        notes=tuple(notes),
        samples=samples,
    )


def missing(
    method: str,
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    there: dict[str, list[Record]],
    kept: dict[str, list[Record]],
    setting: tuple[str, str],
    results_dir: Path,
) -> list[Missing]:
    """The runs a method lacks, tasks with the same seeds in one command.

    A run whose place is taken by a limited or unequal one needs `--force`; one that collapsed or diverged would do so again.

    Args:
        there: finished runs per task.
        kept: those of them that are in the means.
        setting: backbone and protocol.
    """
    wanted: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for task in dict.fromkeys(tasks):
        final = {one.content["seed"] for one in there.get(task, []) if {"collapsed", "diverged"} & set(one.marks)}
        final |= {one.content["seed"] for one in kept.get(task, [])}
        taken = {one.content["seed"] for one in there.get(task, [])}
        for forced in (False, True):
            absent = tuple(seed for seed in seeds if seed not in final and (seed in taken) is forced)
            if absent:
                wanted.setdefault((absent, forced), []).append(task)
    return [
        Missing(method, tuple(names), absent, _command(method, names, absent, setting, results_dir, forced))
        for (absent, forced), names in wanted.items()
    ]


def _command(
    method: str, tasks: list[str], seeds: tuple[int, ...], setting: tuple[str, str], results_dir: Path, forced: bool
) -> str:
    words = ["--task", ",".join(tasks), "--method", method, "--backbone", setting[0], "--protocol", setting[1]]
    words += ["--seeds", ",".join(map(str, seeds))]
    words += ["--results-dir", str(results_dir)] if results_dir != Path("results") else []
    words += ["--force"] if forced else []
    named = {"methods": [method], "tasks": tasks, "protocols": [setting[1]]}
    unknown = [f"{kind[:-1]} {name}" for kind, names in named.items() for name in names if name not in registry.names(kind)]
    remark = f"  # not there yet: {', '.join(unknown)}" if unknown else ""
    return shlex.join(["hifi", "train", *words]) + remark


def _refused(record: Record, include: set[str]) -> str | None:
    """The first of a run's marks that was not asked for."""
    return next((mark for mark in record.marks if mark not in include), None)


def _equal(kept: list[Record]) -> tuple[list[Record], str]:
    """The largest group of runs that differ in their seed only, and in what the others differ from it."""
    groups: dict[str, list[Record]] = {}
    for one in kept:
        groups.setdefault(str(one.identity), []).append(one)
    if len(groups) < 2:
        return kept, ""
    largest = max(groups.values(), key=len)
    others = [group[0].identity for group in groups.values() if group is not largest]
    own = largest[0].identity
    keys = [key for key in own if any(other[key] != own[key] for other in others)]
    plain = [key for key in keys if key != "settings"] or keys
    return largest, " and ".join(plain)


def _runs(count: int, mark: str = "") -> str:
    return f"{count} {mark + ' ' if mark else ''}run{'s' * (count > 1)}"
