"""Which runs of a cell belong in one mean, and why the others do not."""

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.files import command_line
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Missing, Sample, TableCell

COUNTED = frozenset({"collapsed"})  # to predict one class is an outcome of the method: without it the unstable look better


def comparable(
    records: Sequence[RunRecord], seeds: Sequence[int], counted: Collection[str]
) -> tuple[list[RunRecord], list[str]]:
    """The runs of one method on one task that may stand in one mean, and a footnote for each kind left out or counted.

    Args:
        records: finished runs of the cell.
        seeds: only these; empty: all.
        counted: marks (`collapsed`, `limited`, `unequal`) whose runs are counted.
    """
    notes: list[str] = []
    kept = [record for record in records if not seeds or record.result.seed in seeds]
    if others := sorted({record.result.seed for record in records} - {record.result.seed for record in kept}):
        listed = ",".join(map(str, others))
        notes.append(f"{_runs(len(records) - len(kept))} of other seeds left out (--seeds {listed} takes them)")
    refused = Counter(mark for record in kept if (mark := _refused(record, counted)))
    notes += [f"{_runs(count, mark)} left out" for mark, count in refused.items()]
    kept = [record for record in kept if not _refused(record, counted)]
    limited = [record for record in kept if "limited" in record.marks]  # their settings differ by the limit at least
    whole = [record for record in kept if record not in limited] or kept
    equal, differing = _equal(whole)
    if len(equal) < len(whole):
        verb = "counted" if "unequal" in counted else "left out"
        notes.append(f"{_runs(len(whole) - len(equal))} of other {differing} {verb}")
        if "unequal" not in counted:
            kept = [record for record in kept if record in equal or (record in limited and whole is not kept)]
    marks = Counter(" and ".join(record.marks) for record in kept if record.marks)
    notes += [f"{count} of {_runs(len(kept))} {mark}, counted" for mark, count in marks.items()]
    if seeds and kept and len(kept) < len(seeds):
        notes.append(f"{len(kept)} of {len(seeds)} seeds")
    return kept, notes


def cell(records: Sequence[RunRecord], notes: Sequence[str], *, metric: str | None, score: Score | None) -> TableCell:
    """Mean and deviation over seeds, in percent; runs that did not keep the required number are left out with a footnote."""
    values = [(one, one.score(score, metric)) for one in records]
    samples = tuple(Sample(one.result.seed, 100 * value, one) for one, value in values if value is not None)
    if lost := len(values) - len(samples):
        notes = [
            *notes,
            f"{_runs(lost)} did not keep {metric} at the reported epoch and {'is' if lost == 1 else 'are'} left out",
        ]
    scores = [sample.score for sample in samples]
    return TableCell(
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
    there: dict[str, list[RunRecord]],
    kept: dict[str, list[RunRecord]],
    setting: tuple[str, str, str | None],
    results_dir: Path,
) -> list[Missing]:
    """The runs a method lacks, tasks with the same seeds in one command.

    A run whose place is taken by a limited or unequal one needs `--force`; one that collapsed or diverged would do so again.

    Args:
        there: finished runs per task.
        kept: those of them that are in the means.
        setting: backbone, protocol and shots (None: as the protocol has them).
    """
    wanted: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for task in dict.fromkeys(tasks):
        final = {one.result.seed for one in there.get(task, []) if {"collapsed", "diverged"} & set(one.marks)}
        final |= {one.result.seed for one in kept.get(task, [])}
        taken = {one.result.seed for one in there.get(task, [])}
        for forced in (False, True):
            absent = tuple(seed for seed in seeds if seed not in final and (seed in taken) is forced)
            if absent:
                wanted.setdefault((absent, forced), []).append(task)
    return [
        Missing(method, tuple(names), absent, _command(method, names, absent, setting, results_dir, forced))
        for (absent, forced), names in wanted.items()
    ]


def _command(
    method: str, tasks: list[str], seeds: tuple[int, ...], setting: tuple[str, str, str | None], results_dir: Path, forced: bool
) -> str:
    backbone, protocol, shots = setting
    words = ["--task", ",".join(tasks), "--method", method, "--backbone", backbone, "--protocol", protocol]
    words += ["--seeds", ",".join(map(str, seeds))]
    words += ["--results-dir", str(results_dir)] if results_dir != Path("results") else []
    words += ["--force"] if forced else []
    words += [] if shots is None else ["shots=null"] if shots == "full" else ["--shots", shots]
    named = {"methods": [method], "tasks": tasks, "protocols": [protocol]}
    unknown = [f"{kind[:-1]} {name}" for kind, names in named.items() for name in names if name not in registry.names(kind)]
    remark = f"  # not there yet: {', '.join(unknown)}" if unknown else ""
    return command_line(["hifi", "train", *words]) + remark


def _refused(record: RunRecord, counted: Collection[str]) -> str | None:
    """The first of a run's marks with which it does not count."""
    return next((mark for mark in record.marks if mark not in counted), None)


def _equal(kept: list[RunRecord]) -> tuple[list[RunRecord], str]:
    """The largest group of runs that differ in their seed only, and in what the others differ from it."""
    groups: dict[str, list[RunRecord]] = {}
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
