"""`hifi compare`: one method with others, paired over tasks and seeds."""

from collections.abc import Collection, Sequence

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import Score
from hifi_cli.errors import MissingError, counted_noun
from hifi_cli.reports.pairs import COUNTED, Pairs, note_on_variants, pair, with_changes
from hifi_cli.reports.render import Table
from hifi_cli.results.study import Study
from hifi_cli.statistics import LEVEL, PairedStatistics, holm, paired_statistics, seeds_needed, smallest_p

HEADINGS = {"verdict": "Verdict", "mean": "Difference", "interval": "95 % interval", "p_holm": "p (Holm)"}
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
    score: Score | None = None,
    counted: Collection[str] = COUNTED,
) -> list[Table]:
    """Compare the first method with each of the others: a table of verdicts and one of differences per task.

    Args:
        runs: rows of `Study.runs`, of one setting.

    Raises:
        MissingError: no comparison has a pair.
    """
    first, others = methods[0], methods[1:]
    compared = with_changes(study, runs[runs["method"].isin(methods)])
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
        needed = seeds_needed(pairs.groups, level=LEVEL / len(all_pairs)) if word == NOT_SHOWN else None
        if needed:
            notes.append(f"{pairs.labels[1]}: about {needed} seeds are needed to show a difference as large as now")
    if any(row["verdict"] == NOT_SHOWN for row in rows):
        notes.insert(0, f"{NOT_SHOWN} is not equality")
    chosen = {(score or report, selection) for report, selection in zip(runs["report"], runs["selection"], strict=True)}
    if any(name == "max" or (name, selection) == ("best", "validation") for name, selection in chosen):
        notes.append("the epoch was chosen on the reported split: all scores are slightly too high; --score last avoids this")
    notes += [NUMBERS, *lacking, *dict.fromkeys(note for pairs in all_pairs for note in pairs.notes)]
    run = next(runs.itertuples())
    notes += note_on_variants(study, run.protocol, run.backbone)
    setting = f"protocol {run.protocol}, backbone {run.backbone}" + ("" if pd.isna(run.shots) else f", {run.shots:.0f}-shot")
    title = f"{label_of('methods', first)} minus each other method"
    formats = {"mean": "+z.2f", "p_holm": ".3g"}
    table = Table(f"{title}, in points ({setting})", pd.DataFrame(rows), HEADINGS, "Minus", formats, notes=notes)
    return [table, _per_task(title, all_pairs)]


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


def verdict(pairs: Pairs, statistics: PairedStatistics, p: float, smallest: float) -> tuple[str, str]:
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
        return "no conclusion", f"{' and '.join(labels)}: {found} {too_few}"
    if p >= LEVEL or not statistics.excludes_zero:
        return NOT_SHOWN, ""
    ahead = 0 if statistics.mean > 0 else 1
    if diverged[ahead] > diverged[1 - ahead]:
        more = f"{labels[ahead]} is ahead, but {counted_noun(diverged[ahead], 'run')} of it diverged"
        return "no conclusion", f"{more}, {diverged[1 - ahead]} of {labels[1 - ahead]}: these have no score"
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
