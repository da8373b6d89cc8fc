"""`hifi compare`: one method with others, paired over tasks and seeds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import MissingError
from hifi_cli.reports.pairs import COUNTED, Pairs, pair, with_changes
from hifi_cli.reports.render import Table
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, PairedStatistics, holm, paired_statistics, pairs_needed, seeds_needed, smallest_p
from hifi_cli.wording import counted_noun

HEADINGS = {"verdict": "Verdict", "mean": "Difference", "interval": "95 % interval", "p_holm": "p (Holm)"}
NUMBERS = (
    "difference: mean over tasks of each task's mean over seeds, in points; 95 % t-interval and exact sign-flip test, about"
    " these tasks and new seeds"
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two methods, when others are compared at the same time.

    Attributes:
        p: after Holm's correction.
        others: uncorrected p of the other comparisons.
    """

    pairs: Pairs
    statistics: PairedStatistics
    p: float
    others: list[float]


def compare(
    study: Study,
    runs: pd.DataFrame,
    methods: Sequence[str],
    *,
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
) -> list[Table]:
    """Compare the first method with each of the others: a table of verdicts and one of differences per task.

    Args:
        runs: rows of `Study.runs`, of one setting.

    Raises:
        MissingError: a comparison has no pair.
    """
    first, others = methods[0], methods[1:]
    compared = with_changes(study, runs[runs["method"].isin(methods)])
    all_pairs = [pair(compared, first, other, score=score, counted=counted) for other in others]
    for pairs in all_pairs:
        if pairs.frame.empty:
            reason = f": {'; '.join(pairs.notes)}" if pairs.notes else "; make them with hifi train"
            raise MissingError(f"{pairs.first} and {pairs.second} share no task and seed with a usable run{reason}")
    rows, notes, seeds = [], [], []
    for comparison, sound in zip(_corrected(all_pairs), _corrected([*map(_without_collapsed, all_pairs)]), strict=True):
        word, note = _verdict_both_ways(comparison, sound)
        rows.append(_row(comparison, word))
        notes += [note] if note else []
        needed = seeds_needed(comparison.pairs.groups, level=LEVEL / len(others)) if word == "no difference shown" else None
        seeds += [f"about {needed} for {comparison.pairs.labels[1]}"] if needed else []
    if any(row["verdict"] == "no difference shown" for row in rows):
        to_show = f"; seeds needed to show one as large as now: {', '.join(seeds)}" if seeds else ""
        notes.append(f"no difference shown is not equality{to_show}")
    chosen = {(score or report, selection) for report, selection in zip(runs["report"], runs["selection"], strict=True)}
    if any(name == "max" or (name, selection) == ("best", "validation") for name, selection in chosen):
        notes.append("the epoch was chosen on the reported split: all scores are slightly too high; --score last avoids this")
    notes += [NUMBERS, *dict.fromkeys(note for pairs in all_pairs for note in pairs.notes)]
    run, every = next(runs.itertuples()), study.runs[study.runs["variant"].notna() & study.runs["method"].isin(methods)]
    if variants := int(((every["protocol"] == run.protocol) & (every["backbone"] == run.backbone)).sum()):
        notes.append(f"{counted_noun(variants, 'run')} of searches and other variants left out")
    setting = f"protocol {run.protocol}, backbone {run.backbone}" + ("" if pd.isna(run.shots) else f", {run.shots:.0f}-shot")
    title = f"{label_of('methods', first)} minus each other method"
    formats = {"mean": "+z.2f", "p_holm": ".3g"}
    table = Table(f"{title}, in points ({setting})", pd.DataFrame(rows), HEADINGS, "Minus", formats, notes=notes)
    return [table, _per_task(title, all_pairs)]


def _without_collapsed(pairs: Pairs) -> Pairs:
    frame = pairs.frame
    return replace(pairs, frame=frame[~(frame["collapsed_first"] | frame["collapsed_second"])])


def _corrected(all_pairs: Sequence[Pairs]) -> list[Comparison]:
    """Make several comparisons at once, corrected for their number."""
    statistics = [paired_statistics(pairs.groups) for pairs in all_pairs]
    ps = [comparison.p for comparison in statistics]
    corrected = holm(ps)
    return [
        Comparison(pairs, statistics[number], corrected[number], ps[:number] + ps[number + 1 :])
        for number, pairs in enumerate(all_pairs)
    ]


def _row(comparison: Comparison, word: str) -> dict[str, object]:
    pairs, interval = comparison.pairs, comparison.statistics.interval
    low, high = interval or (None, None)
    return {
        "method": pairs.second,
        "label": pairs.labels[1],
        "source": "runs",
        "verdict": word,
        "mean": comparison.statistics.mean,
        "low": low,
        "high": high,
        "interval": f"[{low:+.2f}, {high:+.2f}]" if interval else None,
        "p_holm": comparison.p,
        "pairs": comparison.statistics.pairs,
    }


def _verdict_both_ways(everything: Comparison, sound: Comparison) -> tuple[str, str]:
    """Return the verdict with and without the pairs that have a collapsed run: the two may differ."""
    frame, labels = everything.pairs.frame, everything.pairs.labels
    word, note = verdict(everything)
    collapsed = [int(frame[f"collapsed_{side}"].sum()) for side in ("first", "second")]
    if not any(collapsed):
        return word, note
    other_word, other_note = verdict(sound)
    counts = " and ".join(f"{count} of {label}'s" for count, label in zip(collapsed, labels, strict=True))
    with_them, without_them = (text or word for text, word in ((note, word), (other_note, other_word)))
    return (
        word if word == other_word else "depends on collapsed runs",
        f"{counts} {len(frame)} runs collapsed; with them: {with_them}; without them: {without_them}",
    )


def verdict(comparison: Comparison) -> tuple[str, str]:
    """Say what can be concluded from one comparison: a word about the first method, and what else a reader must know.

    A difference is shown where the test and the interval agree: the test is valid for few seeds and any distribution of
    symmetric differences, the interval says how large the difference may be.
    """
    statistics, pairs = comparison.statistics, comparison.pairs
    labels = " and ".join(pairs.labels)
    smallest = holm([smallest_p(statistics.differing), *comparison.others])[0]
    if smallest >= LEVEL:
        counts = f"{counted_noun(statistics.pairs, 'pair')}, {statistics.differing} of which differ,"
        needed = f"cannot reach p < {LEVEL:g} (smallest: {smallest:.3g}); {pairs_needed(comparison.others)} are needed"
        return "no conclusion", f"{labels}: {counts} {needed}"
    if comparison.p >= LEVEL or not statistics.excludes_zero:
        return "no difference shown", ""
    ahead = 0 if statistics.mean > 0 else 1
    if pairs.diverged[ahead] > pairs.diverged[1 - ahead]:
        diverged = f"{pairs.labels[ahead]} is ahead, but {counted_noun(pairs.diverged[ahead], 'run')} of it diverged"
        return "no conclusion", f"{diverged}, {pairs.diverged[1 - ahead]} of {pairs.labels[1 - ahead]}: these have no score"
    return ("worse" if ahead else "better"), ""


def _per_task(title: str, all_pairs: Sequence[Pairs]) -> Table:
    """Build the table of differences per task, a column per other method."""
    means = {pairs.second: pairs.frame.groupby("task")["difference"].mean() for pairs in all_pairs}
    frame = pd.DataFrame(means).sort_index()
    frame.insert(0, "label", [label_of("tasks", str(task)) for task in frame.index])
    frame.insert(1, "source", "runs")
    headings = {pairs.second: pairs.labels[1] for pairs in all_pairs}
    formats = dict.fromkeys(headings, "+z.2f")
    return Table(f"{title}, per task", frame.reset_index(names="method"), headings, "Task", formats)
