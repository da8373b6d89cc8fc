"""Methods against one another, paired over seeds and tasks, and a plain sentence on what may be concluded."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.reports import collect
from hifi_cli.reports.records import Record
from hifi_cli.reports.spec import label_of
from hifi_cli.reports.statistics import FEW, LEVEL, Evidence, evidence, holm, pairs_needed
from hifi_cli.reports.table import Cell, Heading, Line, Table


@dataclass(frozen=True)
class Pairs:
    """Two methods' runs with the same task and seed.

    Attributes:
        differences: first minus second in points, per task and seed.
        collapsed: runs of the first and of the second that collapsed or diverged.
        notes: what was left out.
    """

    first: str
    second: str
    differences: dict[str, dict[int, float]]
    collapsed: tuple[int, int]
    notes: list[str] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """All differences, by task and seed."""
        return [self.differences[task][seed] for task in sorted(self.differences) for seed in sorted(self.differences[task])]


def setting_of(records: Sequence[Record], methods: Sequence[str], protocol: str | None, backbone: str | None) -> list[Record]:
    """The runs of the methods under one protocol and backbone.

    Raises:
        MissingError: a method has no finished run.
        UsageError: there are several protocols or backbones to choose from.
    """
    given = {"protocol": protocol, "backbone": backbone}
    mine = [one for one in records if one.content["method"] in methods]
    mine = [one for one in mine if all(value in (None, one.content[key]) for key, value in given.items())]
    for method in methods:
        if not any(one.content["method"] == method for one in mine):
            raise MissingError(f"no finished run of {method} there; make one with hifi train --method {method}")
    for key in given:
        if len(found := sorted({one.content[key] for one in mine})) > 1:
            raise UsageError(f"there are runs of several {key}s: say which with --{key} ({', '.join(found)})")
    return mine


def paired(
    records: Sequence[Record], first: str, second: str, *, tasks: Sequence[str], score: str | None, counted: frozenset[str]
) -> Pairs:
    """Pair two methods' runs by task and seed; only runs that may stand in one mean take part.

    Args:
        tasks: only these; empty: all that both were run on.

    Raises:
        MissingError: no pair is left.
    """
    cells: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if not tasks or record.content["task"] in tasks:
            cells[record.cell].append(record)
    notes, differences = [], {}
    for task in sorted({task for _, task in cells}):
        sides = []
        for method in (first, second):
            kept, told = collect.comparable(cells.get((method, task), []), [], counted)
            notes += [f"{label_of('methods', method)} on {label_of('tasks', task)}: {text}" for text in told]
            sides.append({one.content["seed"]: one for one in kept})
        shared = sorted(sides[0].keys() & sides[1].keys())
        if alone := len(sides[0].keys() ^ sides[1].keys()):
            notes.append(f"{label_of('tasks', task)}: {_counted(alone, 'run')} without a partner of the same seed left out")
        if len({str(side[seed].identity["data"]) for side in sides for seed in shared}) > 1:
            notes.append(f"{label_of('tasks', task)}: left out, the two methods ran on different data")
        elif shared:
            found = {seed: _difference(sides[0][seed], sides[1][seed], score) for seed in shared}
            differences[task] = {seed: value for seed, value in found.items() if value is not None}
            if lost := len(found) - len(differences[task]):
                notes.append(f"{label_of('tasks', task)}: {_counted(lost, 'pair')} without a common metric left out")
    if not any(differences.values()):
        raise MissingError(f"{first} and {second} share no task and seed with a usable run; make them with hifi train")
    counts = Counter(one.content["method"] for one in records if {"collapsed", "diverged"} & set(one.marks)
                     and (not tasks or one.content["task"] in tasks))  # fmt: skip
    return Pairs(first, second, differences, (counts[first], counts[second]), notes)


def compare(
    records: Sequence[Record], methods: Sequence[str], *, tasks: Sequence[str], score: str | None, counted: frozenset[str]
) -> Table:
    """The first method against each of the others, corrected for their number, with a sentence on each."""
    others = [paired(records, methods[0], other, tasks=tasks, score=score, counted=counted) for other in methods[1:]]
    found = [evidence(one.values) for one in others]
    corrected = holm([one.p for one in found])
    shown = sorted({task for one in others for task in one.differences})
    headings = [*(Heading(label_of("tasks", task), 2) for task in shown), Heading("Mean", 2), Heading("95 % interval")]
    headings += [Heading("Pairs", 0), Heading("p", 4), Heading("p (Holm)", 4), Heading("Collapsed", 0)]
    lines = [_line(*one, shown) for one in zip(others, found, corrected, strict=True)]
    sentences = [conclusion(*one, len(others)) for one in zip(others, found, corrected, strict=True)]
    notes = [note for one in others for note in one.notes]
    first = records[0].content
    setting = f"protocol {first['protocol']}, backbone {first['backbone']}"
    return Table(
        title=f"{label_of('methods', methods[0])} minus each other method, in points ({setting})",
        headings=headings,
        lines=lines,
        corner="Minus",
        notes=[*sentences, *_caveats(records, score), *dict.fromkeys(notes)],
    )


def conclusion(pairs: Pairs, found: Evidence, corrected: float, comparisons: int) -> str:
    """What may, and what may not, be concluded, in plain words."""
    first, second = label_of("methods", pairs.first), label_of("methods", pairs.second)
    where = _where(pairs)
    needed = pairs_needed(comparisons)
    parts = []
    if found.pairs < needed or found.smallest_p * comparisons >= LEVEL:
        parts.append(
            f"{first} and {second} {where}: nothing may be concluded about which is better; {_counted(found.pairs, 'pair')}"
            f" cannot reach p < {LEVEL:g} two-sided (smallest possible: {min(1.0, found.smallest_p * comparisons):.4g}),"
            f" at least {needed} that differ are needed"
        )
    elif corrected < LEVEL and found.interval and found.interval[0] * found.interval[1] > 0:
        better, worse = (first, second) if found.mean > 0 else (second, first)
        low, high = sorted(map(abs, found.interval))
        parts.append(
            f"{better} is better than {worse} {where}: by {abs(found.mean):.2f} points on average (95 % interval {low:.2f} to"
            f" {high:.2f}, p = {corrected:.2g}); nothing is said about other tasks, encoders or settings"
        )
    else:
        span = f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}" if found.interval else "no interval"
        parts.append(
            f"{first} and {second} {where}: a difference is not shown (p = {corrected:.2g}), and neither is that they are"
            f" equal; mean differences of {span} points agree with these runs"
        )
    if found.interval and found.pairs < FEW:
        parts.append(f"an interval from {found.pairs} pairs is narrower than it should be")
    if any(pairs.collapsed):
        parts.append(
            f"{pairs.collapsed[0]} of {first}'s and {pairs.collapsed[1]} of {second}'s runs collapsed or diverged:"
            " leaving them out flatters the method that does so more often"
        )
    return "; ".join(parts)


def _difference(first: Record, second: Record, score: str | None) -> float | None:
    """In points, of the first run's primary metric; None where the second did not keep that."""
    metric = first.content["primary_metric"]
    values = first.score(score, metric), second.score(score, metric)
    return None if values[0] is None or values[1] is None else 100 * (values[0] - values[1])


def _line(pairs: Pairs, found: Evidence, corrected: float, tasks: list[str]) -> Line:
    means = [list(pairs.differences.get(task, {}).values()) for task in tasks]
    cells = [_signed(sum(values) / len(values)) if values else Cell() for values in means]
    low_high = f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}" if found.interval else None
    numbers = [Cell(float(found.pairs)), Cell(found.p), Cell(corrected)]
    collapsed = Cell(text=f"{pairs.collapsed[0]} / {pairs.collapsed[1]}")
    label = label_of("methods", pairs.second)
    return Line(label, (*cells, _signed(found.mean), Cell(text=low_high), *numbers, collapsed), method=pairs.second)


def _signed(value: float) -> Cell:
    return Cell(value, text=f"{value:+.2f}")


def _where(pairs: Pairs) -> str:
    tasks = [label_of("tasks", task) for task in sorted(pairs.differences)]
    seeds = len({seed for one in pairs.differences.values() for seed in one})
    return f"on {', '.join(tasks)} ({_counted(len(tasks), 'task')}, {_counted(seeds, 'seed')})"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _caveats(records: Sequence[Record], score: str | None) -> list[str]:
    """What flatters both sides."""
    chosen = {score or one.content["report"] for one in records}
    if chosen <= {"last"} or all(one.content.get("selection") == "holdout" for one in records):
        return []
    return ["the epoch was chosen on the split that is reported: scores are a little optimistic; --score last is not"]
