"""Pairs of runs of two methods with the same task and seed, where they can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hifi_cli.config.choices import Score
from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.reports import run_filter
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.wording import counted_noun


@dataclass
class PairedRuns:
    """The runs of two methods with the same task and seed.

    Attributes:
        runs: by task and seed.
        differences: first minus second in points, by task and seed.
        notes: what was left out, and why.
    """

    first: str
    second: str
    runs: dict[str, dict[int, tuple[RunRecord, RunRecord]]] = field(default_factory=dict)
    differences: dict[str, dict[int, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def collapsed(self) -> tuple[int, int]:
        """Number of collapsed runs of the first and of the second method."""
        both = [pair for seeds in self.runs.values() for pair in seeds.values()]
        return sum("collapsed" in run.flags for run, _ in both), sum("collapsed" in run.flags for _, run in both)

    @property
    def groups(self) -> list[list[float]]:
        """The differences of each task."""
        return [list(seeds.values()) for seeds in self.differences.values()]

    @property
    def labels(self) -> tuple[str, str]:
        """The methods' labels."""
        return label_of("methods", self.first), label_of("methods", self.second)


def setting_of(
    records: Sequence[RunRecord], methods: Sequence[str], protocol: str | None, backbone: str | None, shots: str | None
) -> list[RunRecord]:
    """Return the runs of the methods under one protocol, backbone and number of shots.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are runs of several; the message names them.
    """
    options = {"protocol": protocol, "backbone": backbone, "shots": shots}
    records = [record for record in records if record.result.method in methods]
    records = [record for record in records if all(value in (None, _setting(record, key)) for key, value in options.items())]
    for method in methods:
        if not any(record.result.method == method for record in records):
            chosen = "".join(f" --{key} {value}" for key, value in options.items() if value)
            raise MissingError(f"no finished run of {method}{chosen}; make one with hifi train --method {method}")
    for key in options:
        if len({_setting(record, key) for record in records}) > 1:
            names = []
            for method in methods:
                values = {_setting(record, key) for record in records if record.result.method == method}
                names.append(f"{method}: {', '.join(sorted(values))}")
            kind = "numbers of shots" if key == "shots" else f"{key}s"
            raise UsageError(f"there are runs of several {kind}: choose one with --{key} ({'; '.join(names)})")
    return records


def paired(
    records: Sequence[RunRecord], first: str, second: str, *, tasks: Sequence[str], score: Score | None, counted: frozenset[str]
) -> PairedRuns:
    """Pair two methods' runs by task and seed, where they agree in everything that a comparison requires.

    Args:
        tasks: only these; empty: all that either was run on.
        counted: flags whose runs are counted.
    """
    pairs = PairedRuns(first, second)
    records = [record for record in records if not tasks or record.result.task in tasks]
    for task in sorted({record.result.task for record in records if record.result.method in (first, second)}):
        sides = []
        for method, label in zip((first, second), pairs.labels, strict=True):
            cell = [record for record in records if record.method_and_task == (method, task)]
            kept, notes = run_filter.comparable_runs(cell, [], counted)
            pairs.notes += [f"{label} on {label_of('tasks', task)}: {note}" for note in notes]
            sides.append({record.result.seed: record for record in kept})
        pairs.notes += [f"{label_of('tasks', task)}: {note}" for note in _pair(pairs, task, sides[0], sides[1], score, counted)]
    return pairs


def _pair(
    pairs: PairedRuns,
    task: str,
    first: dict[int, RunRecord],
    second: dict[int, RunRecord],
    score: Score | None,
    counted: frozenset[str],
) -> list[str]:
    """Add a task's pairs.

    Returns:
        What was left out.
    """
    notes = []
    if unpaired := len(first.keys() ^ second.keys()):
        notes.append(f"{counted_noun(unpaired, 'run')} left out: the other method has no run with the same seed")
    runs = {seed: (first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())}
    differing = next(filter(None, (run_filter.disagreement(*pair, score) for pair in runs.values())), None)
    if differing:
        difference = f"{' and '.join(pairs.labels)} differ in {differing}"
        if "unequal" not in counted:
            return [*notes, f"left out: {difference}; --include unequal compares them"]
        notes.append(f"compared although {difference}")
    epochs = [record.conditions["epochs"] for record in next(iter(runs.values()), ())]
    if len({*epochs}) > 1 and not differing:
        notes.append(f"epochs differ ({epochs[0]} and {epochs[1]}), as the protocol has them for the two methods")
    differences = {seed: _difference(*pair, score) for seed, pair in runs.items()}
    known = {seed: value for seed, value in differences.items() if value is not None}
    if incomplete := len(runs) - len(known):
        notes.append(f"{counted_noun(incomplete, 'pair')} left out: no common metric")
    if known:
        pairs.differences[task] = known
        pairs.runs[task] = {seed: runs[seed] for seed in known}
    return notes


def _setting(record: RunRecord, key: str) -> str:
    return record.shots if key == "shots" else str(getattr(record.result, key))


def _difference(first: RunRecord, second: RunRecord, score: Score | None) -> float | None:
    """Return the difference in points of the first run's primary metric; None where the second run did not keep it."""
    metric = first.result.primary_metric
    values = first.score(score, metric), second.score(score, metric)
    return None if values[0] is None or values[1] is None else 100 * (values[0] - values[1])
