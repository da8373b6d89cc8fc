"""Methods against one another, paired over seeds within tasks, and a plain sentence on what may be concluded."""

from collections.abc import Sequence
from dataclasses import dataclass

from hifi_cli.errors import MissingError
from hifi_cli.reports.run_pairs import Pairs, counted_noun, paired
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.statistics import LEVEL, Evidence, evidence, holm, pairs_needed, smallest_p
from hifi_cli.reports.table import Heading, Line, Table, TableCell
from hifi_cli.reports.table_spec import label_of

NUMBERS = (
    "mean: over tasks, of each task's mean over seeds; interval: t, from the spread over seeds within each task;"
    " p: sign-flip test of the mean, two-sided, exact; all of them are about these tasks and new seeds"
)


@dataclass(frozen=True)
class Comparison:
    """What the pairs of two methods say, when others are compared at the same time.

    Attributes:
        corrected: p after Holm's correction.
        others: p of the other comparisons, as they are.
    """

    pairs: Pairs
    evidence: Evidence
    corrected: float
    others: list[float]


def compare(
    records: Sequence[RunRecord], methods: Sequence[str], *, tasks: Sequence[str], score: str | None, counted: frozenset[str]
) -> Table:
    """The first method against each of the others, corrected for their number, with a sentence on each.

    Raises:
        MissingError: a comparison has no pair.
    """

    def pairs_of(counted: frozenset[str]) -> list[Pairs]:
        return [paired(records, methods[0], other, tasks=tasks, score=score, counted=counted) for other in methods[1:]]

    all_runs, sound_runs = pairs_of(counted | {"collapsed"}), pairs_of(counted - {"collapsed"})
    chosen = all_runs if "collapsed" in counted else sound_runs
    for pairs in chosen:
        if not pairs.differences:
            why = f": {'; '.join(pairs.notes)}" if pairs.notes else "; make them with hifi train"
            raise MissingError(f"{pairs.first} and {pairs.second} share no task and seed with a usable run{why}")
    tasks = sorted({task for pairs in chosen for task in pairs.differences})
    headings = [*(Heading(label_of("tasks", task), 2) for task in tasks), Heading("Mean", 2), Heading("SD over tasks", 2)]
    headings += [Heading("95 % interval"), Heading("Pairs", 0), Heading("p", 4), Heading("p (Holm)", 4), Heading("Collapsed")]
    counted_all, counted_sound = weigh(all_runs), weigh(sound_runs)
    lines, sentences = [], []
    for number, main in enumerate(weigh(chosen)):
        collapsed = all_runs[number].collapsed
        lines.append(_line(main, collapsed, tasks))
        if collapsed[0] == collapsed[1]:
            verdicts = verdict(main, records)
        else:
            verdicts = _both_verdicts(counted_all[number], counted_sound[number], collapsed, records)
        sentences.append(f"{' and '.join(main.pairs.labels)} {_where(main.pairs)}: {verdicts}{_over_tasks(main)}")
    few = "" if records[0].shots == "full" else f", {records[0].shots}-shot"
    left_out = dict.fromkeys(note for pairs in chosen for note in pairs.notes)
    setting = f"protocol {records[0].content['protocol']}, backbone {records[0].content['backbone']}{few}"
    return Table(
        title=f"{label_of('methods', methods[0])} minus each other method, in points ({setting})",
        headings=headings,
        lines=lines,
        corner="Minus",
        notes=[*sentences, NUMBERS, *_caveats(records, score), *left_out],
    )


def weigh(all_pairs: Sequence[Pairs]) -> list[Comparison]:
    """The comparisons that are made at once, corrected for their number."""
    found = [evidence(pairs.groups) for pairs in all_pairs]
    ps = [one.p for one in found]
    corrected = holm(ps)
    return [
        Comparison(pairs, found[number], corrected[number], ps[:number] + ps[number + 1 :])
        for number, pairs in enumerate(all_pairs)
    ]


def verdict(comparison: Comparison, records: Sequence[RunRecord]) -> str:
    """What may, and what may not, be concluded from one comparison, in plain words.

    A difference is shown where the test and the interval agree on it: the test holds for few seeds of any distribution
    with symmetric differences, the interval says how large the difference may be.
    """
    found, corrected = comparison.evidence, comparison.corrected
    after_holm = " after Holm's correction" if comparison.others else ""
    smallest = holm([smallest_p(found.differing), *comparison.others])[0]
    if smallest >= LEVEL:
        pairs = counted_noun(found.pairs, "pair")
        differing = "" if found.differing == found.pairs else f", of which {found.differing} differ,"
        return (
            f"nothing may be concluded about which is better; {pairs}{differing} cannot reach p < {LEVEL:g} in this test"
            f" (smallest possible: {smallest:.3g}{after_holm}), at least"
            f" {pairs_needed(comparison.others)} that differ are needed"
        )
    p = f"p = {corrected:.3g}{after_holm}"
    if corrected >= LEVEL or not found.excludes_zero:
        reason = p if corrected >= LEVEL else f"{p}, but the interval includes 0"
        unlike = found.p >= LEVEL and _has_width(found) and found.excludes_zero
        more = ", which leaves out 0: another test could show more" if unlike else ""
        return f"a difference is not shown by this test ({reason}), nor is that they are equal; {_interval(found)}{more}"
    return _better(comparison, records, f"by {abs(found.mean):.2f} points on average ({_interval(found)}, {p})")


def _better(comparison: Comparison, records: Sequence[RunRecord], size: str) -> str:
    """The verdict for the method with the higher scores, unless it is the one that diverged more often."""
    pairs = comparison.pairs
    methods = [(pairs.first, pairs.labels[0]), (pairs.second, pairs.labels[1])]
    (method, label), (other, other_label) = methods if comparison.evidence.mean > 0 else methods[::-1]
    runs = [[run for run in records if run.cell[0] == name and run.cell[1] in pairs.runs] for name in (method, other)]
    diverged, others_diverged = (sum("diverged" in run.marks for run in own) for own in runs)
    if diverged * len(runs[1]) > others_diverged * len(runs[0]):
        return (
            f"no verdict: {label} is ahead {size}, but {diverged} of its {len(runs[0])} runs diverged against"
            f" {others_diverged} of {len(runs[1])} of {other_label}, and a diverged run has no score to count"
        )
    several = len(pairs.differences) > 1
    where, unknown = ("these tasks", "encoders") if several else ("this task", "tasks, encoders")
    return f"{label} is better on {where} {size}; nothing is said about other {unknown} or settings"


def _both_verdicts(everything: Comparison, sound: Comparison, collapsed: tuple[int, int], records: Sequence[RunRecord]) -> str:
    """The verdicts with and without pairs that have a collapsed run: one alone would hide what the other shows."""
    labels = everything.pairs.labels
    left = f"{counted_noun(sound.evidence.pairs, 'pair')} on {counted_noun(len(sound.pairs.differences), 'task')}"
    return (
        f"{collapsed[0]} of {labels[0]}'s and {collapsed[1]} of {labels[1]}'s {everything.evidence.pairs} runs collapsed."
        f" With them: {verdict(everything, records)}. Without them ({left}): {verdict(sound, records)}"
    )


def _interval(found: Evidence) -> str:
    if found.interval is None:
        return "no interval: a task with one pair shows no spread over seeds"
    if not _has_width(found):
        return "all differences within a task are equal, so that the interval has no width"
    return f"95 % interval of the mean difference {_span(found)} points"


def _span(found: Evidence) -> str | None:
    if found.interval is None:
        return None
    return f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}" if _has_width(found) else "no width"


def _has_width(found: Evidence) -> bool:
    return found.interval is not None and found.interval[0] < found.interval[1]


def _line(comparison: Comparison, collapsed: tuple[int, int], tasks: list[str]) -> Line:
    found, differences = comparison.evidence, comparison.pairs.differences
    means = [list(differences.get(task, {}).values()) for task in tasks]
    cells = [_signed(sum(values) / len(values)) if values else TableCell() for values in means]
    numbers = [
        TableCell(found.spread),
        TableCell(text=_span(found)),
        TableCell(float(found.pairs)),
        TableCell(found.p),
        TableCell(comparison.corrected),
    ]
    return Line(
        comparison.pairs.labels[1],
        (*cells, _signed(found.mean), *numbers, TableCell(text=f"{collapsed[0]} / {collapsed[1]}")),
        method=comparison.pairs.second,
    )


def _signed(value: float) -> TableCell:
    return TableCell(value, text=f"{value:+.2f}")


def _where(pairs: Pairs) -> str:
    tasks = [label_of("tasks", task) for task in pairs.differences]
    seeds = len({seed for own in pairs.differences.values() for seed in own})
    return f"on {', '.join(tasks)} ({counted_noun(len(tasks), 'task')}, {counted_noun(seeds, 'seed')})"


def _over_tasks(comparison: Comparison) -> str:
    """How far the tasks differ from one another, and what follows for tasks like them; empty for one task."""
    interval = comparison.evidence.over_tasks
    if interval is None:
        return ""
    means = {label_of("tasks", task): sum(own.values()) / len(own) for task, own in comparison.pairs.differences.items()}
    low, high = min(means, key=lambda task: means[task]), max(means, key=lambda task: means[task])
    shown = "" if interval[0] * interval[1] > 0 else ": no difference is shown for other tasks"
    return (
        f"; the tasks' own differences lie between {means[low]:+.2f} ({low}) and {means[high]:+.2f} ({high}), and if they were"
        f" a random sample of tasks, the 95 % interval would be {interval[0]:+.2f} to {interval[1]:+.2f} points{shown}"
    )


def _caveats(records: Sequence[RunRecord], score: str | None) -> list[str]:
    """What flatters both sides."""
    chosen = {score or record.content["report"] for record in records}
    if chosen <= {"last"} or all(record.content.get("selection") == "holdout" for record in records):
        return []
    return ["the epoch was chosen on the split that is reported: scores are a little optimistic; --score last is not"]
